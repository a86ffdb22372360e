"""How QNN handles additions of zero in a QDQ model from another tool."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from winml_dag.onnxmodel.graphfile import read_model
from winml_dag.onnxmodel.soundness import findings

WIDTH = 4
HALF = (0.5, 0)
WHOLE = (1.0, 128)


def model(
    folder: Path,
    after: tuple[float, int] = HALF,
    added: np.ndarray | None = None,
    *,
    turned: bool = False,
    dtype: type = np.uint8,
) -> Path:
    """Return ``x + added`` in QDQ: x has scale and zero point :data:`WHOLE`, the sum those of *after*."""
    codes = np.full(WIDTH, 3, dtype) if added is None else added.astype(dtype)
    numbers = {"x": WHOLE, "b": (1.0, 3), "y": after}
    constants = {f"{name}_scale": np.float32(scale) for name, (scale, _) in numbers.items()}
    constants |= {f"{name}_zero": dtype(point) for name, (_, point) in numbers.items()}

    def node(kind: str, source: str, name: str, target: str) -> onnx.NodeProto:
        return helper.make_node(kind, [source, f"{name}_scale", f"{name}_zero"], [target], target)

    operands = ["x_float", "b_float"]
    nodes = [
        node("QuantizeLinear", "x", "x", "x_codes"),
        node("DequantizeLinear", "x_codes", "x", "x_float"),
        node("DequantizeLinear", "codes", "b", "b_float"),
        helper.make_node("Add", operands[::-1] if turned else operands, ["sum"], "bias"),
        node("QuantizeLinear", "sum", "y", "y_codes"),
        node("DequantizeLinear", "y_codes", "y", "y"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, WIDTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, WIDTH])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in {**constants, "codes": codes}.items()],
    )
    path = folder / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    return path


def with_numbers_as_integers(path: Path) -> Path:
    """Store zero points as onnxruntime's tools do: as integers, not raw bytes."""
    made = onnx.load(path)
    for tensor in made.graph.initializer:
        if tensor.name.endswith("_zero"):
            value = int(numpy_helper.to_array(tensor))
            tensor.CopyFrom(helper.make_tensor(tensor.name, tensor.data_type, [], [value]))
    onnx.save(made, path)
    return path


def told(path: Path) -> list[str]:
    return list(findings(path, read_model(path)))


@pytest.mark.parametrize("after", [HALF, (1.0, 0), (0.5, 128)], ids=["both", "zero point", "scale"])
@pytest.mark.parametrize("dtype", [np.uint8, np.int16], ids=["8 bits", "16 bits"])
def test_an_addition_of_zero_whose_sum_has_numbers_of_its_own_is_named(tmp_path, after, dtype):
    path = model(tmp_path, after, dtype=dtype)
    (sentence,) = told(path)
    assert told(with_numbers_as_integers(path)) == [sentence]
    assert "QNN computes something else" in sentence
    assert "behind bias." in sentence


@pytest.mark.parametrize(
    "given",
    [{"after": WHOLE}, {"added": np.array([3, 3, 4, 3])}, {"turned": True}],
    ids=["same numbers", "not zero", "zero first"],
)
def test_what_qnn_computes_rightly_is_passed_over(tmp_path, given):
    assert told(model(tmp_path, **given)) == []
