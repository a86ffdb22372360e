"""Each capability: its result, that the result computes the same, and the effect of combinations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from capability_samples import PORTABLE, SAMPLES, Sample
from hypothesis import given
from hypothesis import strategies as st
from optimize_samples import assert_same_results, graph, optimize, outputs

from winml_dag.errors import RecipeError
from winml_dag.recipe.capabilities import CATALOG
from winml_dag.stages.optimize import WHOLE, select
from winml_dag.stages.optimize.operators import merged_axes
from winml_dag.stages.optimize.rewriting import rewrite_named

# The whole level, and what it always does.
_NOTHING_OF_ITS_OWN = {WHOLE, "deduplicate_opset_imports"}
# onnxruntime passes on the portable level that undo them, or do the same, are covered elsewhere.
_TESTED_ELSEWHERE = {
    "clamp_constant_values",
    "remove_isnan_in_attention_mask",
    "reshape_mergedreshape",
    "unsqueeze_elimination",
}


@pytest.mark.parametrize(("name", "sample"), SAMPLES.items(), ids=SAMPLES)
def test_capability_makes_expected_operators_with_equal_results(tmp_path: Path, name: str, sample: Sample) -> None:
    result = optimize(tmp_path, sample.model, name)
    assert result.ops == sample.made
    assert result.content != optimize(tmp_path, sample.model).content
    assert sum(result.metrics["applied"].values()) > 0
    assert_same_results(result, tolerance=sample.tolerance)
    for_standard = optimize(tmp_path, sample.model, name, standard_domain_only=True)
    assert all("/" not in operator for operator in for_standard.ops)
    assert (for_standard.ops == sample.made) is sample.standard
    assert sample.standard or "standard" in for_standard.metrics["left"][name]


@pytest.mark.parametrize(("name", "sample"), PORTABLE.items(), ids=PORTABLE)
def test_default_capability_can_be_disabled_or_used_alone(tmp_path: Path, name: str, sample: Sample) -> None:
    usual = optimize(tmp_path, sample.model)
    without = optimize(tmp_path, sample.model, off=[name])
    assert without.ops == sample.made != usual.ops
    assert_same_results(usual)
    assert_same_results(without)
    off = sorted({"ort_graph_optimization", "constant_folding"} - {name})
    folded = name == "constant_folding"  # is not part of the rest of the level, so it stays on
    assert optimize(tmp_path, sample.model, off=off).ops == (usual.ops if folded else sample.made)
    assert optimize(tmp_path, sample.model, name, off=off).ops == usual.ops


@pytest.mark.parametrize("name", [name for name, entry in CATALOG.items() if not entry.same_as])
def test_every_capability_has_implementation_or_reason(name: str) -> None:
    entry = CATALOG[name]
    assert bool(entry.rewrite or entry.extended or entry.portable) is (not entry.left) or name in _NOTHING_OF_ITS_OWN
    assert not entry.rewrite or callable(rewrite_named(entry.rewrite))


def test_every_effective_capability_has_a_sample() -> None:
    nothing = {name for name, entry in CATALOG.items() if entry.left or entry.same_as}
    assert set(CATALOG) - nothing - _NOTHING_OF_ITS_OWN - _TESTED_ELSEWHERE == {*SAMPLES, *PORTABLE}


def test_unsqueeze_of_constant_is_removed_without_folding_below_opset_13(tmp_path: Path) -> None:
    model = graph(
        """agraph (float[1, 4] x) => (float[1, 4] y) <float[4] w = {1, 2, 3, 4}>
        { u = Unsqueeze<axes = [0]>(w) y = Add(x, u) }""",
        11,
    )
    assert optimize(tmp_path, model, off=["constant_folding"]).ops == {"Add": 1}
    assert optimize(tmp_path, model, off=["constant_folding", "unsqueeze_elimination"]).ops == {
        "Unsqueeze": 1,
        "Add": 1,
    }


# One mask for all rows, which must be broadcast.
_ATTENTION = """agraph (float[1, 3, 8] x, float[8, 8] u, float[8, 8] v, float[8, 8] w, float[1, 1, 1, 3] m)
    => (float[1, 3, 8] y) <int64[4] parted = {1, 3, 2, 4}, int64[3] joined = {1, 3, 8}, float root = {2}> {
        q = MatMul(x, u) q4 = Reshape(q, parted) qt = Transpose<perm = [0, 2, 1, 3]>(q4)
        k = MatMul(x, v) k4 = Reshape(k, parted) kt = Transpose<perm = [0, 2, 3, 1]>(k4)
        l = MatMul(x, w) l4 = Reshape(l, parted) lt = Transpose<perm = [0, 2, 1, 3]>(l4)
        s = MatMul(qt, kt) d = Div(s, root) o = Add(d, m) p = Softmax<axis = -1>(o) a = MatMul(p, lt)
        t = Transpose<perm = [0, 2, 1, 3]>(a) y = Reshape(t, joined)
    }"""


class TestWhatIsNotItsPlace:
    """Models that look like the ones above, but must not change."""

    @pytest.mark.parametrize(
        ("name", "body", "constants"),
        [
            ("static_split_to_slice", "(float[2, 8] x, int64[2] s) => (float[2, n] y, float[2, m] z) "
             "{ y, z = Split<axis = 1>(x, s) }", {}),
            ("exp_positive_scale_folding", "(float[2] x) => (float[2] y) { a = Add(x, b) e = Exp(a) y = Mul(e, s) }",
             {"b": np.ones(2, np.float32), "s": np.array(-2, np.float32)}),
            ("conv_channel_affine_folding", "(float[1, 2, 4, 4] x) => (float[1, 2, 4, 4] y, float[1, 2, 4, 4] c) "
             "{ c = Conv(x, w) y = Mul(s, c) }",
             {"w": np.ones((2, 2, 1, 1), np.float32), "s": np.ones((2, 1, 1), np.float32)}),
            ("conv_channel_affine_folding", "(float[1, 2, 4, 4] x) => (float[1, 2, 4, 4] y) "
             "{ c = Conv(x, w) y = Mul(s, c) }",
             {"w": np.ones((2, 2, 1, 1), np.float32), "s": np.ones((4, 1), np.float32)}),
            ("fuse_rmsnorm", "(float[2, 8] x) => (float[2, 8] y) { q = Mul(x, x) v = ReduceMean<axes = [-1]>(q) "
             "z = Add(v, e) r = Sqrt(z) n = Div(x, r) y = Mul(n, s) }",
             {"e": np.array(0.5, np.float32), "s": np.ones(8, np.float32)}),
            ("gathernd_to_reshape", "(float[2, 3] x) => (float[2, 3] y) { y = GatherND(x, p) }",
             {"p": np.array([[1], [0]], np.int64)}),
            ("prelu_to_relu", "(float[2, 3] x, float[3] s) => (float[2, 3] y) { y = PRelu(x, s) }", {}),
            ("concat_slice_elimination", "(float[2] a, float[2] b) => (float[2] y) { c = Concat<axis = 0>(a, b) "
             "d = Slice(c, s, e, z) y = Relu(d) }",
             {"s": np.array([1]), "e": np.array([3]), "z": np.array([0])}),
            ("concat_slice_elimination", "(float[2, 2] a, float[2, 2] b) => (float[2, 4] y) "
             "{ c = Concat<axis = 1>(a, b) d = Slice(c, s, e, , o) y = Relu(d) }",
             {"s": np.array([0]), "e": np.array([2]), "o": np.array([1])}),
            ("remove_isnan_in_attention_mask", "(float[4] x) => (float[1, 4] y) "
             "{ s = Softmax<axis = -1>(x) n = IsNaN(s) y = Where(n, z, s) }", {"z": np.zeros((1, 1), np.float32)}),
            ("fuse_rmsnorm", "(float[8] x) => (float[1, 8] y) { q = Mul(x, x) v = ReduceMean<axes = [-1]>(q) "
             "z = Add(v, e) r = Sqrt(z) n = Div(x, r) y = Mul(n, s) }",
             {"e": np.full((1, 1), 1e-6, np.float32), "s": np.ones(8, np.float32)}),
            ("highdimRTR_lowdimRTR", "(float[2, 3, 4] x) => (float[4, 6] y) { s = Reshape(x, a) "
             "t = Transpose<perm = [2, 1, 0]>(s) y = Reshape(t, b) }",
             {"a": np.array([2, 3, 4]), "b": np.array([4, 6])}),
            ("matmuladd_conv2d3d", "(float[2, 5, 8] x) => (float[2, 5, 4] y) { p = MatMul(x, w) y = Add(p, b) }",
             {"w": np.ones((8, 4), np.float32), "b": np.ones((5, 1), np.float32)}),
        ],
    )  # fmt: skip
    def test_model_that_does_not_match_is_unchanged(
        self, tmp_path: Path, name: str, body: str, constants: dict[str, np.ndarray]
    ) -> None:
        model = graph(f"agraph {body}", 17, **constants)
        result = optimize(tmp_path, model, name)
        assert result.content == optimize(tmp_path, model).content
        assert not any(result.metrics["applied"].values())

    @pytest.mark.parametrize(
        ("name", "opset", "body", "constants"),
        [
            ("static_split_to_slice", 9, "(float[2, 8] x) => (float[2, 2] y, float[2, 6] z) "
             "{ y, z = Split<axis = 1, split = [2, 6]>(x) }", {}),
            ("omit_empty_resize_inputs", 11, "(float[1, 1, 2, 2] x) => (float[1, 1, 4, 4] y) "
             '{ y = Resize<mode = "nearest">(x, roi, scales) }',
             {"roi": np.zeros(0, np.float32), "scales": np.array([1, 1, 2, 2], np.float32)}),
        ],
    )  # fmt: skip
    def test_opset_without_required_form_is_reported(
        self, tmp_path: Path, name: str, opset: int, body: str, constants: dict[str, np.ndarray]
    ) -> None:
        result = optimize(tmp_path, graph(f"agraph {body}", opset, **constants), name)
        assert f"the model has {opset}" in result.metrics["left"][name]

    def test_resize_with_fractional_scale_is_not_made_asymmetric(self, tmp_path: Path) -> None:
        model = graph(
            """agraph (float[1, 1, 3, 2] x) => (float[1, 1, 6, 4] y)
            { y = Resize<coordinate_transformation_mode = "tf_half_pixel_for_nn", nearest_mode = "floor">(x, r, s) }""",
            11,
            r=np.zeros(0, np.float32),
            s=np.array([1, 1, 2.3, 2], np.float32),
        )
        result = optimize(tmp_path, model, "resize_tf_half_pixel_for_nn_to_asymmetric")
        assert not any(result.metrics["applied"].values())
        assert_same_results(result)

    @pytest.mark.parametrize(
        ("name", "opset", "text"),
        [
            ("attention_fusion", 21, _ATTENTION.replace("float", "double")),
            ("dft_to_matmul", 17, "agraph (float[2, 8, 1] x) => (float[2, n, 2] y) <int64 length = {4}> "
             "{ y = DFT(x, length) }"),
            ("attention_expandedattention", 23, "agraph (float[1, 2, 3, 4] q, float[1, 2, 5, 4] k, float[1, 2, 5, 4] v)"
             " => (float[1, 2, 3, 4] y) { y = Attention<is_causal = 1>(q, k, v) }"),
        ],
        ids=["double precision", "a DFT of another length", "causal attention"],
    )  # fmt: skip
    def test_operators_that_stay_are_reported(self, tmp_path: Path, name: str, opset: int, text: str) -> None:
        assert "stay" in optimize(tmp_path, graph(text, opset), name).metrics["left"][name]


def test_attention_is_fused_below_opset_15(tmp_path: Path) -> None:
    result = optimize(tmp_path, graph(_ATTENTION, 14), "attention_fusion")
    assert result.metrics["applied"] == {"attention_fusion": 1}
    assert_same_results(result)


def test_bias_is_fused_into_existing_skip_layer_norm(tmp_path: Path) -> None:
    model = graph(
        """agraph (float[2, 4, 8] x, float[2, 4, 8] z) => (float[2, 4, 8] y)
        { p = MatMul(x, w) q = Add(p, d) y = com.microsoft.SkipLayerNormalization(q, z, s, b) }""",
        17,
        imports=', "com.microsoft": 1',
        w=np.ones((8, 8), np.float32),
        **{name: np.full(8, value, np.float32) for name, value in {"d": 0.5, "s": 2.0, "b": 1.0}.items()},
    )
    result = optimize(tmp_path, model, "bias_skip_layer_norm_fusion")
    assert result.ops == {"MatMul": 1, "com.microsoft/SkipLayerNormalization": 1}
    assert result.metrics["applied"]["bias_skip_layer_norm_fusion"] == 1
    assert_same_results(result)


def test_matmul_absorbs_transpose_and_scale(tmp_path: Path) -> None:
    model = graph(
        """agraph (float[2, 4, 3] x, float[2, 4, 3] z) => (float[2, 4, 4] y) <float s = {0.25}>
        { t = Transpose<perm = [0, 2, 1]>(z) p = MatMul(x, t) y = Mul(p, s) }"""
    )
    result = optimize(tmp_path, model, "matmul_transpose_fusion", "matmul_scale_fusion")
    assert result.metrics["applied"] == {"matmul_transpose_fusion": 1, "matmul_scale_fusion": 1}
    assert result.ops == {"com.microsoft/FusedMatMul": 1}
    assert_same_results(result)


@given(st.data(), st.lists(st.integers(1, 4), min_size=2, max_size=7))
def test_merged_axes_transpose_equally(data: st.DataObject, sizes: list[int]) -> None:
    order = tuple(data.draw(st.permutations(range(len(sizes)))))
    fewer, merged_order = merged_axes(tuple(sizes), order)
    numbers = np.arange(np.prod(sizes))
    moved = numbers.reshape(sizes).transpose(order)
    assert len(fewer) <= len(sizes)
    np.testing.assert_array_equal(numbers.reshape(fewer).transpose(merged_order).ravel(), moved.ravel())


@pytest.mark.parametrize("inverse", [0, 1])
@pytest.mark.parametrize("parts", [1, 2])
def test_dft_is_replaced_in_every_direction(tmp_path: Path, inverse: int, parts: int) -> None:
    text = f"(float[2, 5, 3, {parts}] x) => (float[2, 5, 3, 2] y) {{ y = DFT<axis = 1, inverse = {inverse}>(x) }}"
    result = optimize(tmp_path, graph(f"agraph {text}", 17), "dft_to_matmul")
    assert result.metrics["applied"] == {"dft_to_matmul": 1}
    assert_same_results(result)


@pytest.mark.parametrize(
    "mask",
    ["", "bool[3, 5] mask", "float[1, 1, 3, 5] mask", np.arange(15).reshape(3, 5) < 8],
    ids=["none", "of truth values", "of numbers", "constant, with a row that hides everything"],
)
def test_attention_is_expanded_with_any_mask(tmp_path: Path, mask: str | np.ndarray) -> None:
    given, constants = (mask, {}) if isinstance(mask, str) else ("", {"mask": mask})
    model = graph(
        f"""agraph (float[1, 2, 3, 4] q, float[1, 2, 5, 4] k, float[1, 2, 5, 4] v{given and f", {given}"})
        => (float[1, 2, 3, 4] y) {{ y = Attention<scale = 0.3>(q, k, v{", mask" if given or constants else ""}) }}""",
        23,
        **constants,
    )
    result = optimize(tmp_path, model, "attention_expandedattention")
    assert "Attention" not in result.ops
    assert_same_results(result)


def test_row_of_zeros_is_normalized_to_zeros(tmp_path: Path) -> None:
    sample = SAMPLES["fuse_rmsnorm"]
    result = optimize(tmp_path, sample.model, "fuse_rmsnorm")
    [found] = outputs(result.model, {"x": np.zeros((2, 4, 8), np.float32)})
    assert not found.any()


def test_rms_norm_uses_standard_operator_from_opset_23(tmp_path: Path) -> None:
    model = graph(
        """agraph (float[2, 8] x) => (float[2, 8] y) <int64[1] axes = {-1}, float e = {0.000001},
        float[8] s = {1, 2, 3, 4, 5, 6, 7, 8}>
        { q = Mul(x, x) v = ReduceMean(q, axes) z = Add(v, e) r = Sqrt(z) n = Div(x, r) y = Mul(s, n) }""",
        23,
    )
    result = optimize(tmp_path, model, "fuse_rmsnorm")
    assert result.ops == {"RMSNormalization": 1}
    assert_same_results(result)


class TestSelection:
    def test_required_capabilities_are_enabled(self) -> None:
        assert select({"bias_skip_layer_norm_fusion": True}).on == (
            "layer_norm_fusion",
            "skip_layer_norm_fusion",
            "bias_skip_layer_norm_fusion",
        )

    def test_equivalent_choices_have_equal_essentials(self) -> None:
        assert select({"bias_gelu_fusion": True}).essential() == {"gelu_fusion": True, "bias_gelu_fusion": True}
        assert select({"matmuladd_reshapegemm": True}) == select({"matmul_add_fusion": True})
        assert select({"constant_folding": True, "pad_fusion": True, "quick_gelu_fusion": False}).essential() == {}

    def test_disabled_default_is_essential(self) -> None:
        assert select({"pad_fusion": False}).essential() == {"pad_fusion": False}
        assert select({"ort_graph_optimization": False, "pad_fusion": True}).essential() == {
            "ort_graph_optimization": False,
            "pad_fusion": True,
        }

    @pytest.mark.parametrize(
        ("wanted", "said"),
        [
            ({"bias_gelu_fusion": True, "gelu_fusion": False}, "needs gelu_fusion, which is switched off"),
            ({"static_split_to_slice": True, "gather_slice_to_split_fusion": True}, "Keep one of the two"),
            ({"cgc_constant_folding": True, "constant_folding": False}, "another name of constant_folding"),
        ],
    )
    def test_contradictory_choices_are_refused(self, wanted: dict[str, bool], said: str) -> None:
        with pytest.raises(RecipeError, match=said):
            select(wanted)

    @given(st.dictionaries(st.sampled_from(tuple(CATALOG)), st.booleans(), max_size=6))
    def test_essential_choice_is_idempotent(self, wanted: dict[str, bool]) -> None:
        try:
            chosen = select(wanted)
        except RecipeError:
            return
        again = select(chosen.essential())
        assert again.essential() == chosen.essential()
        assert again.without == chosen.without
        assert again.waiting == chosen.waiting
