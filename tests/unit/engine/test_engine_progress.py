"""Progress of a stage: what is written, and who can read it when."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from engine_samples import Bench, Notes, join, node, properties
from hypothesis import given
from hypothesis import strategies as st

from winml_dag.canonical import JsonObject
from winml_dag.engine.events import Status
from winml_dag.engine.exchange import PROGRESS_FILE, Progress, ProgressWriter, Watch, read_progress
from winml_dag.engine.stage import Node, Workspace
from winml_dag.errors import StageError

PERIOD = 0.2


class Clock:
    """Time that advances on request."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@given(st.lists(st.tuples(st.floats(0, 0.5), st.integers(0, 20)), min_size=1, max_size=60))
@properties
def test_progress_writes_are_throttled_and_last_value_is_kept(told: list[tuple[float, int]]) -> None:
    clock = Clock()
    began = clock.now
    with tempfile.TemporaryDirectory() as folder:
        writer = ProgressWriter(Path(folder), clock)
        seen: list[Progress | None] = [None]
        for seconds, done in told:
            clock.now += seconds
            writer(done, 20, "samples")
            if (now := read_progress(Path(folder))) != seen[-1]:
                seen.append(now)
        ends = sum(done == 20 for _, done in told)
        assert 1 <= len(seen) - 1 <= 1 + (clock.now - began) / PERIOD + ends
        writer.flush()
        last = read_progress(Path(folder))
        assert last is not None
        assert last.done == told[-1][1]


@pytest.mark.parametrize("second", [(2, 64, "samples"), (40, 128, "samples"), (40, 64, "tensors")])
def test_new_count_has_its_own_rate(tmp_path: Path, second: tuple[int, int, str]) -> None:
    clock = Clock()
    writer = ProgressWriter(tmp_path, clock)
    done, total, unit = second
    for count in ((10, 64, "samples"), (30, 64, "samples"), second, (done + 6, total, unit)):
        writer(*count)
        clock.now += 2
    writer.flush()
    assert read_progress(tmp_path) == Progress(done + 6, total, unit, 3.0)


def test_rate_excludes_time_before_the_count(tmp_path: Path) -> None:
    clock = Clock()
    writer = ProgressWriter(tmp_path, clock)
    clock.now += 100
    writer(0, 512, "samples")
    clock.now += 8
    writer(64, 512, "samples")
    assert read_progress(tmp_path) == Progress(64, 512, "samples", 8.0)


@pytest.mark.parametrize("done", [None, "many", float("nan"), float("inf")])
def test_invalid_progress_is_ignored(tmp_path: Path, done: object) -> None:
    writer = ProgressWriter(tmp_path)
    writer(done, None, "samples")  # type: ignore[arg-type]
    writer.flush()
    assert list(tmp_path.iterdir()) == []


def test_unwritable_progress_folder_is_ignored(tmp_path: Path) -> None:
    writer = ProgressWriter(tmp_path / "gone")
    writer(1, 2, "samples")
    writer.flush()
    assert writer.last == Progress(1, 2, "samples")


def test_blocked_last_write_is_retried_on_flush(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows, where a file cannot be replaced while it is read."""
    replace = Path.replace
    refusals = iter([True, True, False, False])

    def refused_twice(self: Path, target: Path) -> Path:
        if next(refusals):
            raise PermissionError("in use")
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", refused_twice)
    writer = ProgressWriter(tmp_path, Clock())
    writer(2, 2, "samples")
    assert read_progress(tmp_path) is None
    writer.flush()
    assert read_progress(tmp_path) == Progress(2, 2, "samples")


@given(st.one_of(st.binary(max_size=80), st.sampled_from([b"[" * 100_000, b'{"done": 1}', b'{"done": Infinity}'])))
@properties
def test_invalid_progress_file_is_ignored(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / PROGRESS_FILE).write_bytes(content)
        assert read_progress(Path(folder)) is None


def test_progress_of_job_without_folder_is_none(tmp_path: Path) -> None:
    watch = Watch()
    assert watch.read() is None
    watch.follow(tmp_path)
    assert watch.read() is None
    writer = ProgressWriter(tmp_path, Clock())
    writer(np.int64(1), np.int32(2), "samples")  # type: ignore[arg-type] # numbers of numpy are numbers
    assert watch.read() == Progress(1, 2, "samples")
    writer(2, 2, "samples")
    assert watch.read() == Progress(2, 2, "samples"), "the end of a count is written at once"


def telling(notes: Notes, read: list[Progress | None]) -> Callable[[Node, Workspace], JsonObject]:
    """Return work that reports progress, and records what its observer can read meanwhile."""

    def work(node: Node, workspace: Workspace) -> JsonObject:
        if node.stage.name == "calibrate":
            read.append(notes.progress[node.id]())
            workspace.progress(5, 5, "samples")
            read.append(notes.progress[node.id]())
        if node.stage.name == "refuse":
            workspace.progress(2, 5, "samples")
            raise StageError("The third is broken.")
        return join(node, workspace)

    return work


def test_observer_can_read_progress_and_result_has_the_last(bench: Bench) -> None:
    nodes = [node(name) for name in ("calibrate", "export", "refuse")]
    notes = Notes()
    read: list[Progress | None] = []
    ran = bench.run(nodes, work=telling(notes, read), keep_going=True, notes=notes)
    assert read == [None, Progress(5, 5, "samples")]
    assert {name: result.progress for name, result in ran.results.items()} == {
        "calibrate": Progress(5, 5, "samples"),
        "export": None,
        "refuse": Progress(2, 5, "samples"),
    }
    assert ran.of(Status.FAILED) == ["refuse"]
    assert {name: reads() for name, reads in notes.progress.items()} == dict.fromkeys(ran.results)
    again = bench.run(nodes[:2], work=telling(notes, read))
    assert [result.progress for result in again.results.values()] == [None, None]
