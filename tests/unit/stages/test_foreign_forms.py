"""Float models from other tools: in any form, the quantized model computes the same as the float model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from ep_stage_runs import requires_qnn
from onnx import TensorProto
from optimize_samples import graph, optimize, outputs, session
from quantization_samples import Result, calibrate, quantize, weights, with_constant_nodes
from validation_samples import NPU, validate

from winml_dag.errors import StageError
from winml_dag.stages.normalize.forms import normalize_forms
from winml_dag.stages.quantize import modes as soundness

PRECISIONS = {"w8a8": ("uint8", "uint8"), "w8a16": ("uint8", "uint16"), "w16a16": ("int16", "uint16")}
MATRIX = weights(16, 12)


def feeds_of(model: onnx.ModelProto, count: int, seed: int) -> list[dict[str, np.ndarray]]:
    """Return random inputs as calibrate makes them: between 0 and 1."""
    random = np.random.default_rng(seed)
    return [
        {
            value.name: random.random([dim.dim_value for dim in value.type.tensor_type.shape.dim], np.float32)
            for value in model.graph.input
        }
        for _ in range(count)
    ]


def static(
    folder: Path,
    model: onnx.ModelProto,
    precision: str,
    rules: str = "onnxruntime",
    ranges: Result | None = None,
    **fields: Any,
) -> Result:
    weight_type, activation_type = PRECISIONS[precision]
    types = {"weight_type": weight_type, "activation_type": activation_type, "per_channel": True}
    ranges = ranges or calibrate(folder, model, samples=32)
    return quantize(folder, model, "static", ranges, rules, **{**types, **fields})


def sqnr(model: onnx.ModelProto, result: Result) -> float:
    """Return the SQNR of the worst output in dB, at the worse of the two graph optimization levels."""
    reference = session(model, optimized=False)
    worst = np.inf
    for optimized in (False, True):
        quantized = session(result.path, optimized=optimized)
        runs = [(reference.run(None, feed), quantized.run(None, feed)) for feed in feeds_of(model, 8, 1)]
        for index in range(len(reference.get_outputs())):
            expected, found = (np.array([run[which][index] for run in runs], np.float64) for which in (0, 1))
            noise = np.square(expected - found).sum()
            worst = min(worst, 10 * np.log10(np.square(expected).sum() / max(noise, 1e-30)))
    return float(worst)


def gemm(bias: np.ndarray, *, scaled: bool = False) -> onnx.ModelProto:
    if scaled:
        text = "float[16, 4] x) => (float[4, 12] y) { y = Gemm <alpha = 0.5, beta = 2.0, transA = 1, transB = 1>"
        return graph(f"g ({text} (x, w, b) }}", w=weights(12, 16), b=bias)
    return graph("g (float[4, 16] x) => (float[4, 12] y) { y = Gemm (x, w, b) }", w=MATRIX, b=bias)


def convolutions(opset: int = 21) -> onnx.ModelProto:
    """Return convolutions, two of which share a bias; values between them have the names that onnxruntime gives to
    copies.
    """
    return graph(
        """g (float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y) { b0 = Conv <pads = [1, 1, 1, 1]> (x, w, b)
        b1 = Sigmoid (b0) y = Conv <pads = [1, 1, 1, 1]> (b1, v, b) }""",
        opset,
        w=weights(4, 4, 3, 3),
        v=weights(4, 4, 3, 3, seed=1),
        b=weights(4),
    )


def clamped(outputs: str, clamp: str, low: float = 0, high: float = 0.3) -> onnx.ModelProto:
    constants = f"<float low = {{{low}}}, float high = {{{high}}}>"
    return graph(f"g (float[4, 16] x) => ({outputs}) {constants} {{ m = MatMul (x, w) r = {clamp} }}", w=MATRIX)


def read_in_a_branch(read: str, outputs: str) -> onnx.ModelProto:
    """Return a model whose subgraph reads *read*: what otherwise only a Relu reads ("m"), or its output ("r")."""
    return graph(
        f"""g (float[4, 16] x) => ({outputs}) <float limit = {{0.5}}> {{
        m = MatMul (x, w) r = Relu (m) top = ReduceMax <keepdims = 0> (x) condition = Less (top, limit)
        q = If (condition) <then_branch = yes () => (float[4, 12] t) {{ t = Neg ({read}) }},
                            else_branch = no () => (float[4, 12] e) {{ e = Abs ({read}) }}> }}""",
        w=MATRIX,
    )


def products(first: float, second: float) -> onnx.ModelProto:
    """Return two products with scaled weights."""
    return graph(
        "g (float[4, 16] x) => (float[4, 16] y) { m = MatMul (x, w) y = MatMul (m, v) }",
        w=weights(16, 16) * np.float32(first),
        v=weights(16, 16, seed=1) * np.float32(second),
    )


BIASES = {
    "row": weights(1, 12, seed=1),
    "number": np.array(0.7, np.float32),
    "one": np.array([0.7], np.float32),
    "column": weights(4, 1, seed=1),
    "matrix": weights(4, 12, seed=1),
    "vector": weights(12, seed=1),
}
CONV = "g (float[1, 4, 8, 8] x{}) => (float[1, 4, 6, 6] y) {{ y = Conv (x, w, b) }}"
BOTH = "float[4, 12] m, float[4, 12] r"
FORMS = {
    **{f"bias that is a {name}": gemm(bias) for name, bias in BIASES.items() if name != "vector"},
    **{f"scaled bias that is a {name}": gemm(bias, scaled=True) for name, bias in BIASES.items()},
    "bias that does not count": graph(
        "g (float[4, 16] x) => (float[4, 12] y) { y = Gemm <beta = 0.0> (x, w, b) }", w=MATRIX, b=weights(12)
    ),
    "shared bias": convolutions(),
    "weight transposed by one of two": graph(
        "g (float[4, 16] x) => (float[4, 16] y) { h = Gemm (x, w, b) y = Gemm <transB = 1> (h, w, b) }",
        w=weights(16, 16),
        b=weights(16),
    ),
    "weight that is an operand too": graph(
        "g (float[16, 16] x) => (float[16, 16] y) { m = MatMul (x, w) y = Add (m, w) }", w=weights(16, 16)
    ),
    "output that feeds Relu": clamped(BOTH, "Relu (m)"),
    "output that feeds Clip": clamped(BOTH, "Clip (m, low, high)"),
    "branch that reads what Relu does": read_in_a_branch("m", "float[4, 12] r, float[4, 12] q"),
    "branch that reads what Relu makes": read_in_a_branch("r", "float[4, 12] q"),
    "Clip above zero": clamped("float[4, 12] r", "Clip (m, low, high)", 0.3, 0.9),
    "Clip below zero": clamped("float[4, 12] r", "Clip (m, low, high)", -0.9, -0.3),
    "names as of derived values": graph(
        """g (float[4, 16] x) => (float[4, 8] y, float[4, 8] y_scale) {
        x_zero_point = MatMul (x, x_scale) [x_QuantizeLinear] x_QuantizeLinear_Output = Relu (x_zero_point)
        [x_DequantizeLinear] y = MatMul (x_QuantizeLinear_Output, w) y_scale = Sigmoid (y) }""",
        x_scale=MATRIX,
        w=weights(12, 8),
    ),
    "outputs that no node makes": graph(
        "g (float[4, 16] x) => (float[4, 16] x, float[4, 12] y, float[16, 12] w) { y = MatMul (x, w) }", w=MATRIX
    ),
    "matrix on the left": graph("g (float[16, 4] x) => (float[12, 4] y) { y = MatMul (w, x) }", w=weights(12, 16)),
    "stack of matrices": graph(
        "g (float[2, 4, 16] x) => (float[2, 4, 12] y) { y = MatMul (x, w) }", w=weights(2, 16, 12)
    ),
    "transposed convolution in groups": graph(
        "g (float[1, 4, 8, 8] x) => (float[1, 6, 10, 10] y) { y = ConvTranspose <group = 2> (x, w, b) }",
        w=weights(4, 3, 3, 3),
        b=weights(6),
    ),
    "computed bias": graph(CONV.format(", float[4] b"), w=weights(4, 4, 3, 3)),
    "bias beyond int32": graph(CONV.format(""), w=weights(4, 4, 3, 3) * np.float32(1e-6), b=weights(4, seed=1) * 10),
    # On all samples.
    "bias of what is always zero": graph(
        "g (float[4, 16] x) => (float[4, 12] y) <float[1] zero = {0}> { z = Mul (x, zero) y = Gemm (z, w, b) }",
        w=MATRIX,
        b=weights(12) * np.float32(0.05),
    ),
    "tiny values between": products(1e-6, 1e6),
    "tiny weights": products(1e6, 1e-6),
    "no elements": graph(
        """g (float[4, 16] x) => (float[4, 12] y) <int64[1] none = {0}> {
        m = MatMul (x, w) e = Slice (m, none, none) r = Relu (e) y = Concat <axis = 0> (m, r) }""",
        w=MATRIX,
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_static_result_matches_float_model_in_every_form(tmp_path: Path, form: str) -> None:
    model = FORMS[form]
    precision = list(PRECISIONS)[list(FORMS).index(form) % 3]
    assert sqnr(model, static(tmp_path, model, precision)) > 25


@pytest.mark.parametrize(
    "form",
    [
        *("bias that is a row", "shared bias", "names as of derived values", "Clip above zero", "bias beyond int32"),
        *("tiny weights", "tiny values between"),
    ],
)
def test_qnn_static_result_matches_float_model_in_every_form(tmp_path: Path, form: str) -> None:
    model = FORMS[form]
    assert sqnr(model, static(tmp_path, model, "w8a8", "qnn")) > 25


@pytest.mark.parametrize("mode", ["dynamic", "fp16"])
@pytest.mark.parametrize("form", ["bias that is a matrix", "names as of derived values", "outputs that no node makes"])
def test_dynamic_and_fp16_results_match_float_model(tmp_path: Path, form: str, mode: str) -> None:
    model = FORMS[form]
    assert sqnr(model, quantize(tmp_path, model, mode)) > 25


@pytest.mark.parametrize("bias", ["row", "matrix"])
def test_fused_gemm_is_quantized(tmp_path: Path, bias: str) -> None:
    model = graph(
        "g (float[4, 16] x) => (float[4, 12] y) { m = MatMul (x, w) y = Add (m, b) }", w=MATRIX, b=BIASES[bias]
    )
    optimized = optimize(tmp_path / "optimize", model)
    assert optimized.ops["Gemm"] == 1
    assert sqnr(model, static(tmp_path, optimized.model, "w8a16")) > 25


def test_bias_equal_to_a_vector_stays_in_gemm(tmp_path: Path) -> None:
    """No additional nodes where the bias can stay in the Gemm."""
    assert "Add" not in static(tmp_path, gemm(BIASES["row"]), "w8a8").op_types()
    assert "Add" in static(tmp_path, gemm(BIASES["column"]), "w8a8").op_types()


CONSTANT_NODES = with_constant_nodes(
    graph(
        "g (float[4, 16] x) => (float[4, 12] y) { h = Gemm (x, w, b) same = Identity (b) y = Gemm (h, v, same) }",
        w=MATRIX,
        v=weights(12, 12),
        b=weights(12),
    )
)


def test_constant_nodes_are_quantized_as_weights_and_biases(tmp_path: Path) -> None:
    """onnxruntime treats the output of a node as an activation, with its type and one scale."""
    result = static(tmp_path, CONSTANT_NODES, "w8a16")
    assert result.metrics["weights_by_type"] == {"uint8": 2}
    assert sqnr(CONSTANT_NODES, result) > 25


def test_normal_form_is_unchanged_by_normalization(tmp_path: Path) -> None:
    for made in (*FORMS.values(), CONSTANT_NODES):
        model = onnx.shape_inference.infer_shapes(made)
        normalize_forms(model, tmp_path / "model.onnx", to_integers=True)
        onnx.checker.check_model(model)
        model = onnx.shape_inference.infer_shapes(model)
        before = model.SerializeToString(deterministic=True)
        assert not normalize_forms(model, tmp_path / "model.onnx", to_integers=True)
        assert model.SerializeToString(deterministic=True) == before


def averaged(opset: int, total: str, division: str, count: float = 512) -> onnx.ModelProto:
    """Return the root mean square of rows; the sum exceeds float16 before the division."""
    return graph(
        f"""g (float[4, 512] x) => (float[k, l] y) <float k = {{100}}, float count = {{{count}}},
        float share = {{{1 / count}}}, int64[1] axes = {{-1}}> {{
        large = Mul (x, k) squares = Mul (large, large) sum = {total} mean = {division} y = Sqrt (mean) }}""",
        opset,
    )


@pytest.mark.parametrize(
    ("opset", "total", "division"),
    [
        (12, "ReduceSum <axes = [-1]> (squares)", "Mul (sum, share)"),
        (17, "ReduceSum <keepdims = 0> (squares, axes)", "Div (sum, count)"),
        (17, "ReduceSumSquare <axes = [-1]> (large)", "Mul (sum, share)"),
        (21, "ReduceSumSquare (large, axes)", "Div (sum, count)"),
        (21, "ReduceSum <keepdims = 0> (squares, axes)", "Mul (sum, share)"),
    ],
)
def test_divided_sum_does_not_overflow_float16(tmp_path: Path, opset: int, total: str, division: str) -> None:
    model = averaged(opset, total, division)
    result = quantize(tmp_path, model, "fp16")
    assert "ReduceMean" in result.op_types()
    assert sqnr(model, result) > 50


def test_sum_divided_by_other_number_is_unchanged(tmp_path: Path) -> None:
    model = averaged(17, "ReduceSum (squares, axes)", "Mul (sum, share)", count=511)
    assert not normalize_forms(onnx.shape_inference.infer_shapes(model), tmp_path / "model.onnx", to_integers=True)


@requires_qnn
@pytest.mark.parametrize("precision", ["w8a8", "w8a16"])
@pytest.mark.parametrize("largest", [0.1, 2.0])
def test_qnn_scales_reciprocal_correctly(tmp_path: Path, largest: float, precision: str) -> None:
    """QNN's own Reciprocal scales everything down by *largest* where that is below 1."""
    model = graph(
        f"""g (float[1, 32] x) => (float[1, 32] y) <float k = {{{largest / 2}}}> {{
        h = Mul (x, k) p = Add (h, k) y = Reciprocal (p) }}"""
    )
    candidate = static(tmp_path, model, precision, "qnn").folder
    assert validate(tmp_path / "run", candidate, model, target=NPU, min_cosine=0.99, min_sqnr_db=25.0)


