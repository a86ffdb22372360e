from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from optimize_samples import graph, outputs
from quantization_samples import (
    WIDTH,
    calibrate,
    cosine,
    image_model,
    pixels,
    quantize,
    text_model,
    token_ids,
    weights,
)

from winml_dag.errors import StageError
from winml_dag.onnxmodel.inspect import inspect_model

ROW = f"g (float[1, {WIDTH}] x) => (float[1, {WIDTH}] y)"
# Weights that two nodes read, one of them transposing.
TIED = {
    "Gemm": graph(
        f"{ROW} {{ h = Gemm <transB = 1> (x, w, b) y = Gemm <transB = 1> (h, w, b) }}",
        w=weights(WIDTH, WIDTH),
        b=weights(WIDTH, seed=1),
    ),
    "MatMul": graph(f"{ROW} {{ h = MatMul (x, w) y = MatMul (h, w) }}", w=weights(WIDTH, WIDTH)),
}


class TestFp16:
    def test_fp16_keeps_float32_inputs_and_outputs(self, tmp_path):
        feed = pixels(1)
        result = quantize(tmp_path, image_model(), "fp16")
        summary = inspect_model(result.path)
        assert "float32" not in summary.tensor_bytes
        assert {spec.dtype for spec in (*summary.inputs, *summary.outputs)} == {"float32"}
        assert (result.metrics["nodes_quantized"], result.metrics["nodes_skipped"]) == (6, 0)
        assert result.metrics["size_after_bytes"] < result.metrics["size_before_bytes"]
        assert cosine(outputs(image_model(), feed)[0], result.outputs(feed)[0]) > 0.999

    def test_fp16_can_convert_inputs_and_outputs(self, tmp_path):
        result = quantize(tmp_path, image_model(), "fp16", fp16_keep_io_types=False)
        summary = inspect_model(result.path)
        assert {spec.dtype for spec in (*summary.inputs, *summary.outputs)} == {"float16"}
        assert "Cast" not in result.op_types()

    def test_fp16_leaves_excluded_operators_and_nodes_in_float32(self, tmp_path):
        result = quantize(tmp_path, text_model(), "fp16", fp16_op_block_list=("Softmax",), nodes_to_exclude=("proj*",))
        assert result.metrics["nodes_skipped_by_type"] == {"MatMul": 1, "Softmax": 1}
        constants = {tensor.name: tensor.data_type for tensor in result.model.graph.initializer}
        assert (constants["wo"], constants["wq"]) == (TensorProto.FLOAT, TensorProto.FLOAT16)

    def test_fp16_clamps_constants_to_float16_range(self, tmp_path):
        feed = token_ids(1)
        model = text_model(mask=float(np.finfo(np.float32).min))
        result = quantize(tmp_path, model, "fp16")
        assert result.constants["low"] == np.finfo(np.float16).min
        assert cosine(outputs(model, feed)[0], result.outputs(feed)[0]) > 0.999

    def test_fp16_loads_with_float32_node_after_nonstandard_operator(self, tmp_path):
        model = graph(f"{ROW} {{ g = com.microsoft.QuickGelu (x) y = Softmax (g) }}", imports=', "com.microsoft": 1')
        result = quantize(tmp_path, model, "fp16", fp16_op_block_list=("Softmax",))
        assert result.metrics["nodes_skipped_by_type"] == {"Softmax": 1}

    @pytest.mark.parametrize(
        "text",
        [
            "y, mean = LayerNormalization (x, g) z = Add (mean, mean)",
            "a = Celu (x) z = Mul (a, x)",
            "r = RandomNormalLike (x) a = Mul (r, x) z = Mul (a, x)",
            "a = MeanVarianceNormalization <axes = [0, 1]> (x) z = Mul (a, x)",
        ],
    )
    def test_fp16_leaves_operators_without_that_form_in_float32(self, tmp_path, text):
        model = graph(f"g (float[2, 4] x) => (float[2, ?] z) {{ {text} }}", 18, g=weights(4))
        assert quantize(tmp_path, model, "fp16").metrics["nodes_skipped"] >= 1

    def test_fp16_keeps_duplicate_outputs_and_last_of_duplicate_constants(self, tmp_path):
        model = graph("g (float[2, 4] x) => (float[2, 4] y, float[2, 4] y) { y = Add (x, w) }", w=weights(4))
        model.graph.initializer.insert(0, onnx.numpy_helper.from_array(weights(4, seed=1), "w"))
        feed = {"x": weights(2, 4)}
        one, other = quantize(tmp_path, model, "fp16").outputs(feed)
        np.testing.assert_allclose(one, feed["x"] + weights(4), atol=1e-2)
        np.testing.assert_array_equal(one, other)

    @pytest.mark.parametrize("mode", ["dynamic", "rtn"])
    def test_model_without_standard_operators_is_refused(self, tmp_path, mode):
        text = """<ir_version: 8, opset_import: ["ai.onnx.ml": 3]> g (float[1, 4] x) => (float[1, 4] y)
            { y = ai.onnx.ml.Binarizer <threshold = 0.5> (x) }"""
        with pytest.raises(StageError, match="no weights that could be quantized"):
            quantize(tmp_path, onnx.parser.parse_model(text), mode)

    def test_fp16_overflow_is_an_error(self, tmp_path):
        model = graph("g (float[4] x) => (float[4] y) <float big = {60000}> { m = Mul (x, big) y = Mul (m, big) }")
        with pytest.raises(StageError, match="output 'y'") as caught:
            quantize(tmp_path, model, "fp16", fp16_keep_io_types=False)
        assert "fp16_op_block_list" in caught.value.advice


