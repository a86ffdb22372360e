"""Sweep files written during a run are marked incomplete, the last one complete."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from winml_dag.pipeline.sweep import ledger as module
from winml_dag.pipeline.sweep.ledger import Ledger
from winml_dag.pipeline.sweep.result import (
    CellResult,
    CellStatus,
    GoalResult,
    Measured,
    StageRun,
    SweepResult,
    read_sweep,
    write_sweep,
)
from winml_dag.recipe.sweep import Cell, Sweep
from winml_dag.store.store import Store

NAMES = ("fp32", "w8a8")
AXES = {"precision": NAMES}
HEAD = SweepResult("small", "sweep.yaml", "2026-11-22T10:00:00Z", 1.5, AXES, ())
FAILED = tuple(CellResult(name, {"precision": name}, name, CellStatus.FAILED, why="no room") for name in NAMES)


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    """The ledger of a run after one in which both cells failed; it writes as often as possible."""
    monkeypatch.setattr(module, "_SECONDS_BETWEEN", -1.0)
    monkeypatch.setattr(module, "_TIMES_ITS_COST", 0)
    write_sweep(tmp_path, replace(HEAD, cells=FAILED))
    return ledger_in(tmp_path)


def ledger_in(folder: Path) -> Ledger:
    cells = tuple(Cell(name, {"precision": name}, name, folder / "sweep.yaml") for name in NAMES)
    sweep = Sweep("small", folder / "sweep.yaml", AXES, cells)
    return Ledger(sweep, folder, NAMES, Store(folder / "cache"), HEAD)


def test_what_fails_as_before_is_no_reason_to_write(ledger: Ledger, tmp_path: Path) -> None:
    before = (tmp_path / "sweep.json").stat().st_mtime_ns
    for cell in FAILED:
        ledger.take(cell)
    assert ledger.is_as_before()
    assert (tmp_path / "sweep.json").stat().st_mtime_ns == before


def test_a_run_that_has_written_on_its_way_writes_at_its_end(ledger: Ledger, tmp_path: Path) -> None:
    ledger.take(replace(FAILED[0], why="no room at all"))
    written = read_sweep(tmp_path)
    assert written is not None
    assert written.interrupted
    for cell in FAILED:
        ledger.take(cell)
    # Everything is as before, except that the file marks the run as incomplete.
    assert not ledger.is_as_before()


def test_goals_that_the_sweep_has_no_more_are_forgotten_with_their_trials(ledger: Ledger, tmp_path: Path) -> None:
    trial = replace(FAILED[1], name="w8a8+1in32", folder="w8a8+1in32", trial_of="w8a8")
    (tmp_path / trial.folder).mkdir()
    write_sweep(tmp_path, replace(HEAD, cells=(*FAILED, trial), goals=(GoalResult({}, "size", {}, None, ()),)))
    told = ledger.result(read_sweep(tmp_path))
    assert (told.goals, [cell.name for cell in told.cells]) == ((), list(NAMES))


def test_what_an_earlier_run_has_done_is_not_counted_as_done_by_this_one(ledger: Ledger, tmp_path: Path) -> None:
    stages = (StageRun("quantize", "quantize", "ran", "never built", "key", elapsed_seconds=7.0),)
    write_sweep(tmp_path, replace(HEAD, cells=tuple(replace(cell, stages=stages) for cell in FAILED)))
    ledger.take(FAILED[0])
    graph = ledger.write(interrupted=True).graph
    assert (graph.builds, graph.stages, graph.seconds_ran) == (1, 0, 0.0)


def test_what_was_measured_now_is_written_though_it_is_of_the_same_second(tmp_path: Path) -> None:
    cells = tuple(replace(cell, perf=Measured("live", "2026-11-22T10:00:00+00:00", {"p50": 1})) for cell in FAILED)
    write_sweep(tmp_path, replace(HEAD, cells=cells))
    ledger = ledger_in(tmp_path)
    for cell in cells:
        ledger.take(replace(cell, perf=Measured("cached", "2026-11-22T10:00:00+00:00", {"p50": 1})))
    assert ledger.is_as_before()
    ledger.take(cells[0])
    assert not ledger.is_as_before()
