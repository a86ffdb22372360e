"""Folders filled by a build without a remote, used by one with a remote: each file is compared by its own digest
function.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from servers.memory import MemoryRemote

from winml_dag.engine.inplace import InPlace
from winml_dag.pipeline.publish import OutputFolder
from winml_dag.pipeline.userstages.folder import KnownFiles
from winml_dag.store.artifact import FileEntry
from winml_dag.store.digest import digest_bytes
from winml_dag.store.remote.settings import TierSettings
from winml_dag.store.remote.tier import Remotes, Tier
from winml_dag.store.remote.trust import Maker, Trust
from winml_dag.store.store import Store

# More than is hashed without checking fingerprints.
DATA = b"weights" * 200_000


@pytest.fixture
def remote() -> MemoryRemote:
    return MemoryRemote()


@pytest.fixture
def store(tmp_path: Path, remote: MemoryRemote) -> Iterator[Store]:
    def behind(store: Store) -> Remotes:
        level = Tier(remote, TierSettings("memory://"))
        trust = Trust((), Maker("winml_dag 0.1.0"), accept_unsigned=True)
        return Remotes([level], store.blobs, trust, scratch=store.folder / "incoming", warn=lambda _: None)

    store = Store(tmp_path / "cache", behind)
    yield store
    store.close()


@pytest.fixture
def old(tmp_path: Path) -> FileEntry:
    """A file in ``out`` as in the manifest of a build without a remote."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "model.onnx").write_bytes(DATA)
    return FileEntry("model.onnx", digest_bytes(DATA), len(DATA))


def test_what_a_build_without_a_remote_has_put_is_ours_with_one(tmp_path: Path, store: Store, old: FileEntry) -> None:
    done = OutputFolder(tmp_path / "out", [old], store, store.fingerprints, store.changes).publish([], {})
    assert done.removed == ("model.onnx",)
    assert list((tmp_path / "out").iterdir()) == []


def test_one_that_was_edited_since_stays(tmp_path: Path, store: Store, old: FileEntry) -> None:
    path = tmp_path / "out" / "model.onnx"
    path.write_bytes(DATA.upper())
    done = OutputFolder(tmp_path / "out", [old], store, store.fingerprints, store.changes).publish([], {})
    assert done.removed == ()
    assert path.exists()


def test_a_file_of_a_recipes_own_stage_is_right_by_either_digest(tmp_path: Path, store: Store, old: FileEntry) -> None:
    in_place, path = InPlace(store), str(tmp_path / "out" / "model.onnx")
    new = FileEntry("model.onnx", digest_bytes(DATA, "sha256"), len(DATA))
    assert in_place.is_right(path, old)
    assert in_place.is_right(path, new)


def test_a_file_that_only_a_remote_knows_is_its_owners(
    tmp_path: Path, store: Store, remote: MemoryRemote, old: FileEntry
) -> None:
    """Equal bytes may come from others, so they do not identify the owner of this file."""
    remote.blobs[digest_bytes(DATA, "sha256")] = DATA
    known, path = KnownFiles(store), tmp_path / "out" / "model.onnx"
    assert not known.has(path)
    assert remote.calls == []
    store.fetch_ahead([FileEntry("model.onnx", digest_bytes(DATA, "sha256"), len(DATA))])
    assert known.has(path)
    assert known.has(path, old)
