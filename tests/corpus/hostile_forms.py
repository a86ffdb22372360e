"""Hostile graphs: unusual forms of common layers. Biases, shared weights, intermediate outputs, and unusual wiring."""

from __future__ import annotations

import numpy as np
from netgraphs import BOOL, FLOAT, INT64, Graph, Registry

BIAS, SHARED, OUTPUTS, WIRING = (Registry(name) for name in ("bias", "shared", "outputs", "wiring"))
CASES = (BIAS, SHARED, OUTPUTS, WIRING)


# Gemm biases that are not [N], written that way and created by the fusion of MatMul and Add.


def _gemm(g: Graph, bias: tuple[int, ...] | None, **attributes: object) -> None:
    x = g.input(shape=(4, 16))
    hidden = g.add("Relu", g.dense(x, 16, 32))
    more = () if bias is None else (g.const(g.random.standard_normal(bias)),)
    g.output(g.add("Gemm", hidden, g.weight(*((8, 32) if attributes.get("transB") else (32, 8))), *more, **attributes))


def _matmul_add(g: Graph, bias: tuple[int, ...], shape: tuple[int, ...] = (4, 16), *, first: bool = False) -> None:
    x = g.input(shape=shape)
    product = g.add("MatMul", x, g.weight(16, 32))
    added = g.const(g.random.standard_normal(bias))
    hidden = g.add("Relu", g.add("Add", *((added, product) if first else (product, added))))
    g.output(g.dense(hidden, 32, 8))


BIAS.each(
    {
        "gemm-n": lambda g: _gemm(g, (8,)),
        "gemm-1xn": lambda g: _gemm(g, (1, 8)),
        "gemm-scalar": lambda g: _gemm(g, ()),
        "gemm-one": lambda g: _gemm(g, (1,)),
        "gemm-1x1": lambda g: _gemm(g, (1, 1)),
        "gemm-mx1": lambda g: _gemm(g, (4, 1)),
        "gemm-mxn": lambda g: _gemm(g, (4, 8)),
        "gemm-none": lambda g: _gemm(g, None),
        "gemm-1xn-transb": lambda g: _gemm(g, (1, 8), transB=1),
        "gemm-mxn-transb": lambda g: _gemm(g, (4, 8), transB=1),
        "gemm-alpha-beta": lambda g: _gemm(g, (8,), alpha=0.5, beta=2.0),
        "gemm-1xn-alpha-beta": lambda g: _gemm(g, (1, 8), alpha=0.5, beta=2.0, transB=1),
        "gemm-beta-0": lambda g: _gemm(g, (8,), beta=0.0),
        "matmul-add-1xn": lambda g: _matmul_add(g, (1, 32)),
        "matmul-add-scalar": lambda g: _matmul_add(g, ()),
        "matmul-add-one": lambda g: _matmul_add(g, (1,)),
        "matmul-add-mxn": lambda g: _matmul_add(g, (4, 32)),
        "matmul-add-mx1": lambda g: _matmul_add(g, (4, 1)),
        "matmul-add-first": lambda g: _matmul_add(g, (32,), first=True),
        "matmul-add-1xn-first": lambda g: _matmul_add(g, (1, 32), first=True),
        "matmul-add-3d": lambda g: _matmul_add(g, (1, 1, 32), (2, 4, 16)),
        "matmul-add-3d-n": lambda g: _matmul_add(g, (32,), (2, 4, 16)),
        "matmul-add-3d-positions": lambda g: _matmul_add(g, (4, 32), (2, 4, 16)),
        "matmul-add-raises-rank": lambda g: _matmul_add(g, (1, 1, 32)),
    }
)


@BIAS.case("gemm-transa")
def _(g: Graph) -> None:
    x = g.input(shape=(16, 4))
    g.output(g.add("Gemm", x, g.weight(16, 8), g.weight(1, 8), transA=1))


@BIAS.case("gemm-bias-input")
def _(g: Graph) -> None:
    x, bias = g.input(shape=(4, 16)), g.input("bias", (4, 8))
    g.output(g.add("Gemm", x, g.weight(16, 8), bias))


@BIAS.case("gemm-bias-computed")
def _(g: Graph) -> None:
    x = g.input(shape=(4, 16))
    bias = g.add("Mul", g.weight(8, scale=0.1), g.const(3.0))
    g.output(g.add("Gemm", x, g.weight(16, 8), bias))


@BIAS.case("conv-bias-add")
def _(g: Graph) -> None:
    x = g.input(shape=(1, 3, 8, 8))
    product = g.add("Conv", x, g.weight(8, 3, 3, 3), pads=[1, 1, 1, 1])
    g.output(g.add("Relu", g.add("Add", product, g.weight(1, 8, 1, 1, scale=0.3))))


