"""Goals over existing cells and measurements: the winner, reasons against others, pending results, and obstacles."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from winml_dag.errors import StoreError
from winml_dag.pipeline.request import Overrides, Request
from winml_dag.pipeline.run import Driver
from winml_dag.pipeline.sweep.goals import Evaluation, Facts, GoalOutcome, Means, nearest, pursue_goals, winner
from winml_dag.pipeline.sweep.result import CellResult, CellStatus, Failure, Measured, SearchResult
from winml_dag.recipe.goal import Goal
from winml_dag.recipe.matrix import load_sweep
from winml_dag.recipe.sweep import Cell
from winml_dag.stages.perf.latency import EMULATED
from winml_dag.store.store import Store

SWEEP = """
matrix:
  model: [a.onnx]
  precision: [fp32, w8a8, w8a16]
measure: [perf, eval]
goal: {minimize: size, subject_to: {cosine: ">=0.99"}, folder: best}
"""
DIGEST = "xxh3-128:" + 32 * "0"


class Sweeping:
    """A sweep whose cells exist, as builds leave them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.put: list[str] = []
        self.results: dict[str, CellResult] = {}
        for precision, size, cosine in (("fp32", 400, 1.0), ("w8a8", 100, 0.95), ("w8a16", 110, 0.999)):
            self.cell(f"a/{precision}", size, cosine)

    def cell(self, name: str, size: int, cosine: float, **told: Any) -> None:
        (self.folder / name).mkdir(parents=True, exist_ok=True)
        file = {"name": "model.onnx", "digest": DIGEST, "size": size}
        stages = [
            {"name": "validate", "status": "completed", "metrics": {"quality": {"cosine": cosine, "sqnr_db": None}}},
            {"name": "finalize", "status": "completed", "outputs": {"model": {"files": [file]}}},
        ]
        manifest = {"schema_version": 1, "stages": stages, "files": [file]}
        (self.folder / name / "build_manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
        precision = name.rpartition("/")[2]
        status = told.pop("status", CellStatus.BUILT)
        self.results[name] = CellResult(name, {"model": "a", "precision": precision}, name, status, **told)

    def searched(self, text: str = SWEEP) -> SearchResult:
        (goal,) = self.pursue(f"{text}search: {{}}\n").goals
        assert goal.search is not None
        return goal.search

    def pursue(self, text: str = SWEEP, put_fails: bool = False) -> GoalOutcome:
        path = self.folder / "sweep.yaml"
        path.write_text(text, encoding="utf-8")

        def put(cell: Cell, folder: Path) -> None:
            if put_fails:
                raise StoreError("The disk is full.")
            folder.mkdir(parents=True, exist_ok=True)
            self.put.append(cell.name)

        def carry_out(cells: Sequence[Cell]) -> Sequence[CellResult]:
            raise AssertionError(f"nothing is searched here: {cells}")

        driver = Driver(Store(self.folder / "cache"))
        means = Means(self.folder, lambda _: Request(None, Overrides()), carry_out, put, driver)
        sweep = load_sweep(path)
        return pursue_goals(sweep, [self.results[cell.name] for cell in sweep.cells], means)


@pytest.fixture
def sweeping(tmp_path: Path) -> Sweeping:
    return Sweeping(tmp_path)


def test_smallest_sufficient_cell_wins_and_is_published(sweeping: Sweeping) -> None:
    (goal,) = sweeping.pursue().goals
    assert (goal.winner, goal.folder, goal.why, goal.failed) == ("a/w8a16", "best", "", False)
    assert sweeping.put == ["a/w8a16"]
    assert {one.cell: one.why for one in goal.candidates} == {
        "a/fp32": "",
        "a/w8a8": "cosine is 0.95, below 0.99",
        "a/w8a16": "",
    }
    note = json.loads((sweeping.folder / "best/winner.json").read_text(encoding="utf-8"))
    assert (note["cell"], note["values"]) == ("a/w8a16", {"size": 110, "cosine": 0.999})


def test_winner_that_cannot_be_placed_is_reported(sweeping: Sweeping) -> None:
    (goal,) = sweeping.pursue(put_fails=True).goals
    assert (goal.winner, goal.folder, goal.failed) == ("a/w8a16", None, True)
    assert goal.why == "it could not be put into best: The disk is full."


def test_foreign_winner_file_is_not_overwritten(sweeping: Sweeping) -> None:
    theirs = sweeping.folder / "best/winner.json"
    theirs.parent.mkdir()
    theirs.write_text("mine", encoding="utf-8")
    (goal,) = sweeping.pursue().goals
    assert goal.failed
    assert "winner.json is in the way: no goal has written it" in goal.why
    assert theirs.read_text(encoding="utf-8") == "mine"


def test_emulated_latency_is_marked(sweeping: Sweeping) -> None:
    for place, name in enumerate(sweeping.results):
        report = {"latency_ms": {"p50": 3.0 - place}, "notices": [EMULATED]}
        sweeping.results[name] = replace(sweeping.results[name], perf=Measured("live", "", report))
    (goal,) = sweeping.pursue(SWEEP.replace("size", "latency")).goals
    assert goal.winner == "a/w8a16"
    assert goal.why == "measured on an emulator, which says nothing about a real device: latency"


def test_unmeasured_cell_cannot_win_and_reason_is_given(sweeping: Sweeping) -> None:
    for name in sweeping.results:
        sweeping.results[name] = replace(sweeping.results[name], eval=Measured(error="There is no labelled data."))
    text = SWEEP.replace('{cosine: ">=0.99"}', '{accuracy: ">=0.5"}')
    (goal,) = sweeping.pursue(text).goals
    assert goal.winner is None
    assert {one.why for one in goal.candidates} == {"accuracy is not known: There is no labelled data"}
    assert goal.why == (
        "of no cell all is known that the goal needs; a/fp32: accuracy is not known: There is no labelled data"
    )


def test_accuracy_drop_is_relative_to_float_model(sweeping: Sweeping) -> None:
    def drop(reference: float | None) -> tuple[float | None, str]:
        accuracy = {"candidate": {"value": 0.75}, "reference": reference and {"value": reference}}
        found = {"task": "text-classification", "metrics": {"macro_f1": {}, "accuracy": accuracy}}
        for name in sweeping.results:
            sweeping.results[name] = replace(sweeping.results[name], eval=Measured("live", "", found))
        (goal,) = sweeping.pursue(SWEEP.replace('{cosine: ">=0.99"}', '{accuracy_drop: "<=0.1"}')).goals
        return goal.candidates[0].values["accuracy_drop"], goal.candidates[0].why

    assert drop(0.8) == (pytest.approx(0.05), "")
    value, why = drop(None)
    assert value is None
    assert why.startswith("accuracy_drop is not known: eval has no such figure")


def test_pointless_search_is_not_started(sweeping: Sweeping) -> None:
    """Starting it would rank nodes, which would fail here: there is no model."""
    sweeping.cell("a/w8a8", 120, 0.95)
    assert sweeping.searched().why == (
        "nothing was searched: a/w8a8 misses a bound on quality, and is no better in size than the winner"
    )
    sweeping.cell("a/w8a8", 100, 1.0)
    assert sweeping.searched().why == "no cell misses only a bound on quality, so there was nothing to search"


def test_search_starts_from_best_cell_missing_only_quality(sweeping: Sweeping) -> None:
    sweeping.cell("a/w8a16", 90, 0.9)
    failure = Failure("validate", "It is too far from the reference.")
    sweeping.cell("a/fp32", 400, 1.0, status=CellStatus.FAILED, failure=failure)
    found = sweeping.searched()
    assert found.cell == "a/w8a16"
    assert found.why.startswith("nothing was searched: ")
    sweeping.cell("a/w8a16", 90, 0.9, status=CellStatus.FAILED, failure=failure)
    sweeping.cell("a/w8a8", 90, 1.0, status=CellStatus.FAILED, failure=Failure("compile", "It crashed."))
    assert sweeping.searched().cell == "a/fp32"


def test_trial_name_clash_with_a_cell_is_refused(sweeping: Sweeping) -> None:
    text = SWEEP.replace("[fp32, w8a8, w8a16]", "[fp32, w8a8, {name: w8a8+1in16, precision: w8a8}]")
    sweeping.cell("a/w8a8+1in16", 100, 0.96)
    assert (
        sweeping.searched(text).why
        == "nothing was searched: trials of a/w8a8 would be called like the cell a/w8a8+1in16"
    )


GOAL = Goal.model_validate({"minimize": "latency", "subject_to": {"cosine": ">=0.99", "size": "<=50"}})
THERE = CellResult("a/w8a8", {}, "a/w8a8", CellStatus.BUILT)

# Few different values, so that there are ties.
VALUES = st.fixed_dictionaries(
    {},
    optional={
        "latency": st.sampled_from([1.0, 2.0, 3.0]),
        "size": st.sampled_from([40.0, 50.0, 60.0]),
        "cosine": st.sampled_from([0.98, 0.99, 1.0]),
    },
)


def evaluation(values: Mapping[str, float], name: str = "a/w8a8") -> Evaluation:
    missing = {each: "nobody looked" for each in ("latency", "size", "cosine") if each not in values}
    return Evaluation(GOAL, replace(THERE, name=name), Facts(values, missing))


@given(st.lists(VALUES, max_size=12))
def test_winner_is_best_of_cells_meeting_all_bounds(found: list[dict[str, float]]) -> None:
    cells = [evaluation(values, f"cell {place}") for place, values in enumerate(found)]
    meeting = [
        (values["latency"], -values["cosine"], values["size"], place)
        for place, values in enumerate(found)
        if len(values) == 3 and values["cosine"] >= 0.99 and values["size"] <= 50
    ]
    best = winner(cells)
    assert (None if best is None else best.result.name) == (f"cell {min(meeting)[3]}" if meeting else None)
    # A cell with a reason against it does not win, and one without could have.
    assert [one.candidate().why == "" for one in cells] == [
        any(place == each for *_, each in meeting) for place in range(len(cells))
    ]


def test_rejection_reasons_include_figures() -> None:
    assert evaluation({"latency": 1.0, "size": 60.0, "cosine": 0.98999}).candidate().why == (
        "cosine is 0.98999, below 0.99; size is 60 bytes, above 50"
    )
    assert evaluation({"size": 60.0}).candidate().values == {"latency": None, "cosine": None, "size": 60.0}
    assert evaluation({"size": 1.0, "cosine": 1.0}).candidate().why == "latency is not known: nobody looked"


def test_failed_or_refused_cell_cannot_win_and_reason_is_given() -> None:
    failed = replace(THERE, status=CellStatus.FAILED, failure=Failure("compile", "The compiler crashed."))
    refused = replace(THERE, status=CellStatus.REFUSED, why="QNN is not installed.")
    cells = [Evaluation(GOAL, result, None) for result in (failed, refused)]
    assert winner(cells) is None
    assert [one.candidate().why for one in cells] == [
        "failed at compile: The compiler crashed",
        "refused: QNN is not installed",
    ]


def test_nearest_cell_has_the_smallest_largest_shortfall() -> None:
    far = evaluation({"latency": 1.0, "size": 40.0, "cosine": 0.5}, "far")
    near = evaluation({"latency": 3.0, "size": 40.0, "cosine": 0.98}, "near")
    too_large = evaluation({"latency": 1.0, "size": 60.0, "cosine": 1.0}, "too large")
    unknown = evaluation({"latency": 1.0, "cosine": 0.98}, "unknown")
    found = nearest([far, unknown, near, too_large])
    assert found is not None
    assert found.result.name == "near"


def test_only_cells_missing_quality_alone_lack_precision() -> None:
    assert evaluation({"latency": 1.0, "size": 40.0, "cosine": 0.5}).lacks_precision
    assert not evaluation({"latency": 1.0, "size": 60.0, "cosine": 0.5}).lacks_precision
    assert not evaluation({"latency": 1.0, "size": 40.0, "cosine": 1.0}).lacks_precision
    assert evaluation({"latency": 1.0, "size": 60.0, "cosine": 1.0}).keeps_quality
