from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper
from optimize_samples import assert_same_results, graph, optimize, outputs

LOWEST = float(np.finfo(np.float32).min)
MASKED = f"""agraph (float[2, 4, 8, 8] x, int64[2, 1, 1, 8] mask) => (float[2, 4, 8, 8] y)
    <float lowest = {{ {LOWEST:.9g} }}, float one = {{1}}> {{
    kept = Cast<to = 1>(mask)
    hidden = Sub(one, kept)
    bias = Mul(hidden, lowest)
    scores = Add(x, bias)
    y = Softmax<axis = -1>(scores)
}}"""


class TestClampConstantValues:
    def test_computed_mask_is_clamped_and_still_masks(self, tmp_path: Path) -> None:
        result = optimize(tmp_path, graph(MASKED), "clamp_constant_values")
        assert result.metrics["applied"] == {"clamp_constant_values": 1}
        assert min(values.min() for values in result.constants.values()) == -50
        assert_same_results(result)

    @pytest.mark.parametrize("fill", ["-inf", "-1e30", "-10000.0", f"{LOWEST:.9g}"])
    def test_fill_value_is_clamped(self, tmp_path: Path, fill: str) -> None:
        model = graph(
            """agraph (float[2, 8] x, bool[2, 8] keep) => (float[2, 8] y)
            { shown = Where(keep, x, fill) y = Softmax<axis = -1>(shown) }""",
            fill=np.array(fill, np.float32),
        )
        result = optimize(tmp_path, model, "clamp_constant_values")
        assert [float(values) for values in result.constants.values()] == [-50]
        assert_same_results(result)

    def test_folded_mask_keeps_ordinary_values(self, tmp_path: Path) -> None:
        mask = np.where(np.tri(8, dtype=bool), np.float32(0.25), np.float32(LOWEST))
        model = graph("agraph (float[8, 8] x) => (float[8, 8] y) { y = Add(x, mask) }", mask=mask)
        result = optimize(tmp_path, model, "clamp_constant_values")
        np.testing.assert_array_equal(result.constants["mask"], np.maximum(mask, -50))

    @given(st.lists(st.floats(width=32, allow_nan=False), min_size=4, max_size=4))
    @settings(max_examples=6, deadline=None)
    def test_only_huge_values_are_clamped(self, numbers: list[float]) -> None:
        constant = np.array(numbers, np.float32)
        model = graph("agraph (float[4] x) => (float[4] y) { y = Add(x, constant) }", constant=constant)
        with tempfile.TemporaryDirectory() as folder:
            result = optimize(Path(folder), model, "clamp_constant_values")
        [found] = outputs(result.model, {"x": np.zeros(4, np.float32)})
        huge = (constant <= -1e4) | (constant >= 1e9)
        np.testing.assert_array_equal(found, np.where(huge, np.copysign(np.float32(50), constant), constant))

    def test_fill_value_in_attribute_is_clamped(self, tmp_path: Path) -> None:
        model = graph(
            """agraph (float[n, 8] x, int64[2] shape) => (float[n, 8] y)
            { fill = ConstantOfShape<value = float[1] {-3e38}>(shape) y = Add(x, fill) }"""
        )
        result = optimize(tmp_path, model, "clamp_constant_values")
        [node] = [node for node in result.model.graph.node if node.op_type == "ConstantOfShape"]
        assert numpy_helper.to_array(node.attribute[0].t) == [-50]

    def test_constant_shared_with_clip_is_clamped_for_others_only(self, tmp_path: Path) -> None:
        model = graph(
            """agraph (float[8] x, bool[8] keep) => (float[8] y, float[8] z) <float low = {-3.4e38}>
            { y = Clip(x, low) z = Where(keep, x, low) }"""
        )
        result = optimize(tmp_path, model, "clamp_constant_values")
        inputs = {"x": np.full(8, -100, np.float32), "keep": np.zeros(8, bool)}
        y, z = outputs(result.model, inputs)
        assert (y == -100).all()
        assert (z == -50).all()


