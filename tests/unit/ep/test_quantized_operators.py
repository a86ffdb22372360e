"""Operators that are quantized for the CPU by default: onnxruntime has integer kernels for them, or they move bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from winml_dag.ep.registry import CPU

OPERATORS = CPU.integers.operators
QDQ = ("QuantizeLinear", "DequantizeLinear")


@dataclass(frozen=True)
class Sample:
    """Shapes of the quantized inputs; weights (also quantized) and constants of the inputs after them; attributes."""

    shapes: tuple[tuple[int, ...], ...] = ((4, 8),)
    weights: tuple[tuple[int, ...], ...] = ()
    constants: tuple[Any, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)
    first: bool = False
    outputs: int = 1


IMAGE = (1, 8, 8, 8)
SAMPLES: Mapping[str, Sample] = {
    "Add": Sample(((4, 8), (4, 8))),
    "ArgMax": Sample(),
    "AveragePool": Sample((IMAGE,), attributes={"kernel_shape": [2, 2]}),
    "Concat": Sample(((4, 8), (4, 8)), attributes={"axis": 0}),
    "Conv": Sample((IMAGE,), ((8, 8, 3, 3),)),
    "DepthToSpace": Sample((IMAGE,), attributes={"blocksize": 2}),
    "Expand": Sample(((1, 8),), constants=([4, 8],)),
    "Flatten": Sample((IMAGE,)),
    "Gather": Sample(constants=([0, 2],)),
    "GatherElements": Sample(constants=([[0, 2]],)),
    "Gemm": Sample(weights=((8, 8),)),
    "GlobalAveragePool": Sample((IMAGE,)),
    "LeakyRelu": Sample(),
    "MatMul": Sample(weights=((8, 8),)),
    "MaxPool": Sample((IMAGE,), attributes={"kernel_shape": [2, 2]}),
    "Mul": Sample(((4, 8), (4, 8))),
    "Reshape": Sample(constants=([8, 4],)),
    "Resize": Sample(
        (IMAGE,),
        constants=(None, np.array([1, 1, 2, 2], np.float32)),
        attributes={"mode": "nearest", "coordinate_transformation_mode": "asymmetric"},
    ),
    "Sigmoid": Sample(),
    "Slice": Sample(constants=([0], [2], [0])),
    "Softmax": Sample(),
    "Split": Sample(attributes={"axis": 0, "num_outputs": 2}, outputs=2),
    "Squeeze": Sample(((1, 4, 8),), constants=([0],)),
    "Tile": Sample(constants=([1, 2],)),
    "Transpose": Sample(attributes={"perm": [1, 0]}),
    "Unsqueeze": Sample(constants=([0],)),
    "Where": Sample(((4, 8), (4, 8)), constants=([True, False] * 4,), first=True),
    # Without an integer kernel.
    "BatchNormalization": Sample((IMAGE,), constants=tuple(np.ones(8, np.float32) for _ in range(4))),
    "ConvTranspose": Sample((IMAGE,), ((8, 8, 3, 3),)),
    "Div": Sample(((4, 8), (4, 8))),
    "Erf": Sample(),
    "HardSigmoid": Sample(),
    "LayerNormalization": Sample(weights=((8,),)),
    "Pow": Sample(((4, 8), (4, 8))),
    "ReduceMean": Sample(constants=([1],)),
    "Sqrt": Sample(),
}
FLOAT_ONLY = {"BatchNormalization", "Div", "Erf", "HardSigmoid", "Pow", "ReduceMean", "Sqrt"}
SLOWER = {"AveragePool", "Softmax"}
# Useful for reasons other than kernels.
OTHERWISE = {"Clip", "Relu", "ConvTranspose", "LayerNormalization"}


def quantized_model(op_type: str, dtype: type[np.unsignedinteger[Any]]) -> onnx.ModelProto:
    """Return the operator alone, with all inputs and outputs between Q and DQ."""
    sample = SAMPLES[op_type]
    middle = np.iinfo(dtype).max // 2 + 1
    scale = np.float32(4 / middle)
    nodes: list[onnx.NodeProto] = []
    constants = [numpy_helper.from_array(scale, "scale"), numpy_helper.from_array(dtype(middle), "zero")]

    def converted(source: str, made: str) -> str:
        nodes.append(helper.make_node("QuantizeLinear", [source, "scale", "zero"], [f"{made} q"]))
        nodes.append(helper.make_node("DequantizeLinear", [f"{made} q", "scale", "zero"], [made]))
        return made

    given = [converted(f"x{place}", f"input {place}") for place in range(len(sample.shapes))]
    for place, shape in enumerate(sample.weights):
        values = np.random.default_rng(place).integers(0, 2 * middle, shape).astype(dtype)
        constants.append(numpy_helper.from_array(values, f"w{place} q"))
        nodes.append(helper.make_node("DequantizeLinear", [f"w{place} q", "scale", "zero"], [f"w{place}"]))
        given.append(f"w{place}")
    fixed = ["" if value is None else f"c{place}" for place, value in enumerate(sample.constants)]
    constants += [
        numpy_helper.from_array(np.asarray(value), f"c{place}")
        for place, value in enumerate(sample.constants)
        if value is not None
    ]
    made = [f"y{place}" for place in range(sample.outputs)]
    nodes.append(
        helper.make_node(op_type, [*fixed, *given] if sample.first else [*given, *fixed], made, **sample.attributes)
    )
    if op_type == "ArgMax":
        outputs = [helper.make_tensor_value_info("y0", TensorProto.INT64, None)]
    else:
        outputs = [
            helper.make_tensor_value_info(converted(name, f"{name} d"), TensorProto.FLOAT, None) for name in made
        ]
    inputs = [
        helper.make_tensor_value_info(f"x{place}", TensorProto.FLOAT, shape)
        for place, shape in enumerate(sample.shapes)
    ]
    graph = helper.make_graph(nodes, "graph", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def runs_on_integers(op_type: str, dtype: type[np.unsignedinteger[Any]], folder: Path) -> bool:
    """Return whether onnxruntime's highest optimization level leaves no float form of the operator."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    ort.InferenceSession(
        quantized_model(op_type, dtype).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    graph = onnx.load(folder / "optimized.onnx").graph
    dequantized = {name for node in graph.node if node.op_type == "DequantizeLinear" for name in node.output}
    return not any(name in dequantized for node in graph.node if node.op_type not in QDQ for name in node.input)


@pytest.mark.parametrize("op_type", sorted(SAMPLES.keys() - FLOAT_ONLY - OTHERWISE))
def test_what_is_quantized_with_8_bits_runs_on_integers(op_type: str, tmp_path: Path) -> None:
    assert runs_on_integers(op_type, np.uint8, tmp_path)
    assert (op_type in OPERATORS[8]) == (op_type not in SLOWER)


@pytest.mark.parametrize("op_type", sorted(FLOAT_ONLY))
def test_what_has_no_integer_kernel_is_not_quantized(op_type: str, tmp_path: Path) -> None:
    assert not runs_on_integers(op_type, np.uint8, tmp_path)
    assert op_type not in OPERATORS[8]


def test_every_operator_of_8_bits_has_a_reason() -> None:
    assert set(OPERATORS[8]) <= SAMPLES.keys() | OTHERWISE


@pytest.mark.parametrize("op_type", ["Add", "Conv", "Gemm", "MatMul", "MaxPool", "Mul", "Sigmoid"])
def test_nothing_computes_with_16_bits(op_type: str, tmp_path: Path) -> None:
    assert not runs_on_integers(op_type, np.uint16, tmp_path)
