"""Random integers stay within the range that the graph allows, determined by running it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

from winml_dag.onnxmodel.feeds import model_inputs, random_feeds

TABLE = {"table": np.ones((3, 4), np.float32)}
DATA = {"x": (TensorProto.FLOAT, [2, 3])}
INT = TensorProto.INT64
node = helper.make_node


def one(op: str, *inputs: str, **attributes: int) -> list[NodeProto]:
    return [node(op, list(inputs), ["y"], **attributes)]


def ids(shape: list[int], dtype: int = INT) -> dict[str, tuple[int, list[int]]]:
    return {"i": (dtype, shape)}


CASES = {
    "Gather": (one("Gather", "table", "i"), ids([5]), TABLE),
    "Gather of an activation": (one("Gather", "x", "i", axis=1), DATA | ids([5]), {}),
    "Gather behind Cast, Sub and Unsqueeze": (
        [
            node("Cast", ["i"], ["c"], to=INT),
            node("Sub", ["c", "first"], ["d"]),
            node("Unsqueeze", ["d", "axis"], ["e"]),
            *one("Gather", "table", "e"),
        ],
        ids([5], TensorProto.INT32),
        {**TABLE, "first": np.array(100), "axis": np.array([0])},
    ),
    "Gather behind Mul": (
        [node("Mul", ["i", "k"], ["c"]), *one("Gather", "table", "c")],
        ids([5]),
        {**TABLE, "k": np.array(2)},
    ),
    "Gather behind Mod, of what has no shape": (
        [node("Neg", ["x"], ["t"]), node("Mod", ["i", "k"], ["c"]), *one("Gather", "t", "c")],
        DATA | ids([5]),
        {"k": np.array(2)},
    ),
    "GatherElements": (one("GatherElements", "x", "i", axis=1), DATA | ids([2, 2]), {}),
    "GatherND": (one("GatherND", "x", "i"), DATA | ids([4, 2]), {}),
    "ScatterElements": (
        one("ScatterElements", "x", "i", "u", axis=1),
        DATA | ids([2, 1]) | {"u": (TensorProto.FLOAT, [2, 1])},
        {},
    ),
    "Reshape": (one("Reshape", "x", "i"), DATA | ids([2]), {}),
    "Reshape to a vector": (one("Reshape", "x", "i"), DATA | ids([1]), {}),
    "Expand": (one("Expand", "x", "i"), DATA | ids([2]), {}),
    "TopK": ([node("TopK", ["x", "i"], ["y", "at"])], DATA | ids([1]), {}),
    "Slice": (
        one("Slice", "x", "a", "b", "axes"),
        DATA | {"a": (INT, [2]), "b": (INT, [2])},
        {"axes": np.array([0, 1])},
    ),
    "CumSum": (one("CumSum", "x", "i"), DATA | ids([]), {}),
    "LSTM": (
        [node("LSTM", ["steps", "w", "r", "", "i"], ["y"], hidden_size=2)],
        {"steps": (TensorProto.FLOAT, [3, 1, 2])} | ids([1], TensorProto.INT32),
        {"w": np.ones((1, 8, 2), np.float32), "r": np.ones((1, 8, 2), np.float32)},
    ),
}


def saved(path: Path, nodes: list[NodeProto], inputs: dict, constants: dict) -> Path:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, dtype, shape) for name, (dtype, shape) in inputs.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


@pytest.mark.parametrize("case", CASES)
def test_a_model_runs_on_random_integers(tmp_path: Path, case: str) -> None:
    path = saved(tmp_path / "model.onnx", *CASES[case])
    session, inputs = onnxruntime.InferenceSession(path), model_inputs(path)
    for feed in (*random_feeds(inputs, 0, 8), *random_feeds(inputs, 1, 8, "normal")):
        session.run(None, feed)


def test_sizes_and_depths_that_nothing_fails_over_are_kept_too(tmp_path: Path) -> None:
    constants = {"depth": np.array(4), "values": np.array([0, 1], np.float32)}
    path = saved(tmp_path / "a.onnx", one("OneHot", "i", "depth", "values"), ids([6]), constants)
    session = onnxruntime.InferenceSession(path)
    for feed in random_feeds(model_inputs(path), 0, 8):
        assert session.run(None, feed)[0].sum() == 6
    path = saved(tmp_path / "b.onnx", one("Tile", "x", "i"), DATA | ids([2]), {})
    assert {feed["i"].max() for feed in random_feeds(model_inputs(path), 0, 8)} == {1}


def test_integers_that_nothing_bounds_are_the_usual_ones(tmp_path: Path) -> None:
    constants = {"low": np.array(0), "high": np.array(2), **TABLE}
    clipped = [node("Clip", ["i", "low", "high"], ["c"]), *one("Gather", "table", "c")]
    for number, nodes in enumerate(([*one("Cast", "i", to=TensorProto.FLOAT)], clipped)):
        path = saved(tmp_path / f"{number}.onnx", nodes, ids([50]), constants if number else {})
        assert [spec.value_range for spec in model_inputs(path)] == [None]
        (feed,) = random_feeds(model_inputs(path), 0, 1)
        assert set(feed["i"].tolist()) == set(range(10))


def test_what_the_metadata_tells_is_not_second_guessed(tmp_path: Path) -> None:
    path = saved(tmp_path / "model.onnx", one("Gather", "table", "i"), ids([50]), TABLE)
    model = onnx.load(path)
    model.metadata_props.add(key="winml.io.inputs", value='[{"name": "i", "value_range": [1, 2]}]')
    onnx.save(model, path)
    (feed,) = random_feeds(model_inputs(path), 0, 1)
    assert set(feed["i"].tolist()) == {1}


def test_a_number_inside_of_a_branch_is_found(tmp_path: Path) -> None:
    branch = helper.make_graph(
        [node("Gather", ["table", "i"], ["b"])], "b", [], [helper.make_tensor_value_info("b", TensorProto.FLOAT, None)]
    )
    nodes = [node("If", ["yes"], ["y"], then_branch=branch, else_branch=branch)]
    path = saved(tmp_path / "model.onnx", nodes, ids([5]), {**TABLE, "yes": np.array(True)})
    session = onnxruntime.InferenceSession(path)
    for feed in random_feeds(model_inputs(path), 0, 8):
        session.run(None, feed)
