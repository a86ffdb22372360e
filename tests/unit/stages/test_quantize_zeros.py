"""Additions of zero do nothing in float, but QNN drops them and with them the scale conversions of a QDQ model."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from ep_stage_runs import requires_qnn
from optimize_samples import graph
from quantization_samples import WIDTH, calibrate, quantize, weights, with_constant_nodes
from validation_samples import NPU, validate

from winml_dag.stages.quantize import NodeTypes

ZERO = np.zeros(WIDTH, np.float32)
ROWS = {"x": np.random.default_rng(0).uniform(-1, 1, (10, 4, WIDTH)).astype(np.float32)}


def biased(bias: np.ndarray, addition: str = "Add (m, bias)", last: str = "y = Relu (s)") -> onnx.ModelProto:
    """Return a matrix, *addition* and Relu; without *last*, the sum is the output."""
    text = f"g (float[1, 4, {WIDTH}] x) => (float[k, 4, {WIDTH}] {'y' if last else 's'})"
    nodes = f"m = MatMul (x, matrix) [sum] s = {addition} {last}"
    return graph(f"{text} {{ {nodes} }}", matrix=weights(WIDTH, WIDTH), bias=bias)


def quantized(folder, model, rules="qnn", **fields):
    types = {"weight_type": "uint8", "activation_type": "uint8", **fields}
    return quantize(folder, model, "static", calibrate(folder, model, ROWS), rules, **types)


@pytest.mark.parametrize("rules", ["qnn", "onnxruntime"])
@pytest.mark.parametrize(
    "model",
    [
        biased(ZERO),
        biased(ZERO, "Add (bias, m)"),
        biased(ZERO, "Sub (m, bias)"),
        biased(np.zeros(1, np.float32)),
        # Below the precision of float32 for the values that it is added to.
        biased(ZERO + np.float32(1e-9)),
        with_constant_nodes(biased(ZERO)),
    ],
    ids=["vector", "first", "subtracted", "number", "next to nothing", "of a node"],
)
def test_addition_of_zero_is_removed(tmp_path, model, rules):
    result = quantized(tmp_path, model, rules)
    assert not {"Add", "Sub", "Constant"} & set(result.op_types())
    assert not [tensor.name for tensor in result.model.graph.initializer if "bias" in tensor.name]
    assert result.metrics["zero_additions_taken_out"] == 1
    assert result.metrics["nodes_skipped"] == 0
    (found,) = result.outputs({"x": ROWS["x"][:1]})
    assert np.abs(found - np.maximum(ROWS["x"][:1] @ weights(WIDTH, WIDTH), 0)).max() < 0.1


@pytest.mark.parametrize(
    "model",
    [
        biased(weights(WIDTH, seed=1)),
        biased(np.where(np.arange(WIDTH) == 3, np.float32(1e-3), ZERO)),
        biased(ZERO, "Sub (bias, m)"),
        biased(np.ones(WIDTH, np.float32), "Mul (m, bias)"),
    ],
    ids=["bias", "one small value", "subtracted from zero", "multiplied"],
)
def test_effective_addition_is_kept(tmp_path, model):
    result = quantized(tmp_path, model)
    assert {"Add", "Sub", "Mul"} & set(result.op_types())
    assert result.metrics["zero_additions_taken_out"] == 0


def test_zero_that_broadcasts_the_result_is_kept(tmp_path):
    model = biased(np.zeros((3, 4, WIDTH), np.float32))
    assert quantized(tmp_path, model).outputs({"x": ROWS["x"][:1]})[0].shape == (3, 4, WIDTH)


def test_unquantized_addition_of_zero_is_kept(tmp_path):
    result = quantized(tmp_path, biased(ZERO), nodes_to_exclude=("sum",))
    assert "Add" in result.op_types()
    assert result.metrics["zero_additions_taken_out"] == 0


@pytest.mark.parametrize(
    ("model", "fields"),
    [
        (biased(ZERO), {"node_overrides": (NodeTypes("sum", None, "uint16"),)}),
        (biased(ZERO, last=""), {}),
    ],
    ids=["named", "an output"],
)
def test_zero_becomes_first_operand_if_node_is_kept(tmp_path, model, fields):
    after = quantized(tmp_path, model, **fields).model.graph
    made = {name: node for node in after.node for name in node.output}
    first, second = next(node.input for node in after.node if node.op_type == "Add")
    assert {tensor.name for tensor in after.initializer} >= {made[first].input[0]}
    assert made[made[second].input[0]].op_type == "QuantizeLinear"


def test_consecutive_additions_of_zero_are_removed(tmp_path):
    result = quantized(tmp_path, biased(ZERO, last="t = Add (s, bias) y = Relu (t)"))
    assert result.metrics["zero_additions_taken_out"] == 2
    assert "Add" not in result.op_types()


@requires_qnn
@pytest.mark.parametrize("named", [False, True], ids=["taken out", "zero first"])
def test_qnn_result_matches_float_model(tmp_path, named):
    """QNN's compiler drops an Add of zero, and with it the conversion to the scale after the Relu."""
    fields = {"node_overrides": (NodeTypes("sum", "uint8", None),)} if named else {}
    result = quantized(tmp_path, biased(ZERO), **fields)
    assert ("Add" in result.op_types()) is named
    assert validate(tmp_path / "run", result.folder, biased(ZERO), target=NPU, min_cosine=0.999)
