"""Hostile graphs: values that low precision handles badly.

Huge, tiny and infinite ones, masks, and overflowing norms.
"""

from __future__ import annotations

import numpy as np
from netgraphs import BOOL, FLOAT, INT64, Graph, Registry

VALUES, NORMS = Registry("values"), Registry("norms")
CASES = (VALUES, NORMS)


def _attention(g: Graph, x: str, masked: object) -> str:
    """One head over 6 tokens of 16 numbers; *masked* is applied to the scores like a mask."""
    q, k, v = (g.dense(x, 16, 16) for _ in range(3))
    scores = g.add("Mul", g.add("MatMul", q, g.add("Transpose", k, perm=[0, 2, 1])), g.const(0.25))
    return g.dense(g.add("MatMul", g.add("Softmax", masked(scores), axis=-1), v), 16, 8)  # type: ignore[operator]


def _added_mask(g: Graph, low: float) -> None:
    mask = g.const(np.where(np.tril(np.ones((6, 6), bool)), 0, low))
    g.output(_attention(g, g.input(shape=(1, 6, 16)), lambda scores: g.add("Add", scores, mask)))


VALUES.each(
    {
        "mask-lowest-float": lambda g: _added_mask(g, float(np.finfo(np.float32).min)),
        "mask-infinite": lambda g: _added_mask(g, -np.inf),
        "mask-minus-1e9": lambda g: _added_mask(g, -1e9),
        "mask-minus-10000": lambda g: _added_mask(g, -10000.0),
    }
)


@VALUES.case("mask-by-where")
def _(g: Graph) -> None:
    x, low = g.input(shape=(1, 6, 16)), g.const(-np.inf)
    keep = g.const(np.tril(np.ones((6, 6), bool)), bool)
    g.output(_attention(g, x, lambda scores: g.add("Where", keep, scores, low)))


@VALUES.case("mask-by-trilu")
def _(g: Graph) -> None:
    x = g.input(shape=(1, 6, 16))
    mask = g.add("Trilu", g.const(np.full((6, 6), -np.inf)), g.const(1, np.int64), upper=1)
    g.output(_attention(g, x, lambda scores: g.add("Add", scores, mask)))


@VALUES.case("mask-by-input")
def _(g: Graph) -> None:
    x = g.input(shape=(1, 6, 16))
    mask = g.input("attention_mask", (1, 6), INT64, sample=lambda *_: np.array([[1, 1, 1, 1, 0, 0]], np.int64))
    kept = g.add("Sub", g.const(1.0), g.add("Cast", g.add("Unsqueeze", mask, g.ints(1)), to=FLOAT))
    low = g.add("Mul", kept, g.const(float(np.finfo(np.float32).min)))
    g.output(_attention(g, x, lambda scores: g.add("Add", scores, low)))


@VALUES.case("mask-by-bool-input")
def _(g: Graph) -> None:
    x = g.input(shape=(1, 6, 16))
    hidden = g.input("hidden", (1, 1, 6), BOOL, sample=lambda *_: np.array([[[0, 0, 0, 0, 1, 1]]], bool))
    g.output(_attention(g, x, lambda scores: g.add("Where", hidden, g.const(-1e30), scores)))


@VALUES.case("weights-huge")
def _(g: Graph) -> None:
    x = g.add("MatMul", g.input(shape=(4, 16)), g.weight(16, 16, scale=1e6))
    g.output(g.add("MatMul", x, g.weight(16, 8, scale=1e-6)))


@VALUES.case("weights-tiny")
def _(g: Graph) -> None:
    x = g.add("MatMul", g.input(shape=(4, 16)), g.weight(16, 16, scale=1e-6))
    g.output(g.add("MatMul", x, g.weight(16, 8, scale=1e6)))


@VALUES.case("weights-denormal")
def _(g: Graph) -> None:
    x = g.add("MatMul", g.input(shape=(4, 16)), g.weight(16, 16, scale=1e-39))
    g.output(g.add("Add", x, g.dense(g.input("y", (4, 16)), 16, 16)))


