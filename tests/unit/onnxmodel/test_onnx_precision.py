"""The precision that a model really has, by the types of its numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantFormat, QuantType, quantize_dynamic
from onnxruntime.quantization.matmul_nbits_quantizer import DefaultWeightOnlyQuantConfig, MatMulNBitsQuantizer

from winml_dag.onnxmodel.graphfile import read_model
from winml_dag.onnxmodel.inspect import inspect_model
from winml_dag.onnxmodel.precision import FoundPrecision, precision_of

ModelMaker = Callable[..., onnx.ModelProto]
WEIGHT, BIAS = 64 * 64, 64


def found(model: onnx.ModelProto | str, folder: Path) -> FoundPrecision:
    onnx.save(onnx.parser.parse_model(model) if isinstance(model, str) else model, folder / "m.onnx")
    return precision_of(read_model(folder / "m.onnx"))


@pytest.fixture
def quantized_precision(linear: ModelMaker, quantized: Callable[..., Path]) -> Callable[..., FoundPrecision]:
    return lambda **types: precision_of(read_model(quantized(linear(), **types)))


@pytest.mark.parametrize(
    ("weight", "activation", "name"),
    [
        (QuantType.QUInt8, QuantType.QUInt8, "w8a8"),
        (QuantType.QInt8, QuantType.QUInt16, "w8a16"),
        (QuantType.QInt16, QuantType.QInt16, "w16a16"),
    ],
)
def test_qdq_model_is_named_by_its_widths(
    quantized_precision: Callable[..., FoundPrecision], weight: QuantType, activation: QuantType, name: str
) -> None:
    precision = quantized_precision(weight_type=weight, activation_type=activation)
    assert (precision.name, precision.scheme) == (name, "qdq")
    assert precision.weights == {str(weight).lower().removeprefix("q"): WEIGHT}
    assert [*precision.activations] == [str(activation).lower().removeprefix("q")]
    assert precision.matrix_nodes == (1, 1)


def test_weights_quantized_at_runtime_count_as_weights(
    quantized_precision: Callable[..., FoundPrecision],
) -> None:
    precision = quantized_precision(activation_type=QuantType.QUInt16, extra_options={"AddQDQPairToWeight": True})
    assert precision.weights == {"int8": WEIGHT}
    assert precision.others == {"uint16": BIAS}  # Add combines an activation with it
    assert precision.activations == {"uint16": 3}
    assert precision.text == "w8a16, 2% of all elements are uint16, outside of MatMul, Gemm and Conv"


def test_embedding_table_does_not_change_the_precision_name(tmp_path: Path) -> None:
    """MiniLM in w8a16 has more 16-bit elements in its table than 8-bit elements in all its MatMuls."""
    text = f"""<ir_version: 10, opset_import: ["": 21]> g (int64[4] x) => (float[4, 2] y)
    <float s = {{0.1}}, uint8 z8 = {{128}}, uint16 z16 = {{32768}},
     uint16[500, 8] table = {{{",".join("1" * 4000)}}}, uint8[8, 2] w = {{{",".join("1" * 16)}}}> {{
        rows = DequantizeLinear (table, s, z16)
        row = Gather (rows, x)
        rq = QuantizeLinear (row, s, z16)
        rd = DequantizeLinear (rq, s, z16)
        wd = DequantizeLinear (w, s, z8)
        y = MatMul (rd, wd)
    }}"""
    precision = found(text, tmp_path)
    assert precision.name == "w8a16"
    assert (precision.weights, precision.others) == ({"uint8": 16}, {"uint16": 4000})
    assert precision.text == "w8a16, 100% of all elements are uint16, outside of MatMul, Gemm and Conv"


def test_wider_activations_are_reported_with_their_share(
    quantized_precision: Callable[..., FoundPrecision],
) -> None:
    options = {"TensorQuantOverrides": {"t": [{"quant_type": QuantType.QUInt16}]}}
    precision = quantized_precision(activation_type=QuantType.QUInt8, extra_options=options)
    assert precision.name == "w8a8"
    assert precision.activations == {"uint8": 2, "uint16": 1}
    assert precision.text == "w8a8, 1 of 3 activations are uint16"


def test_integer_operators_are_named_by_kind(
    linear: ModelMaker, quantized_precision: Callable[..., FoundPrecision], tmp_path: Path
) -> None:
    onnx.save(linear(), tmp_path / "float.onnx")
    quantize_dynamic(tmp_path / "float.onnx", tmp_path / "m.onnx", weight_type=QuantType.QInt8)
    dynamic = precision_of(read_model(tmp_path / "m.onnx"))
    assert (dynamic.name, dynamic.weights, dynamic.matrix_nodes) == ("dynamic", {"int8": WEIGHT}, (1, 1))
    assert dynamic.text == "dynamic: int8 weights, activations quantized while it runs"
    assert inspect_model(tmp_path / "m.onnx").is_quantized
    operators = quantized_precision(quant_format=QuantFormat.QOperator)
    assert operators.text == "w8a8 in integer operators (QOperator)"
    assert inspect_model(tmp_path / "quantized.onnx").is_quantized


@pytest.mark.parametrize(("level", "told"), [(0, ""), (4, ", activations rounded to 8 bits inside MatMulNBits")])
def test_four_bit_blocks_are_named_with_float_type(linear: ModelMaker, tmp_path: Path, level: int, told: str) -> None:
    quantizer = MatMulNBitsQuantizer(
        linear(), algo_config=DefaultWeightOnlyQuantConfig(block_size=32, accuracy_level=level)
    )
    quantizer.process()
    precision = found(quantizer.model.model, tmp_path)
    assert (precision.name, precision.scheme) == ("w4a32", "weights")
    assert precision.weights == {"uint4": WEIGHT}
    assert precision.text.startswith(f"w4a32 (weights only){told}")


def test_float_types_are_reported_with_their_shares(tmp_path: Path) -> None:
    halves = numpy_helper.from_array(np.ones((6, 2), np.float16), "h")
    wholes = numpy_helper.from_array(np.ones(4, np.float32), "f")
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT16, [2, 2]) for name in "xy")
    nodes = [helper.make_node("Identity", [name], [name.upper()]) for name in "hf"]
    nodes.append(helper.make_node("Relu", ["x"], ["y"]))
    assert found(helper.make_model(helper.make_graph(nodes, "g", [x], [y], [halves, wholes])), tmp_path).text == (
        "fp16, 4 of 16 weights' elements are float32"
    )
    # Without weights, inputs and outputs decide.
    assert found(helper.make_model(helper.make_graph(nodes[2:], "g", [x], [y])), tmp_path).text == "fp16"


def test_compiled_model_reports_edge_types_only(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]> g (float[1] x) => (float[1] y)
    <float s = {1.0}, uint16 z = {0}> {
        q = com.microsoft.EPContext (x)
        y = DequantizeLinear (q, s, z)
    }"""
    precision = found(text, tmp_path)
    assert precision.name == ""
    assert precision.text == "inside the compiled binary, quantized to uint16 at its edges"


def test_incomplete_nodes_are_tolerated(tmp_path: Path) -> None:
    names = ("QuantizeLinear", "DequantizeLinear", "MatMul", "MatMulNBits", "GatherBlockQuantized", "QLinearConv")
    nodes = [helper.make_node(name, [], []) for name in (*names, "MatMulInteger", "Constant", "EPContext")]
    (tmp_path / "m.onnx").write_bytes(helper.make_model(helper.make_graph(nodes, "g", [], [])).SerializeToString())
    assert precision_of(read_model(tmp_path / "m.onnx")).scheme == "compiled"