class TestDynamic:
    @pytest.mark.parametrize("weight_type", ["int8", "uint8"])
    @pytest.mark.parametrize("per_channel", [False, True])
    def test_dynamic_uses_requested_weight_type_with_close_outputs(self, tmp_path, weight_type, per_channel):
        feed = token_ids(1)
        result = quantize(tmp_path, text_model(), "dynamic", weight_type=weight_type, per_channel=per_channel)
        assert result.metrics["weights_by_type"] == {weight_type: 3}
        assert result.metrics["nodes_quantized"] == 4  # query, key, project and the table of embed
        assert result.metrics["nodes_skipped_by_type"]["MatMul"] == 2  # of two activations each
        assert cosine(outputs(text_model(), feed)[0], result.outputs(feed)[0]) > 0.99

    def test_dynamic_quantizes_gemm_unless_excluded(self, tmp_path):
        feed = pixels(1)
        result = quantize(tmp_path, image_model(), "dynamic", weight_type="uint8")
        assert result.metrics["nodes_quantized"] == 3
        assert cosine(outputs(image_model(), feed)[0], result.outputs(feed)[0]) > 0.99
        without = quantize(tmp_path, image_model(), "dynamic", weight_type="uint8", nodes_to_exclude=("classify",))
        assert without.metrics["nodes_skipped_by_type"]["Gemm"] == 1

    def test_dynamic_counts_unnamed_nodes_separately(self, tmp_path):
        model = text_model()
        for node in model.graph.node:
            node.ClearField("name")
        result = quantize(tmp_path, model, "dynamic", op_types_to_quantize=("Gemm", "Gather"))
        assert result.metrics["nodes_skipped_by_type"]["MatMul"] == 5

    def test_dynamic_handles_weight_shared_by_two_gemms(self, tmp_path):
        feed = {"x": weights(1, WIDTH, seed=3)}
        result = quantize(tmp_path, TIED["Gemm"], "dynamic")
        assert result.metrics["nodes_quantized"] == 2
        assert cosine(outputs(TIED["Gemm"], feed)[0], result.outputs(feed)[0]) > 0.99

    def test_dynamic_tolerates_stated_weight_shapes(self, tmp_path):
        model = image_model()
        model.graph.value_info.append(onnx.helper.make_tensor_value_info("w3", TensorProto.FLOAT, [5, 8]))
        assert quantize(tmp_path, model, "dynamic").metrics["nodes_quantized"] == 3


