"""The output folder of a build, of copies or links: owned files are kept correct, foreign ones are left alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from memory_store import NotedStore
from pipeline_samples import publish

from winml_dag.errors import StoreError, UsageError
from winml_dag.pipeline.layout import MANIFEST
from winml_dag.pipeline.publish import OutputFolder, prepare_folder, refuse_file
from winml_dag.store.artifact import FileEntry
from winml_dag.store.blobs import STAMP_NS, BlobDamaged
from winml_dag.store.commit import PublishedChange, change_folder
from winml_dag.store.store import Store

FIRST = {"export.onnx": b"exported", "model.onnx": b"model", "model.onnx.data": b"weights"}
SECOND = {"model.onnx": b"better model", "quantized.onnx": b"quantized"}
TEXTS = {MANIFEST: b"{}"}
NOTES = {"notes.txt": b"mine"}


class Folder:
    """An output folder with a file of the user's, and a store."""

    def __init__(self, place: Path) -> None:
        self.out, self.store, self._place = place / "out", NotedStore(), place
        self.out.mkdir()
        (self.out / "notes.txt").write_bytes(b"mine")

    def made(self, files: Mapping[str, bytes]) -> tuple[FileEntry, ...]:
        return publish(self.store, self._place, files)

    def put(self, wanted: Iterable[FileEntry], owned: Iterable[FileEntry] = ()) -> PublishedChange:
        manifest = [FileEntry(MANIFEST, "", 0)] if owned else []
        return OutputFolder(self.out, [*owned, *manifest], self.store).publish(list(wanted), TEXTS)

    def contents(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.out.iterdir() if path.is_file()}

    def states(self) -> dict[Path, tuple[int, int, int, int]]:
        """Return everything that reveals a write; reading may change the access time."""
        found = {path: path.stat() for path in self.out.rglob("*")}
        return {path: (at.st_size, at.st_mtime_ns, at.st_ino, at.st_ctime_ns) for path, at in found.items()}


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_first_build_writes_writable_copies_beside_user_files(folder: Folder) -> None:
    done = folder.put(folder.made(FIRST))
    assert done == PublishedChange(written=(*sorted(FIRST), MANIFEST))
    assert folder.contents() == {**FIRST, **TEXTS, **NOTES}
    for name in FIRST:
        status = (folder.out / name).lstat()
        assert status.st_nlink == 1, "no link into the cache"
        assert status.st_mode & 0o200


def test_correct_folder_is_not_touched(folder: Folder) -> None:
    files = folder.made(FIRST)
    folder.put(files)
    before = folder.states()
    assert not folder.put(files, files).changed
    assert folder.states() == before


@pytest.mark.parametrize("edited", [False, True])
def test_next_build_removes_owned_unedited_files(folder: Folder, edited: bool) -> None:
    first, second = folder.made(FIRST), folder.made(SECOND)
    folder.put(first)
    stays = {"export.onnx": b"edited by hand"} if edited else {}
    for name, data in stays.items():
        (folder.out / name).write_bytes(data)
    done = folder.put(second, first)
    assert folder.contents() == {**SECOND, **TEXTS, **NOTES, **stays}
    assert set(done.removed) == {"export.onnx", "model.onnx.data"} - stays.keys()
    assert set(done.written) == set(SECOND)


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"broken")])
def test_damaged_or_deleted_file_is_restored(folder: Folder, damage: Callable[[Path], None]) -> None:
    files = folder.made(FIRST)
    folder.put(files)
    damage(folder.out / "model.onnx")
    assert folder.put(files, files) == PublishedChange(restored=("model.onnx",))
    assert folder.contents() == {**FIRST, **TEXTS, **NOTES}


@pytest.mark.parametrize("name", ["model.onnx", MANIFEST])
@pytest.mark.parametrize("dangles", [False, True])
def test_foreign_file_or_link_is_never_overwritten(folder: Folder, name: str, dangles: bool) -> None:
    there = folder.out / name
    there.symlink_to(folder.out / "nowhere") if dangles else there.write_bytes(b"mine")
    with pytest.raises(UsageError, match=rf"{name} is in the way"):
        folder.put(folder.made(FIRST))
    assert there.is_symlink() is dangles
    assert folder.contents() == {**({} if dangles else {name: b"mine"}), **NOTES}


def test_overwrite_replaces_files_but_not_build_inputs(folder: Folder, tmp_path: Path) -> None:
    for name in ("theirs.onnx", "read.onnx"):
        (folder.out / name).write_bytes(b"theirs")
    (folder.out / "link.onnx").symlink_to(tmp_path / "elsewhere.onnx")
    read = {(folder.out / "read.onnx").resolve(), (tmp_path / "elsewhere.onnx").resolve()}
    output = OutputFolder(folder.out, (), folder.store, read=read, overwrite=True)
    output.refuse_foreign(["theirs.onnx", "new.onnx"])
    for name in ("read.onnx", "link.onnx"):
        with pytest.raises(UsageError, match=rf"{name} is in the way: this build reads it.*Move it"):
            output.refuse_foreign([name])