@VALUES.case("weights-zero")
def _(g: Graph) -> None:
    x = g.input(shape=(1, 3, 8, 8))
    zero = g.add("Conv", x, g.const(np.zeros((4, 3, 3, 3))), pads=[1, 1, 1, 1])
    g.output(g.add("Add", zero, g.conv(x, 3, 4)))


@VALUES.case("weights-zero-channel")
def _(g: Graph) -> None:
    weight = g.random.standard_normal((4, 3, 3, 3)) * 0.2
    weight[1] = 0
    x = g.add("Conv", g.input(shape=(1, 3, 8, 8)), g.const(weight), g.weight(4), pads=[1, 1, 1, 1])
    g.output(g.conv(g.add("Relu", x), 4, 4))


@VALUES.case("weights-skewed-channels")
def _(g: Graph) -> None:
    weight = g.random.standard_normal((8, 3, 3, 3)) * np.logspace(-3, 1, 8).reshape(8, 1, 1, 1)
    x = g.add("Conv", g.input(shape=(1, 3, 8, 8)), g.const(weight), pads=[1, 1, 1, 1])
    g.output(g.add("Mul", x, g.const(np.logspace(3, -1, 8).reshape(1, 8, 1, 1))))


@VALUES.case("weights-constant")
def _(g: Graph) -> None:
    x = g.add("Conv", g.input(shape=(1, 3, 8, 8)), g.const(np.full((8, 3, 3, 3), 0.02)), pads=[1, 1, 1, 1])
    g.output(g.add("Conv", x, g.const(np.full((4, 8, 3, 3), 0.02)), pads=[1, 1, 1, 1]))


@VALUES.case("output-constant")
def _(g: Graph) -> None:
    x = g.input(shape=(4, 16))
    g.output(g.dense(g.add("Mul", x, g.const(0.0)), 16, 8))


@VALUES.case("output-zero")
def _(g: Graph) -> None:
    x = g.dense(g.input(shape=(4, 16)), 16, 8)
    g.output(x)
    g.output(g.add("Relu", g.add("Sub", x, g.const(1000.0))))


@VALUES.case("one-number")
def _(g: Graph) -> None:
    x = g.dense(g.input(shape=(1, 16)), 16, 1)
    g.output(g.add("Sigmoid", x))


@VALUES.case("inputs-0-to-255")
def _(g: Graph) -> None:
    x = g.input(shape=(1, 3, 8, 8), low=0, high=255)
    mean, deviation = ([[[[v]] for v in row]] for row in ((123.0, 117.0, 104.0), (58.0, 57.0, 57.5)))
    x = g.add("Div", g.add("Sub", x, g.const(mean)), g.const(deviation))
    g.output(g.conv(x, 3, 4))


@VALUES.case("inputs-positive")
def _(g: Graph) -> None:
    g.output(g.dense(g.add("Sqrt", g.input(shape=(4, 16), low=1, high=9)), 16, 8))


@VALUES.case("inputs-constant")
def _(g: Graph) -> None:
    x = g.input(shape=(4, 16))
    same = g.input("same", (4, 16), sample=lambda *_: np.full((4, 16), 0.5, np.float32))
    g.output(g.dense(g.add("Add", x, same), 16, 8))


@VALUES.case("inputs-tiny")
def _(g: Graph) -> None:
    g.output(g.dense(g.add("Mul", g.input(shape=(4, 16), low=-1e-6, high=1e-6), g.const(1e6)), 16, 8))


@VALUES.case("outliers")
def _(g: Graph) -> None:
    boost = np.ones(16)
    boost[3] = 100
    x = g.add("Mul", g.dense(g.input(shape=(4, 16)), 16, 16), g.const(boost))
    g.output(g.dense(g.add("Div", x, g.const(boost)), 16, 8))


@VALUES.case("beyond-half-precision")
def _(g: Graph) -> None:
    x = g.add("Mul", g.dense(g.input(shape=(4, 16)), 16, 16), g.const(1e5))
    g.output(g.dense(g.add("Mul", x, g.const(1e-5)), 16, 8))