@requires_qnn
@pytest.mark.parametrize("precision", ["w8a8", "w8a16"])
def test_qnn_supports_prelu_slopes_per_channel(tmp_path: Path, precision: str) -> None:
    """In 16 bits it supports them only after a Conv."""
    text = (
        "g (float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y) <float half = {0.5}> { h = Sub (x, half) y = PRelu (h, s) }"
    )
    model = graph(text, s=weights(4, 1, 1))
    candidate = static(tmp_path, model, precision, "qnn").folder
    assert validate(tmp_path / "run", candidate, model, target=NPU, min_cosine=0.99, min_sqnr_db=25.0)


@requires_qnn
def test_qnn_supports_lrn_among_16_bit_activations(tmp_path: Path) -> None:
    """QNN has it in 8 bits only."""
    text = "g (float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y) { c = Conv (x, w) l = LRN <size = 3> (c) y = Conv (l, w) }"
    model = graph(text, w=weights(4, 4, 1, 1))
    candidate = static(tmp_path, model, "w8a16", "qnn").folder
    assert validate(tmp_path / "run", candidate, model, target=NPU, min_cosine=0.99, min_sqnr_db=25.0)


def test_excluded_reciprocal_is_unchanged(tmp_path: Path) -> None:
    model = graph("g (float[1, 32] x) => (float[1, 32] y) { s = Sigmoid (x) [reciprocal] y = Reciprocal (s) }")
    ranges = calibrate(tmp_path, model)
    for excluded in ((), ("reciprocal",)):
        result = static(tmp_path, model, "w8a8", "qnn", ranges, nodes_to_exclude=excluded)
        assert ("Div" in result.op_types()) == (not excluded)


