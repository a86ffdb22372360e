"""``sweep.json``: marked incomplete during a run, read back as written, and not trusted if it comes from others."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from winml_dag.errors import InputError
from winml_dag.pipeline.sweep import ledger as module
from winml_dag.pipeline.sweep.ledger import Ledger
from winml_dag.pipeline.sweep.result import (
    FORMAT,
    SWEEP,
    CellResult,
    CellStatus,
    DecodeError,
    GoalResult,
    Measured,
    StageRun,
    SweepResult,
    read_sweep,
    sweep_of,
    text_of,
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


def test_unchanged_failures_are_not_rewritten(ledger: Ledger, tmp_path: Path) -> None:
    before = (tmp_path / "sweep.json").stat().st_mtime_ns
    for cell in FAILED:
        ledger.take(cell)
    assert ledger.is_as_before()
    assert (tmp_path / "sweep.json").stat().st_mtime_ns == before


def test_run_with_intermediate_write_is_rewritten_at_end(ledger: Ledger, tmp_path: Path) -> None:
    ledger.take(replace(FAILED[0], why="no room at all"))
    written = read_sweep(tmp_path)
    assert written is not None
    assert written.interrupted
    for cell in FAILED:
        ledger.take(cell)
    # Everything is as before, except that the file marks the run as incomplete.
    assert not ledger.is_as_before()


def test_removed_goals_are_dropped_with_their_trials(ledger: Ledger, tmp_path: Path) -> None:
    trial = replace(FAILED[1], name="w8a8+1in32", folder="w8a8+1in32", trial_of="w8a8")
    (tmp_path / trial.folder).mkdir()
    write_sweep(tmp_path, replace(HEAD, cells=(*FAILED, trial), goals=(GoalResult({}, "size", {}, None, ()),)))
    told = ledger.result(read_sweep(tmp_path))
    assert (told.goals, [cell.name for cell in told.cells]) == ((), list(NAMES))


def test_earlier_runs_are_not_counted(ledger: Ledger, tmp_path: Path) -> None:
    stages = (StageRun("quantize", "quantize", "ran", "never built", "key", elapsed_seconds=7.0),)
    write_sweep(tmp_path, replace(HEAD, cells=tuple(replace(cell, stages=stages) for cell in FAILED)))
    ledger.take(FAILED[0])
    graph = ledger.write(interrupted=True).graph
    assert (graph.builds, graph.stages, graph.seconds_ran) == (1, 0, 0.0)


def test_new_measurement_of_same_second_is_written(tmp_path: Path) -> None:
    cells = tuple(replace(cell, perf=Measured("live", "2026-11-22T10:00:00+00:00", {"p50": 1})) for cell in FAILED)
    write_sweep(tmp_path, replace(HEAD, cells=cells))
    ledger = ledger_in(tmp_path)
    for cell in cells:
        ledger.take(replace(cell, perf=Measured("cached", "2026-11-22T10:00:00+00:00", {"p50": 1})))
    assert ledger.is_as_before()
    ledger.take(cells[0])
    assert not ledger.is_as_before()


# What cannot be inferred of the types of fields.
REPORTS = st.dictionaries(st.text(max_size=9), st.integers() | st.text(max_size=9) | st.none(), max_size=2)
st.register_type_strategy(float, st.floats(allow_nan=False, allow_infinity=False))
st.register_type_strategy(Mapping, lambda kind: st.dictionaries(*map(st.from_type, get_args(kind)), max_size=2))
st.register_type_strategy(Measured, st.builds(Measured, measured=..., made_at=..., report=REPORTS, error=...))
SWEEPS = st.from_type(SweepResult).map(lambda sweep: replace(sweep, format=FORMAT))

SMALL = SweepResult(
    "small",
    "sweep.yaml",
    "2026-11-22T10:00:00Z",
    1.5,
    {"precision": ("fp32",)},
    (CellResult("fp32", {"precision": "fp32"}, "fp32", CellStatus.BUILT, stages=(StageRun("a", "a", "ran", "x"),)),),
)


@given(SWEEPS)
@settings(max_examples=15)
def test_sweep_roundtrips(sweep: SweepResult) -> None:
    assert sweep_of(text_of(sweep)) == sweep


def test_each_cell_has_one_line_and_undecodable_names_are_kept(tmp_path: Path) -> None:
    assert read_sweep(tmp_path) is read_sweep(tmp_path / "missing") is None
    three = replace(SMALL, cells=SMALL.cells * 3, recipe="sweep-\udce9.yaml")
    write_sweep(tmp_path, three)
    lines = (tmp_path / SWEEP).read_text(encoding="utf-8").splitlines()
    assert len([line for line in lines if line.startswith('{"name": "fp32"')]) == 3
    assert read_sweep(tmp_path) == three


def edited(path: tuple[str | int, ...], value: object) -> bytes:
    whole: Any = json.loads(text_of(SMALL))
    at = whole
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    return json.dumps(whole).encode()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        pytest.param(b"", "not JSON", id="empty"),
        pytest.param(b"\xff\xfe", "not JSON", id="no text"),
        pytest.param(b"[" * 100_000, "not JSON", id="deep"),
        pytest.param(b'{"a": NaN}', "NaN is not valid in JSON", id="NaN"),
        pytest.param(b"[]", "it should be a dictionary", id="a list"),
        pytest.param(b"{}", "name is missing", id="another object"),
        pytest.param(edited(("format",), FORMAT + 1), f"its format is {FORMAT + 1}", id="newer"),
        pytest.param(edited(("cells",), {}), "cells should be a valid list", id="cells"),
        pytest.param(edited(("cells", 0, "status"), "done"), "cells.0.status should be 'built', ", id="status"),
        pytest.param(edited(("cells", 0, "folder"), None), "cells.0.folder should be a valid string", id="folder"),
        pytest.param(edited(("cells", 0, "values"), []), "cells.0.values should be a valid dictionary", id="values"),
        pytest.param(
            edited(("cells", 0, "stages", 0, "elapsed_seconds"), []),
            "elapsed_seconds should be a valid number",
            id="a list of numbers",
        ),
        pytest.param(edited(("cells", 0, "stages", 0, "cells"), 1.5), "cells should be a valid integer", id="fraction"),
        pytest.param(edited(("interrupted",), 3), "interrupted should be a valid boolean", id="number for truth value"),
        pytest.param(edited(("axes", "precision"), [1]), "axes.precision.0 should be a valid string", id="label"),
    ],
)
def test_invalid_sweep_file_is_reported(data: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / SWEEP).write_bytes(data)
    with pytest.raises(InputError) as told:
        read_sweep(tmp_path)
    assert said in str(told.value)
    assert str(tmp_path / SWEEP) in str(told.value)
    assert "choose another folder" in told.value.advice


@given(st.binary(max_size=60), st.integers(0, 5000))
def test_damaged_sweep_file_raises_only_decode_error(noise: bytes, at: int) -> None:
    data = text_of(SMALL)
    at %= len(data)
    # Any other exception would be a traceback.
    with suppress(DecodeError):
        sweep_of(data[:at] + noise + data[at + len(noise) :])


def test_unknown_field_is_ignored() -> None:
    assert sweep_of(edited(("cells", 0, "mood"), "good")) == SMALL