@BIAS.case("conv-bias-positions")
def _(g: Graph) -> None:
    x = g.input(shape=(1, 3, 8, 8))
    product = g.add("Conv", x, g.weight(8, 3, 3, 3), pads=[1, 1, 1, 1])
    g.output(g.add("Relu", g.add("Add", product, g.weight(1, 8, 8, 8, scale=0.3))))


@BIAS.case("conv-bias-huge")
def _(g: Graph) -> None:
    x = g.input(shape=(1, 3, 8, 8))
    g.output(g.add("Conv", x, g.weight(4, 3, 3, 3, scale=1e-3), g.const([50.0, -50.0, 0.0, 1e-3]), pads=[1, 1, 1, 1]))


@BIAS.case("conv-bias-zero")
def _(g: Graph) -> None:
    x = g.input(shape=(1, 3, 8, 8))
    g.output(g.add("Conv", x, g.weight(4, 3, 3, 3), g.const(np.zeros(4)), pads=[1, 1, 1, 1]))


# Initializers with several readers.


@SHARED.case("conv-bias")
def _(g: Graph) -> None:
    x, bias = g.input(shape=(1, 3, 8, 8)), g.weight(8, scale=0.1, name="b")
    one = g.add("Relu", g.add("Conv", x, g.weight(8, 3, 3, 3), bias, pads=[1, 1, 1, 1]))
    g.output(g.add("Conv", one, g.weight(8, 8, 3, 3), bias, pads=[1, 1, 1, 1]))


@SHARED.case("conv-bias-names-collide")
def _(g: Graph) -> None:
    x, bias = g.input("b1", shape=(1, 3, 8, 8)), g.weight(8, scale=0.1, name="b")
    one = g.add("Conv", x, g.weight(8, 3, 3, 3), bias, pads=[1, 1, 1, 1], outputs=["b2"])
    g.output(g.add("Conv", one, g.weight(8, 8, 3, 3), bias, pads=[1, 1, 1, 1], outputs=["b3"]))


@SHARED.case("conv-bias-three")
def _(g: Graph) -> None:
    x, bias = g.input(shape=(1, 8, 8, 8)), g.weight(8, scale=0.1)
    for _ in range(3):
        x = g.add("Relu", g.add("Conv", x, g.weight(8, 8, 1, 1), bias))
    g.output(x)


@SHARED.case("conv-weights")
def _(g: Graph) -> None:
    x, weight = g.input(shape=(1, 8, 8, 8)), g.weight(8, 8, 3, 3)
    one = g.add("Relu", g.add("Conv", x, weight, g.weight(8, scale=0.1), pads=[1, 1, 1, 1]))
    g.output(g.add("Conv", one, weight, g.weight(8, scale=0.1), pads=[1, 1, 1, 1]))


@SHARED.case("conv-weights-and-bias-siamese")
def _(g: Graph) -> None:
    weight, bias = g.weight(8, 3, 3, 3), g.weight(8, scale=0.1)
    both = [g.add("Conv", g.input(name, (1, 3, 8, 8)), weight, bias) for name in ("left", "right")]
    g.output(g.add("Sub", *both))


@SHARED.case("gemm-bias")
def _(g: Graph) -> None:
    x, bias = g.input(shape=(4, 16)), g.weight(16, scale=0.1)
    one = g.add("Relu", g.add("Gemm", x, g.weight(16, 16), bias))
    g.output(g.add("Gemm", one, g.weight(16, 16), bias))


@SHARED.case("gemm-weights-transposed")
def _(g: Graph) -> None:
    x, weight = g.input(shape=(4, 16)), g.weight(16, 16)
    one = g.add("Relu", g.add("Gemm", x, weight))
    g.output(g.add("Gemm", one, weight, transB=1))


@SHARED.case("bias-also-added")
def _(g: Graph) -> None:
    x, bias = g.input(shape=(4, 16)), g.weight(16, scale=0.1)
    g.output(g.add("Mul", g.add("Gemm", x, g.weight(16, 16), bias), bias))


@SHARED.case("weight-also-output")
def _(g: Graph) -> None:
    x, weight = g.input(shape=(4, 16)), g.weight(16, 16)
    g.output(g.add("Relu", g.add("MatMul", x, weight)))
    g.output(weight, shape=(16, 16))


@SHARED.case("tied-embedding")
def _(g: Graph) -> None:
    x, table = g.input("ids", (1, 6), INT64, high=32), g.weight(32, 16, scale=1.0)
    hidden = g.dense(g.add("Gather", table, x), 16, 16)
    g.output(g.add("MatMul", hidden, g.add("Transpose", table, perm=[1, 0])))


@SHARED.case("scalar")
def _(g: Graph) -> None:
    x, half = g.input(shape=(4, 16)), g.const(0.5)
    one = g.add("Mul", g.dense(g.add("Mul", x, half), 16, 16), half)
    g.output(g.add("Add", g.add("Pow", one, g.const(2.0)), half))


