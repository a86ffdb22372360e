"""Operations below a folder by name stay there, and never follow a link out."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from store_samples import contents

from winml_dag.errors import StoreError
from winml_dag.store import files as module
from winml_dag.store.files import Below, LinkOnTheWay

PRECIOUS = {"file": b"precious", "deep/file": b"precious"}


@pytest.fixture(params=["folders opened", "paths looked at"], autouse=True)
def _as_on_either_system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "paths looked at":
        monkeypatch.setattr(module, "_OPENS_FOLDERS", False)
    elif not module._OPENS_FOLDERS:
        pytest.skip("this system cannot")


@pytest.fixture
def below(tmp_path: Path) -> Below:
    """A folder with a link out of it."""
    for folder, files in (("outside", PRECIOUS), ("folder", {"mine": b"mine", "sub/mine": b"mine"})):
        for name, data in files.items():
            (tmp_path / folder / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / folder / name).write_bytes(data)
    (tmp_path / "folder/link").symlink_to(tmp_path / "outside", target_is_directory=True)
    (tmp_path / "folder/sub/link").symlink_to("../../outside", target_is_directory=True)
    return Below(tmp_path / "folder")


STEPS: dict[str, Callable[[Below, str], object]] = {
    "status": Below.status,
    "make": lambda below, name: below.make_folder(f"{name}/new"),
    "move from": lambda below, name: below.move(name, "taken"),
    "move to": lambda below, name: below.move("mine", name),
    "link from": lambda below, name: below.link(name, "taken"),
    "link to": lambda below, name: below.link("mine", name),
    "remove": Below.remove,
    "remove folder": Below.remove_empty_folder,
    "remove all": Below.remove_all,
}


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("way", ["link", "sub/link", "link/deep"])
def test_no_operation_follows_a_link(
    below: Below, tmp_path: Path, step: Callable[[Below, str], object], way: str
) -> None:
    before = contents(below.folder)
    with pytest.raises(LinkOnTheWay) as raised:
        step(below, f"{way}/file")
    assert raised.value.errno == errno.ELOOP
    assert raised.value.filename == str(below.folder / way.removesuffix("/deep"))
    assert contents(tmp_path / "outside") == PRECIOUS
    assert contents(below.folder) == before


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("name", ["../outside/file", "/etc/passwd", "sub/../../outside/file", "", ".", "sub//mine"])
def test_no_name_escapes_the_folder(
    below: Below, tmp_path: Path, step: Callable[[Below, str], object], name: str
) -> None:
    before = contents(below.folder)
    with pytest.raises(StoreError, match="not a safe file name"):
        step(below, name)
    assert contents(tmp_path / "outside") == PRECIOUS
    assert contents(below.folder) == before


def test_link_itself_can_be_moved_and_removed(below: Below, tmp_path: Path) -> None:
    assert not below.is_file("link")
    below.move("link", "new/link")
    below.remove("new/link")
    below.remove_all("sub")
    assert contents(below.folder) == {"mine": b"mine"}
    assert contents(tmp_path / "outside") == PRECIOUS


def test_folder_may_be_opened_through_a_link(below: Below, tmp_path: Path) -> None:
    (tmp_path / "here").symlink_to(below.folder, target_is_directory=True)
    Below(tmp_path / "here").move("mine", "new/deep/mine")
    assert contents(below.folder / "new") == {"deep/mine": b"mine"}


def test_missing_files_are_reported(below: Below, tmp_path: Path) -> None:
    assert below.status("sub/none") is None
    assert below.status("none/none") is None
    assert Below(tmp_path / "none").status("none") is None
    assert not below.is_file("mine/below")
    for step in (below.remove, below.remove_empty_folder):
        with pytest.raises(FileNotFoundError) as raised:
            step("sub/none")
        assert raised.value.filename == str(below.folder / "sub/none")


def test_move_across_file_systems_copies_the_whole_file(below: Below, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests may not mount file systems, so only the system's error is simulated."""
    replace = os.replace

    def other_file_system(source: str, target: str, **folders: int | None) -> None:
        if not source.endswith(".partial"):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        replace(source, target, **folders)

    monkeypatch.setattr(os, "replace", other_file_system)
    below.move("mine", "sub/mine2")
    below.move("sub/mine2", "sub/mine")
    assert contents(below.folder) == {"sub/mine": b"mine"}
