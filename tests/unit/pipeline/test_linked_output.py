"""An output folder of links into the cache: how the next build treats them, unchanged or modified."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pipeline_samples import publish

from winml_dag.pipeline.commit import PublishedChange
from winml_dag.pipeline.publish import OutputFolder
from winml_dag.store.blobs import STAMP_NS, BlobDamaged
from winml_dag.store.store import Store

FILES = {"model.onnx": b"model", "model.onnx.data": b"weights"}


class Links:
    """A store with FILES, and a folder that they are put into."""

    def __init__(self, place: Path) -> None:
        self.out, self.store, self._place = place / "out", Store(place / "cache"), place
        self.make()

    def make(self) -> None:
        self.files = publish(self.store, self._place, FILES)

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


def test_a_link_that_was_deleted_is_put_back_as_it_is_asked_for(links: Links) -> None:
    done = links.put(link=True, owned=False)
    assert (set(done.written), done.not_linked) == (set(FILES), ())
    assert links.linked() == {path.name for path in links.out.iterdir()} == set(FILES)
    (links.out / "model.onnx").unlink()
    assert links.put(link=False).restored == ("model.onnx",)
    assert links.linked() == {"model.onnx.data"}


@pytest.mark.parametrize("link", [True, False])
def test_files_that_are_right_stay_what_they_are_copies_or_links(links: Links, link: bool) -> None:
    links.put(link=link, owned=False)
    before = links.states()
    assert not links.put(link=not link).changed
    assert links.states() == before


@pytest.mark.parametrize("put_time_back", [False, True])
@pytest.mark.parametrize("link", [True, False])
def test_an_edit_through_a_link_is_noticed_whatever_its_time_and_never_put_there_again(
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
    assert {path.name: path.read_bytes() for path in links.out.iterdir()} == FILES


def test_a_file_replaced_by_another_leaves_the_cache_alone(links: Links) -> None:
    links.put(link=True, owned=False)
    (links.out / "new").write_bytes(b"edited")
    (links.out / "new").replace(links.out / "model.onnx")
    assert links.store.missing(links.files) == []
    assert links.put(link=True).restored == ("model.onnx",)
    assert links.linked() == set(FILES)