def test_foreign_file_with_wanted_content_is_accepted(folder: Folder) -> None:
    (folder.out / "model.onnx").write_bytes(FIRST["model.onnx"])
    assert "model.onnx" not in folder.put(folder.made(FIRST)).written
    assert folder.contents() == {**FIRST, **TEXTS, **NOTES}


def test_damaged_blob_is_reported_and_folder_unchanged(folder: Folder) -> None:
    first, second = folder.made(FIRST), folder.made(SECOND)
    folder.put(first)
    folder.store.rot(second[-1])
    with pytest.raises(BlobDamaged):
        folder.put(second, first)
    assert folder.contents() == {**FIRST, **TEXTS, **NOTES}


def test_preparing_folder_does_not_disturb_a_running_change(folder: Folder, tmp_path: Path) -> None:
    def prepare(prepared: Path) -> list[str]:
        (prepared / "model.onnx").write_bytes(b"model")
        prepare_folder(folder.out)
        return ["model.onnx"]

    change_folder(folder.out, tmp_path / "changes", prepare)
    assert folder.contents() == {"model.onnx": b"model", **NOTES}


def test_concurrent_preparation_leaves_no_trace(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(prepare_folder, [tmp_path / "parent" / "out"] * 100)) == [None] * 100
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["notes.txt", "notes.txt/below"])
def test_file_in_place_of_folder_is_named(folder: Folder, name: str) -> None:
    with pytest.raises(StoreError, match=r"notes\.txt is a file"):
        refuse_file(folder.out / name)


LINKED = {"model.onnx": b"model", "model.onnx.data": b"weights"}


class Links:
    """A store with LINKED, and a folder that they are put into."""

    def __init__(self, place: Path) -> None:
        self.out, self.store, self._place = place / "out", Store(place / "cache"), place
        self.make()

    def make(self) -> None:
        self.files = publish(self.store, self._place, LINKED)

    def put(self, *, link: bool, owned: bool = True) -> PublishedChange:
        wanted = self.files if owned else ()
        output = OutputFolder(self.out, wanted, self.store)
        return output.publish(self.files, {}, link=link)

    def linked(self) -> set[str]:
        return {path.name for path in self.out.iterdir() if path.stat().st_nlink > 1}

    def states(self) -> dict[str, tuple[int, ...]]:
        """Return the state that reveals writes and replacements; reading may change the access time."""
        found = {path.name: path.stat() for path in self.out.iterdir()}
        return {name: (at.st_ino, at.st_nlink, at.st_mode, at.st_size, at.st_mtime_ns) for name, at in found.items()}


@pytest.fixture
def links(tmp_path: Path) -> Iterator[Links]:
    links = Links(tmp_path)
    yield links
    links.store.close()


def test_deleted_link_is_restored_as_requested(links: Links) -> None:
    done = links.put(link=True, owned=False)
    assert (set(done.written), done.not_linked) == (set(LINKED), ())
    assert links.linked() == {path.name for path in links.out.iterdir()} == set(LINKED)
    (links.out / "model.onnx").unlink()
    assert links.put(link=False).restored == ("model.onnx",)
    assert links.linked() == {"model.onnx.data"}


@pytest.mark.parametrize("link", [True, False])
def test_correct_files_stay_copies_or_links(links: Links, link: bool) -> None:
    links.put(link=link, owned=False)
    before = links.states()
    assert not links.put(link=not link).changed
    assert links.states() == before


@pytest.mark.parametrize("put_time_back", [False, True])
@pytest.mark.parametrize("link", [True, False])
def test_edit_through_link_is_detected_and_not_restored_from_blob(
    links: Links, put_time_back: bool, link: bool
) -> None:
    links.put(link=True, owned=False)
    edited = links.out / "model.onnx"
    edited.chmod(0o644)
    edited.write_bytes(b"MODEL")
    if put_time_back:
        os.utime(edited, ns=(STAMP_NS, STAMP_NS))
    with pytest.raises(BlobDamaged):
        links.put(link=link)
    assert edited.read_bytes() == b"MODEL"
    links.make()  # as the next build does: the stage runs again
    assert links.put(link=link).restored == ("model.onnx",)
    assert {path.name: path.read_bytes() for path in links.out.iterdir()} == LINKED


def test_replacing_a_linked_file_does_not_affect_cache(links: Links) -> None:
    links.put(link=True, owned=False)
    (links.out / "new").write_bytes(b"edited")
    (links.out / "new").replace(links.out / "model.onnx")
    assert links.store.missing(links.files) == []
    assert links.put(link=True).restored == ("model.onnx",)
    assert links.linked() == set(LINKED)