@SHARED.case("equal-but-not-same")
def _(g: Graph) -> None:
    x, values = g.input(shape=(1, 8, 8, 8)), g.random.standard_normal((8, 8, 1, 1)) * 0.3
    for _ in range(3):
        x = g.add("Relu", g.add("Conv", x, g.const(values), g.const(np.full(8, 0.1))))
    g.output(x)


# Intermediate outputs of a graph.


def _then(g: Graph, op: str, *more: str) -> None:
    x = g.input(shape=(4, 16))
    middle = g.dense(x, 16, 16)
    g.output(middle)
    g.output(g.dense(g.add(op, middle, *more), 16, 8))


OUTPUTS.each(
    {
        "feeds-relu": lambda g: _then(g, "Relu"),
        "feeds-clip": lambda g: _then(g, "Clip", g.const(0.0), g.const(6.0)),
        "feeds-identity": lambda g: _then(g, "Identity"),
        "feeds-sigmoid": lambda g: _then(g, "Sigmoid"),
        "feeds-leaky": lambda g: _then(g, "LeakyRelu"),
    }
)


@OUTPUTS.case("conv-feeds-relu")
def _(g: Graph) -> None:
    x = g.input(shape=(1, 3, 8, 8))
    middle = g.conv(x, 3, 8)
    g.output(middle)
    g.output(g.conv(g.add("Relu", middle), 8, 4))


@OUTPUTS.case("conv-feeds-relu-last")
def _(g: Graph) -> None:
    middle = g.conv(g.input(shape=(1, 3, 8, 8)), 3, 8)
    g.output(middle)
    g.output(g.add("Relu", middle))


@OUTPUTS.case("every-layer")
def _(g: Graph) -> None:
    x = g.input(shape=(4, 16))
    for _ in range(4):
        x = g.add("Relu", g.dense(x, 16, 16))
        g.output(x)


@OUTPUTS.case("is-input")
def _(g: Graph) -> None:
    x = g.input(shape=(4, 16))
    g.output(g.dense(x, 16, 8))
    g.output(x)


@OUTPUTS.case("is-initializer")
def _(g: Graph) -> None:
    x = g.input(shape=(4, 16))
    g.output(g.dense(x, 16, 8))
    g.output(g.const([1.0, 2.0]), shape=[2])


@OUTPUTS.case("only-initializer")
def _(g: Graph) -> None:
    g.input(shape=(4, 16))
    g.output(g.const([1.0, 2.0]), shape=[2])


@OUTPUTS.case("same-twice-by-identity")
def _(g: Graph) -> None:
    x = g.dense(g.input(shape=(4, 16)), 16, 8)
    g.output(g.add("Identity", x))
    g.output(g.add("Identity", x))


@OUTPUTS.case("listed-twice")
def _(g: Graph) -> None:
    x = g.dense(g.input(shape=(4, 16)), 16, 8)
    g.output(x)
    g.output(x)


@OUTPUTS.case("reshape-of-output")
def _(g: Graph) -> None:
    x = g.dense(g.input(shape=(4, 16)), 16, 8)
    g.output(x)
    g.output(g.add("Reshape", x, g.ints(8, 4)))


@OUTPUTS.case("constant-node")
def _(g: Graph) -> None:
    g.output(g.dense(g.input(shape=(4, 16)), 16, 8))
    g.output(g.add("Constant", value_floats=[1.0, 2.0]))


@OUTPUTS.case("argmax-and-logits")
def _(g: Graph) -> None:
    x = g.dense(g.input(shape=(4, 16)), 16, 8)
    g.output(x)
    g.output(g.add("ArgMax", x, axis=1), INT64)


@OUTPUTS.case("comparison")
def _(g: Graph) -> None:
    x = g.dense(g.input(shape=(4, 16)), 16, 8)
    g.output(x)
    g.output(g.add("Greater", x, g.const(10.0)), BOOL)


@OUTPUTS.case("shape-of-input")
def _(g: Graph) -> None:
    x = g.input(shape=(4, 16))
    g.output(g.dense(x, 16, 8))
    g.output(g.add("Shape", x), INT64)


@OUTPUTS.case("unused-input")
def _(g: Graph) -> None:
    g.input("unused", (2, 3))
    g.output(g.dense(g.input(shape=(4, 16)), 16, 8))


@OUTPUTS.case("dead-nodes")
def _(g: Graph) -> None:
    x = g.input(shape=(4, 16))
    g.dense(g.add("Sigmoid", x), 16, 64)
    g.weight(100, 100)
    g.output(g.dense(x, 16, 8))


# Wiring that exporters rarely produce.


