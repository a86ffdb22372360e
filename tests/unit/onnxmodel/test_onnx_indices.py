"""Random integers stay within the range that the graph allows, determined by running it."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnxruntime
import pytest

from winml_dag.onnxmodel.feeds import model_inputs, random_feeds

TABLE = "float[3, 4] table = {" + ", ".join("1" * 12) + "}"
WEIGHTS = "{" + ", ".join("1" * 16) + "}"

# By name: inputs, constants, and nodes.
CASES = {
    "Gather": ("int64[5] i", TABLE, "y = Gather (table, i)"),
    "Gather of an activation": ("float[2, 3] x, int64[5] i", "", "y = Gather <axis = 1> (x, i)"),
    "Gather behind Cast, Sub and Unsqueeze": (
        "int32[5] i",
        f"{TABLE}, int64 first = {{100}}, int64[1] axis = {{0}}",
        "c = Cast <to = 7> (i)  d = Sub (c, first)  e = Unsqueeze (d, axis)  y = Gather (table, e)",
    ),
    "Gather behind Mul": ("int64[5] i", f"{TABLE}, int64 k = {{2}}", "c = Mul (i, k)  y = Gather (table, c)"),
    "Gather behind Mod, of what has no shape": (
        "float[2, 3] x, int64[5] i",
        "int64 k = {2}",
        "t = Neg (x)  c = Mod (i, k)  y = Gather (t, c)",
    ),
    "GatherElements": ("float[2, 3] x, int64[2, 2] i", "", "y = GatherElements <axis = 1> (x, i)"),
    "GatherND": ("float[2, 3] x, int64[4, 2] i", "", "y = GatherND (x, i)"),
    "ScatterElements": (
        "float[2, 3] x, int64[2, 1] i, float[2, 1] u",
        "",
        "y = ScatterElements <axis = 1> (x, i, u)",
    ),
    "Reshape": ("float[2, 3] x, int64[2] i", "", "y = Reshape (x, i)"),
    "Reshape to a vector": ("float[2, 3] x, int64[1] i", "", "y = Reshape (x, i)"),
    "Expand": ("float[2, 3] x, int64[2] i", "", "y = Expand (x, i)"),
    "TopK": ("float[2, 3] x, int64[1] i", "", "y, at = TopK (x, i)"),
    "Slice": ("float[2, 3] x, int64[2] a, int64[2] b", "int64[2] axes = {0, 1}", "y = Slice (x, a, b, axes)"),
    "CumSum": ("float[2, 3] x, int64 i", "", "y = CumSum (x, i)"),
    "LSTM": (
        "float[3, 1, 2] steps, int32[1] i",
        f"float[1, 8, 2] w = {WEIGHTS}, float[1, 8, 2] r = {WEIGHTS}",
        'y = LSTM <hidden_size = 2> (steps, w, r, "", i)',
    ),
}


def saved(path: Path, inputs: str, constants: str, nodes: str) -> Path:
    text = f'<ir_version: 9, opset_import: ["": 17]> g ({inputs}) => (float[] y) <{constants}> {{ {nodes} }}'
    onnx.save(onnx.parser.parse_model(text), path)
    return path


@pytest.mark.parametrize("case", CASES)
def test_a_model_runs_on_random_integers(tmp_path: Path, case: str) -> None:
    path = saved(tmp_path / "model.onnx", *CASES[case])
    session, inputs = onnxruntime.InferenceSession(path), model_inputs(path)
    for feed in (*random_feeds(inputs, 0, 8), *random_feeds(inputs, 1, 8, "normal")):
        session.run(None, feed)


def test_sizes_and_depths_that_nothing_fails_over_are_kept_too(tmp_path: Path) -> None:
    constants = "int64 depth = {4}, float[2] values = {0, 1}"
    path = saved(tmp_path / "a.onnx", "int64[6] i", constants, "y = OneHot (i, depth, values)")
    session = onnxruntime.InferenceSession(path)
    for feed in random_feeds(model_inputs(path), 0, 8):
        assert session.run(None, feed)[0].sum() == 6
    path = saved(tmp_path / "b.onnx", "float[2, 3] x, int64[2] i", "", "y = Tile (x, i)")
    assert {feed["i"].max() for feed in random_feeds(model_inputs(path), 0, 8)} == {1}


def test_integers_that_nothing_bounds_are_the_usual_ones(tmp_path: Path) -> None:
    constants = f"int64 low = {{0}}, int64 high = {{2}}, {TABLE}"
    clipped = "c = Clip (i, low, high)  y = Gather (table, c)"
    for number, nodes in enumerate(("y = Cast <to = 1> (i)", clipped)):
        path = saved(tmp_path / f"{number}.onnx", "int64[50] i", constants if number else "", nodes)
        assert [spec.value_range for spec in model_inputs(path)] == [None]
        (feed,) = random_feeds(model_inputs(path), 0, 1)
        assert set(feed["i"].tolist()) == set(range(10))


def test_what_the_metadata_tells_is_not_second_guessed(tmp_path: Path) -> None:
    path = saved(tmp_path / "model.onnx", "int64[50] i", TABLE, "y = Gather (table, i)")
    model = onnx.load(path)
    model.metadata_props.add(key="winml.io.inputs", value='[{"name": "i", "value_range": [1, 2]}]')
    onnx.save(model, path)
    (feed,) = random_feeds(model_inputs(path), 0, 1)
    assert set(feed["i"].tolist()) == {1}


def test_a_number_inside_of_a_branch_is_found(tmp_path: Path) -> None:
    branch = "b () => (float[] b) { b = Gather (table, i) }"
    nodes = f"y = If (yes) <then_branch = {branch}, else_branch = {branch}>"
    path = saved(tmp_path / "model.onnx", "int64[5] i", f"{TABLE}, bool yes = {{1}}", nodes)
    session = onnxruntime.InferenceSession(path)
    for feed in random_feeds(model_inputs(path), 0, 8):
        session.run(None, feed)
