"""Which cells a goal chooses among, where winners go, and what is refused before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from winml_dag.errors import RecipeError
from winml_dag.recipe.goal import group_axes, groups, winner_folder
from winml_dag.recipe.matrix import load_sweep
from winml_dag.recipe.sweep import Sweep

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


def test_there_is_a_winner_for_each_model_and_target_whatever_their_axes_are_called(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path, "goal: {minimize: size}\n")
    (goal,) = sweep.goals
    axes = group_axes(goal, sweep.axes, sweep.cells)
    assert axes == ("arch", "where")
    found = groups(axes, sweep.cells)
    assert [winner_folder(goal, group) for group in found] == [
        "best/a/host",
        "best/a/npu",
        "best/b/host",
        "best/b/npu",
    ]


def test_per_and_folder_say_otherwise(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path, 'goal: {minimize: size, per: [arch], folder: "ship/{arch}-best"}\n')
    (goal,) = sweep.goals
    found = groups(group_axes(goal, sweep.axes, sweep.cells), sweep.cells)
    assert [winner_folder(goal, group) for group in found] == ["ship/a-best", "ship/b-best"]


def test_one_winner_of_all(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path, "goal: {minimize: size, per: []}\n")
    (goal,) = sweep.goals
    assert groups(group_axes(goal, sweep.axes, sweep.cells), sweep.cells) == ({},)
    assert winner_folder(goal, {}) == "best"


def test_what_cannot_be_measured_is_refused_with_the_key_that_is_missing(tmp_path: Path) -> None:
    told = refusal(tmp_path, 'goal: {minimize: latency, subject_to: {accuracy_drop: "<=0.01"}}\n')
    assert told == [
        "11: goal.minimize: latency is not measured; write `measure: [perf]`",
        "11: goal.subject_to.accuracy_drop: accuracy_drop is not measured; write `measure: [eval]`",
    ]
    assert sweep_of(tmp_path, "measure: [perf]\ngoal: {minimize: latency}\n").goals


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("goal: {minimize: size, per: [arhc]}", "11: goal.per: 'arhc' is no axis of the matrix; did you mean 'arch'?"),
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
    ids=["axis", "template", "axis of what is chosen", "search alone", "search for nothing"],
)
def test_what_is_impossible_is_refused_with_its_line(tmp_path: Path, text: str, told: str) -> None:
    assert refusal(tmp_path, f"{text}\n") == [told]


def test_two_winners_do_not_get_one_folder_and_none_that_of_a_cell(tmp_path: Path) -> None:
    (told,) = refusal(tmp_path, "goal:\n  - {minimize: size}\n  - {minimize: size, subject_to: {cosine: '>=0.9'}}\n")
    assert told.startswith("13: goal[1].folder: goal 1's winner of arch a, where host and goal 2's winner of arch a")
    (told,) = refusal(tmp_path, 'goal: {minimize: size, per: [arch], folder: "{arch}"}\n')
    assert told.startswith("11: goal.folder: goal 1's winner of arch a and the cell a/")
