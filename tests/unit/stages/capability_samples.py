"""A model for each capability that it changes, and how far the results may differ from those before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from optimize_samples import TOLERANCE, graph

from winml_dag.recipe.capabilities import CATALOG

# All capabilities that can be combined and preserve values.
TOGETHER = tuple(
    name
    for name in CATALOG
    if name
    not in (
        "approximate_cubic_resize_with_linear",
        "gelu_approximation",
        "simplified_layer_norm_fusion",
        "static_split_to_slice",
    )
)


@dataclass(frozen=True)
class Sample:
    """``made``: the operators of the result, with their counts."""

    body: str
    made: Mapping[str, int]
    constants: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    opset: int = 17
    tolerance: float = TOLERANCE
    standard: bool = True  # also if the target supports only the ONNX standard

    @property
    def model(self) -> onnx.ModelProto:
        return graph(f"agraph {self.body}", self.opset, **self.constants)


def _weights(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    return (np.random.default_rng(seed).normal(size=shape) * 0.5).astype(np.float32)


def _ints(*values: int) -> NDArray[np.int64]:
    return np.array(values, np.int64)


def _number(value: float) -> NDArray[np.float32]:
    return np.array(value, np.float32)


def _normalization(width: int = 4, seed: int = 1) -> dict[str, NDArray[Any]]:
    return {
        "scale": _weights(width, seed=seed),
        "bias": _weights(width, seed=seed + 1),
        "mean": _weights(width, seed=seed + 2),
        "variance": np.abs(_weights(width, seed=seed + 3)) + 0.5,
    }


_CONV = "float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y) { c = Conv<pads = [1, 1, 1, 1]>(x, w)"
_KERNEL = {"w": _weights(4, 4, 3, 3)}
_LINEAR = {"w": _weights(8, 4), "b": _weights(4, seed=1)}
_ERF = "d = Div(x, root) e = Erf(d) f = Add(e, one) m = Mul(x, f) y = Mul(m, half)"
_TANH = (
    "c = Pow(x, three) k = Mul(c, cubic) s = Add(x, k) t = Mul(s, outer) e = Tanh(t) f = Add(e, one) m = Mul(x, half) "
    "y = Mul(m, f)"
)
_GELU = {
    "root": _number(2**0.5),
    "one": _number(1),
    "half": _number(0.5),
    "three": _number(3),
    "cubic": _number(0.044715),
    "outer": _number((2 / np.pi) ** 0.5),
}
_RMS = (
    "(float[2, 4, 8] x) => (float[2, 4, 8] y) { q = Mul(x, x) v = ReduceMean<axes = [-1]>(q) z = Add(v, epsilon) "
    "r = Sqrt(z) n = Div(x, r) y = Mul(n, s) }"
)
_RMS_WEIGHTS = {"epsilon": _number(1e-6), "s": _weights(8)}
_LAYER_NORM = (
    "m = ReduceMean<axes = [-1]>(x) d = Sub(x, m) q = Pow(d, two) v = ReduceMean<axes = [-1]>(q) z = Add(v, epsilon) "
    "r = Sqrt(z)"
)
_CHANNELS_FIRST = _LAYER_NORM.replace("-1", "1")
_NORM = {"two": _number(2), "epsilon": _number(1e-3)}


def _gelu(body: str) -> str:
    return f"(float[2, 8] x) => (float[2, 8] y) {{ {body} }}"


# Rewrites of onnxruntime's portable level: ``made`` applies if the capability is off.
PORTABLE: Mapping[str, Sample] = {
    "constant_folding": Sample(
        "(float[2, 8] x) => (float[2, 8] y) { c = Add(p, q) y = Mul(x, c) }",
        {"Add": 1, "Mul": 1},
        {"p": _weights(8), "q": _weights(8, seed=1)},
    ),
    "slice_elimination": Sample(
        "(float[2, 8] x) => (float[2, 8] y) { a = Relu(x) b = Slice(a, s, e, z) y = Sigmoid(b) }",
        {"Relu": 1, "Slice": 1, "Sigmoid": 1},
        {"s": _ints(0), "e": _ints(2**63 - 1), "z": _ints(0)},
    ),
    "expand_elimination": Sample(
        "(float[2, 8] x) => (float[2, 8] y) { a = Relu(x) b = Expand(a, s) y = Sigmoid(b) }",
        {"Relu": 1, "Expand": 1, "Sigmoid": 1},
        {"s": _ints(2, 8)},
    ),
    "not_where_fusion": Sample(
        "(bool[2, 8] c, float[2, 8] x, float[2, 8] z) => (float[2, 8] y) { n = Not(c) y = Where(n, x, z) }",
        {"Not": 1, "Where": 1},
    ),
    "pad_fusion": Sample(
        "(float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y) { p = Pad(x, pads) y = Conv(p, w) }",
        {"Pad": 1, "Conv": 1},
        {**_KERNEL, "pads": _ints(0, 0, 1, 1, 0, 0, 1, 1)},
    ),
    "conv_add_fusion": Sample(
        f"({_CONV} y = Add(c, b) }}", {"Conv": 1, "Add": 1}, {**_KERNEL, "b": _weights(1, 4, 1, 1)}
    ),
    "conv_mul_fusion": Sample(
        f"({_CONV} y = Mul(c, b) }}", {"Conv": 1, "Mul": 1}, {**_KERNEL, "b": _weights(1, 4, 1, 1)}
    ),
    "conv_bn_fusion": Sample(
        f"({_CONV} y = BatchNormalization(c, scale, bias, mean, variance) }}",
        {"Conv": 1, "BatchNormalization": 1},
        {**_KERNEL, **_normalization()},
    ),
    "matmul_bn_fusion": Sample(
        """(float[2, 8] x) => (float[2, 4] y) { c = MatMul(x, w)
        y = BatchNormalization(c, scale, bias, mean, variance) }""",
        {"MatMul": 1, "BatchNormalization": 1},
        {"w": _LINEAR["w"], **_normalization()},
    ),
    "gemm_sum_fusion": Sample(
        "(float[2, 8] x, float[4] z) => (float[2, 4] y) { c = Gemm(x, w) y = Sum(c, z) }",
        {"Gemm": 1, "Sum": 1},
        {"w": _LINEAR["w"]},
    ),
    "gemm_transpose_fusion": Sample(
        "(float[8, 2] x) => (float[2, 4] y) { t = Transpose<perm = [1, 0]>(x) y = Gemm(t, w) }",
        {"Transpose": 1, "Gemm": 1},
        {"w": _LINEAR["w"]},
    ),
    "transpose_optimizer": Sample(
        """(float[2, 3, 4] x) => (float[2, 3, 4] y) { a = Transpose<perm = [0, 2, 1]>(x) b = Relu(a)
        c = Transpose<perm = [0, 2, 1]>(b) y = Neg(c) }""",
        {"Transpose": 2, "Relu": 1, "Neg": 1},
    ),
    "gelu_fusion": Sample(_gelu(_ERF), {"Div": 1, "Erf": 1, "Add": 1, "Mul": 2}, _GELU, opset=20),
    "layer_norm_fusion": Sample(
        f"(float[2, 4, 8] x) => (float[2, 4, 8] y) {{ {_LAYER_NORM} n = Div(d, r) k = Mul(n, s) y = Add(k, b) }}",
        {"ReduceMean": 2, "Sub": 1, "Pow": 1, "Add": 2, "Sqrt": 1, "Div": 1, "Mul": 1},
        {**_NORM, "s": _weights(8), "b": _weights(8, seed=1)},
    ),
    "matmul_add_fusion": Sample(
        "(float[2, 8] x) => (float[2, 4] y) { p = MatMul(x, w) y = Add(p, b) }", {"MatMul": 1, "Add": 1}, _LINEAR
    ),
}

# What a capability does to a model that the portable level leaves unchanged.
SAMPLES: Mapping[str, Sample] = {
    "omit_empty_resize_inputs": Sample(
        "(float[1, 2, 4, 4] x) => (float[1, 2, 8, 8] y) { y = Resize(x, none, none, sizes) }",
        {"Resize": 1},
        {"none": np.zeros(0, np.float32), "sizes": _ints(1, 2, 8, 8)},
    ),
    "resize_tf_half_pixel_for_nn_to_asymmetric": Sample(
        """(float[1, 2, 4, 4] x) => (float[1, 2, 8, 12] y) { y = Resize<mode = "nearest", nearest_mode = "floor",
        coordinate_transformation_mode = "tf_half_pixel_for_nn">(x, none, scales) }""",
        {"Resize": 1},
        {"none": np.zeros(0, np.float32), "scales": np.array([1, 1, 2, 3], np.float32)},
        opset=11,
    ),
    "approximate_cubic_resize_with_linear": Sample(
        """(float[1, 2, 4, 4] x) => (float[1, 2, 8, 8] y) { y = Resize<mode = "cubic">(x, , scales) }""",
        {"Resize": 1},
        {"scales": np.array([1, 1, 2, 2], np.float32)},
        tolerance=1.0,
    ),
    "prelu_to_relu": Sample(
        "(float[1, 4, 3, 3] x) => (float[1, 4, 3, 3] y) { y = PRelu(x, slope) }",
        {"Relu": 2, "Neg": 1, "Mul": 1, "Sub": 1},
        {"slope": _weights(4, 1, 1)},
    ),
    "gathernd_to_reshape": Sample(
        "(float[2, 3, 4] x) => (float[6, 4] y) { y = GatherND(x, places) }",
        {"Reshape": 1},
        {"places": np.array([[i, j] for i in range(2) for j in range(3)], np.int64)},
    ),
    "dft_to_matmul": Sample(
        "(float[2, 12, 1] x) => (float[2, 7, 2] y) { y = DFT<axis = 1, onesided = 1>(x) }",
        {"Squeeze": 1, "MatMul": 2, "Unsqueeze": 2, "Concat": 1},
    ),
    "static_split_to_slice": Sample(
        "(float[2, 8] x) => (float[2, 3] y, float[2, 5] z) { y, z = Split<axis = 1>(x, sizes) }",
        {"Slice": 2},
        {"sizes": _ints(3, 5)},
    ),
    "concat_slice_elimination": Sample(
        """(float[2, 3] a, float[2, 5] b) => (float[2, 3] y, float[2, 5] z) { c = Concat<axis = 1>(a, b)
        d = Slice(c, start, middle, axis) y = Relu(d) e = Slice(c, middle, end, axis) z = Neg(e) }""",
        {"Relu": 1, "Neg": 1},
        {"start": _ints(0), "middle": _ints(3), "end": _ints(2**63 - 1), "axis": _ints(-1)},
    ),
    "exp_positive_scale_folding": Sample(
        "(float[2, 8] x) => (float[2, 8] y) { a = Add(x, b) e = Exp(a) y = Mul(e, s) }",
        {"Add": 1, "Exp": 1},
        {"b": _weights(8), "s": _number(2.5)},
    ),
    "attention_expandedattention": Sample(
        """(float[1, 2, 3, 4] q, float[1, 5, 2, 4] k, float[1, 2, 5, 4] v, float[3, 5] mask) => (float[1, 2, 3, 4] y)
        { t = Transpose<perm = [0, 2, 1, 3]>(k) y = Attention(q, t, v, mask) }""",
        {"Mul": 2, "Transpose": 1, "MatMul": 2, "Add": 1, "Softmax": 1},
        opset=23,
    ),
    "conv_channel_affine_folding": Sample(
        f"({_CONV} m = Mul(s, c) a = Add(b, m) y = Div(a, b) }}",
        {"Conv": 1},
        {**_KERNEL, "s": _number(1.7), "b": _weights(4, 1, 1)},
    ),
    "conv_add_batch_normalization_folding": Sample(
        f"({_CONV} a = Add(x, c) y = BatchNormalization(a, scale, bias, mean, variance) }}",
        {"Conv": 1, "Mul": 1, "Add": 1},
        {**_KERNEL, **_normalization()},
    ),
    "layernormalization_singlelayernorm": Sample(
        f"""(float[2, 4, 3, 5] x) => (float[2, 4, 3, 5] y)
        {{ {_CHANNELS_FIRST} n = Div(d, r) k = Mul(n, s) y = Add(k, b) }}""",
        {"Transpose": 2, "LayerNormalization": 1},
        {**_NORM, "s": _weights(4, 1, 1), "b": _weights(4, 1, 1, seed=1)},
    ),
    "fuse_rmsnorm": Sample(_RMS, {"LpNormalization": 1, "Mul": 1}, _RMS_WEIGHTS),
    "fast_gelu_fusion": Sample(_gelu(_TANH), {"Gelu": 1}, _GELU, opset=20),
    "gelu_singlegelu": Sample(
        _gelu("d = Mul(x, inverse) e = Erf(d) f = Add(e, one) m = Mul(f, half) y = Mul(x, m)"),
        {"Gelu": 1},
        {**_GELU, "inverse": _number(0.5**0.5)},
        opset=20,
    ),
    "matmuladd_conv2d4d": Sample(
        "(float[1, 3, 5, 8] x) => (float[1, 3, 5, 4] y) { p = MatMul(x, w) y = Add(p, b) }",
        {"Transpose": 2, "Conv": 1},
        _LINEAR,
    ),
    "matmuladd_conv2d3d": Sample(
        "(float[2, 5, 8] x) => (float[2, 5, 4] y) { p = MatMul(x, w) y = Add(b, p) }",
        {"Reshape": 2, "Transpose": 2, "Conv": 1},
        _LINEAR,
    ),
    "matmuladd_conv2d2d": Sample(
        "(float[2, 8] x) => (float[2, 4] y) { p = MatMul(x, w) y = Add(p, b) }", {"Reshape": 2, "Conv": 1}, _LINEAR
    ),
    "highdimRTR_lowdimRTR": Sample(
        """(float[1, 6, 6, 4] x) => (float[4, 9, 4] y) { s = Reshape(x, windows)
        t = Transpose<perm = [0, 1, 3, 2, 4, 5]>(s) y = Reshape(t, tokens) }""",
        {"Reshape": 2, "Transpose": 1},
        {"windows": _ints(1, 2, 3, 2, 3, 4), "tokens": _ints(4, 9, 4)},
    ),
    # The heads are followed directly by a Reshape to two dimensions.
    "attention_fusion": Sample(
        """(float[1, 4, 8] x, float[1, 1, 4, 4] mask) => (float[4, 8] y) {
        q = MatMul(x, wq) qs = Reshape(q, apart) qt = Transpose<perm = [0, 2, 1, 3]>(qs)
        k = MatMul(x, wk) ks = Reshape(k, apart) kt = Transpose<perm = [0, 2, 3, 1]>(ks)
        v = MatMul(x, wv) vs = Reshape(v, apart) vt = Transpose<perm = [0, 2, 1, 3]>(vs)
        p = MatMul(qt, kt) s = Div(p, two) a = Add(s, mask) w = Softmax<axis = -1>(a) m = MatMul(w, vt)
        t = Transpose<perm = [0, 2, 1, 3]>(m) r = Reshape(t, rows) y = Gemm(r, wo) }""",
        {"MatMul": 3, "com.microsoft/MultiHeadAttention": 1, "Reshape": 1, "Gemm": 1},
        {
            **{name: _weights(8, 8, seed=seed) for seed, name in enumerate(("wq", "wk", "wv", "wo"))},
            "apart": _ints(1, 4, 2, 4),
            "rows": _ints(-1, 8),
            "two": _number(2),
        },
        standard=False,
    ),
    "gather_slice_to_split_fusion": Sample(
        """(float[1, 3, 8] x) => (float[1, 8] p, float[1, 8] q, float[1, 8] r) { a = Relu(x) b = Gather<axis = 1>(a, i)
        c = Gather<axis = 1>(a, j) d = Gather<axis = 1>(a, k) p = Relu(b) q = Neg(c) r = Abs(d) }""",
        {"Relu": 2, "Split": 1, "Squeeze": 3, "Neg": 1, "Abs": 1},
        {"i": np.array(0, np.int64), "j": np.array(1, np.int64), "k": np.array(2, np.int64)},
    ),
    "gather_to_slice_fusion": Sample(
        """(float[8, 4] x, int64[4] counts) => (float[m, 4] y) { n = ReduceSum<keepdims = 0>(counts)
        r = Range(zero, n, one) a = Relu(x) y = Gather(a, r) }""",
        {"ReduceSum": 1, "Unsqueeze": 1, "Relu": 1, "Slice": 1},
        {"zero": np.array(0, np.int64), "one": np.array(1, np.int64)},
    ),
    "skip_layer_norm_fusion": Sample(
        "(float[2, 4, 8] x, float[2, 4, 8] z) => (float[2, 4, 8] y) { a = Add(x, z) y = LayerNormalization(a, s, b) }",
        {"com.microsoft/SkipLayerNormalization": 1},
        {"s": _weights(8), "b": _weights(8, seed=1)},
        standard=False,
    ),
    "bias_skip_layer_norm_fusion": Sample(
        """(float[2, 4, 8] x, float[2, 4, 8] z) => (float[2, 4, 8] y)
        { p = MatMul(x, w) c = Add(p, d) a = Add(c, z) y = LayerNormalization(a, s, b) }""",
        {"MatMul": 1, "com.microsoft/SkipLayerNormalization": 1},
        {"w": _weights(8, 8), "d": _weights(8), "s": _weights(8, seed=1), "b": _weights(8, seed=2)},
        standard=False,
    ),
    "simplified_layer_norm_fusion": Sample(
        _RMS.replace("Mul(x, x)", "Pow(x, two)"),
        {"SimplifiedLayerNormalization": 1},
        {**_RMS_WEIGHTS, "two": _number(2)},
        standard=False,
    ),
    "bias_gelu_fusion": Sample(
        f"(float[2, 8] i) => (float[2, 8] y) {{ x = Add(i, b) {_ERF} }}",
        {"com.microsoft/BiasGelu": 1},
        {**_GELU, "b": _weights(8)},
        standard=False,
    ),
    "quick_gelu_fusion": Sample(
        "(float[2, 8] x) => (float[2, 8] y) { m = Mul(x, k) s = Sigmoid(m) y = Mul(x, s) }",
        {"com.microsoft/QuickGelu": 1},
        {"k": _number(1.702)},
        standard=False,
    ),
    "gelu_approximation": Sample(
        "(float[2, 8] x) => (float[2, 8] y) { y = Gelu(x) }", {"Gelu": 1}, opset=20, tolerance=1e-3
    ),
    "gemm_activation_fusion": Sample(
        "(float[2, 8] x) => (float[2, 4] y) { c = Gemm(x, w) y = LeakyRelu(c) }",
        {"com.microsoft/FusedGemm": 1},
        {"w": _LINEAR["w"]},
        standard=False,
    ),
    "conv_activation_fusion": Sample(
        f"({_CONV} y = Relu(c) }}", {"com.microsoft/FusedConv": 1}, _KERNEL, standard=False
    ),
    "matmul_transpose_fusion": Sample(
        """(float[2, 4, 8] x, float[2, 6, 8] z) => (float[2, 4, 6] y) { t = Transpose<perm = [0, 2, 1]>(z)
        y = MatMul(x, t) }""",
        {"com.microsoft/FusedMatMul": 1},
        standard=False,
    ),
    "matmul_scale_fusion": Sample(
        "(float[2, 4, 8] x, float[2, 8, 6] z) => (float[2, 4, 6] y) { p = MatMul(x, z) y = Mul(p, s) }",
        {"com.microsoft/FusedMatMul": 1},
        {"s": _number(0.125)},
        standard=False,
    ),
}