def test_model_with_scalar_output_can_be_quantized(tmp_path: Path) -> None:
    model = graph("g (float[4, 16] x) => (float y) { m = MatMul (x, w) y = ReduceMean <keepdims = 0> (m) }", w=MATRIX)
    for method, precision in zip(("minmax", "entropy", "percentile"), PRECISIONS, strict=True):
        ranges = calibrate(tmp_path, model, samples=16, calibration_method=method)
        result = static(tmp_path, model, precision, ranges=ranges, per_channel=False)
        assert sqnr(model, result) > 10  # a mean is a small difference of large numbers


def test_value_of_unknown_rank_is_not_treated_as_scalar(tmp_path: Path) -> None:
    """onnxruntime knows the output types of its own operators, but not always the shapes."""
    halves, tenths = (", ".join([number] * 16) for number in ("0.5", "0.1"))
    model = graph(
        f"""g (float[4, 16] x) => (float[4, 12] y) {{
        s = ai.onnx.ml.Scaler <scale = [{halves}], offset = [{tenths}]> (x) y = MatMul (s, w) }}""",
        imports=', "ai.onnx.ml": 3',
        w=MATRIX,
    )
    assert sqnr(model, static(tmp_path, model, "w8a8")) > 30


def test_nan_constant_is_refused_by_name(tmp_path: Path) -> None:
    model = graph(
        "g (float[4, 16] x) => (float[4, 12] y) <bool[1, 1] c = {1}> { m = MatMul (x, w) y = Where (c, m, n) }",
        w=MATRIX,
        n=np.full((1, 12), np.nan, "f"),
    )
    with pytest.raises(StageError, match=r"'n' has NaN values"):
        static(tmp_path, model, "w8a8")


