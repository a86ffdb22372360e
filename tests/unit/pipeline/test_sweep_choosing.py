"""The winner among cells meets all bounds, and no cell that meets them is better. Reasons against others are given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from winml_dag.pipeline.sweep.goals import Evaluation, Facts, nearest, winner
from winml_dag.pipeline.sweep.result import CellResult, CellStatus, Failure
from winml_dag.recipe.goal import Goal

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
def test_nothing_that_meets_the_bounds_is_better_than_the_winner(found: list[dict[str, float]]) -> None:
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


def test_what_ruled_a_cell_out_is_told_with_its_figures() -> None:
    assert evaluation({"latency": 1.0, "size": 60.0, "cosine": 0.98999}).candidate().why == (
        "cosine is 0.98999, below 0.99; size is 60 bytes, above 50"
    )
    assert evaluation({"size": 60.0}).candidate().values == {"latency": None, "cosine": None, "size": 60.0}
    assert evaluation({"size": 1.0, "cosine": 1.0}).candidate().why == "latency is not known: nobody looked"


@pytest.mark.parametrize(
    ("result", "told"),
    [
        (
            replace(THERE, status=CellStatus.FAILED, failure=Failure("compile", "The compiler crashed.")),
            "failed at compile: The compiler crashed",
        ),
        (replace(THERE, status=CellStatus.REFUSED, why="QNN is not installed."), "refused: QNN is not installed"),
    ],
    ids=["failed", "refused"],
)
def test_a_cell_that_is_not_there_is_no_winner_and_says_why(result: CellResult, told: str) -> None:
    one = Evaluation(GOAL, result, None)
    assert winner([one]) is None
    assert one.candidate().why == told


def test_the_nearest_is_the_one_whose_largest_shortfall_is_smallest() -> None:
    far = evaluation({"latency": 1.0, "size": 40.0, "cosine": 0.5}, "far")
    near = evaluation({"latency": 3.0, "size": 40.0, "cosine": 0.98}, "near")
    too_large = evaluation({"latency": 1.0, "size": 60.0, "cosine": 1.0}, "too large")
    unknown = evaluation({"latency": 1.0, "cosine": 0.98}, "unknown")
    found = nearest([far, unknown, near, too_large])
    assert found is not None
    assert found.result.name == "near"


def test_only_who_misses_nothing_but_quality_can_gain_by_precision() -> None:
    assert evaluation({"latency": 1.0, "size": 40.0, "cosine": 0.5}).lacks_precision
    assert not evaluation({"latency": 1.0, "size": 60.0, "cosine": 0.5}).lacks_precision
    assert not evaluation({"latency": 1.0, "size": 40.0, "cosine": 1.0}).lacks_precision
    assert evaluation({"latency": 1.0, "size": 60.0, "cosine": 1.0}).keeps_quality
