"""Blobs: stored once under their digest, fetched as copies or hard links, and never given out when damaged."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from store_samples import contents, spoil

from winml_dag.errors import StoreError
from winml_dag.store import blobs as module
from winml_dag.store.artifact import FileEntry
from winml_dag.store.blobs import STAMP_NS, BlobDamaged, Blobs
from winml_dag.store.digest import digest_bytes
from winml_dag.store.records import Record
from winml_dag.store.store import Store

DATA, OTHER_DATA = b"weights" * 100, b"WEIGHTS" * 100
FILE = FileEntry("model.onnx.data", digest_bytes(DATA), len(DATA))
FILES = {"model.onnx": b"graph", "model.onnx.data": DATA}


@pytest.fixture
def empty(tmp_path: Path) -> Blobs:
    return Blobs(tmp_path / "blobs", tmp_path / "quarantine")


def ingest(blobs: Blobs, tmp_path: Path) -> FileEntry:
    (tmp_path / "model.onnx.data").write_bytes(DATA)
    return blobs.ingest(tmp_path / "model.onnx.data", "xxh3-128")


@pytest.fixture
def blobs(empty: Blobs, tmp_path: Path) -> Blobs:
    """Blobs with ``FILE`` among them."""
    assert ingest(empty, tmp_path) == FILE
    return empty


@pytest.fixture
def blob(blobs: Blobs) -> Path:
    return blobs.path(FILE.digest)


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Path]:
    """A folder on another device."""
    if not Path("/dev/shm").is_dir():
        pytest.skip("needs a second file system")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        if Path(folder).stat().st_dev == tmp_path.stat().st_dev:
            pytest.skip("one file system only")
        yield Path(folder)


def is_read_only(path: Path) -> bool:
    return not stat.S_IMODE(path.stat().st_mode) & 0o222


def test_ingested_file_becomes_read_only_blob_under_its_digest(empty: Blobs, tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(DATA)
    inode = (tmp_path / "big").stat().st_ino
    empty.ingest(tmp_path / "big", "xxh3-128")
    digits = FILE.digest.removeprefix("xxh3-128:")
    blob = tmp_path / "blobs" / "xxh3-128" / digits[:2] / digits[2:]
    assert blob == empty.path(FILE.digest)
    assert blob.read_bytes() == DATA
    assert blob.stat().st_ino == inode
    assert is_read_only(blob)
    assert not (tmp_path / "big").exists()


def test_ingesting_again_keeps_intact_blob_and_updates_its_time(blobs: Blobs, blob: Path, tmp_path: Path) -> None:
    before = blob.stat()
    while blob.stat().st_ctime_ns == before.st_ctime_ns:  # the clock of the file system advances in ticks
        ingest(blobs, tmp_path)
    assert not (tmp_path / "model.onnx.data").exists()
    assert (blob.stat().st_ino, blob.stat().st_mtime_ns) == (before.st_ino, STAMP_NS)


@pytest.mark.parametrize("stamped", [False, True])
def test_ingesting_again_replaces_damaged_blob(blobs: Blobs, blob: Path, tmp_path: Path, stamped: bool) -> None:
    spoil(blob, OTHER_DATA, stamped=stamped)
    ingest(blobs, tmp_path)
    assert blob.read_bytes() == DATA
    assert list(contents(tmp_path / "quarantine").values()) == [OTHER_DATA]


@pytest.mark.parametrize(("damage", "stamped"), [(OTHER_DATA, False), (DATA[:-1], False), (DATA[:-1], True)])
def test_edited_or_truncated_blob_is_missing(
    blobs: Blobs, blob: Path, tmp_path: Path, damage: bytes, stamped: bool
) -> None:
    spoil(blob, damage, stamped=stamped)
    assert blobs.missing([FILE]) == [FILE]
    assert list(contents(tmp_path / "quarantine").values()) == [damage]


def test_silent_corruption_is_detected_on_fetch(blobs: Blobs, blob: Path, tmp_path: Path) -> None:
    spoil(blob, OTHER_DATA, stamped=True)
    assert blobs.missing([FILE]) == []
    with pytest.raises(BlobDamaged, match="damaged"):
        blobs.fetch(FILE, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    assert blobs.missing([FILE]) == [FILE]


def test_blob_with_changed_time_is_rehashed_and_restamped(blobs: Blobs, blob: Path) -> None:
    os.utime(blob)
    assert blobs.missing([FILE]) == []
    assert blob.stat().st_mtime_ns == STAMP_NS


def fetch(blobs: Blobs, target: Path) -> None:
    blobs.fetch(FILE, target)


def link(blobs: Blobs, target: Path) -> None:
    assert blobs.link(FILE, target, check=False)


@pytest.mark.parametrize("take", [fetch, link])
@pytest.mark.parametrize("linked", [False, True])
def test_missing_blob_is_damage_and_link_is_not_followed(
    blobs: Blobs, blob: Path, tmp_path: Path, take: Callable[[Blobs, Path], None], linked: bool
) -> None:
    blob.rename(tmp_path / "elsewhere")
    if linked:
        blob.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BlobDamaged):
        take(blobs, tmp_path / "target")
    assert not os.path.lexists(tmp_path / "target")
    assert blobs.missing([FILE]) == [FILE]
    assert (tmp_path / "elsewhere").read_bytes() == DATA


def test_ingesting_a_hard_link_does_not_affect_the_user_file(empty: Blobs, tmp_path: Path) -> None:
    (tmp_path / "mine").write_bytes(DATA)
    before = (tmp_path / "mine").stat()
    os.link(tmp_path / "mine", tmp_path / "output")
    empty.ingest(tmp_path / "output", "xxh3-128")
    after = (tmp_path / "mine").stat()
    assert (after.st_mode, after.st_mtime_ns, after.st_nlink) == (before.st_mode, before.st_mtime_ns, 1)
    (tmp_path / "mine").write_bytes(b"changed")
    assert empty.is_intact(FILE.digest)


def test_file_written_during_ingest_is_refused(empty: Blobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_and_digest(path: Path, function: module.DigestFunction) -> str:
        spoil(Path(path), DATA)
        return digest_file(path, function)

    digest_file = module.digest_file
    monkeypatch.setattr(module, "digest_file", write_and_digest)
    with pytest.raises(StoreError, match=r"model\.onnx\.data was written to"):
        ingest(empty, tmp_path)
    assert empty.missing([FILE]) == [FILE]


def test_file_written_after_ingest_is_missing(empty: Blobs, tmp_path: Path) -> None:
    with open(tmp_path / "output", "wb", buffering=0) as writer:
        writer.write(DATA)
        empty.ingest(tmp_path / "output", "xxh3-128")
        writer.seek(0)
        writer.write(b"W")
    assert empty.missing([FILE]) == [FILE]


def test_blobs_of_both_functions_and_foreign_files_are_listed(blobs: Blobs, tmp_path: Path) -> None:
    (tmp_path / "shared").write_bytes(DATA)
    entry = blobs.ingest(tmp_path / "shared", "sha256")
    assert entry.digest == digest_bytes(DATA, "sha256")
    assert blobs.missing([FILE, entry]) == []
    (tmp_path / "blobs" / "notes.txt").write_text("mine")
    assert {found.digest for found in blobs.all()} == {FILE.digest, entry.digest, ""}


def test_file_on_other_device_is_copied_in(empty: Blobs, elsewhere: Path) -> None:
    assert ingest(empty, elsewhere) == FILE
    assert list(elsewhere.iterdir()) == []
    assert empty.missing([FILE]) == []
    assert len(list(empty.all())) == 1


def test_linked_blob_is_read_only_even_after_chmod(blobs: Blobs, blob: Path, tmp_path: Path) -> None:
    link(blobs, tmp_path / "first")
    assert os.path.samefile(tmp_path / "first", blob)  # noqa: PTH121
    (tmp_path / "first").chmod(0o644)
    link(blobs, tmp_path / "second")
    assert is_read_only(tmp_path / "second")
    assert blobs.missing([FILE]) == []


def test_link_replaces_file_or_link_without_leftovers(blobs: Blobs, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "model.onnx.data").write_bytes(b"old")
    for _ in range(2):
        link(blobs, folder / "model.onnx.data")
        assert contents(folder) == {"model.onnx.data": DATA}


@pytest.mark.parametrize(("damage", "stamped"), [(OTHER_DATA, False), (b"short", False), (OTHER_DATA, True)])
def test_blob_edited_through_link_is_not_linked_again(
    blobs: Blobs, tmp_path: Path, damage: bytes, stamped: bool
) -> None:
    """An edit with the time put back is found where a check is asked for."""
    link(blobs, tmp_path / "linked")
    spoil(tmp_path / "linked", damage, stamped=stamped)
    with pytest.raises(BlobDamaged):
        blobs.link(FILE, tmp_path / "other", check=stamped)
    assert not (tmp_path / "other").exists()
    assert list(contents(tmp_path / "quarantine").values()) == [damage]
    assert (tmp_path / "linked").read_bytes() == damage


def test_ingesting_a_linked_blob_stores_a_separate_inode(blobs: Blobs, blob: Path, tmp_path: Path) -> None:
    link(blobs, tmp_path / "linked")
    assert blobs.ingest(tmp_path / "linked", "xxh3-128").digest == FILE.digest
    assert blob.stat().st_nlink == 1
    assert blobs.missing([FILE]) == []


def test_link_falls_back_to_copy_and_names_the_file(
    store: Store, publish: Callable[..., Record], elsewhere: Path
) -> None:
    artifact = publish(store, FILES).outputs["model"]
    assert store.link(artifact, elsewhere / "out") == tuple(FILES)
    assert contents(elsewhere / "out") == FILES
    for name in FILES:
        (elsewhere / "out" / name).write_bytes(b"mine")
    assert store.missing(artifact.files) == []


def test_unplaceable_file_is_reported(store: Store, publish: Callable[..., Record], tmp_path: Path) -> None:
    artifact = publish(store, FILES).outputs["model"]
    (tmp_path / "out" / "model.onnx").mkdir(parents=True)
    with pytest.raises(StoreError, match=r"Cannot put model\.onnx into"):
        store.link(artifact, tmp_path / "out")
