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
from winml_dag.onnxmodel.precision import FoundPrecision, precision_of

ModelMaker = Callable[..., onnx.ModelProto]
WEIGHT, BIAS = 64 * 64, 64


def found(model: onnx.ModelProto, folder: Path) -> FoundPrecision:
    onnx.save(model, folder / "m.onnx")
    return precision_of(read_model(folder / "m.onnx"))


@pytest.fixture
def quantized_precision(quantized: Callable[..., Path]) -> Callable[..., FoundPrecision]:
    return lambda *args, **types: precision_of(read_model(quantized(*args, **types)))


@pytest.mark.parametrize(
    ("weight", "activation", "name"),
    [
        (QuantType.QUInt8, QuantType.QUInt8, "w8a8"),
        (QuantType.QInt8, QuantType.QUInt16, "w8a16"),
        (QuantType.QInt16, QuantType.QInt16, "w16a16"),
    ],
)
def test_qdq_models_are_called_by_the_widths_that_they_have(
    linear: ModelMaker,
    quantized_precision: Callable[..., FoundPrecision],
    weight: QuantType,
    activation: QuantType,
    name: str,
) -> None:
    precision = quantized_precision(linear(), weight_type=weight, activation_type=activation)
    assert (precision.name, precision.scheme) == (name, "qdq")
    assert precision.weights == {str(weight).lower().removeprefix("q"): WEIGHT}
    assert [*precision.activations] == [str(activation).lower().removeprefix("q")]
    assert precision.matrix_nodes == (1, 1)


def test_weights_that_are_quantized_while_the_model_runs_are_weights_too(
    linear: ModelMaker, quantized_precision: Callable[..., FoundPrecision]
) -> None:
    precision = quantized_precision(
        linear(), activation_type=QuantType.QUInt16, extra_options={"AddQDQPairToWeight": True}
    )
    assert precision.weights == {"int8": WEIGHT}
    assert precision.others == {"uint16": BIAS}  # Add combines an activation with it
    assert precision.activations == {"uint16": 3}
    assert precision.text == "w8a16, 2% of all elements are uint16, outside of MatMul, Gemm and Conv"


def test_an_embedding_table_does_not_rename_a_model(tmp_path: Path) -> None:
    """MiniLM in w8a16 has more 16-bit elements in its table than 8-bit elements in all its MatMuls."""
    x, y = helper.make_tensor_value_info("x", TensorProto.INT64, [4]), helper.make_tensor_value_info("y", 1, [4, 2])
    number = {
        "s": np.float32(0.1), "z8": np.uint8(128), "z16": np.uint16(32768),
        "table": np.ones((500, 8), np.uint16), "w": np.ones((8, 2), np.uint8),
    }  # fmt: skip
    nodes = [
        helper.make_node("DequantizeLinear", ["table", "s", "z16"], ["rows"]),
        helper.make_node("Gather", ["rows", "x"], ["row"]),
        helper.make_node("QuantizeLinear", ["row", "s", "z16"], ["rq"]),
        helper.make_node("DequantizeLinear", ["rq", "s", "z16"], ["rd"]),
        helper.make_node("DequantizeLinear", ["w", "s", "z8"], ["wd"]),
        helper.make_node("MatMul", ["rd", "wd"], ["y"]),
    ]
    constants = [numpy_helper.from_array(np.asarray(value), name) for name, value in number.items()]
    precision = found(helper.make_model(helper.make_graph(nodes, "g", [x], [y], constants)), tmp_path)
    assert precision.name == "w8a16"
    assert (precision.weights, precision.others) == ({"uint8": 16}, {"uint16": 4000})
    assert precision.text == "w8a16, 100% of all elements are uint16, outside of MatMul, Gemm and Conv"


def test_activations_that_were_kept_wide_are_told_with_their_share(
    linear: ModelMaker, quantized_precision: Callable[..., FoundPrecision]
) -> None:
    overrides = {"t": [{"quant_type": QuantType.QUInt16}]}
    precision = quantized_precision(
        linear(), activation_type=QuantType.QUInt8, extra_options={"TensorQuantOverrides": overrides}
    )
    assert precision.name == "w8a8"
    assert precision.activations == {"uint8": 2, "uint16": 1}
    assert precision.text == "w8a8, 1 of 3 activations are uint16"


def test_operators_on_integers_say_which_kind_they_are(
    linear: ModelMaker, quantized_precision: Callable[..., FoundPrecision], tmp_path: Path
) -> None:
    onnx.save(linear(), tmp_path / "float.onnx")
    quantize_dynamic(tmp_path / "float.onnx", tmp_path / "m.onnx", weight_type=QuantType.QInt8)
    dynamic = precision_of(read_model(tmp_path / "m.onnx"))
    assert (dynamic.name, dynamic.weights, dynamic.matrix_nodes) == ("dynamic", {"int8": WEIGHT}, (1, 1))
    assert dynamic.text == "dynamic: int8 weights, activations quantized while it runs"
    operators = quantized_precision(linear(), quant_format=QuantFormat.QOperator)
    assert operators.text == "w8a8 in integer operators (QOperator)"


@pytest.mark.parametrize(("level", "told"), [(0, ""), (4, ", activations rounded to 8 bits inside MatMulNBits")])
def test_blocks_of_four_bits_tell_the_floats_beside_them(
    linear: ModelMaker, tmp_path: Path, level: int, told: str
) -> None:
    quantizer = MatMulNBitsQuantizer(
        linear(), algo_config=DefaultWeightOnlyQuantConfig(block_size=32, accuracy_level=level)
    )
    quantizer.process()
    precision = found(quantizer.model.model, tmp_path)
    assert (precision.name, precision.scheme) == ("w4a32", "weights")
    assert precision.weights == {"uint4": WEIGHT}
    assert precision.text.startswith(f"w4a32 (weights only){told}")


def test_floats_are_told_with_their_shares(tmp_path: Path) -> None:
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


def test_a_compiled_model_tells_its_edges_only(tmp_path: Path) -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy")
    constants = [numpy_helper.from_array(np.asarray(np.float32(1)), "s")]
    constants.append(numpy_helper.from_array(np.asarray(np.uint16(0)), "z"))
    nodes = [
        helper.make_node("EPContext", ["x"], ["q"], domain="com.microsoft"),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]),
    ]
    precision = found(helper.make_model(helper.make_graph(nodes, "g", [x], [y], constants)), tmp_path)
    assert precision.name == ""
    assert precision.text == "inside the compiled binary, quantized to uint16 at its edges"


def test_nodes_that_lack_what_they_need_are_no_reason_to_stop(tmp_path: Path) -> None:
    names = ("QuantizeLinear", "DequantizeLinear", "MatMul", "MatMulNBits", "GatherBlockQuantized", "QLinearConv")
    nodes = [helper.make_node(name, [], []) for name in (*names, "MatMulInteger", "Constant", "EPContext")]
    (tmp_path / "m.onnx").write_bytes(helper.make_model(helper.make_graph(nodes, "g", [], [])).SerializeToString())
    assert precision_of(read_model(tmp_path / "m.onnx")).scheme == "compiled"
