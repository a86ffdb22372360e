"""The output folder of a build: owned files are kept correct, foreign ones are left alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from memory_store import NotedStore

from winml_dag.engine.keys import cache_key, config_hash
from winml_dag.errors import StoreError, UsageError
from winml_dag.pipeline.commit import PublishedChange, change_folder
from winml_dag.pipeline.layout import MANIFEST
from winml_dag.pipeline.publish import OutputFolder, prepare_folder, refuse_file
from winml_dag.store.artifact import FileEntry
from winml_dag.store.blobs import BlobDamaged
from winml_dag.store.records import KeyInputs, Record

FIRST = {"export.onnx": b"exported", "model.onnx": b"model", "model.onnx.data": b"weights"}
SECOND = {"model.onnx": b"better model", "quantized.onnx": b"quantized"}
TEXTS = {MANIFEST: b"{}"}

Publish = Callable[[Mapping[str, bytes]], tuple[FileEntry, ...]]


@pytest.fixture
def store() -> NotedStore:
    return NotedStore()


@pytest.fixture
def out(tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    return folder


@pytest.fixture
def publish(store: NotedStore, tmp_path: Path) -> Publish:
    """Puts files into the store, as a stage's output."""

    def publish(files: Mapping[str, bytes]) -> tuple[FileEntry, ...]:
        made = KeyInputs("finalize", 1, {}, {name: data.hex() for name, data in files.items()}, {})
        folder = tmp_path / cache_key(made)[:8]
        folder.mkdir()
        for name, data in files.items():
            (folder / name).write_bytes(data)
        return store.publish(Record(cache_key(made), config_hash({}), made, {}), {"model": folder}).files()

    return publish


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.fixture
def publish_folder(store: NotedStore, out: Path, tmp_path: Path) -> Callable[..., PublishedChange]:
    def publish_folder(wanted: Iterable[FileEntry], owned: Iterable[FileEntry] = ()) -> PublishedChange:
        manifest = [FileEntry(MANIFEST, "", 0)] if owned else []
        output = OutputFolder(out, [*owned, *manifest], store, store.fingerprints, tmp_path / "changes")
        return output.publish(list(wanted), TEXTS)

    return publish_folder


PublishFolder = Callable[..., PublishedChange]


def test_the_first_build_writes_everything_beside_what_is_there(
    out: Path, publish: Publish, publish_folder: PublishFolder
) -> None:
    done = publish_folder(publish(FIRST))
    assert contents(out) == {**FIRST, **TEXTS, "notes.txt": b"mine"}
    assert done == PublishedChange(written=(*sorted(FIRST), MANIFEST))


def test_a_folder_that_is_as_it_should_be_is_not_touched(
    out: Path, publish: Publish, publish_folder: PublishFolder
) -> None:
    files = publish(FIRST)
    publish_folder(files)
    before = {path: written(path) for path in out.rglob("*")}
    assert not publish_folder(files, files).changed
    assert {path: written(path) for path in out.rglob("*")} == before


def written(path: Path) -> tuple[int, int, int, int]:
    """Return everything that reveals a write to *path*; reading may change the access time."""
    status = path.stat()
    return status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns


def test_the_next_build_takes_away_what_is_ours_and_no_longer_wanted(
    out: Path, publish: Publish, publish_folder: PublishFolder
) -> None:
    first, second = publish(FIRST), publish(SECOND)
    publish_folder(first)
    done = publish_folder(second, first)
    assert contents(out) == {**SECOND, **TEXTS, "notes.txt": b"mine"}
    assert set(done.removed) == {"export.onnx", "model.onnx.data"}
    assert set(done.written) == set(SECOND)


def test_a_file_of_ours_that_somebody_has_edited_is_not_taken_away(
    out: Path, publish: Publish, publish_folder: PublishFolder
) -> None:
    first, second = publish(FIRST), publish(SECOND)
    publish_folder(first)
    (out / "export.onnx").write_bytes(b"edited by hand")
    assert publish_folder(second, first).removed == ("model.onnx.data",)
    assert contents(out)["export.onnx"] == b"edited by hand"


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"broken")])
def test_a_file_of_ours_that_was_damaged_or_deleted_is_put_back(
    out: Path, publish: Publish, publish_folder: PublishFolder, damage: Callable[[Path], None]
) -> None:
    files = publish(FIRST)
    publish_folder(files)
    damage(out / "model.onnx")
    assert publish_folder(files, files) == PublishedChange(restored=("model.onnx",))
    assert contents(out) == {**FIRST, **TEXTS, "notes.txt": b"mine"}