def test_sequence_output_is_supported(tmp_path: Path) -> None:
    text = "g (float[4, 16] x) => (seq(float[1, 12]) y) { m = MatMul (x, w) y = SplitToSequence <axis = 0> (m) }"
    assert static(tmp_path, graph(text, w=MATRIX), "w8a8").metrics["nodes_quantized"]


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize(
    ("count", "more"), [(1, "y = Identity (h)"), (2, "s = Squeeze (h, one) y = LSTM <hidden_size = 6> (s, w, r, b)")]
)
def test_dynamic_lstm_has_int8_weights(tmp_path: Path, count: int, more: str, per_channel: bool) -> None:
    """Their only type is int8; onnxruntime transposes weights in place, even if another LSTM reads them.

    With 7 bits of them, products saturate on no processor: with 8, they do on x86-64 without VNNI (12.8 dB were seen).
    """
    model = graph(
        f"""g (float[5, 2, 6] x) => (float[5, 1, 2, 6] y) <int64[1] one = {{1}}>
        {{ h = LSTM <hidden_size = 6> (x, w, r, b) {more} }}""",
        w=weights(1, 24, 6),
        r=weights(1, 24, 6, seed=1),
        b=weights(1, 48, seed=2),
    )
    result = quantize(tmp_path, model, "dynamic", per_channel=per_channel, reduce_range=True)
    assert result.op_types().count("DynamicQuantizeLSTM") == count
    assert result.metrics["weights_by_type"] == {"int8": 2 * count}
    assert sqnr(model, result) > 25


