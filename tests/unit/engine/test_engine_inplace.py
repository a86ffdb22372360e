"""Outputs in the user's folder: a file is complete under its name, whenever the process is killed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from winml_dag.canonical import json_hash
from winml_dag.engine.inplace import InPlace
from winml_dag.errors import StoreError
from winml_dag.store.artifact import FileEntry
from winml_dag.store.blobs import BlobDamaged
from winml_dag.store.records import KeyInputs, Record, cache_key
from winml_dag.store.store import Store

KILLED = 9
DATA = b"words" * 1000
OF_CHANGES = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir"}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache")


@pytest.fixture
def file(store: Store, tmp_path: Path) -> FileEntry:
    """A file from the output folder of a stage."""
    made = KeyInputs("stage", 1, {}, {}, {})
    (tmp_path / "scratch" / "made" / "deep").mkdir(parents=True)
    (tmp_path / "scratch" / "made" / "deep" / "words").write_bytes(DATA)
    record = Record(cache_key(made), json_hash({}), made, {})
    (file,) = store.publish(record, {"words": tmp_path / "scratch"}).files()
    return file


def files_in(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def put_killed_at(step: int, store: Store, folder: Path, file: FileEntry) -> bool:
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == KILLED
    steps = 0

    def at_step(event: str, _arguments: object) -> None:
        nonlocal steps
        steps += event in OF_CHANGES
        if steps > step:
            os._exit(KILLED)

    sys.addaudithook(at_step)
    try:
        InPlace(store).put_file(folder, file)
    finally:
        os._exit(0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills a forked process at each of its steps")
def test_killed_output_writes_leave_only_complete_files(store: Store, file: FileEntry, tmp_path: Path) -> None:
    partial = step = 0
    (folder := tmp_path / "project0").mkdir()
    while put_killed_at(step, store, folder, file):
        assert files_in(folder) in ([], ["made/deep/words"]) or files_in(folder / "made") == []
        partial += bool(files_in(folder / ".winml-dag"))
        step += 1
        (folder := tmp_path / f"project{step}").mkdir()
    assert partial > 0
    assert files_in(folder) == ["made/deep/words"]


def test_old_leftovers_of_killed_processes_are_removed(store: Store, file: FileEntry, tmp_path: Path) -> None:
    kept = tmp_path / "project" / ".winml-dag"
    kept.mkdir(parents=True)
    for name in ("old.partial", "new.partial", "recipe"):
        (kept / name).write_text("")
        if name != "new.partial":
            os.utime(kept / name, (0, 0))
    InPlace(store).put_file(tmp_path / "project", file)
    assert files_in(kept) == ["new.partial", "recipe"]


def test_damaged_result_is_reported_by_its_own_name(store: Store, file: FileEntry, tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    store.blobs.path(file.digest).unlink()
    with pytest.raises(BlobDamaged) as raised:
        InPlace(store).put_file(tmp_path / "project", file)
    assert raised.value.file == file


@pytest.mark.skipif(os.name == "nt", reason="making a link needs a right on Windows")
@pytest.mark.parametrize("link", ["made", "made/deep", ".winml-dag"])
def test_outputs_are_never_written_through_links(store: Store, file: FileEntry, tmp_path: Path, link: str) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "project" / link).parent.mkdir(parents=True)
    (tmp_path / "project" / link).symlink_to(tmp_path / "outside", target_is_directory=True)
    with pytest.raises(StoreError) as raised:
        InPlace(store).put_file(tmp_path / "project", file)
    assert str(tmp_path / "project" / link) in raised.value.message
    assert "Replace the link" in raised.value.advice
    assert files_in(tmp_path / "outside") == []
