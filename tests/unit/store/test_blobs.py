from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from store_samples import contents

from winml_dag.errors import StoreError
from winml_dag.store import blobs as module
from winml_dag.store.artifact import FileEntry
from winml_dag.store.blobs import STAMP_NS, BlobDamaged, Blobs
from winml_dag.store.digest import digest_bytes

DATA = b"weights" * 100
FILE = FileEntry("model.onnx.data", digest_bytes(DATA), len(DATA))


@pytest.fixture
def blobs(tmp_path) -> Blobs:
    return Blobs(tmp_path / "blobs", tmp_path / "quarantine")


@pytest.fixture
def ingest(blobs, tmp_path):
    def ingest(data: bytes = DATA) -> FileEntry:
        path = tmp_path / "model.onnx.data"
        path.write_bytes(data)
        return blobs.ingest(path, "xxh3-128")

    return ingest


def change(path, data: bytes, *, stamped: bool = False) -> None:
    path.chmod(0o644)
    path.write_bytes(data)
    if stamped:
        os.utime(path, ns=(STAMP_NS, STAMP_NS))


def test_a_blob_lies_under_its_digest_and_is_read_only(blobs, ingest, tmp_path) -> None:
    assert ingest() == FILE
    digits = FILE.digest.removeprefix("xxh3-128:")
    path = tmp_path / "blobs" / "xxh3-128" / digits[:2] / digits[2:]
    assert path == blobs.path(FILE.digest)
    assert path.read_bytes() == DATA
    assert not stat.S_IMODE(path.stat().st_mode) & 0o222
    assert not (tmp_path / "model.onnx.data").exists()


def test_ingesting_moves_the_file_itself(blobs, tmp_path) -> None:
    (tmp_path / "big").write_bytes(DATA)
    inode = (tmp_path / "big").stat().st_ino
    blobs.ingest(tmp_path / "big", "xxh3-128")
    assert blobs.path(FILE.digest).stat().st_ino == inode


def test_ingesting_the_same_bytes_again_keeps_the_sound_blob(blobs, ingest, tmp_path) -> None:
    ingest()
    inode = blobs.path(FILE.digest).stat().st_ino
    assert ingest() == FILE
    assert blobs.path(FILE.digest).stat().st_ino == inode
    assert not (tmp_path / "model.onnx.data").exists()


@pytest.mark.parametrize("stamped", [False, True])
def test_ingesting_the_right_bytes_replaces_a_damaged_blob_even_one_that_looks_sound(
    blobs, ingest, tmp_path, stamped
) -> None:
    ingest()
    change(blobs.path(FILE.digest), b"WEIGHTS" * 100, stamped=stamped)
    ingest()
    assert blobs.path(FILE.digest).read_bytes() == DATA
    assert list(contents(tmp_path / "quarantine").values()) == [b"WEIGHTS" * 100]


def test_an_ordinary_write_to_a_blob_is_noticed_by_its_time_though_the_size_is_the_same(
    blobs, ingest, tmp_path
) -> None:
    ingest()
    change(blobs.path(FILE.digest), b"WEIGHTS" * 100)
    assert blobs.missing([FILE]) == [FILE]
    assert list(contents(tmp_path / "quarantine").values()) == [b"WEIGHTS" * 100]


def test_a_blob_whose_time_alone_changed_is_hashed_once_and_stamped_again(blobs, ingest) -> None:
    ingest()
    os.utime(blobs.path(FILE.digest))
    assert blobs.missing([FILE]) == []
    assert blobs.path(FILE.digest).stat().st_mtime_ns == STAMP_NS


def test_a_short_blob_is_noticed_even_with_the_stamp_on_it(blobs, ingest) -> None:
    ingest()
    change(blobs.path(FILE.digest), DATA[:-1], stamped=True)
    assert blobs.missing([FILE]) == [FILE]


def test_silent_rot_that_no_stat_shows_is_caught_when_fetched(blobs, ingest, tmp_path) -> None:
    ingest()
    change(blobs.path(FILE.digest), b"WEIGHTS" * 100, stamped=True)
    assert blobs.missing([FILE]) == []
    with pytest.raises(BlobDamaged, match="damaged"):
        blobs.fetch(FILE, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    assert blobs.missing([FILE]) == [FILE]


def test_a_link_in_place_of_a_blob_is_never_followed(blobs, ingest, tmp_path) -> None:
    ingest()
    (tmp_path / "elsewhere").write_bytes(DATA)
    path = blobs.path(FILE.digest)
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BlobDamaged):
        blobs.fetch(FILE, tmp_path / "copy")
    assert blobs.missing([FILE]) == [FILE]
    assert (tmp_path / "elsewhere").read_bytes() == DATA


