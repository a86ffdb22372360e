"""A folder is changed as a whole or not at all, whatever fails and whenever the process is killed."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from winml_dag.errors import StoreError
from winml_dag.pipeline.commit import change_folder, finish_change, is_changing

OURS = {"gone.txt": b"old", "kept.json": b"kept", "model.onnx": b"old model"}
USERS = {"notes.txt": b"mine", "pictures/cat.png": b"cat"}
PUT = {"data/added.bin": b"added", "manifest.json": b"{}", "model.onnx": b"new model"}
BEFORE = {**OURS, **USERS}
AFTER = {**USERS, **PUT, "kept.json": b"kept"}

KILLED = 9
REFUSED = 7

# Everything that changes a folder tells Python's audit hooks before it does: there a process can be killed.
STEPS = {"open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link"}

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="kills a forked process at each of its steps")


def fill(folder: Path, files: dict[str, bytes]) -> Iterable[str]:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return sorted(files)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def change(folder: Path) -> None:
    change_folder(folder, lambda prepared: fill(prepared, PUT), ["gone.txt"])


@pytest.fixture
def new_folder(tmp_path: Path) -> Callable[[], Path]:
    def new_folder() -> Path:
        folder = tmp_path / f"out{len(list(tmp_path.iterdir()))}"
        fill(folder, BEFORE)
        return folder

    return new_folder


@pytest.fixture
def folder(new_folder: Callable[[], Path]) -> Path:
    return new_folder()


def in_child(
    work: Callable[[Path], None], folder: Path, *, kill_at: int | None = None, fail_at: int | None = None
) -> int:
    """Do *work* in a fork that is killed before its step *kill_at*, or whose step *fail_at* is denied to it."""
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    steps = 0

    def at_step(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal steps
        if event not in STEPS or (event == "open" and not str(arguments[0]).startswith(str(folder))):
            return
        steps += 1
        if steps - 1 == kill_at:
            os._exit(KILLED)
        if steps - 1 == fail_at:
            raise PermissionError(errno.EACCES, "Permission denied")

    sys.addaudithook(at_step)
    code = 1
    try:
        work(folder)
        code = 0
    except StoreError:
        code = REFUSED
    finally:
        os._exit(code)


def test_new_files_are_put_and_old_ones_taken_away(folder: Path) -> None:
    change(folder)
    assert contents(folder) == AFTER


def test_a_folder_that_is_not_there_is_made(tmp_path: Path) -> None:
    change(tmp_path / "not" / "there")
    assert contents(tmp_path / "not" / "there") == PUT


def test_a_change_that_cannot_be_prepared_changes_nothing(folder: Path) -> None:
    def prepare(prepared: Path) -> Iterable[str]:
        fill(prepared, PUT)
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(StoreError, match=r"No space left on device.*It is as it was before"):
        change_folder(folder, prepare, ["gone.txt"])
    assert contents(folder) == BEFORE
    assert not is_changing(folder)


def test_an_error_that_is_not_about_the_folder_passes_through(folder: Path) -> None:
    def prepare(prepared: Path) -> Iterable[str]:  # noqa: ARG001
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        change_folder(folder, prepare)
    assert contents(folder) == BEFORE


def test_a_folder_of_the_users_under_the_name_of_a_file_of_ours_is_left_alone(folder: Path) -> None:
    (folder / "model.onnx").unlink()
    fill(folder / "model.onnx", USERS)
    before = contents(folder)
    with pytest.raises(StoreError, match=r"model\.onnx"):
        change(folder)
    assert contents(folder) == before


def test_a_link_is_replaced_and_what_it_leads_to_is_left_alone(folder: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere.onnx"
    elsewhere.write_bytes(b"mine")
    (folder / "model.onnx").unlink()
    (folder / "model.onnx").symlink_to(elsewhere)
    change(folder)
    assert contents(folder) == AFTER
    assert elsewhere.read_bytes() == b"mine"


@needs_fork
def test_killed_at_any_step_the_change_is_finished_or_has_not_happened(new_folder: Callable[[], Path]) -> None:
    outcomes = []
    while True:
        folder = new_folder()
        code = in_child(change, folder, kill_at=len(outcomes))
        assert {name: contents(folder)[name] for name in USERS} == USERS
        finish_change(folder)
        assert not is_changing(folder)
        outcomes.append(contents(folder))
        if code != KILLED:
            break
    happened = [found == AFTER for found in outcomes]
    assert all(found in (BEFORE, AFTER) for found in outcomes)
    assert happened == sorted(happened), "there is one step from which the change counts"
    assert not happened[0]
    assert happened[-1]


@needs_fork
def test_finishing_may_be_killed_as_well(new_folder: Callable[[], Path]) -> None:
    for first in range(14, 30):
        second = 0
        while True:
            folder = new_folder()
            in_child(change, folder, kill_at=first)
            code = in_child(finish_change, folder, kill_at=second)
            finish_change(folder)
            assert contents(folder) in (BEFORE, AFTER)
            assert not is_changing(folder)
            second += 3
            if code != KILLED:
                break


def steps_of_a_change(new_folder: Callable[[], Path]) -> int:
    return next(step for step in range(1000) if in_child(change, new_folder(), kill_at=step) != KILLED)


@needs_fork
def test_a_step_that_is_denied_leaves_everything_as_it_was_or_is_not_missed(new_folder: Callable[[], Path]) -> None:
    codes = []
    for step in range(steps_of_a_change(new_folder)):
        folder = new_folder()
        codes.append(in_child(change, folder, fail_at=step))
        assert codes[-1] in (REFUSED, 0)
        visible = {name: data for name, data in contents(folder).items() if not name.startswith(".winml-dag-new/")}
        assert visible == (BEFORE if codes[-1] == REFUSED else AFTER), step
        finish_change(folder)
        assert contents(folder) == visible
    assert codes.count(REFUSED) > 10


@needs_fork
@pytest.mark.slow
def test_putting_back_may_be_killed_at_any_step(new_folder: Callable[[], Path]) -> None:
    for denied in range(12, steps_of_a_change(new_folder)):
        killed = denied + 1
        while True:
            folder = new_folder()
            code = in_child(change, folder, fail_at=denied, kill_at=killed)
            finish_change(folder)
            assert contents(folder) in (BEFORE, AFTER), (denied, killed)
            assert not is_changing(folder)
            killed += 1
            if code != KILLED:
                break


@needs_fork
def test_a_change_that_was_killed_is_finished_by_the_next_change(new_folder: Callable[[], Path]) -> None:
    for step in range(steps_of_a_change(new_folder)):
        folder = new_folder()
        in_child(change, folder, kill_at=step)
        change_folder(folder, lambda prepared: fill(prepared, {"model.onnx": b"newest"}))
        found = contents(folder)
        assert found in ({**BEFORE, "model.onnx": b"newest"}, {**AFTER, "model.onnx": b"newest"})


@pytest.mark.parametrize(
    "text", ["", "{}", '{"put": ["../../evil"], "remove": []}', '{"put": [], "remove": ["/etc/x"]}']
)
def test_a_journal_that_is_not_ours_is_refused_with_advice(folder: Path, text: str) -> None:
    hidden = folder / ".winml-dag-new"
    hidden.mkdir()
    (hidden / "journal.json").write_text(text)
    with pytest.raises(StoreError):
        finish_change(folder)
    assert contents(folder).items() >= BEFORE.items()