@WIRING.case("same-twice")
def _(g: Graph) -> None:
    x = g.dense(g.input(shape=(4, 16)), 16, 16)
    square = g.add("Mul", x, x)
    double = g.add("Add", square, square)
    g.output(g.dense(g.add("Concat", double, double, axis=1), 32, 8))


@WIRING.case("matmul-of-itself")
def _(g: Graph) -> None:
    x = g.dense(g.input(shape=(2, 8, 8)), 8, 8)
    g.output(g.add("MatMul", x, x))


@WIRING.case("optional-inputs-left-out")
def _(g: Graph) -> None:
    x = g.dense(g.input(shape=(4, 16)), 16, 16)
    x = g.add("Clip", x, "", g.const(1.0))
    x = g.add("Clip", x, g.const(-1.0))
    x = g.add("Clip", x)
    x = g.add("Dropout", x, "", g.const(False, bool))
    g.output(g.dense(x, 16, 8))


@WIRING.case("optional-outputs-left-out")
def _(g: Graph) -> None:
    x = g.conv(g.input(shape=(1, 4, 8, 8)), 4, 4)
    g.add("MaxPool", x, kernel_shape=[2, 2], outputs=["pooled", ""])
    rows = g.add("Reshape", "pooled", g.ints(7, 7, 4))
    g.add("GRU", rows, g.weight(1, 24, 4), g.weight(1, 24, 8), outputs=["", "last"], hidden_size=8)
    g.output("pooled")
    g.output("last")


@WIRING.case("dropout-chain")
def _(g: Graph) -> None:
    x = g.dense(g.input(shape=(4, 16)), 16, 16)
    for _ in range(3):
        x = g.add("Identity", g.add("Dropout", x))
    g.output(g.dense(x, 16, 8))


@WIRING.case("identity-only")
def _(g: Graph) -> None:
    g.output(g.add("Identity", g.input(shape=(4, 16))))


@WIRING.case("no-nodes")
def _(g: Graph) -> None:
    g.output(g.input(shape=(4, 16)))


@WIRING.case("deep-chain")
def _(g: Graph) -> None:
    x = g.input(shape=(2, 8))
    for _ in range(60):
        x = g.add("Relu", g.add("Add", x, g.weight(8, scale=0.05)))
    g.output(g.dense(x, 8, 4))


@WIRING.case("fan-out")
def _(g: Graph) -> None:
    x = g.dense(g.input(shape=(4, 16)), 16, 16)
    g.output(g.add("Sum", *(g.dense(g.add("Relu", x), 16, 4) for _ in range(12))))


@WIRING.case("weights-by-transpose")
def _(g: Graph) -> None:
    weight = g.add("Transpose", g.weight(32, 16), perm=[1, 0])
    g.output(g.add("MatMul", g.input(shape=(4, 16)), weight))


@WIRING.case("weights-by-cast")
def _(g: Graph) -> None:
    half = g.const(g.random.standard_normal((16, 32)) * 0.2, np.float16)
    g.output(g.add("MatMul", g.input(shape=(4, 16)), g.add("Cast", half, to=FLOAT)))


@WIRING.case("weights-by-mul")
def _(g: Graph) -> None:
    weight = g.add("Mul", g.weight(8, 3, 3, 3), g.const(0.5))
    g.output(g.add("Conv", g.input(shape=(1, 3, 8, 8)), weight))


@WIRING.case("weights-by-reshape")
def _(g: Graph) -> None:
    weight = g.add("Reshape", g.weight(8, 27), g.ints(8, 3, 3, 3))
    g.output(g.add("Conv", g.input(shape=(1, 3, 8, 8)), weight))


@WIRING.case("weights-are-activations")
def _(g: Graph) -> None:
    x, kernel = g.input(shape=(1, 3, 8, 8)), g.input("kernel", (4, 3, 3, 3))
    g.output(g.add("Conv", x, kernel))
    g.may_refuse = {"cpu/dynamic": "it has no weights, which are what this precision quantizes"}


@WIRING.case("constant-side-chain")
def _(g: Graph) -> None:
    table = g.add("Relu", g.dense(g.const(g.random.standard_normal((4, 16))), 16, 16))
    g.output(g.add("Add", g.dense(g.input(shape=(4, 16)), 16, 16), table))


@WIRING.case("residual-diamond")
def _(g: Graph) -> None:
    x = g.conv(g.input(shape=(1, 4, 8, 8)), 4, 4)
    for _ in range(3):
        x = g.add("Add", x, g.conv(g.add("Relu", x), 4, 4))
    g.output(x)


@WIRING.case("nodes-out-of-order")
def _(g: Graph) -> None:
    x = g.input(shape=(4, 16))
    g.output(g.dense(g.add("Relu", g.dense(x, 16, 16)), 16, 8))
    g.edits.append(lambda model: model.graph.node.reverse())
