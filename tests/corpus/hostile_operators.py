"""Hostile graphs: each operator used in real models, between two layers that are quantized."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from netgraphs import FLOAT, INT32, INT64, Graph, Registry
from onnx import TensorProto

CONV, UNARY, SHAPES, PICKING, CONTRIB = (
    Registry(name) for name in ("conv", "unary", "shape-ops", "picking", "contrib")
)
CASES = (CONV, UNARY, SHAPES, PICKING, CONTRIB)
_MICROSOFT = "com.microsoft"

# Results of onnxruntime's own ModelCompiler for plain onnxruntime's models: none, or one that does not load.
_REPLACED = "onnxruntime cannot write a compiled model in which an operator is replaced by others"
_NOT_LOADED = "onnxruntime moves a QuantizeLinear up to a compiled part when it loads that, and gives the value no type"
_REFUSALS = {
    "FastGelu": {"qnn/fp16": _REPLACED},
    "Softsign": {"qnn/fp16": _REPLACED},
    "Unsqueeze": {"qnn/w8a8": _NOT_LOADED, "qnn/w8a16": _NOT_LOADED},
}


def _between(g: Graph, op: str, *more: str, **attributes: Any) -> None:
    """*op* after a Conv of [1, 4, 8, 8], followed by a Conv with one kernel if its result has 4 channels."""
    x = g.add(op, g.conv(g.input(shape=(1, 4, 8, 8)), 4, 4), *more, **attributes)
    g.output(g.add("Relu", x))
    g.may_refuse = dict(_REFUSALS.get(op, {}))


def _after_dense(g: Graph, op: str, *more: str, **attributes: Any) -> None:
    g.output(g.dense(g.add(op, g.dense(g.input(shape=(4, 16)), 16, 16), *more, **attributes), 16, 8))
    g.may_refuse = dict(_REFUSALS.get(op, {}))


# Convolutions.


def _conv(g: Graph, shape: tuple[int, ...], weight: tuple[int, ...], op: str = "Conv", **attributes: Any) -> None:
    outer = weight[1] * attributes.get("group", 1) if op == "ConvTranspose" else weight[0]
    x = g.add(op, g.input(shape=shape), g.weight(*weight), g.weight(outer, scale=0.1), **attributes)
    g.output(g.add("Relu", x))


CONV.each(
    {
        "grouped": lambda g: _conv(g, (1, 8, 8, 8), (8, 2, 3, 3), group=4),
        "depthwise": lambda g: _conv(g, (1, 8, 8, 8), (8, 1, 3, 3), group=8, pads=[1, 1, 1, 1]),
        "depthwise-multiplier": lambda g: _conv(g, (1, 4, 8, 8), (8, 1, 3, 3), group=4),
        "1d": lambda g: _conv(g, (1, 4, 16), (8, 4, 3), pads=[1, 1]),
        "1d-depthwise": lambda g: _conv(g, (1, 8, 16), (8, 1, 3), group=8),
        "3d": lambda g: _conv(g, (1, 2, 4, 6, 6), (4, 2, 3, 3, 3)),
        "dilated": lambda g: _conv(g, (1, 4, 9, 9), (4, 4, 3, 3), dilations=[2, 2]),
        "same-upper": lambda g: _conv(g, (1, 4, 8, 8), (4, 4, 3, 3), auto_pad="SAME_UPPER", strides=[2, 2]),
        "same-lower": lambda g: _conv(g, (1, 4, 8, 8), (4, 4, 3, 3), auto_pad="SAME_LOWER"),
        "asymmetric-pads": lambda g: _conv(g, (1, 4, 8, 8), (4, 4, 3, 3), pads=[0, 1, 2, 0]),
        "kernel-1x7": lambda g: _conv(g, (1, 4, 8, 8), (4, 4, 1, 7), pads=[0, 3, 0, 3]),
        "whole-image": lambda g: _conv(g, (1, 4, 8, 8), (4, 4, 8, 8)),
        "transpose": lambda g: _conv(g, (1, 4, 4, 4), (4, 6, 2, 2), "ConvTranspose", strides=[2, 2]),
        "transpose-padded": lambda g: _conv(
            g, (1, 4, 4, 4), (4, 6, 3, 3), "ConvTranspose", strides=[2, 2], pads=[1, 1, 1, 1], output_padding=[1, 1]
        ),
        "transpose-grouped": lambda g: _conv(g, (1, 4, 4, 4), (4, 2, 2, 2), "ConvTranspose", strides=[2, 2], group=2),
        "transpose-1d": lambda g: _conv(g, (1, 4, 8), (4, 6, 4), "ConvTranspose", strides=[2]),
    }
)


@CONV.case("kernel-from-data")
def _(g: Graph) -> None:
    x, z = g.input(shape=(1, 4, 8, 8)), g.input("template", (1, 4, 3, 3))
    g.output(g.add("Conv", g.conv(x, 4, 4), g.conv(z, 4, 4)))


@CONV.case("hard-swish-block")
def _(g: Graph) -> None:
    x = g.conv(g.input(shape=(1, 4, 8, 8)), 4, 8)
    gate = g.add("Clip", g.add("Add", x, g.const(3.0)), g.const(0.0), g.const(6.0))
    x = g.add("Div", g.add("Mul", x, gate), g.const(6.0))
    squeeze = g.add("Relu", g.conv(g.add("GlobalAveragePool", x), 8, 4, 1))
    x = g.add("Mul", x, g.add("HardSigmoid", g.conv(squeeze, 4, 8, 1), alpha=0.2, beta=0.5))
    g.output(g.conv(x, 8, 4, 1))


@CONV.case("silu-split-concat")
def _(g: Graph) -> None:
    x = g.conv(g.input(shape=(1, 4, 8, 8)), 4, 8)
    x = g.add("Mul", x, g.add("Sigmoid", x))
    left, right = g.add("Split", x, g.ints(4, 4), axis=1, outputs=2)
    pooled = g.add("MaxPool", right, kernel_shape=[5, 5], pads=[2, 2, 2, 2])
    g.output(g.conv(g.add("Concat", left, right, pooled, axis=1), 12, 4, 1))


# One input, one output of the same shape.

for _op in (
    *("Relu", "Sigmoid", "Tanh", "Softplus", "Softsign", "Elu", "Celu", "Selu", "LeakyRelu", "HardSigmoid"),
    *("HardSwish", "Mish", "ThresholdedRelu", "Exp", "Abs", "Neg", "Erf", "Sin", "Cos", "Floor", "Round", "Sign"),
    *("Sinh", "Atan", "Hardmax", "Softmax", "LogSoftmax", "GlobalMaxPool", "MeanVarianceNormalization", "Sqrt", "Log"),
):
    if _op in ("Sqrt", "Log"):
        UNARY.case(_op)(lambda g, op=_op: g.output(g.add(op, g.add("Exp", g.conv(g.input(shape=(1, 4, 8, 8)), 4, 4)))))  # type: ignore[misc]
    else:
        UNARY.case(_op, 18)(lambda g, op=_op: _between(g, op))  # type: ignore[misc]
UNARY.case("Gelu", 20)(lambda g: _after_dense(g, "Gelu"))
UNARY.case("Gelu-tanh", 20)(lambda g: _after_dense(g, "Gelu", approximate="tanh"))
UNARY.case("PRelu")(lambda g: _between(g, "PRelu", g.const([[[0.1]], [[0.2]], [[0.0]], [[-0.3]]])))
UNARY.case("PRelu-one")(lambda g: _between(g, "PRelu", g.const([0.25])))
UNARY.case("LRN")(lambda g: _between(g, "LRN", size=3))
UNARY.case("Pow-half")(lambda g: g.output(g.add("Pow", g.input(shape=(4, 16), low=0.1, high=4), g.const(0.5))))
UNARY.case("Pow-int-exponent")(lambda g: _after_dense(g, "Pow", g.const(2, np.int64)))
UNARY.case("Clip-6")(lambda g: _between(g, "Clip", g.const(0.0), g.const(6.0)))
UNARY.case("LayerNormalization")(lambda g: _after_dense(g, "LayerNormalization", g.const(np.ones(16)), g.weight(16)))
UNARY.case("LayerNormalization-2-axes")(
    lambda g: _between(g, "LayerNormalization", g.const(np.ones((8, 8))), g.weight(8, 8), axis=2)
)
UNARY.case("GroupNormalization", 21)(
    lambda g: _between(g, "GroupNormalization", g.const(np.ones(4)), g.weight(4), num_groups=2)
)
UNARY.case("InstanceNormalization")(
    lambda g: _between(g, "InstanceNormalization", g.const(np.ones(4)), g.weight(4, scale=0.1))
)
UNARY.case("CumSum")(lambda g: _after_dense(g, "CumSum", g.const(1, np.int64)))
UNARY.case("gelu-by-erf")(
    lambda g: (
        lambda x: g.output(
            g.dense(
                g.add(
                    "Mul",
                    g.add("Mul", x, g.const(0.5)),
                    g.add("Add", g.add("Erf", g.add("Div", x, g.const(2**0.5))), g.const(1.0)),
                ),
                16,
                8,
            )
        )
    )(g.dense(g.input(shape=(4, 16)), 16, 16))
)

# Shapes.


def _resize(g: Graph, *, scales: object = None, sizes: object = None, **attributes: Any) -> None:
    more = ["", g.const(scales) if scales else "", *([g.ints(*sizes)] if sizes else [])]  # type: ignore[misc]
    _between(g, "Resize", *more, **attributes)


_TWICE = [1.0, 1.0, 2.0, 2.0]
SHAPES.each(
    {
        "resize-nearest": lambda g: _resize(
            g, scales=_TWICE, mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"
        ),
        "resize-nearest-half-pixel": lambda g: _resize(g, scales=_TWICE, mode="nearest"),
        "resize-linear": lambda g: _resize(g, scales=_TWICE, mode="linear"),
        "resize-linear-aligned": lambda g: _resize(
            g, sizes=[1, 4, 12, 12], mode="linear", coordinate_transformation_mode="align_corners"
        ),
        "resize-linear-torch": lambda g: _resize(
            g, sizes=[1, 4, 5, 5], mode="linear", coordinate_transformation_mode="pytorch_half_pixel"
        ),
        "resize-cubic": lambda g: _resize(g, scales=_TWICE, mode="cubic", cubic_coeff_a=-0.75),
        "resize-down": lambda g: _resize(g, scales=[1.0, 1.0, 0.5, 0.5], mode="nearest"),
        "pad-constant": lambda g: _between(g, "Pad", g.ints(0, 0, 1, 1, 0, 0, 1, 1), g.const(0.5)),
        "pad-reflect": lambda g: _between(g, "Pad", g.ints(0, 0, 1, 1, 0, 0, 1, 1), mode="reflect"),
        "pad-edge": lambda g: _between(g, "Pad", g.ints(0, 0, 1, 1, 0, 0, 1, 1), mode="edge"),
        "pad-negative": lambda g: _between(g, "Pad", g.ints(0, 0, -1, -1, 0, 0, -1, -1)),
        "pad-infinite": lambda g: _between(g, "Pad", g.ints(0, 0, 1, 1, 0, 0, 1, 1), g.const(-1e4)),
        "depth-to-space": lambda g: _between(g, "DepthToSpace", blocksize=2, mode="CRD"),
        "space-to-depth": lambda g: _between(g, "SpaceToDepth", blocksize=2),
        "tile": lambda g: _between(g, "Tile", g.ints(1, 1, 2, 1)),
        "expand": lambda g: _between(g, "Expand", g.ints(2, 4, 8, 8)),
        "slice-backwards": lambda g: _between(g, "Slice", g.ints(7), g.ints(-9), g.ints(3), g.ints(-1)),
        "slice-step": lambda g: _between(g, "Slice", g.ints(0), g.ints(8), g.ints(2), g.ints(2)),
        "flatten": lambda g: _between(g, "Flatten", axis=2),
        "transpose": lambda g: _between(g, "Transpose", perm=[0, 2, 3, 1]),
        "reshape-0-and-minus-1": lambda g: _between(g, "Reshape", g.ints(0, -1, 8)),
        "squeeze-all": lambda g: _between(g, "Squeeze"),
        "max-pool-ceil": lambda g: _between(g, "MaxPool", kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
        "average-pool-padded": lambda g: _between(
            g, "AveragePool", kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1
        ),
        "average-pool-not-padded": lambda g: _between(g, "AveragePool", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        "lp-pool": lambda g: _between(g, "LpPool", kernel_shape=[2, 2]),
        "reduce-max": lambda g: _between(g, "ReduceMax", axes=[1], keepdims=1),
        "reduce-mean-all": lambda g: _between(g, "ReduceMean"),
        "reduce-l1": lambda g: _between(g, "ReduceL1", axes=[2, 3], keepdims=0),
        "reduce-log-sum-exp": lambda g: _between(g, "ReduceLogSumExp", axes=[1], keepdims=1),
        "reduce-prod": lambda g: _between(g, "ReduceProd", axes=[1], keepdims=0),
        "trilu": lambda g: _between(g, "Trilu", upper=0),
        "reverse-sequence": lambda g: _between(g, "ReverseSequence", g.ints(3), batch_axis=0, time_axis=1),
        "unsqueeze-two": lambda g: _between(g, "Unsqueeze", g.ints(0, 3)),
    }
)
SHAPES.case("reduce-mean-axes-by-input", 18)(lambda g: _between(g, "ReduceMean", g.ints(2, 3), keepdims=0))
SHAPES.case("resize-antialias", 18)(
    lambda g: _between(g, "Resize", "", g.const([1.0, 1.0, 0.5, 0.5]), mode="linear", antialias=1)
)


@SHAPES.case("split-num-outputs", 18)
def _(g: Graph) -> None:
    for part in g.add("Split", g.dense(g.input(shape=(4, 16)), 16, 8), num_outputs=3, axis=1, outputs=3):
        g.output(part)


@SHAPES.case("channel-shuffle")
def _(g: Graph) -> None:
    x = g.add("Reshape", g.conv(g.input(shape=(1, 4, 8, 8)), 4, 8), g.ints(1, 2, 4, 8, 8))
    x = g.add("Reshape", g.add("Transpose", x, perm=[0, 2, 1, 3, 4]), g.ints(1, 8, 8, 8))
    g.output(g.conv(x, 8, 4))


@SHAPES.case("window-partition")
def _(g: Graph) -> None:
    x = g.add("Reshape", g.conv(g.input(shape=(1, 4, 8, 8)), 4, 4), g.ints(1, 4, 2, 4, 2, 4))
    x = g.add("Reshape", g.add("Transpose", x, perm=[0, 2, 4, 3, 5, 1]), g.ints(4, 16, 4))
    g.output(g.dense(x, 4, 4))


@SHAPES.case("einsum")
def _(g: Graph) -> None:
    a, b = (g.dense(g.input(name, (1, 6, 16)), 16, 16) for name in ("a", "b"))
    g.output(g.add("Softmax", g.add("Einsum", a, b, equation="bid,bjd->bij"), axis=-1))


@SHAPES.case("einsum-with-weight")
def _(g: Graph) -> None:
    x = g.input(shape=(1, 6, 16))
    g.output(g.add("Einsum", x, g.weight(16, 2, 8), equation="btd,dhk->bthk"))


@SHAPES.case("batched-matmul-with-weight")
def _(g: Graph) -> None:
    g.output(g.add("MatMul", g.input(shape=(3, 4, 16)), g.weight(3, 16, 8, scale=0.25)))


@SHAPES.case("matmul-vector")
def _(g: Graph) -> None:
    g.output(g.add("MatMul", g.input(shape=(4, 16)), g.weight(16)))


@SHAPES.case("matmul-weight-left")
def _(g: Graph) -> None:
    g.output(g.add("MatMul", g.weight(8, 16), g.input(shape=(16, 4))))


@SHAPES.case("broadcast-both-ways")
def _(g: Graph) -> None:
    a, b = g.dense(g.input("a", (4, 16)), 16, 8), g.dense(g.input("b", (4, 16)), 16, 8)
    product = g.add("Mul", g.add("Unsqueeze", a, g.ints(0)), g.add("Unsqueeze", b, g.ints(1)))
    g.output(g.add("Max", product, a, g.const(-0.5)))


# Operators that select, count and scatter.


def _scores(g: Graph) -> str:
    return g.dense(g.input(shape=(4, 16)), 16, 8)


@PICKING.case("where")
def _(g: Graph) -> None:
    x = _scores(g)
    g.output(g.dense(g.add("Where", g.add("Greater", x, g.const(0.0)), x, g.const(-0.1)), 8, 4))


@PICKING.case("scatter-nd")
def _(g: Graph) -> None:
    x = _scores(g)
    updates = g.add("Gather", x, g.ints(0, 2), axis=0)
    g.output(g.dense(g.add("ScatterND", x, g.const([[1], [3]], np.int64), updates), 8, 4))


@PICKING.case("scatter-elements")
def _(g: Graph) -> None:
    x = _scores(g)
    places = g.const([[0, 1, 2, 3, 0, 1, 2, 3]], np.int64)
    g.output(g.add("ScatterElements", x, places, g.const(np.zeros((1, 8))), axis=0))


@PICKING.case("gather-nd")
def _(g: Graph) -> None:
    g.output(g.add("GatherND", _scores(g), g.const([[0, 1], [3, 2]], np.int64)))


@PICKING.case("gather-elements")
def _(g: Graph) -> None:
    g.output(g.add("GatherElements", _scores(g), g.const([[0, 1], [2, 0], [1, 1], [7, 3]], np.int64), axis=1))


@PICKING.case("gather-last-token")
def _(g: Graph) -> None:
    x = g.dense(g.input(shape=(1, 6, 16)), 16, 16)
    g.output(g.dense(g.add("Gather", x, g.const(-1, np.int64), axis=1), 16, 8))


@PICKING.case("gather-embedding-large")
def _(g: Graph) -> None:
    ids = g.input("ids", (1, 6), INT32, high=500)
    g.output(g.dense(g.add("Gather", g.weight(500, 16, scale=1.0), ids), 16, 8))


@PICKING.case("top-k")
def _(g: Graph) -> None:
    values, places = g.add("TopK", _scores(g), g.ints(3), axis=1, outputs=2)
    g.output(values)
    g.output(places, INT64)


@PICKING.case("non-max-suppression")
def _(g: Graph) -> None:
    corner = g.add("Sigmoid", g.dense(g.input(shape=(1, 6, 16)), 16, 2))
    size = g.add("Sigmoid", g.dense(g.input("y", (1, 6, 16)), 16, 2))
    boxes = g.add("Concat", corner, g.add("Add", corner, size), axis=2)
    scores = g.add("Transpose", g.add("Sigmoid", g.dense(g.input("z", (1, 6, 16)), 16, 2)), perm=[0, 2, 1])
    limits = (g.const([4], np.int64), g.const([0.5]), g.const([0.3]))
    g.output(g.add("NonMaxSuppression", boxes, scores, *limits), INT64)
    g.output(scores)


@PICKING.case("one-hot")
def _(g: Graph) -> None:
    best = g.add("ArgMax", _scores(g), axis=1, keepdims=0)
    g.output(g.dense(g.add("OneHot", best, g.ints(8), g.const([0.0, 1.0])), 8, 4))


@PICKING.case("arg-max-only")
def _(g: Graph) -> None:
    g.output(g.add("ArgMax", _scores(g), axis=1), INT64)


@PICKING.case("range-positions")
def _(g: Graph) -> None:
    x = g.dense(g.input(shape=(1, 6, 16)), 16, 16)
    length = g.add("Gather", g.add("Shape", x), g.const(1, np.int64))
    places = g.add("Range", g.const(0, np.int64), length, g.const(1, np.int64))
    g.output(g.dense(g.add("Add", x, g.add("Gather", g.weight(10, 16, scale=0.5), places)), 16, 8))


@PICKING.case("non-zero")
def _(g: Graph) -> None:
    x = _scores(g)
    g.output(g.add("GatherND", x, g.add("Transpose", g.add("NonZero", g.const(np.eye(4, 8))), perm=[1, 0])))


@PICKING.case("compress")
def _(g: Graph) -> None:
    g.output(g.add("Compress", _scores(g), g.const([True, False, True, True], bool), axis=0))


@PICKING.case("max-unpool")
def _(g: Graph) -> None:
    x = g.conv(g.input(shape=(1, 4, 8, 8)), 4, 4)
    pooled, places = g.add("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2], outputs=2)
    g.output(g.add("MaxUnpool", pooled, places, kernel_shape=[2, 2], strides=[2, 2]))


@PICKING.case("grid-sample", 16)
def _(g: Graph) -> None:
    x, grid = g.conv(g.input(shape=(1, 4, 8, 8)), 4, 4), g.input("grid", (1, 6, 6, 2), low=-1, high=1)
    g.output(g.add("GridSample", x, grid, mode="bilinear", padding_mode="zeros", align_corners=0))


@PICKING.case("roi-align", 16)
def _(g: Graph) -> None:
    x = g.conv(g.input(shape=(1, 4, 8, 8)), 4, 4)
    boxes = g.const([[0.0, 0.0, 4.0, 4.0], [2.0, 2.0, 7.0, 7.0]])
    g.output(g.add("RoiAlign", x, boxes, g.const([0, 0], np.int64), output_height=2, output_width=2))


@PICKING.case("loss-free-mod-and-bits")
def _(g: Graph) -> None:
    x = g.input("ids", (4, 6), INT64, high=100)
    ids = g.add("Mod", x, g.const(10, np.int64))
    g.output(g.dense(g.add("Gather", g.weight(10, 16, scale=1.0), ids), 16, 8))


# Other domains, and models that contain integers already.

CONTRIB.each(
    {
        "gelu": lambda g: _after_dense(g, "Gelu", domain=_MICROSOFT),
        "fast-gelu": lambda g: _after_dense(g, "FastGelu", domain=_MICROSOFT),
        "quick-gelu": lambda g: _after_dense(g, "QuickGelu", domain=_MICROSOFT),
        "bias-gelu": lambda g: _after_dense(g, "BiasGelu", g.weight(16, scale=0.1), domain=_MICROSOFT),
        "fused-matmul": lambda g: _after_dense(g, "FusedMatMul", g.weight(16, 16), domain=_MICROSOFT, alpha=0.5),
        "unknown-domain": lambda g: _after_dense(g, "Whatever", domain="never.heard.of"),
        "unknown-operator": lambda g: _after_dense(g, "Whatever"),
    }
)


@CONTRIB.case("fused-conv")
def _(g: Graph) -> None:
    x = g.input(shape=(1, 3, 8, 8))
    weights = (g.weight(4, 3, 3, 3), g.weight(4, scale=0.1))
    g.output(g.add("FusedConv", x, *weights, domain=_MICROSOFT, activation="Relu", kernel_shape=[3, 3]))


@CONTRIB.case("skip-layer-normalization")
def _(g: Graph) -> None:
    x, skip = g.dense(g.input(shape=(1, 6, 16)), 16, 16), g.input("skip", (1, 6, 16))
    weights = (g.const(np.ones(16)), g.weight(16, scale=0.1))
    g.output(g.dense(g.add("SkipLayerNormalization", x, skip, *weights, domain=_MICROSOFT), 16, 8))


@CONTRIB.case("attention")
def _(g: Graph) -> None:
    x = g.dense(g.input(shape=(1, 6, 16)), 16, 16)
    x = g.add("Attention", x, g.weight(16, 48), g.weight(48, scale=0.1), domain=_MICROSOFT, num_heads=2)
    g.output(g.dense(x, 16, 8))


@CONTRIB.case("matmul-nbits")
def _(g: Graph) -> None:
    x = g.dense(g.input(shape=(4, 16)), 16, 32)
    packed = g.const(g.random.integers(0, 256, (8, 1, 16)), np.uint8)
    scales = g.const(g.random.uniform(0.01, 0.05, 8))
    g.output(g.add("MatMulNBits", x, packed, scales, domain=_MICROSOFT, K=32, N=8, bits=4, block_size=32))


@CONTRIB.case("image-scaler")
def _(g: Graph) -> None:
    g.domains["ai.onnx.ml"] = 3
    x = g.add("Scaler", g.input(shape=(4, 16)), domain="ai.onnx.ml", offset=[0.1] * 16, scale=[2.0] * 16)
    g.output(g.dense(x, 16, 8))


@CONTRIB.case("linear-regressor")
def _(g: Graph) -> None:
    weights = g.random.standard_normal(16).tolist()
    x = g.add("LinearRegressor", g.input(shape=(4, 16)), domain="ai.onnx.ml", coefficients=weights, intercepts=[0.1])
    g.output(x)


def _quantized(name: str) -> Callable[[Callable[[Graph], object]], Callable[[Graph], object]]:
    return CONTRIB.case(f"integers-{name}")


@_quantized("qdq")
def _(g: Graph) -> None:
    x = g.input(shape=(4, 16))
    scale, zero = g.const(0.03), g.const(128, np.uint8)
    x = g.add("DequantizeLinear", g.add("QuantizeLinear", x, scale, zero), scale, zero)
    weight = g.add(
        "DequantizeLinear", g.const(g.random.integers(-100, 100, (16, 8)), np.int8), g.const(0.003), g.const(0, np.int8)
    )
    g.output(g.add("MatMul", x, weight))


@_quantized("qlinear-conv")
def _(g: Graph) -> None:
    x = g.input(shape=(1, 3, 8, 8))
    scale, zero = g.const(0.03), g.const(128, np.uint8)
    weight = (g.const(g.random.integers(0, 255, (4, 3, 3, 3)), np.uint8), g.const(0.01), g.const(128, np.uint8))
    x = g.add("QuantizeLinear", x, scale, zero)
    x = g.add("QLinearConv", x, scale, zero, *weight, g.const(0.1), zero)
    g.output(g.add("DequantizeLinear", x, g.const(0.1), zero))


@_quantized("matmul-integer")
def _(g: Graph) -> None:
    x = g.input(shape=(4, 16))
    quantized, scale, zero = g.add("DynamicQuantizeLinear", x, outputs=3)
    product = g.add("MatMulInteger", quantized, g.const(g.random.integers(-100, 100, (16, 8)), np.int8), zero)
    g.output(g.add("Mul", g.add("Cast", product, to=FLOAT), g.add("Mul", scale, g.const(0.01))))


@_quantized("weights-only")
def _(g: Graph) -> None:
    """Per-channel 8-bit weights, float activations: a model that was only compressed."""
    x = g.input(shape=(4, 16))
    for inner, outer in ((16, 32), (32, 8)):
        integers = g.const(g.random.integers(-127, 127, (inner, outer)), np.int8)
        scales = g.const(g.random.uniform(0.001, 0.004, outer))
        x = g.add("MatMul", x, g.add("DequantizeLinear", integers, scales, axis=1))
    g.output(x)


@_quantized("uint8-output")
def _(g: Graph) -> None:
    x = _scores(g)
    g.output(g.add("QuantizeLinear", x, g.const(0.05), g.const(128, np.uint8)), TensorProto.UINT8)
