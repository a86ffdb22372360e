"""Hard links to blobs: instant, trusted by a stamp, and never a way to get wrong bytes out of the cache."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from store_samples import KEY, contents

from winml_dag.errors import StoreError
from winml_dag.store.artifact import FileEntry
from winml_dag.store.blobs import STAMP_NS, BlobDamaged, Blobs
from winml_dag.store.digest import digest_bytes
from winml_dag.store.records import Record
from winml_dag.store.store import Store

DATA = b"weights" * 100
FILE = FileEntry("model.onnx.data", digest_bytes(DATA), len(DATA))
FILES = {"model.onnx": b"graph", "model.onnx.data": DATA}


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    blobs = Blobs(tmp_path / "blobs", tmp_path / "quarantine")
    (tmp_path / "output").write_bytes(DATA)
    blobs.ingest(tmp_path / "output", "xxh3-128")
    return blobs


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Path]:
    """A folder on another device."""
    if not Path("/dev/shm").is_dir():
        pytest.skip("needs a second file system")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        if Path(folder).stat().st_dev == tmp_path.stat().st_dev:
            pytest.skip("one file system only")
        yield Path(folder)


def edit(path: Path, data: bytes, *, put_time_back: bool = False) -> None:
    """Edit a linked file like an editor that writes in place."""
    path.chmod(0o644)
    path.write_bytes(data)
    if put_time_back:
        os.utime(path, ns=(STAMP_NS, STAMP_NS))


def test_a_link_is_the_blob_itself_and_nobody_may_write_to_it(blobs: Blobs, tmp_path: Path) -> None:
    assert blobs.link(FILE, tmp_path / "linked", check=False)
    assert os.path.samefile(tmp_path / "linked", blobs.path(FILE.digest))  # noqa: PTH121
    assert not stat.S_IMODE((tmp_path / "linked").stat().st_mode) & 0o222
    assert blobs.missing([FILE]) == []


def test_a_link_takes_the_place_of_a_file_and_of_a_link_and_leaves_nothing_beside_it(
    blobs: Blobs, tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "model.onnx.data").write_bytes(b"old")
    for _ in range(2):
        assert blobs.link(FILE, folder / "model.onnx.data", check=False)
        assert contents(folder) == {"model.onnx.data": DATA}


def test_a_link_is_read_only_though_somebody_has_made_another_one_writable(blobs: Blobs, tmp_path: Path) -> None:
    blobs.link(FILE, tmp_path / "first", check=False)
    (tmp_path / "first").chmod(0o644)
    assert blobs.link(FILE, tmp_path / "second", check=False)
    assert not stat.S_IMODE((tmp_path / "second").stat().st_mode) & 0o222


@pytest.mark.parametrize("damage", [b"WEIGHTS" * 100, b"short"])
def test_a_blob_that_was_edited_through_a_link_is_not_linked_again(blobs: Blobs, tmp_path: Path, damage: bytes) -> None:
    blobs.link(FILE, tmp_path / "linked", check=False)
    edit(tmp_path / "linked", damage)
    with pytest.raises(BlobDamaged):
        blobs.link(FILE, tmp_path / "other", check=False)
    assert not (tmp_path / "other").exists()
    assert list(contents(tmp_path / "quarantine").values()) == [damage]
    assert (tmp_path / "linked").read_bytes() == damage


def test_an_edit_with_the_stamp_put_back_is_found_where_a_check_is_asked_for(blobs: Blobs, tmp_path: Path) -> None:
    blobs.link(FILE, tmp_path / "linked", check=False)
    edit(tmp_path / "linked", b"WEIGHTS" * 100, put_time_back=True)
    with pytest.raises(BlobDamaged):
        blobs.link(FILE, tmp_path / "other", check=True)
    assert not (tmp_path / "other").exists()


def test_a_missing_blob_is_damage_and_a_link_in_its_place_is_not_followed(blobs: Blobs, tmp_path: Path) -> None:
    blob = blobs.path(FILE.digest)
    blob.rename(tmp_path / "away")
    for prepare in (lambda: None, lambda: blob.symlink_to(tmp_path / "away")):
        prepare()
        with pytest.raises(BlobDamaged):
            blobs.link(FILE, tmp_path / "linked", check=False)
        assert not os.path.lexists(tmp_path / "linked")


def test_a_link_that_comes_back_as_an_output_is_not_the_inode_that_is_stored(blobs: Blobs, tmp_path: Path) -> None:
    blobs.link(FILE, tmp_path / "linked", check=False)
    assert blobs.ingest(tmp_path / "linked", "xxh3-128").digest == FILE.digest
    assert blobs.path(FILE.digest).stat().st_nlink == 1
    assert blobs.missing([FILE]) == []


def test_where_no_link_can_be_made_the_file_is_a_copy_and_is_named(
    store: Store, publish: Callable[..., Record], elsewhere: Path
) -> None:
    artifact = publish(store, FILES).outputs["model"]
    assert store.link(artifact, elsewhere / "out") == tuple(FILES)
    assert contents(elsewhere / "out") == FILES
    for name in FILES:
        (elsewhere / "out" / name).write_bytes(b"mine")
    assert store.missing(artifact.files) == []


def test_a_file_that_cannot_be_put_there_at_all_is_an_error_in_words(
    store: Store, publish: Callable[..., Record], tmp_path: Path
) -> None:
    artifact = publish(store, FILES).outputs["model"]
    (tmp_path / "out" / "model.onnx").mkdir(parents=True)
    with pytest.raises(StoreError, match=r"Cannot put model\.onnx into"):
        store.link(artifact, tmp_path / "out")


def test_what_was_edited_through_a_link_is_made_anew_and_then_linked(
    store: Store, publish: Callable[..., Record], tmp_path: Path
) -> None:
    record = publish(store, FILES)
    assert store.link(record.outputs["model"], tmp_path / "out") == ()
    edit(tmp_path / "out" / "model.onnx.data", b"broken")
    assert [file.name for file in store.missing(record.files())] == ["model.onnx.data"]
    assert publish(store, FILES).outputs == record.outputs
    assert store.record(KEY) is not None
    assert store.link(record.outputs["model"], tmp_path / "again") == ()
    assert contents(tmp_path / "again") == FILES
