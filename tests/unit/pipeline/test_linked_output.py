"""An output folder of links into the cache: how the next build treats them, unchanged or modified."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from winml_dag.engine.keys import cache_key, config_hash
from winml_dag.pipeline.commit import PublishedChange
from winml_dag.pipeline.publish import OutputFolder
from winml_dag.store.artifact import FileEntry
from winml_dag.store.blobs import STAMP_NS, BlobDamaged
from winml_dag.store.records import KeyInputs, Record
from winml_dag.store.store import Store

FILES = {"model.onnx": b"model", "model.onnx.data": b"weights"}
TEXTS: Mapping[str, bytes] = {}

PublishFolder = Callable[..., PublishedChange]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "cache")
    yield store
    store.close()


@pytest.fixture
def publish(store: Store, tmp_path: Path) -> Callable[[], tuple[FileEntry, ...]]:
    def publish() -> tuple[FileEntry, ...]:
        made = KeyInputs("finalize", 1, {}, {}, {})
        folder = tmp_path / "made"
        folder.mkdir(exist_ok=True)
        for name, data in FILES.items():
            (folder / name).write_bytes(data)
        return store.publish(Record(cache_key(made), config_hash({}), made, {}), {"model": folder}).files()

    return publish


@pytest.fixture
def wanted(publish: Callable[[], tuple[FileEntry, ...]]) -> tuple[FileEntry, ...]:
    return publish()


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def publish_folder(store: Store, out: Path, wanted: tuple[FileEntry, ...]) -> PublishFolder:
    def publish_folder(*, link: bool, owned: bool = True, folder: Path = out) -> PublishedChange:
        output = OutputFolder(folder, wanted if owned else (), store, store.fingerprints, store.changes)
        return output.publish(wanted, TEXTS, link=link)

    return publish_folder


def linked(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.stat().st_nlink > 1}


def states(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return the state that reveals writes and replacements; reading may change the access time."""
    found = {path.name: path.stat() for path in folder.iterdir()}
    return {name: (at.st_ino, at.st_nlink, at.st_mode, at.st_size, at.st_mtime_ns) for name, at in found.items()}


def test_all_files_are_links_when_links_are_asked_for(out: Path, publish_folder: PublishFolder) -> None:
    done = publish_folder(link=True, owned=False)
    assert (set(done.written), done.not_linked) == (set(FILES), ())
    assert linked(out) == set(FILES)
    assert [path.name for path in sorted(out.iterdir())] == sorted(FILES)


@pytest.mark.parametrize("link", [True, False])
def test_files_that_are_right_stay_what_they_are_copies_or_links(
    out: Path, publish_folder: PublishFolder, link: bool
) -> None:
    publish_folder(link=link, owned=False)
    before = states(out)
    assert not publish_folder(link=not link).changed
    assert states(out) == before


def test_a_link_that_was_deleted_is_put_back_as_it_is_asked_for(out: Path, publish_folder: PublishFolder) -> None:
    publish_folder(link=True, owned=False)
    (out / "model.onnx").unlink()
    assert publish_folder(link=False).restored == ("model.onnx",)
    assert linked(out) == {"model.onnx.data"}


@pytest.mark.parametrize("put_time_back", [False, True])
@pytest.mark.parametrize("link", [True, False])
def test_an_edit_through_a_link_is_noticed_whatever_its_time_and_never_put_there_again(
    out: Path,
    publish_folder: PublishFolder,
    publish: Callable[[], tuple[FileEntry, ...]],
    put_time_back: bool,
    link: bool,
) -> None:
    publish_folder(link=True, owned=False)
    (out / "model.onnx").chmod(0o644)
    (out / "model.onnx").write_bytes(b"MODEL")
    if put_time_back:
        os.utime(out / "model.onnx", ns=(STAMP_NS, STAMP_NS))
    with pytest.raises(BlobDamaged):
        publish_folder(link=link)
    assert (out / "model.onnx").read_bytes() == b"MODEL"
    # As the next build does: the stage runs again.
    publish()
    assert publish_folder(link=link).restored == ("model.onnx",)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == FILES


def test_a_file_replaced_by_another_leaves_the_cache_alone(
    out: Path, store: Store, publish_folder: PublishFolder, wanted: tuple[FileEntry, ...]
) -> None:
    publish_folder(link=True, owned=False)
    (out / "new").write_bytes(b"edited")
    (out / "new").replace(out / "model.onnx")
    assert store.missing(wanted) == []
    assert publish_folder(link=True).restored == ("model.onnx",)
    assert linked(out) == set(FILES)


def test_copies_on_another_device_are_named(publish_folder: PublishFolder, tmp_path: Path) -> None:
    if not Path("/dev/shm").is_dir():
        pytest.skip("needs a second file system")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        if Path(folder).stat().st_dev == tmp_path.stat().st_dev:
            pytest.skip("one file system only")
        done = publish_folder(link=True, owned=False, folder=Path(folder) / "out")
        assert set(done.not_linked) == set(done.written) == set(FILES)
        assert linked(Path(folder) / "out") == set()
