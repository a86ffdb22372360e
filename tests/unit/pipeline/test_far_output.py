"""An output folder with files from a remote: errors of the cache are not reported as errors of the folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from servers.memory import MemoryRemote

from winml_dag.errors import StoreError
from winml_dag.pipeline.publish import OutputFile, OutputFolder
from winml_dag.store.artifact import FileEntry
from winml_dag.store.digest import digest_bytes
from winml_dag.store.remote.settings import TierSettings
from winml_dag.store.remote.tier import Remotes, Tier
from winml_dag.store.remote.trust import Maker, Trust
from winml_dag.store.store import Store

DATA = b"weights"
FAR = FileEntry("model.onnx", digest_bytes(DATA, "sha256"), len(DATA))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A store with FAR in its remote, and no space for fetched files."""
    remote = MemoryRemote()
    (tmp_path / "blob").write_bytes(DATA)
    remote.put(FAR.digest, tmp_path / "blob", lambda _: None)

    def behind(store: Store) -> Remotes:
        trust = Trust((), Maker("winml_dag 0.1.0"), accept_unsigned=True)
        level = Tier(remote, TierSettings("memory://"))
        return Remotes([level], store.blobs, trust, scratch=store.incoming, warn=lambda _: None, locks=store.locks)

    store = Store(tmp_path / "cache", behind)
    store.incoming.write_text("in the way")
    yield store
    store.close()


def test_a_cache_that_cannot_take_what_comes_is_told_of_and_not_the_output_folder(tmp_path: Path, store: Store) -> None:
    out = OutputFolder(tmp_path / "out", [], store, store.fingerprints, store.changes)
    with pytest.raises(StoreError, match="Cannot fetch model") as told:
        out.publish([FAR], {})
    assert "choose another cache folder" in str(told.value)
    assert not (tmp_path / "out").exists()
    with pytest.raises(StoreError, match="Cannot fetch model"):
        OutputFile(tmp_path, "model.onnx", [], store, overwrite=False).publish([FAR])
    assert not (tmp_path / "model.onnx").exists()