def test_a_fetched_copy_is_writable_and_writing_to_it_leaves_the_blob_alone(blobs, ingest, tmp_path) -> None:
    ingest()
    blobs.fetch(FILE, tmp_path / "copy")
    assert (tmp_path / "copy").stat().st_nlink == 1
    (tmp_path / "copy").write_bytes(b"mine now")
    assert blobs.missing([FILE]) == []
    assert blobs.is_intact(FILE.digest)


def test_an_output_that_is_a_hard_link_to_a_users_file_leaves_that_file_as_it_was(blobs, tmp_path) -> None:
    (tmp_path / "mine").write_bytes(DATA)
    before = (tmp_path / "mine").stat()
    os.link(tmp_path / "mine", tmp_path / "output")
    blobs.ingest(tmp_path / "output", "xxh3-128")
    after = (tmp_path / "mine").stat()
    assert (after.st_mode, after.st_mtime_ns, after.st_nlink) == (before.st_mode, before.st_mtime_ns, 1)
    (tmp_path / "mine").write_bytes(b"changed")
    assert blobs.is_intact(FILE.digest)


def test_a_file_that_is_written_to_while_it_is_stored_is_refused(blobs, ingest, monkeypatch) -> None:
    def digest_file(path, function):
        Path(path).chmod(0o644)
        Path(path).write_bytes(DATA)
        return original(path, function)

    original = module.digest_file
    monkeypatch.setattr(module, "digest_file", digest_file)
    with pytest.raises(StoreError, match=r"model\.onnx\.data was written to"):
        ingest()
    assert blobs.missing([FILE]) == [FILE]


def test_a_file_that_its_writer_still_writes_to_is_not_trusted_later(blobs, tmp_path) -> None:
    with open(tmp_path / "output", "wb", buffering=0) as writer:
        writer.write(DATA)
        blobs.ingest(tmp_path / "output", "xxh3-128")
        writer.seek(0)
        writer.write(b"W")
    assert blobs.missing([FILE]) == [FILE]


def test_blobs_of_both_functions_live_side_by_side(blobs, ingest, tmp_path) -> None:
    ingest()
    (tmp_path / "shared").write_bytes(DATA)
    entry = blobs.ingest(tmp_path / "shared", "sha256")
    assert entry.digest == digest_bytes(DATA, "sha256")
    assert blobs.missing([FILE, entry]) == []
    assert {blob.digest for blob in blobs.all()} == {FILE.digest, entry.digest}


def test_a_name_that_is_no_blobs_is_listed_without_a_digest(blobs, ingest, tmp_path) -> None:
    ingest()
    (tmp_path / "blobs" / "notes.txt").write_text("mine")
    assert sorted(blob.digest for blob in blobs.all()) == ["", FILE.digest]


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="needs a second file system")  # noqa: PTH112
def test_a_file_on_another_device_is_copied_in(tmp_path) -> None:
    import tempfile

    with tempfile.TemporaryDirectory(dir="/dev/shm") as elsewhere:
        if Path(elsewhere).stat().st_dev == tmp_path.stat().st_dev:
            pytest.skip("one file system only")
        blobs = Blobs(tmp_path / "blobs", tmp_path / "quarantine")
        (Path(elsewhere) / "output").write_bytes(DATA)
        blobs.ingest(Path(elsewhere) / "output", "xxh3-128")
        assert not (Path(elsewhere) / "output").exists()
    assert blobs.missing([FILE]) == []
    assert len(list(blobs.all())) == 1


def test_two_files_of_equal_bytes_are_one_blob(store, publish, tmp_path) -> None:
    record = publish(store, {"a.bin": DATA, "b.bin": DATA})
    assert len(list(store.blobs.all())) == 1
    store.fetch(record.outputs["model"], tmp_path / "fetched")
    assert contents(tmp_path / "fetched") == {"a.bin": DATA, "b.bin": DATA}


def test_a_digest_from_elsewhere_cannot_name_a_path(blobs) -> None:
    with pytest.raises(StoreError, match="not a digest"):
        blobs.path("xxh3-128:../../../../etc/passwd")


def test_a_blob_that_is_found_here_counts_as_stored_just_now(blobs, tmp_path) -> None:
    (tmp_path / "a").write_bytes(b"data")
    blob = blobs.path(blobs.ingest(tmp_path / "a", "xxh3-128").digest)
    before = blob.stat().st_ctime_ns
    (tmp_path / "b").write_bytes(b"data")
    while (tmp_path / "b").stat().st_mtime_ns <= before:  # the file system's clock advances in ticks
        (tmp_path / "b").touch()
    blobs.ingest(tmp_path / "b", "xxh3-128")
    assert blob.stat().st_ctime_ns > before
    assert blob.stat().st_mtime_ns == STAMP_NS
