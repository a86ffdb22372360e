"""Folders of a build with a remote: files of builds without one, and files that lie in the remote."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from servers.memory import MemoryRemote

from winml_dag.engine.inplace import InPlace
from winml_dag.errors import StoreError
from winml_dag.pipeline.publish import OutputFile, OutputFolder
from winml_dag.pipeline.userstages.folder import KnownFiles
from winml_dag.store.artifact import FileEntry
from winml_dag.store.digest import digest_bytes
from winml_dag.store.remote.settings import TierSettings
from winml_dag.store.remote.tier import Remotes
from winml_dag.store.remote.trust import Maker, Trust
from winml_dag.store.store import Store

# More than is hashed without checking fingerprints.
DATA = b"weights" * 200_000
OLD = FileEntry("model.onnx", digest_bytes(DATA), len(DATA))
NEW = FileEntry("model.onnx", digest_bytes(DATA, "sha256"), len(DATA))


@pytest.fixture
def remote() -> MemoryRemote:
    """A remote with the new file."""
    remote = MemoryRemote()
    remote.blobs[NEW.digest] = DATA
    return remote


@pytest.fixture
def store(tmp_path: Path, remote: MemoryRemote) -> Iterator[Store]:
    def behind(store: Store) -> Remotes:
        trust = Trust((), Maker("winml_dag 0.1.0"), accept_unsigned=True)
        tiers = [(remote, TierSettings("memory://"))]
        return Remotes(tiers, store.blobs, trust, scratch=store.incoming, warn=lambda _: None, locks=store.locks)

    store = Store(tmp_path / "cache", behind)
    yield store
    store.close()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The old file, put into ``out`` by a build without a remote."""
    path = tmp_path / "out" / "model.onnx"
    path.parent.mkdir()
    path.write_bytes(DATA)
    return path


@pytest.mark.parametrize("edited", [False, True])
def test_output_of_build_without_remote_is_owned_unless_edited(store: Store, model: Path, edited: bool) -> None:
    if edited:
        model.write_bytes(DATA.upper())
    done = OutputFolder(model.parent, [OLD], store).publish([], {})
    assert done.removed == (() if edited else ("model.onnx",))
    assert model.exists() is edited


def test_own_stage_output_is_correct_by_either_digest(store: Store, model: Path) -> None:
    assert InPlace(store).is_right(str(model), OLD)
    assert InPlace(store).is_right(str(model), NEW)


def test_remote_only_blob_does_not_prove_ownership(store: Store, remote: MemoryRemote, model: Path) -> None:
    """Equal bytes may come from others, so they do not identify the owner of this file."""
    known = KnownFiles(store)
    assert not known.has(model)
    assert remote.calls == []
    store.fetch_ahead([NEW])
    assert known.has(model)
    assert known.has(model, OLD)


def test_unusable_cache_is_reported_and_output_not_created(tmp_path: Path, store: Store) -> None:
    store.incoming.write_text("in the way")
    with pytest.raises(StoreError, match="Cannot fetch model") as told:
        OutputFolder(tmp_path / "out", [], store).publish([NEW], {})
    assert "choose another cache folder" in str(told.value)
    assert not (tmp_path / "out").exists()
    with pytest.raises(StoreError, match="Cannot fetch model"):
        OutputFile(tmp_path, "model.onnx", [], store, overwrite=False).publish([NEW])
    assert not (tmp_path / "model.onnx").exists()
