"""Bounds of goals: what may be written, what they mean, and what is said of one that means nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from winml_dag.recipe.document import Positions
from winml_dag.recipe.goal import MEASURES, Goal
from winml_dag.recipe.problems import problems


def complaint(**goal: object) -> str:
    with pytest.raises(ValidationError) as caught:
        Goal.model_validate(goal)
    (line,) = problems(caught.value, Goal, Positions(), "sweep.yaml")
    return line.removeprefix("sweep.yaml:1: ")


@pytest.mark.parametrize(
    ("measure", "text", "value"),
    [
        ("cosine", ">=0.99", 0.99),
        ("sqnr_db", ">= 20 dB", 20),
        ("accuracy_drop", "<=-0.01", -0.01),
        ("size", "<=20MB", 20e6),
        ("size", "<= 1.5 MiB", 1.5 * 2**20),
        ("size", "<=1000", 1000),
        ("latency", "<=5", 5),
        ("latency", "<=0.25s", 250),
        ("latency", "<=80us", 0.08),
        ("peak_memory", "<=1GiB", 2**30),
        ("max_abs_error", "<=1e-3", 1e-3),
    ],
)
def test_bounds_are_read_in_the_unit_of_their_measure(measure: str, text: str, value: float) -> None:
    (bound,) = Goal.model_validate({"minimize": "size", "subject_to": {measure: text}}).bounds
    assert bound.value == pytest.approx(value)
    assert bound.at_least == MEASURES[measure].more_is_better
    assert bound.holds(value)
    assert bound.holds(value + 1) == bound.at_least


@pytest.mark.parametrize(
    ("bounds", "what"),
    [
        ({"cosin": ">=0.9"}, "subject_to.cosin: unknown measure; did you mean 'cosine'?"),
        ({"cosine": 0.99}, 'subject_to.cosine: expected a bound in quotes, such as ">=0.99" or "<=20MB"'),
        ({"cosine": "0.99"}, "subject_to.cosine: expected a bound such as \">=0.99\", got '0.99'"),
        ({"cosine": ">0.99"}, "subject_to.cosine: expected a bound such as \">=0.99\", got '>0.99'"),
        ({"cosine": ">=0.9.9"}, "subject_to.cosine: expected a bound such as \">=0.99\", got '>=0.9.9'"),
        (
            {"cosine": "<=0.99"},
            'subject_to.cosine: more is better of this measure, so a bound is written with >=, such as ">=0.99"',
        ),
        ({"cosine": ">=1.5"}, "subject_to.cosine: no model keeps '>=1.5': it is 1 at best"),
        ({"cosine": ">=-1"}, "subject_to.cosine: every model keeps '>=-1': it is -1 at worst"),
        ({"max_abs_error": "<=-1"}, "subject_to.max_abs_error: no model keeps '<=-1': it is 0 at best"),
        ({"latency": "<=5m"}, "subject_to.latency: 'm' is no unit of this measure; write us, µs, ms, s, or none"),
        ({"cosine": ">=0.9 MB"}, "subject_to.cosine: 'MB' is no unit of this measure; it has none"),
    ],
    ids=lambda value: "" if isinstance(value, str) else "-".join(map(str, next(iter(value.items())))),
)
def test_a_bound_that_means_nothing_is_told_with_its_key(bounds: dict[str, object], what: str) -> None:
    assert complaint(minimize="size", subject_to=bounds) == what


def test_only_what_can_be_told_from_any_build_is_minimized() -> None:
    assert complaint(minimize="speed") == "minimize: 'speed' is not one of latency, size"


@given(st.sampled_from(sorted(MEASURES)), st.text(max_size=12))
def test_no_text_ends_in_anything_but_a_bound_or_a_complaint(measure: str, text: str) -> None:
    try:
        goal = Goal.model_validate({"minimize": "size", "subject_to": {measure: text}})
    except ValidationError:
        return
    assert [bound.text for bound in goal.bounds] == [text]