def test_dynamic_refuses_gru_and_suggests_lstm(tmp_path: Path) -> None:
    text = "g (float[5, 2, 6] x) => (float[5, 1, 2, 6] h) { h = GRU <hidden_size = 6> (x, w, r) }"
    with pytest.raises(StageError, match="computes with GRU") as caught:
        quantize(tmp_path, graph(text, w=weights(1, 18, 6), r=weights(1, 18, 6, seed=1)), "dynamic")
    assert "LSTM" in caught.value.message


@pytest.mark.parametrize(("opset", "precision"), [(10, "w8a8"), (11, "w8a16"), (12, "w16a16")])
def test_old_opsets_support_scales_per_channel(tmp_path: Path, opset: int, precision: str) -> None:
    model = convolutions(opset)
    result = static(tmp_path, model, precision)
    assert {node.domain for node in result.model.graph.node if "Linear" in node.op_type} == {"com.microsoft"}
    assert sqnr(model, result) > 25


def test_opset_9_is_refused_for_static_but_not_dynamic(tmp_path: Path) -> None:
    model = convolutions(9)
    with pytest.raises(StageError, match="opset 9") as caught:
        static(tmp_path, model, "w8a8")
    assert "17" in caught.value.advice
    assert sqnr(model, quantize(tmp_path, model, "dynamic")) > 25


