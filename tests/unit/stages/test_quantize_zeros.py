"""Additions of zero do nothing in float, but QNN drops them and with them the scale conversions of a QDQ model."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from ep_stage_runs import compile_config, requires_qnn, run_stage
from onnx import TensorProto, helper
from quantization_samples import WIDTH, calibrate, model_of, quantize, weights

from winml_dag.stages.quantize import NodeTypes
from winml_dag.stages.validate import VALIDATE

ZERO = np.zeros(WIDTH, np.float32)
ROWS = {"x": np.random.default_rng(0).uniform(-1, 1, (10, 4, WIDTH)).astype(np.float32)}


def biased(bias: np.ndarray, op: str = "Add", *, turned: bool = False, last: str = "Relu") -> onnx.ModelProto:
    """Return a matrix, *bias* and Relu; without *last*, the sum is the output."""
    operands = ["bias", "m"] if turned else ["m", "bias"]
    nodes = [
        helper.make_node("MatMul", ["x", "matrix"], ["m"], "project"),
        helper.make_node(op, operands, ["s" if last else "y"], "sum"),
        *([helper.make_node(last, ["s"], ["y"], "last")] if last else []),
    ]
    shape = [1, 4, WIDTH]
    inputs = {"x": (TensorProto.FLOAT, shape)}
    return model_of(nodes, inputs, {"y": shape}, {"matrix": weights(WIDTH, WIDTH), "bias": bias})


def quantized(folder, model, rules="qnn", **fields):
    types = {"weight_type": "uint8", "activation_type": "uint8", **fields}
    return quantize(folder, model, "static", calibrate(folder, model, ROWS), rules, **types)


def with_constant_nodes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return *model* with constants as nodes, as some exporters write it."""
    (bias,) = (tensor for tensor in model.graph.initializer if tensor.name == "bias")
    model.graph.node.insert(0, helper.make_node("Constant", [], ["bias"], "zeros", value=bias))
    model.graph.initializer.remove(bias)
    return model


@pytest.mark.parametrize("rules", ["qnn", "onnxruntime"])
@pytest.mark.parametrize(
    "model",
    [
        biased(ZERO),
        biased(ZERO, turned=True),
        biased(ZERO, "Sub"),
        biased(np.zeros(1, np.float32)),
        # Below the precision of float32 for the values that it is added to.
        biased(ZERO + np.float32(1e-9)),
        with_constant_nodes(biased(ZERO)),
    ],
    ids=["vector", "first", "subtracted", "number", "next to nothing", "of a node"],
)
def test_an_addition_of_zero_is_taken_out(tmp_path, model, rules):
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
        biased(ZERO, "Sub", turned=True),
        biased(np.ones(WIDTH, np.float32), "Mul"),
    ],
    ids=["bias", "one small value", "subtracted from zero", "multiplied"],
)
def test_what_does_something_stays(tmp_path, model):
    result = quantized(tmp_path, model)
    assert {"Add", "Sub", "Mul"} & set(result.op_types())
    assert result.metrics["zero_additions_taken_out"] == 0


def test_a_zero_that_makes_the_sum_larger_than_the_other_operand_stays(tmp_path):
    nodes = [
        helper.make_node("MatMul", ["x", "matrix"], ["m"], "project"),
        helper.make_node("Add", ["m", "zeros"], ["s"], "repeat"),
        helper.make_node("Relu", ["s"], ["y"], "last"),
    ]
    constants = {"matrix": weights(WIDTH, WIDTH), "zeros": np.zeros((3, 4, WIDTH), np.float32)}
    model = model_of(nodes, {"x": (TensorProto.FLOAT, [1, 4, WIDTH])}, {"y": [3, 4, WIDTH]}, constants)
    assert quantized(tmp_path, model).outputs({"x": ROWS["x"][:1]})[0].shape == (3, 4, WIDTH)


def test_an_addition_that_stays_in_float_is_left_alone(tmp_path):
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
def test_where_the_node_has_to_stay_the_zero_comes_first(tmp_path, model, fields):
    after = quantized(tmp_path, model, **fields).model.graph
    made = {name: node for node in after.node for name in node.output}
    first, second = next(node.input for node in after.node if node.op_type == "Add")
    assert {tensor.name for tensor in after.initializer} >= {made[first].input[0]}
    assert made[made[second].input[0]].op_type == "QuantizeLinear"


def test_additions_of_zero_one_after_the_other_are_taken_out_together(tmp_path):
    nodes = [
        helper.make_node("MatMul", ["x", "matrix"], ["m"], "project"),
        helper.make_node("Add", ["m", "zero"], ["s"], "first"),
        helper.make_node("Add", ["s", "zero"], ["t"], "second"),
        helper.make_node("Relu", ["t"], ["y"], "last"),
    ]
    shape = [1, 4, WIDTH]
    constants = {"matrix": weights(WIDTH, WIDTH), "zero": ZERO}
    model = model_of(nodes, {"x": (TensorProto.FLOAT, shape)}, {"y": shape}, constants)
    result = quantized(tmp_path, model)
    assert result.metrics["zero_additions_taken_out"] == 2
    assert "Add" not in result.op_types()


@requires_qnn
@pytest.mark.parametrize("named", [False, True], ids=["taken out", "zero first"])
def test_qnn_computes_what_the_float_model_does(tmp_path, named):
    """QNN's compiler drops an Add of zero, and with it the conversion to the scale after the Relu."""
    model = biased(ZERO)
    onnx.save(model, tmp_path / "float.onnx")
    fields = {"node_overrides": (NodeTypes("sum", "uint8", None),)} if named else {}
    result = quantized(tmp_path, model, **fields)
    assert ("Add" in result.op_types()) is named
    config = {
        "validate": {"min_cosine": 0.999},
        "target": {name: compile_config()["compile"][name] for name in ("execution_provider", "device")}
        | {"provider_options": compile_config()["compile"]["provider_options"]},
    }
    files = {"model": {"model.onnx": result.path}, "reference": {"float.onnx": tmp_path / "float.onnx"}}
    assert run_stage(VALIDATE, tmp_path / "validate", config, files).error == ""