def test_a_file_that_is_not_ours_is_never_overwritten(
    out: Path, publish: Publish, publish_folder: PublishFolder
) -> None:
    (out / "model.onnx").write_bytes(b"mine")
    with pytest.raises(UsageError, match=r"model\.onnx is in the way"):
        publish_folder(publish(FIRST))
    assert contents(out) == {"model.onnx": b"mine", "notes.txt": b"mine"}


def test_a_manifest_that_has_come_meanwhile_and_is_not_ours_is_never_overwritten(
    out: Path, publish: Publish, publish_folder: PublishFolder
) -> None:
    (out / MANIFEST).write_bytes(b"mine")
    with pytest.raises(UsageError, match="is in the way"):
        publish_folder(publish(FIRST))
    assert contents(out) == {MANIFEST: b"mine", "notes.txt": b"mine"}


def test_a_link_that_leads_nowhere_is_in_the_way_too(
    out: Path, publish: Publish, publish_folder: PublishFolder
) -> None:
    (out / "model.onnx").symlink_to(out / "nowhere")
    with pytest.raises(UsageError, match=r"model\.onnx is in the way"):
        publish_folder(publish(FIRST))
    assert (out / "model.onnx").is_symlink()


def test_overwriting_replaces_files_only_and_none_that_is_read(out: Path, store: NotedStore, tmp_path: Path) -> None:
    for name in ("theirs.onnx", "read.onnx"):
        (out / name).write_bytes(b"theirs")
    (out / "link.onnx").symlink_to(tmp_path / "elsewhere.onnx")
    read = {(out / "read.onnx").resolve(), (tmp_path / "elsewhere.onnx").resolve()}
    folder = OutputFolder(out, (), store, store.fingerprints, tmp_path / "changes", read=read, overwrite=True)
    folder.refuse_foreign(["theirs.onnx", "new.onnx"])
    for name in ("read.onnx", "link.onnx"):
        with pytest.raises(UsageError, match=rf"{name} is in the way: this build reads it.*Move it"):
            folder.refuse_foreign([name])


def test_a_file_that_is_not_ours_but_just_what_is_wanted_is_in_nobodys_way(
    out: Path, publish: Publish, publish_folder: PublishFolder
) -> None:
    (out / "model.onnx").write_bytes(FIRST["model.onnx"])
    assert "model.onnx" not in publish_folder(publish(FIRST)).written
    assert contents(out) == {**FIRST, **TEXTS, "notes.txt": b"mine"}


def test_a_damaged_blob_is_reported_and_the_folder_is_as_it_was(
    out: Path, store: NotedStore, publish: Publish, publish_folder: PublishFolder
) -> None:
    first, second = publish(FIRST), publish(SECOND)
    publish_folder(first)
    store.rot(second[-1])
    with pytest.raises(BlobDamaged):
        publish_folder(second, first)
    assert contents(out) == {**FIRST, **TEXTS, "notes.txt": b"mine"}


def test_files_in_the_folder_are_no_links_into_the_cache_and_may_be_written_to(
    out: Path, publish: Publish, publish_folder: PublishFolder
) -> None:
    publish_folder(publish(FIRST))
    for name in FIRST:
        status = (out / name).lstat()
        assert status.st_nlink == 1
        assert status.st_mode & 0o200


def test_a_build_that_begins_leaves_the_change_of_another_alone(out: Path, tmp_path: Path) -> None:
    def prepare(folder: Path) -> list[str]:
        (folder / "model.onnx").write_bytes(b"model")
        prepare_folder(out)
        return ["model.onnx"]

    change_folder(out, tmp_path / "changes", prepare)
    assert contents(out) == {"model.onnx": b"model", "notes.txt": b"mine"}


def test_preparing_leaves_no_trace(tmp_path: Path, out: Path) -> None:
    prepare_folder(out)
    prepare_folder(tmp_path / "new")
    assert contents(out) == {"notes.txt": b"mine"}
    assert not (tmp_path / "new").exists()


def test_several_builds_prepare_one_folder_at_once(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(prepare_folder, [tmp_path / "parent" / "out"] * 400)) == [None] * 400
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["notes.txt", "notes.txt/below"])
def test_a_file_where_the_folder_should_be_is_named(out: Path, name: str) -> None:
    with pytest.raises(StoreError, match=r"notes\.txt is a file"):
        refuse_file(out / name)