@VALUES.case("exp-and-log")
def _(g: Graph) -> None:
    x = g.dense(g.input(shape=(4, 16)), 16, 8)
    total = g.add("ReduceSum", g.add("Exp", x), g.ints(1), keepdims=1)
    g.output(g.add("Sub", x, g.add("Log", total)))


@VALUES.case("log-softmax")
def _(g: Graph) -> None:
    g.output(g.add("LogSoftmax", g.dense(g.input(shape=(4, 16)), 16, 8), axis=1))


@VALUES.case("softmax-sharp")
def _(g: Graph) -> None:
    x = g.add("Mul", g.dense(g.input(shape=(4, 16)), 16, 8), g.const(20.0))
    g.output(g.add("Softmax", x, axis=1))


@VALUES.case("divide-by-small")
def _(g: Graph) -> None:
    x = g.dense(g.input(shape=(4, 16)), 16, 8)
    low = g.add("Add", g.add("Abs", g.dense(g.input("y", (4, 16)), 16, 8)), g.const(0.05))
    g.output(g.add("Div", x, low))


@VALUES.case("clip-infinite-bounds")
def _(g: Graph) -> None:
    x = g.dense(g.input(shape=(4, 16)), 16, 16)
    g.output(g.dense(g.add("Clip", x, g.const(-np.inf), g.const(np.inf)), 16, 8))


@VALUES.case("nan-in-unused-place")
def _(g: Graph) -> None:
    x = g.dense(g.input(shape=(4, 16)), 16, 8)
    keep = g.const(np.ones((4, 8), bool), bool)
    g.output(g.add("Where", keep, x, g.const(np.nan)))
    g.may_refuse = dict.fromkeys(("cpu", "qnn"), "no integer represents NaN")


@VALUES.case("infinite-output")
def _(g: Graph) -> None:
    x = g.dense(g.input(shape=(4, 16)), 16, 8)
    keep = g.const(np.arange(32).reshape(4, 8) % 5 != 0, bool)
    g.output(g.add("Where", keep, x, g.const(-np.inf)))
    in_floats = ("cpu/fp32", "cpu/fp16", "cpu/dynamic", "cpu/w4a32")
    g.may_refuse = dict.fromkeys(in_floats, "an infinite output is a failure, of the float model too")


# Decomposed normalizations, and values between their parts.


def _layer_norm(g: Graph, x: str, how: str, size: int = 16, axis: int = -1) -> str:
    """LayerNorm over the last axis, decomposed in one of the ways of converters."""
    part, one = g.const(1 / size), g.const(1.0)
    if how == "reduce-sum":
        mean = g.add("Mul", g.add("ReduceSum", x, g.ints(axis), keepdims=1), part)
        centred = g.add("Sub", x, mean)
        variance = g.add("Mul", g.add("ReduceSum", g.add("Mul", centred, centred), g.ints(axis), keepdims=1), part)
    else:
        centred = g.add("Sub", x, g.add("ReduceMean", x, axes=[axis], keepdims=1))
        square = g.add("Pow", centred, g.const(2.0)) if how in ("pow", "reciprocal") else g.add("Mul", centred, centred)
        variance = g.add("ReduceMean", square, axes=[axis], keepdims=1)
    deviation = g.add("Sqrt", g.add("Add", variance, g.const(1e-5)))
    if how in ("reciprocal", "reduce-sum"):
        normal = g.add("Mul", centred, g.add("Reciprocal", deviation))
    elif how == "one-over":
        normal = g.add("Mul", centred, g.add("Div", one, deviation))
    else:
        normal = g.add("Div", centred, deviation)
    scaled = g.add("Mul", normal, g.const(g.random.uniform(0.5, 1.5, size)))
    return str(g.add("Add", scaled, g.weight(size, scale=0.1)))


def _normed(g: Graph, how: str, factor: float = 1.0, size: int = 16) -> None:
    x = g.add("Mul", g.dense(g.input(shape=(1, 6, 16)), 16, size), g.const(factor))
    g.output(g.dense(_layer_norm(g, x, how, size), size, 8))


