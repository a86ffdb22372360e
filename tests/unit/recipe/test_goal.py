"""Goals: valid bounds and their meaning, the cells they choose among, and the folders of winners."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from winml_dag.errors import RecipeError
from winml_dag.recipe.document import Positions
from winml_dag.recipe.goal import MEASURES, Goal, group_axes, groups, winner_folder
from winml_dag.recipe.matrix import load_sweep
from winml_dag.recipe.problems import problems
from winml_dag.recipe.sweep import Sweep


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
        ({"latency": "<=5m"}, "subject_to.latency: 'm' is not a unit of this measure; write us, µs, ms, s, or none"),
        ({"cosine": ">=0.9 MB"}, "subject_to.cosine: 'MB' is not a unit of this measure; it has none"),
    ],
    ids=lambda value: "" if isinstance(value, str) else "-".join(map(str, next(iter(value.items())))),
)
def test_a_bound_that_means_nothing_is_told_with_its_key(bounds: dict[str, object], what: str) -> None:
    assert complaint(minimize="size", subject_to=bounds) == what


@given(st.sampled_from(sorted(MEASURES)), st.text("<>=-+0123456789.e kMGTiBbitsdµ%\0ü", max_size=12))
def test_no_text_ends_in_anything_but_a_bound_or_a_complaint(measure: str, text: str) -> None:
    try:
        goal = Goal.model_validate({"minimize": "size", "subject_to": {measure: text}})
    except ValidationError:
        return
    assert [bound.text for bound in goal.bounds] == [text]


MATRIX = """
matrix:
  arch:
    - {name: a, model: a.onnx}
    - {name: b, model: b.onnx}
  precision: [w8a8, w8a16]
  where:
    - {name: host, ep: cpu}
    - {name: npu, ep: qnn, compile: {}}
  quant.samples: [4, 8]
"""


def sweep_of(folder: Path, text: str, matrix: str = MATRIX) -> Sweep:
    path = folder / "sweep.yaml"
    path.write_text(matrix + text, encoding="utf-8")
    return load_sweep(path)


def refusal(folder: Path, text: str) -> list[str]:
    with pytest.raises(RecipeError) as caught:
        sweep_of(folder, text)
    return [line.removeprefix(f"{folder / 'sweep.yaml'}:") for line in caught.value.problems]


@pytest.mark.parametrize(
    ("goal", "axes", "folders"),
    [
        ("", ("arch", "where"), ["best/a/host", "best/a/npu", "best/b/host", "best/b/npu"]),
        (', per: [arch], folder: "ship/{arch}-best"', ("arch",), ["ship/a-best", "ship/b-best"]),
        (", per: []", (), ["best"]),
    ],
    ids=["whatever their axes are called", "per and folder say otherwise", "one of all"],
)
def test_there_is_a_winner_for_each_model_and_target(
    tmp_path: Path, goal: str, axes: tuple[str, ...], folders: list[str]
) -> None:
    sweep = sweep_of(tmp_path, f"goal: {{minimize: size{goal}}}\n")
    (found,) = sweep.goals
    assert group_axes(found, sweep.axes, sweep.cells) == axes
    assert [winner_folder(found, group) for group in groups(axes, sweep.cells)] == folders


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            'goal: {minimize: latency, subject_to: {accuracy_drop: "<=0.01"}}',
            "11: goal.minimize: latency is not measured; write `measure: [perf]`\n"
            "11: goal.subject_to.accuracy_drop: accuracy_drop is not measured; write `measure: [eval]`",
        ),
        ("goal: {minimize: speed}", "11: goal.minimize: 'speed' is not one of latency, size"),
        (
            "goal: {minimize: size, per: [arhc]}",
            "11: goal.per: 'arhc' is not an axis of the matrix; did you mean 'arch'?",
        ),
        (
            'goal: {minimize: size, folder: "x/{whre}"}',
            "11: goal.folder: there is no axis 'whre'; did you mean 'where'?",
        ),
        (
            'goal: {minimize: size, folder: "x/{precision}"}',
            "11: goal.folder: there is one winner for each value of arch, where, so nothing else can name its folder",
        ),
        ("search: {}", "11: search: there is no goal to search for; add `goal`"),
        (
            'goal: [{minimize: size, subject_to: {size: "<=1MB"}}]\nsearch: {}',
            '12: search: no goal has a bound on quality that a low precision could miss, such as cosine: ">=0.99"',
        ),
    ],
)
def test_what_is_impossible_is_refused_with_its_line(tmp_path: Path, text: str, told: str) -> None:
    assert refusal(tmp_path, f"{text}\n") == told.split("\n")


def test_what_is_measured_can_be_minimized(tmp_path: Path) -> None:
    assert sweep_of(tmp_path, "measure: [perf]\ngoal: {minimize: latency}\n").goals


def test_two_winners_do_not_get_one_folder_and_none_that_of_a_cell(tmp_path: Path) -> None:
    (told,) = refusal(tmp_path, "goal:\n  - {minimize: size}\n  - {minimize: size, subject_to: {cosine: '>=0.9'}}\n")
    assert told.startswith("13: goal[1].folder: goal 1's winner of arch a, where host and goal 2's winner of arch a")
    (told,) = refusal(tmp_path, 'goal: {minimize: size, per: [arch], folder: "{arch}"}\n')
    assert told.startswith("11: goal.folder: goal 1's winner of arch a and the cell a/")