ERF = "d = Div(x, root) f = Erf(d) s = Add(f, one)"
ERF_BY_PRODUCT = "d = Mul(inverse, x) f = Erf(d) s = Add(one, f)"
TANH = "c = Pow(x, three) k = Mul(cubic, c) p = Add(x, k) t = Mul(outer, p) f = Tanh(t) s = Add(one, f)"
TANH_BY_PRODUCTS = (
    "q = Mul(x, x) c = Mul(q, x) k = Mul(c, cubic) p = Add(k, x) t = Mul(p, outer) f = Tanh(t) s = Add(f, one)"
)
TANH_DRAWN_OUT = (
    "o = Mul(x, outer) k = Mul(cubic, x) q = Mul(k, x) p = Add(one, q) t = Mul(o, p) f = Tanh(t) s = Add(f, one)"
)
ENDS = {
    "half of x": "h = Mul(half, x) y = Mul(h, s)",
    "half of the factor": "h = Mul(half, s) y = Mul(x, h)",
    "half of the product": "h = Mul(x, s) y = Mul(h, half)",
    "half first": "h = Mul(x, s) y = Mul(half, h)",
}
FORMS = {"erf": ERF, "erf by product": ERF_BY_PRODUCT, "tanh": TANH, "tanh by products": TANH_BY_PRODUCTS}
FORMS["tanh drawn out"] = TANH_DRAWN_OUT


def _gelu(form: str, end: str, opset: int) -> onnx.ModelProto:
    return graph(
        f"""agraph (float[2, 8] x) => (float[2, 8] y) <float root = {{1.41421356}}, float inverse = {{0.70710678}},
        float one = {{1}}, float half = {{0.5}}, float three = {{3}}, float cubic = {{0.044715}},
        float outer = {{0.79788456}}> {{ {form} {end} }}""",
        opset,
    )


class TestGeluFusion:
    @pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
    @pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
    def test_every_gelu_spelling_becomes_gelu(self, tmp_path: Path, form: str, end: str) -> None:
        result = optimize(tmp_path, _gelu(form, end, 20), "gelu_fusion", standard_domain_only=True)
        assert result.ops == {"Gelu": 1}
        assert_same_results(result)

    @pytest.mark.parametrize(("form", "operator"), [(ERF, "Gelu"), (TANH, "FastGelu")])
    def test_gelu_below_opset_20_becomes_onnxruntime_gelu_if_allowed(
        self, tmp_path: Path, form: str, operator: str
    ) -> None:
        model = _gelu(form, ENDS["half of x"], 17)
        result = optimize(tmp_path, model, "gelu_fusion")
        assert result.ops == {f"com.microsoft/{operator}": 1}
        assert_same_results(result)
        result = optimize(tmp_path, model, "gelu_fusion", standard_domain_only=True)
        assert result.metrics["applied"] == {"gelu_fusion": 0}
        assert "opset 20" in result.metrics["left"]["gelu_fusion"]
        assert result.content == optimize(tmp_path, model).content

    def test_near_gelu_or_one_with_other_readers_is_unchanged(self, tmp_path: Path) -> None:
        shared = _gelu(TANH, ENDS["half of x"], 20)
        shared.graph.output.append(onnx.helper.make_tensor_value_info("f", 1, [2, 8]))
        for model in (shared, _gelu(TANH.replace("Pow(x, three)", "Pow(x, outer)"), ENDS["half of x"], 20)):
            assert optimize(tmp_path, model, "gelu_fusion").content == optimize(tmp_path, model).content


def _layer_norm(opset: int, end: str, *, bias: str = "float[8] b = {1, 2, 3, 4, 5, 6, 7, 8}") -> onnx.ModelProto:
    axes, suffix = ("", ", axes") if opset >= 18 else ("axes = [-1], ", "")
    return graph(
        f"""agraph (float[2, 4, 8] x) => (float[2, 4, 8] y) <float[8] s = {{2, 1, 3, 1, 1, 4, 1, 1}}, {bias},
        float epsilon = {{0.001}}, float two = {{2}}, int64[1] axes = {{-1}}> {{
        m = ReduceMean<{axes}keepdims = 1>(x{suffix}) d = Sub(x, m) q = Pow(d, two)
        v = ReduceMean<{axes}keepdims = 1>(q{suffix}) e = Add(v, epsilon) r = Sqrt(e)
        {end} }}""",
        opset,
    )