for _how in ("mul", "pow", "reciprocal", "one-over", "reduce-sum"):
    NORMS.case(f"layer-norm-{_how}")(lambda g, how=_how: _normed(g, how))  # type: ignore[misc]
NORMS.case("layer-norm-reduce-sum-overflows-half")(lambda g: _normed(g, "reduce-sum", 20.0, 512))
NORMS.case("layer-norm-reciprocal-of-small")(lambda g: _normed(g, "reciprocal", 0.05))


@NORMS.case("rms-norm")
def _(g: Graph) -> None:
    x = g.dense(g.input(shape=(1, 6, 16)), 16, 16)
    mean = g.add("ReduceMean", g.add("Mul", x, x), axes=[-1], keepdims=1)
    root = g.add("Sqrt", g.add("Add", mean, g.const(1e-6)))
    g.output(g.dense(g.add("Mul", x, g.add("Reciprocal", root)), 16, 8))


@NORMS.case("l2-norm")
def _(g: Graph) -> None:
    x = g.dense(g.input(shape=(4, 16)), 16, 16)
    g.output(g.add("Div", x, g.add("ReduceL2", x, axes=[1], keepdims=1)))


@NORMS.case("lp-normalization")
def _(g: Graph) -> None:
    g.output(g.add("LpNormalization", g.dense(g.input(shape=(4, 16)), 16, 16), axis=1, p=2))


def _reciprocal(g: Graph, low: float, high: float) -> None:
    x = g.input(shape=(4, 16), low=low, high=high)
    g.output(g.add("Reciprocal", x))


NORMS.case("reciprocal-below-1")(lambda g: _reciprocal(g, 0.05, 0.2))
NORMS.case("reciprocal-above-1")(lambda g: _reciprocal(g, 2.0, 9.0))


@NORMS.case("group-norm-by-instance-norm")
def _(g: Graph) -> None:
    x = g.conv(g.input(shape=(1, 4, 8, 8)), 4, 4)
    x = g.add("Reshape", x, g.ints(1, 2, -1))
    x = g.add("InstanceNormalization", x, g.const(np.ones(2)), g.const(np.zeros(2)))
    x = g.add("Reshape", x, g.ints(1, 4, 8, 8))
    g.output(g.add("Add", g.add("Mul", x, g.weight(1, 4, 1, 1, scale=1.0)), g.weight(1, 4, 1, 1, scale=0.1)))


@NORMS.case("batch-norm-alone")
def _(g: Graph) -> None:
    x = g.input(shape=(2, 4, 8, 8))
    scale, variance = (g.const(g.random.uniform(0.5, 1.5, 4)) for _ in range(2))
    x = g.add("BatchNormalization", x, scale, g.weight(4), g.weight(4), variance)
    g.output(g.add("Relu", x))


@NORMS.case("batch-norm-before-conv")
def _(g: Graph) -> None:
    x = g.input(shape=(1, 4, 8, 8))
    scale, variance = (g.const(g.random.uniform(0.5, 1.5, 4)) for _ in range(2))
    x = g.add("BatchNormalization", x, scale, g.weight(4), g.weight(4), variance)
    g.output(g.conv(x, 4, 4))


@NORMS.case("batch-norm-after-dense")
def _(g: Graph) -> None:
    x = g.dense(g.input(shape=(4, 16)), 16, 8)
    scale, variance = (g.const(g.random.uniform(0.5, 1.5, 8)) for _ in range(2))
    g.output(g.add("BatchNormalization", x, scale, g.weight(8), g.weight(8), variance))


@NORMS.case("variance-near-zero")
def _(g: Graph) -> None:
    x = g.conv(g.input(shape=(1, 4, 8, 8)), 4, 4)
    variance = g.const([1.0, 1e-12, 0.5, 2.0])
    g.output(g.add("BatchNormalization", x, g.const(np.ones(4)), g.weight(4), g.weight(4), variance))
