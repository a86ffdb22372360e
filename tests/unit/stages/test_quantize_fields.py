"""Every field of the quantization section takes effect, in every mode that reads it, as seen in the model itself."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from optimize_samples import graph
from quantization_samples import WIDTH, Result, calibrate, image_model, quantize, text_model, token_ids, types_around

from winml_dag.errors import StageError
from winml_dag.onnxmodel.inspect import inspect_model
from winml_dag.stages.quantize import NodeTypes

W8A8 = {"weight_type": "uint8", "activation_type": "uint8", "equalize": False}
RULES = ("qnn", "onnxruntime")


@pytest.fixture(scope="module")
def ranges(tmp_path_factory) -> Result:
    return calibrate(tmp_path_factory.mktemp("ranges"), text_model(), token_ids(4))


@pytest.fixture
def static(tmp_path, ranges):
    """Return static quantization, by default of the text model to 8 bits."""

    def run(rules: str | None = "onnxruntime", model: onnx.ModelProto | None = None, **fields: Any) -> Result:
        own = ranges
        if model is not None:
            own = calibrate(tmp_path, model, token_ids(4) if len(model.graph.input) == 2 else None)
        return quantize(tmp_path, model or text_model(), "static", own, rules, **{**W8A8, **fields})

    return run


def weight(result: Result, name: str = "wq") -> np.ndarray:
    return result.constants[f"{name}_quantized"].astype(np.int32)


def weight_points(result: Result) -> set[int]:
    return {int(result.constants[f"{name}_zero_point"]) for name in ("wq", "wk", "wo")}


def activation_points(result: Result) -> set[int]:
    nodes = [node for node in result.model.graph.node if node.op_type == "QuantizeLinear"]
    return {int(result.constants[node.input[2]]) for node in nodes}


def float_weights(result: Result) -> set[str]:
    return {tensor.name for tensor in result.model.graph.initializer if tensor.data_type == TensorProto.FLOAT}


class TestWeights:
    def test_dynamic_per_channel_gives_a_scale_per_column(self, tmp_path):
        for per_channel, shape in ((False, ()), (True, (WIDTH,))):
            result = quantize(tmp_path, text_model(), "dynamic", weight_type="int8", per_channel=per_channel)
            assert result.constants["wq_scale"].shape == shape

    @pytest.mark.parametrize(
        ("rules", "per_channel"), [(None, False), ("qnn", True), ("onnxruntime", False), ("onnxruntime", True)]
    )
    def test_reduce_range_leaves_one_weight_bit_unused(self, tmp_path, static, rules, per_channel):
        full, reduced = (
            weight(
                static(rules, per_channel=per_channel, reduce_range=reduce)
                if rules
                else quantize(tmp_path, text_model(), "dynamic", weight_type="uint8", reduce_range=reduce)
            )
            for reduce in (False, True)
        )
        assert np.ptp(full) > 200
        assert np.ptp(reduced) <= 128

    @pytest.mark.parametrize("symmetric", [True, False])
    def test_symmetric_dynamic_weights_have_central_zero_point(self, tmp_path, symmetric):
        result = quantize(tmp_path, text_model(), "dynamic", weight_type="uint8", weight_symmetric=symmetric)
        assert (weight_points(result) <= {127, 128}) == symmetric

    @pytest.mark.parametrize("weight_type", ["int4", "uint4"])
    @pytest.mark.parametrize("opset", [17, 21])
    def test_four_bit_weights_have_at_most_16_values(self, static, weight_type, opset):
        result = static(model=image_model(opset), weight_type=weight_type, activation_type="uint16")
        assert result.metrics["weights_by_type"] == {weight_type: 3}
        assert len(np.unique(weight(result, "w1"))) <= 16
        feed = {"pixels": np.zeros((1, 3, 8, 8), np.float32)}
        assert np.isfinite(result.outputs(feed)[0]).all()


class TestActivations:
    @pytest.mark.parametrize("rules", RULES)
    def test_activation_and_weight_symmetry_are_independent(self, static, rules):
        activations = static(rules, activation_symmetric=True, weight_symmetric=False, per_channel=False)
        assert activation_points(activations) <= {127, 128}
        assert not weight_points(activations) <= {127, 128}
        only_weights = static(rules, activation_symmetric=False, weight_symmetric=True, per_channel=False)
        assert len(activation_points(only_weights)) > 2
        assert weight_points(only_weights) <= {127, 128}


class TestLeftOut:
    """``nodes_to_exclude``, ``op_types_to_exclude`` and ``op_types_to_quantize``, names or patterns, in all modes."""

    @pytest.fixture(params=["static", "dynamic", "rtn", "fp16"])
    def run(self, request, tmp_path, static):
        if request.param == "static":
            return static
        return functools.partial(quantize, tmp_path, text_model(), request.param, rtn_block_size=16)

    @pytest.mark.parametrize(
        ("fields", "reason"),
        [
            ({"nodes_to_exclude": ("que*", "key", "project", "mix", "scores")}, "excluded by quant.nodes_to_exclude"),
            ({"op_types_to_exclude": ("Mat*",)}, "excluded by quant.op_types_to_exclude"),
            ({"op_types_to_quantize": ("Gather", "Soft*", "Gemm")}, "not among quant.op_types_to_quantize"),
        ],
    )
    @pytest.mark.parametrize("run", ["static", "dynamic", "fp16"], indirect=True)
    def test_excluded_nodes_keep_float_weights_with_reason(self, run, fields, reason):
        result = run(**fields)
        matmuls = [node for node in result.model.graph.node if node.op_type == "MatMul"]
        assert {node.name for node in matmuls} == {"query", "key", "scores", "mix", "project"}
        assert {node.input[1] for node in matmuls} >= {"wq", "wk", "wo"}
        assert {"wq", "wk", "wo"} <= float_weights(result)
        assert result.metrics["nodes_skipped_reasons"]["MatMul"] == {reason: 5}

    def test_rtn_refuses_when_all_supported_operators_are_excluded(self, tmp_path):
        for fields in ({"op_types_to_exclude": ("Mat*",)}, {"op_types_to_quantize": ("Gather", "Gemm")}):
            with pytest.raises(StageError, match="no weights"):
                quantize(tmp_path, text_model(), "rtn", rtn_block_size=16, **fields)

    def test_single_node_can_be_excluded(self, run):
        result = run(nodes_to_exclude=("project",))
        assert float_weights(result) & {"wo", "wq"} == {"wo"}
        assert result.metrics["nodes_skipped_reasons"]["MatMul"]["excluded by quant.nodes_to_exclude"] == 1

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"nodes_to_exclude": ("projekt",)}, "'projekt'; did you mean 'project'"),
            (
                {"op_types_to_exclude": ("MatMull",)},
                "quant.op_types_to_exclude: there is no operator 'MatMull'; did you mean 'MatMul'",
            ),
            ({"op_types_to_quantize": ("Zoft*",)}, "Zoft"),
        ],
    )
    def test_unmatched_exclusion_is_refused_with_nearest(self, run, fields, message):
        with pytest.raises(StageError, match=message):
            run(**fields)

    def test_excluding_a_known_absent_operator_is_allowed(self, run):
        assert run(op_types_to_exclude=("GroupQueryAttention", "LSTM")).metrics["nodes_quantized"] > 0


class TestReasons:
    @pytest.mark.parametrize(("mode", "ruleless"), [("dynamic", "Softmax"), ("rtn", "Gather")])
    def test_skip_reason_is_reported_per_operator(self, tmp_path, mode, ruleless):
        result = quantize(tmp_path, text_model(), mode, rtn_block_size=16, nodes_to_exclude=("query",))
        reasons = result.metrics["nodes_skipped_reasons"]
        assert reasons["MatMul"] == {"excluded by quant.nodes_to_exclude": 1, "its weight is not constant": 2}
        assert reasons[ruleless] == {"no rule for this operator": 1}

    def test_fp16_distinguishes_unsupported_from_excluded(self, tmp_path):
        model = text_model()
        model.graph.node.append(onnx.helper.make_node("CumSum", ["hidden_state", "axis_0"], ["sums"], "sum"))
        model.graph.output.append(onnx.helper.make_tensor_value_info("sums", TensorProto.FLOAT, None))
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(1, np.int64), "axis_0"))
        result = quantize(tmp_path, model, "fp16", fp16_op_block_list=("Soft*",))
        assert result.metrics["nodes_skipped_reasons"] == {
            "CumSum": {"kept in float32: no float16 form": 1},
            "Softmax": {"excluded by quant.fp16_op_block_list": 1},
        }


class TestHalf:
    def test_float32_nodes_sharing_a_tensor_have_unique_names(self, tmp_path):
        result = quantize(tmp_path, text_model(), "fp16", fp16_op_block_list=("MatMul",))
        names = [node.name for node in result.model.graph.node]
        assert len(names) == len(set(names))

    def test_overflow_between_float32_nodes_is_harmless(self, tmp_path):
        """All four steps are in float32, followed by a float16 operator."""
        model = graph(
            """g (float[1, 4] x) => (float[1, 4] y) <float big = {60000}> { [step_1] a = Mul (x, big)
            [step_2] b = Mul (a, big) [step_3] c = Div (b, big) [step_4] d = Div (c, big) y = Softmax (d) }"""
        )
        feed = {"x": np.array([[1, 2, 3, 4]], np.float32)}
        result = quantize(tmp_path, model, "fp16", nodes_to_exclude=("step_*",))
        assert result.metrics["nodes_skipped_by_type"] == {"Div": 2, "Mul": 2}
        expected = np.exp(feed["x"]) / np.exp(feed["x"]).sum()
        assert np.allclose(result.outputs(feed)[0], expected, atol=1e-3)

    def test_excluded_gemm_stays_one_node_through_rtn_and_fp16(self, tmp_path):
        model = image_model()
        model.graph.node.append(onnx.helper.make_node("Gemm", ["f", "w4"], ["more"], "second", transB=1))
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((5, 8), np.float32), "w4"))
        model.graph.output.append(onnx.helper.make_tensor_value_info("more", TensorProto.FLOAT, [1, 5]))
        blocks = quantize(tmp_path, model, "rtn", rtn_block_size=16, nodes_to_exclude=("classify",))
        both = quantize(tmp_path, blocks.model, "fp16", nodes_to_exclude=("classify",))
        assert [node.op_type for node in both.model.graph.node if node.name == "classify"] == ["Gemm"]
        assert "MatMulNBits" in both.op_types()
        assert inspect_model(both.path).tensor_bytes.keys() >= {"float16", "float32"}


class TestMixed:
    """``node_overrides``: types of single nodes."""

    @pytest.mark.parametrize("rules", RULES)
    def test_node_override_sets_all_its_activations(self, static, rules):
        result = static(rules, node_overrides=(NodeTypes("norm", None, "uint16"),))
        types = types_around(result.model.graph)
        assert types.pop("norm") == {TensorProto.UINT16}
        assert all(kinds <= {TensorProto.UINT8} for kinds in types.values())
        assert set(result.metrics["activations_by_type"]) == {"uint8", "uint16"}

    @pytest.mark.parametrize("rules", RULES)
    def test_node_override_sets_weight_type(self, static, rules):
        result = static(rules, node_overrides=(NodeTypes("query", "int4"),))
        assert [len(np.unique(weight(result, name))) <= 16 for name in ("wq", "wk")] == [True, False]

    def test_shared_weight_gets_the_type_of_each_node(self, static):
        model = text_model()
        next(node for node in model.graph.node if node.name == "key").input[1] = "wq"
        result = static(model=model, node_overrides=(NodeTypes("key", "int4"),))
        assert result.metrics["weights_by_type"]["int4"] == 1
        assert len(np.unique(weight(result))) > 16

    def test_exact_name_overrides_pattern(self, static):
        overrides = (NodeTypes("*", None, "uint16"), NodeTypes("softmax", None, "uint8"))
        types = types_around(static(node_overrides=overrides).model.graph)
        assert types.pop("softmax") == {TensorProto.UINT8}
        assert types["norm"] == types["query"] == {TensorProto.UINT16}

    def test_unnamed_nodes_are_quantized_beside_overrides(self, static):
        model = text_model()
        for node in model.graph.node:
            if node.name != "norm":
                node.ClearField("name")
        result = static(model=model, node_overrides=(NodeTypes("norm", None, "uint16"),))
        assert set(result.metrics["activations_by_type"]) == {"uint8", "uint16"}

    def test_unmatched_override_pattern_suggests_nearest(self, static):
        model = text_model()
        model.graph.node[1].name = "/encoder/layer.0/LayerNorm/LayerNormalization"
        with pytest.raises(
            StageError, match=r"no node of the model matches '\*LayerNrom\*'; did you mean 'LayerNorm'\?"
        ):
            static(model=model, node_overrides=(NodeTypes("*LayerNrom*", None, "uint16"),))

    def test_node_override_unsupported_by_qnn_is_refused(self, static):
        overrides = (NodeTypes("query", "int16"),)
        with pytest.raises(StageError, match=r"'query' would have int16 weights with uint8 activations; QNN takes"):
            static("qnn", node_overrides=overrides)
        assert static("onnxruntime", node_overrides=overrides).metrics["weights_by_type"]["int16"] == 1
        softmax = (NodeTypes("softmax", None, "uint8"),)  # has no weights
        wide = {"weight_type": "int16", "activation_type": "uint16", "equalize": None}
        assert static("qnn", node_overrides=softmax, **wide).metrics["nodes_skipped"] == 0

    @pytest.mark.parametrize(
        ("overrides", "message"),
        [
            ((NodeTypes("nrom", None, "uint16"),), "quant.node_overrides: no node of the model matches 'nrom'"),
            ((NodeTypes("nor*", None, "uint16"), NodeTypes("n*", None, "int8")), "differ about node 'norm'"),
            ((NodeTypes("query", None, "uint16"), NodeTypes("key", None, "int16")), "in 3 types"),
        ],
    )
    def test_invalid_node_overrides_are_refused(self, static, overrides, message):
        with pytest.raises(StageError, match=message):
            static(node_overrides=overrides)


@pytest.mark.parametrize(
    ("mode", "field"),
    [("dynamic", "weight_type"), ("rtn", "rtn_block_size"), ("static", "weight_type")],
)
def test_missing_settled_field_is_refused_without_default(tmp_path, mode, field):
    """A second default would not be in the key, and could differ from the first."""
    ranges = calibrate(tmp_path, image_model()) if mode == "static" else None
    fields = {**(W8A8 if mode == "static" else {}), field: None}
    with pytest.raises(StageError, match="None"):
        quantize(tmp_path, image_model(), mode, ranges, "onnxruntime", **fields)