class TestRtn:
    @pytest.mark.parametrize("bits", [4, 8])
    @pytest.mark.parametrize("symmetric", [False, True])
    def test_rtn_quantizes_matrices_in_blocks(self, tmp_path, bits, symmetric):
        feed = token_ids(1)
        fields = {"rtn_bits": bits, "rtn_block_size": 16, "rtn_symmetric": symmetric, "rtn_accuracy_level": 4}
        result = quantize(tmp_path, text_model(), "rtn", **fields)
        assert result.metrics["weights_by_type"] == {f"uint{bits}": 3}
        (settings,) = {
            tuple((a.name, a.i) for a in node.attribute if a.name in ("accuracy_level", "bits", "block_size"))
            for node in result.model.graph.node
            if node.op_type == "MatMulNBits"
        }
        assert dict(settings) == {"accuracy_level": 4, "bits": bits, "block_size": 16}
        inputs = {len(node.input) for node in result.model.graph.node if node.op_type == "MatMulNBits"}
        assert inputs == ({3} if symmetric else {4})  # without or with zero points
        assert cosine(outputs(text_model(), feed)[0], result.outputs(feed)[0]) > 0.97

    def test_rtn_quantizes_gemm_weight(self, tmp_path):
        feed = pixels(1)
        result = quantize(tmp_path, image_model(), "rtn", rtn_bits=8, rtn_block_size=16)
        assert result.metrics["nodes_quantized"] == 1
        assert result.metrics["nodes_skipped_by_type"]["Conv"] == 2
        assert cosine(outputs(image_model(), feed)[0], result.outputs(feed)[0]) > 0.99

    @pytest.mark.parametrize("model", TIED.values(), ids=TIED)
    def test_rtn_handles_weight_shared_by_two_nodes(self, tmp_path, model):
        feed = {"x": weights(1, WIDTH, seed=3)}
        result = quantize(tmp_path, model, "rtn", rtn_bits=8, rtn_block_size=16)
        assert result.metrics["nodes_quantized"] == 2
        names = [tensor.name for tensor in result.model.graph.initializer]
        assert len(names) == len(set(names))
        assert cosine(outputs(model, feed)[0], result.outputs(feed)[0]) > 0.99

    def test_rtn_result_can_be_converted_to_fp16(self, tmp_path):
        feed = token_ids(1)
        four_bits = quantize(tmp_path, text_model(), "rtn", rtn_block_size=16)
        both = quantize(tmp_path, four_bits.model, "fp16")
        assert both.op_types().count("MatMulNBits") == 3
        assert "float32" not in inspect_model(both.path).tensor_bytes
        assert cosine(four_bits.outputs(feed)[0], both.outputs(feed)[0]) > 0.999


@pytest.mark.parametrize(
    ("mode", "fields", "message"),
    [
        ("fp16", {"fp16_op_block_list": ("Softmaks",)}, "Softmaks"),
        ("fp16", {"nodes_to_exclude": ("*",)}, "No node"),
        ("dynamic", {"weight_type": "uint16"}, "8-bit weights only, not uint16"),
        ("rtn", {"rtn_block_size": 24}, "24"),
        ("rtn", {"rtn_block_size": 8}, "8"),
    ],
)
def test_unsupported_settings_are_refused(tmp_path, mode, fields, message):
    with pytest.raises(StageError, match=message):
        quantize(tmp_path, text_model(), mode, **fields)


def test_dynamic_refuses_model_without_weights(tmp_path):
    with pytest.raises(StageError, match="no weights"):
        quantize(tmp_path, graph("g (float[2] x) => (float[2] y) { y = Relu (x) }"), "dynamic")


@pytest.mark.parametrize("mode", ["static", "dynamic", "rtn", "fp16"])
def test_quantized_model_is_refused_in_every_mode(tmp_path, mode):
    types = {"weight_type": "uint8", "activation_type": "uint8"}
    ranges = calibrate(tmp_path, image_model())
    done = {
        "QDQ": quantize(tmp_path, image_model(), "static", ranges, "qnn", **types),
        "integer operators": quantize(tmp_path, image_model(), "dynamic"),
        "float16": quantize(tmp_path, image_model(), "fp16"),
    }
    for result in done.values():
        with pytest.raises(StageError, match="cannot be quantized"):
            quantize(tmp_path, result.model, mode, ranges, **types)


def test_compiled_model_is_refused(tmp_path):
    context = 'com.microsoft.EPContext <embed_mode = 1, ep_cache_context = "bin"> (x)'
    compiled = graph(f"{ROW} {{ y = {context} }}", imports=', "com.microsoft": 1')
    with pytest.raises(StageError, match=r"compiled model.*cannot be quantized"):
        quantize(tmp_path, compiled, "fp16")