class TestLayerNormFusion:
    @pytest.mark.parametrize("opset", [17, 18, 21])
    @pytest.mark.parametrize(
        "end",
        [
            "n = Div(d, r) k = Mul(n, s) y = Add(k, b)",
            "i = Reciprocal(r) n = Mul(d, i) k = Mul(s, n) y = Add(b, k)",
            "i = Reciprocal(r) n = Mul(i, d) y = Mul(n, s)",
        ],
        ids=["division", "reciprocal", "no bias"],
    )
    def test_every_layer_norm_spelling_becomes_one_operator(self, tmp_path: Path, opset: int, end: str) -> None:
        result = optimize(tmp_path, _layer_norm(opset, end), "layer_norm_fusion")
        assert result.ops == {"LayerNormalization": 1}
        assert_same_results(result)

    @pytest.mark.parametrize(
        ("added", "bias"),
        [("x", "float b = {1}"), ("b", "float[4, 1] b = {1, 2, 3, 4}")],
        ids=["a residual", "no vector of the last axis"],
    )
    def test_unsuitable_bias_is_not_fused_into_layer_norm(self, tmp_path: Path, added: str, bias: str) -> None:
        end = f"i = Reciprocal(r) n = Mul(d, i) k = Mul(n, s) y = Add(k, {added})"
        result = optimize(tmp_path, _layer_norm(18, end, bias=bias), "layer_norm_fusion")
        assert result.ops == {"LayerNormalization": 1, "Add": 1}
        assert_same_results(result)

    def test_layer_norm_before_opset_17_is_unchanged_and_reported(self, tmp_path: Path) -> None:
        model = _layer_norm(13, "n = Div(d, r) k = Mul(n, s) y = Add(k, b)")
        result = optimize(tmp_path, model, "layer_norm_fusion")
        assert "opset 17" in result.metrics["left"]["layer_norm_fusion"]
        assert result.content == optimize(tmp_path, model).content


class TestMatMulAddFusion:
    @pytest.mark.parametrize("shape", ["5, 4", "n, 4", "2, 5, 4", "n, 5, 4", "n, 2, 5, 4"])
    @pytest.mark.parametrize("order", ["p, b", "b, p"])
    def test_bias_is_fused_into_gemm(self, tmp_path: Path, shape: str, order: str) -> None:
        result = optimize(tmp_path, self._linear(shape, f"y = Add({order})"), "matmul_add_fusion")
        reshapes = 0 if shape.count(",") == 1 else 2
        assert result.ops == {"Gemm": 1} | ({"Reshape": reshapes} if reshapes else {})
        assert_same_results(result)

    @pytest.mark.parametrize(
        ("shape", "bias"),
        [("n, m, 4", "float[3] b = {1, 2, 3}"), ("1, 4", "float[2, 1] b = {1, 2}"), ("5, 4", "float b = {2}")],
        ids=["two unknown dimensions", "a bias that makes the result larger", "a single number"],
    )
    def test_unsuitable_bias_is_not_fused_into_gemm(self, tmp_path: Path, shape: str, bias: str) -> None:
        model = self._linear(shape, "y = Add(p, b)", bias)
        result = optimize(tmp_path, model, "matmul_add_fusion")
        assert result.metrics["applied"] == {"matmul_add_fusion": 0}
        assert_same_results(result)

    @staticmethod
    def _linear(shape: str, end: str, bias: str = "float[3] b = {1, 2, 3}") -> onnx.ModelProto:
        rank = shape.count(",")
        out = {"1, 4": "2, 3"}.get(shape, shape.rpartition(",")[0] + ", 3") if rank else "3"
        return graph(
            f"""agraph (float[{shape}] x) => (float[{out}] y)
            <float[4, 3] w = {{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}}, {bias}> {{ p = MatMul(x, w) {end} }}"""
        )


GUARDED = """agraph (float[2, 8] x) => (float[2, 8] y) <float none = {{{}}}>
    {{ s = {} n = IsNaN(s) w = Where(n, none, s) y = Relu(w) }}"""