@pytest.mark.parametrize(("length", "is_kept"), [("n", True), (1, True), (4, False)])
@pytest.mark.parametrize("opset", [11, 21])
def test_softmax_over_one_value_is_one(tmp_path: Path, length: int | str, is_kept: bool, opset: int) -> None:
    """The integer kernel, which onnxruntime uses between any Q and DQ, outputs 0 for it."""
    text = f"""g (float[1, 3, {length}] x) => (float[1, 3, {length}] y) {{
        a = Mul (x, w) p = Softmax <axis = 2> (a) y = Mul (p, w) }}"""
    model = graph(text, opset, w=weights(1))
    result = static(tmp_path, model, "w8a8", per_channel=False)
    assert ("Abs" in result.op_types()) == is_kept
    feed = {"x": np.ones((1, 3, length if isinstance(length, int) else 1), np.float32)}
    (found,) = session(result.path, optimized=True).run(None, feed)
    np.testing.assert_allclose(found, outputs(model, feed)[0], rtol=0.05)


def test_softmax_of_other_type_is_left_alone(tmp_path: Path) -> None:
    text = """g (float[1, 4] x) => (float[1, 4] y) {
        a = Mul (x, w) b = Cast <to = 11> (a) c = Softmax (b) d = Cast <to = 1> (c) y = Mul (d, w) }"""
    assert static(tmp_path, graph(text, w=weights(4)), "w8a8", per_channel=False).op_types().count("QuantizeLinear")


@pytest.mark.parametrize("rules", ["qnn", "onnxruntime"])
def test_model_that_only_pools_is_quantized(tmp_path: Path, rules: str) -> None:
    text = "g (float[1, 2, 8, 8] x) => (float[1, 2, 7, 7] y) { y = MaxPool <kernel_shape = [2, 2]> (x) }"
    assert static(tmp_path, graph(text), "w8a16", rules).op_types().count("QuantizeLinear") == 2


@pytest.mark.parametrize("between", ["Relu", "MaxPool <kernel_shape = [1, 1]>", "Transpose <perm = [0, 1, 3, 2]>"])
def test_excluding_nodes_between_quantized_nodes_is_reported(tmp_path: Path, between: str) -> None:
    text = f"g (float[1, 1, 8, 8] x) => (float[1, 1, 8, 8] y) {{ m = Conv (x, w) r = {between} (m) y = Conv (r, w) }}"
    op_type = between.split()[0]
    model = graph(text, w=weights(1, 1, 1, 1))
    metrics = static(tmp_path, model, "w8a8", op_types_to_exclude=(op_type,)).metrics
    ((reason, count),) = metrics["nodes_skipped_reasons"][op_type].items()
    assert "op_types_to_exclude" in reason
    assert "between Q and DQ" in reason
    assert count == 1


def test_wrong_graph_optimization_is_an_error(tmp_path: Path) -> None:
    """Two models simulate two forms of one: the second is what a wrong fusion would make of the first."""
    model = gemm(weights(12))
    onnx.save(model, tmp_path / "float.onnx")
    (feed,) = feeds_of(model, 1, 0)
    right = outputs(model, feed)
    reference = soundness._Float(tmp_path / "float.onnx", feed)
    soundness._compare(right, [right[0] * 1.05], reference, "the model", ["y"])
    with pytest.raises(StageError, match="change output 'y' of the model by 30%"):
        soundness._compare(right, [right[0] * 1.3], reference, "the model", ["y"])
    reference.results = [right[0] * 0]
    with pytest.raises(StageError, match="change output 'y'"):
        soundness._compare(reference.results, right, reference, "the model", ["y"])


@pytest.mark.parametrize("shape", [(12, 1), (1, 12)])
def test_model_that_runs_in_one_form_only_is_an_error(tmp_path: Path, shape: tuple[int, ...]) -> None:
    """A scale per column of a bias that is a row: QGemm ignores it, DequantizeLinear fails."""
    model = gemm(weights(12))
    onnx.save(model, tmp_path / "float.onnx")
    result = static(tmp_path, model, "w8a8")
    soundness.check_sound(result.path, tmp_path / "float.onnx", "the quantized model", optimized=True)
    broken = result.model
    for tensor in broken.graph.initializer:
        if tensor.data_type == TensorProto.INT32 and len(tensor.dims) == 1:
            tensor.dims[:] = shape
    onnx.save(broken, tmp_path / "broken.onnx")
    with pytest.raises(StageError, match=r"does not run it|cannot load"):
        soundness.check_sound(tmp_path / "broken.onnx", tmp_path / "float.onnx", "the quantized model", optimized=True)
