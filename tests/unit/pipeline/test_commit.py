"""A folder is changed completely or not at all, whatever fails and whenever the process is killed."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest

from winml_dag.errors import StoreError
from winml_dag.store import commit
from winml_dag.store.commit import is_changing

OURS = {"gone.txt": b"old", "kept.json": b"kept", "model.onnx": b"old model"}
USERS = {"notes.txt": b"mine", "pictures/cat.png": b"cat"}
PUT = {"data/added.bin": b"added", "model.onnx": b"new model"}
BEFORE = {**OURS, **USERS}
AFTER = {**USERS, **PUT, "kept.json": b"kept"}

PUT_IN_PLACE = {"model.onnx": b"new model"}
HIDDEN = ".winml-dag-new"

KILLED = 9
REFUSED = 7

# Everything that changes a folder raises an audit event first, at which a process can be killed.
STEPS = {"open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link"}

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="kills a forked process at each of its steps")


def fill(folder: Path, files: dict[str, bytes]) -> Iterable[str]:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return sorted(files)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def journals(folder: Path) -> Path:
    return folder.parent / "journals"


def change_folder(folder: Path, prepare: Callable[[Path], Iterable[str]], remove: Iterable[str] = ()) -> None:
    commit.change_folder(folder, journals(folder), prepare, remove)


def finish_change(folder: Path) -> None:
    commit.finish_change(folder, journals(folder))


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


def writes_below(folder: Path, path: object, _mode: object, flags: object) -> bool:
    return str(path).startswith(str(folder)) and isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR))


@cache
def forker() -> subprocess.Popen[str]:
    """A small process, whose forks cost a tenth of those of this one."""
    return subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def in_child(
    work: Callable[[Path], None], folder: Path, *, kill_at: int | None = None, fail_at: int | None = None
) -> int:
    """Do *work* in a fork that is killed before step *kill_at*, or whose step *fail_at* is denied."""
    process = forker()
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps([work.__name__, str(folder), kill_at, fail_at]) + "\n")
    process.stdin.flush()
    return int(process.stdout.readline())


def fork(work: Callable[[Path], None], folder: Path, kill_at: int | None, fail_at: int | None) -> int:
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    steps = 0

    def at_step(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal steps
        if event not in STEPS or (event == "open" and not writes_below(folder, *arguments)):
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


def test_missing_folder_is_created(tmp_path: Path) -> None:
    change(tmp_path / "not" / "there")
    assert contents(tmp_path / "not" / "there") == PUT


@pytest.mark.parametrize(
    ("failure", "told", "words"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), StoreError, r"left on device.*It is as it was before"),
        (KeyboardInterrupt(), KeyboardInterrupt, r"^$"),
    ],
    ids=["disk full", "interrupt"],
)
def test_failed_preparation_changes_nothing(
    folder: Path, failure: BaseException, told: type[BaseException], words: str
) -> None:
    def prepare(prepared: Path) -> Iterable[str]:
        fill(prepared, PUT)
        raise failure

    with pytest.raises(told, match=words):
        change_folder(folder, prepare, ["gone.txt"])
    assert contents(folder) == BEFORE
    assert not is_changing(folder)


def test_user_folder_with_name_of_output_file_is_unchanged(folder: Path) -> None:
    (folder / "model.onnx").unlink()
    fill(folder / "model.onnx", USERS)
    before = contents(folder)
    with pytest.raises(StoreError, match=r"model\.onnx"):
        change(folder)
    assert contents(folder) == before


def test_link_is_replaced_and_its_target_unchanged(folder: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere.onnx"
    elsewhere.write_bytes(b"mine")
    (folder / "model.onnx").unlink()
    (folder / "model.onnx").symlink_to(elsewhere)
    change(folder)
    assert contents(folder) == AFTER
    assert elsewhere.read_bytes() == b"mine"


@needs_fork
def test_killed_change_is_atomic_and_finished_by_the_next(
    new_folder: Callable[[], Path],
) -> None:
    outcomes = []
    code = KILLED
    while code == KILLED:
        folder = new_folder()
        code = in_child(change, folder, kill_at=len(outcomes))
        assert contents(folder).items() >= USERS.items()
        assert contents(folder)["model.onnx"] in (OURS["model.onnx"], PUT["model.onnx"]), (
            "there is always one of the two"
        )
        change_folder(folder, lambda prepared: fill(prepared, {"newest.txt": b"newest"}))
        found = contents(folder)
        assert found.pop("newest.txt") == b"newest"
        assert found in (BEFORE, AFTER)
        assert not is_changing(folder)
        outcomes.append(found == AFTER)
    assert outcomes == sorted(outcomes), "there is one step from which the change counts"
    assert not outcomes[0]
    assert outcomes[-1]


@needs_fork
def test_killed_recovery_is_atomic(new_folder: Callable[[], Path]) -> None:
    for first in range(9, 24):
        second = 0
        while True:
            folder = new_folder()
            in_child(change, folder, kill_at=first)
            code = in_child(finish_change, folder, kill_at=second)
            finish_change(folder)
            assert contents(folder) in (BEFORE, AFTER)
            assert not is_changing(folder)
            second += 4
            if code != KILLED:
                break


def steps_of_a_change(new_folder: Callable[[], Path]) -> int:
    return next(step for step in range(1000) if in_child(change, new_folder(), kill_at=step) != KILLED)


@needs_fork
def test_denied_step_rolls_back_or_completes(new_folder: Callable[[], Path]) -> None:
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
def test_killed_rollback_is_atomic(new_folder: Callable[[], Path]) -> None:
    for denied in range(9, steps_of_a_change(new_folder), 2):
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


@pytest.mark.parametrize(
    "text", ["", "{}", '{"token": "0", "put": 1, "remove": []}', '{"token": "0", "put": [], "remove": null}']
)
def test_unreadable_journal_is_reported_with_path(folder: Path, text: str) -> None:
    (folder / HIDDEN).mkdir()
    journal = journals(folder) / f"{commit.folder_key(folder)}.json"
    fill(journals(folder), {journal.name: text.encode()})
    with pytest.raises(StoreError) as raised:
        finish_change(folder)
    assert str(journal) in raised.value.message
    assert contents(folder).items() >= BEFORE.items()


class TestWhatOthersHaveLeftThere:
    """A folder extracted from an archive, with any content."""

    @pytest.mark.parametrize("name", ["journal.json", "taking-back.json"])
    def test_foreign_journal_in_hidden_folder_is_ignored(self, folder: Path, name: str) -> None:
        journal = json.dumps({"token": "0", "put": ["notes.txt"], "remove": ["pictures/cat.png"]}).encode()
        places = ["", "0/"]
        fill(folder / HIDDEN, {f"{place}{name}": journal for place in places})
        fill(folder / HIDDEN, {f"{place}new/notes.txt": b"theirs" for place in places})
        finish_change(folder)
        assert contents(folder) == BEFORE
        assert not is_changing(folder)

    @needs_fork
    def test_recreated_folder_is_not_matched_to_old_journal(self, new_folder: Callable[[], Path]) -> None:
        step, folder = 0, new_folder()
        while not any(journals(folder).glob("*.json")):
            folder = new_folder()
            in_child(change, folder, kill_at=(step := step + 1))
        shutil.rmtree(folder)
        fill(folder, BEFORE)
        fill(folder / HIDDEN, {"0/new/notes.txt": b"theirs", "new/notes.txt": b"theirs"})
        finish_change(folder)
        assert contents(folder) == BEFORE

    @pytest.mark.parametrize("to", ["elsewhere", "elsewhere/file", "nowhere"])
    def test_hidden_folder_link_is_removed_and_not_followed(self, folder: Path, tmp_path: Path, to: str) -> None:
        fill(tmp_path / "elsewhere", {"file": b"precious", "new/model.onnx": b"precious"})
        (folder / HIDDEN).symlink_to(tmp_path / to)
        change(folder)
        assert contents(folder) == AFTER
        assert contents(tmp_path / "elsewhere") == {"file": b"precious", "new/model.onnx": b"precious"}

    @pytest.mark.parametrize("put", [["data/added.bin"], ["data/deep/added.bin"]])
    @pytest.mark.parametrize("remove", [[], ["data/gone.txt"]])
    def test_files_behind_folder_link_are_refused_and_unchanged(
        self, folder: Path, tmp_path: Path, put: list[str], remove: list[str]
    ) -> None:
        precious = {"gone.txt": b"precious", "added.bin": b"precious", "deep/added.bin": b"precious"}
        fill(tmp_path / "elsewhere", precious)
        (folder / "data").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
        before = contents(folder)
        with pytest.raises(StoreError, match=r"link.*It is as it was before") as raised:
            change_folder(folder, lambda new: fill(new, {**PUT_IN_PLACE, **dict.fromkeys(put, b"new")}), remove)
        assert str(folder / "data") in raised.value.message
        assert "Replace the link by a folder" in raised.value.advice
        assert contents(tmp_path / "elsewhere") == precious
        assert contents(folder) == before
        assert not is_changing(folder)

    @needs_fork
    def test_link_replacing_folder_is_not_followed_during_recovery(
        self, new_folder: Callable[[], Path], tmp_path: Path
    ) -> None:
        """At every step: its target stays, and the change is completed once the link is removed."""
        fill(tmp_path / "elsewhere", {"added.bin": b"precious"})
        for step in range(steps_of_a_change(new_folder)):
            folder = new_folder()
            in_child(change, folder, kill_at=step)
            if (folder / "data").exists():
                continue
            (folder / "data").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
            with suppress(StoreError):
                finish_change(folder)
            assert contents(tmp_path / "elsewhere") == {"added.bin": b"precious"}
            (folder / "data").unlink()
            finish_change(folder)
            assert contents(folder) in (BEFORE, AFTER)


if __name__ == "__main__":
    for line in sys.stdin:
        name, where, *at = json.loads(line)
        print(fork(globals()[name], Path(where), *at), flush=True)