@pytest.mark.parametrize("end", ["w = Where(n, none, s) y = Relu(w)", "y = Where(n, none, s)"])
def test_isnan_guard_after_softmax_is_removed(tmp_path: Path, end: str) -> None:
    """Within a model, and where it makes the output."""
    text = GUARDED.format(0, "Softmax<axis = -1>(x)").replace("w = Where(n, none, s) y = Relu(w)", end)
    result = optimize(tmp_path, graph(text), "remove_isnan_in_attention_mask")
    assert result.ops == {"Softmax": 1, **({"Relu": 1} if "Relu" in end else {})}
    assert [output.name for output in result.model.graph.output] == ["y"]
    assert_same_results(result)


@pytest.mark.parametrize(
    ("signature", "body"),
    [
        ("(float[2, 4, 8] x) => (float[4, 2, 8] y)", "p = Reshape(x, a) q = Flatten<axis = 0>(p) y = Reshape(q, b)"),
        ("(float[n, 4, 8] x) => (float[n, 2, 16] y)", "p = Reshape(x, c) q = Reshape(p, d) y = Reshape(q, e)"),
        ("(float[n, 4, 8] x) => (float[n, 32] y)", "p = Unsqueeze(x, one) q = Squeeze(p, one) y = Flatten(q)"),
    ],
    ids=["flatten", "free batch size", "squeeze and unsqueeze"],
)
def test_reshape_chain_becomes_one_reshape(tmp_path: Path, signature: str, body: str) -> None:
    model = graph(
        f"""agraph {signature} <int64[2] a = {{8, 8}}, int64[3] b = {{4, 2, 8}}, int64[2] c = {{-1, 8}},
        int64[3] d = {{-1, 4, 8}}, int64[3] e = {{-1, 2, 16}}, int64[1] one = {{1}}> {{ {body} }}"""
    )
    result = optimize(tmp_path, model, "reshape_mergedreshape")
    assert sum(result.ops.values()) == 1
    assert_same_results(result)


ROWS = "agraph (float[2, 2] x) => (float[2, 2] y)"
CLAMP, GUARD, RESHAPES = "clamp_constant_values", "remove_isnan_in_attention_mask", "reshape_mergedreshape"
STAYS = {
    "bounds that say no bound": (CLAMP, f"{ROWS} <float a = {{-3.4e38}}> {{ y = Clip(x, a) }}"),
    "weights": (CLAMP, f"{ROWS} <float[2, 2] w = {{1, -3e4, 2e9, 1}}> {{ y = MatMul(x, w) }}"),
    "large but ordinary": (
        CLAMP,
        f"{ROWS} <float a = {{500000.0}}, float b = {{-9999.0}}> {{ z = Mul(x, a) y = Add(z, b) }}",
    ),
    "a guard after another operator": (GUARD, GUARDED.format(0, "Log(x)")),
    "a guard with another value": (GUARD, GUARDED.format(1, "Softmax<axis = -1>(x)")),
    "an inner value that is read elsewhere": (
        RESHAPES,
        """agraph (float[n, 4, 8] x) => (float[n, 2, 16] y, float[m, 8] z)
        <int64[2] a = {-1, 8}, int64[3] b = {-1, 2, 16}> { p = Reshape(x, a) y = Reshape(p, b) z = Exp(p) }""",
    ),
    "a shape with two unknown dimensions": (
        RESHAPES,
        """agraph (float[n, 8] x, int64[3] a, int64[3] b) => (float[k, l, m] y)
        { p = Reshape(x, a) y = Reshape(p, b) }""",
    ),
    "what only GPU providers take": ("bias_softmax_fusion", MASKED),
}


@pytest.mark.parametrize(("name", "text"), STAYS.values(), ids=STAYS)
def test_model_that_does_not_match_is_unchanged(tmp_path: Path, name: str, text: str) -> None:
    model = graph(text)
    result = optimize(tmp_path, model, name)
    assert result.content == optimize(tmp_path, model).content
    assert ("GPU providers" in str(result.metrics["left"])) == (name == "bias_softmax_fusion")
