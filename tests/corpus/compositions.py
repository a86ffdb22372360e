"""Hypothesis strategies for random small networks of common layers, and of forms that only some exporters use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st
from netgraphs import FLOAT, INT64, Case, Graph
from onnx import ModelProto, helper

_WIDTH = 8

Layer = Callable[[Graph, str], str]


def _bias(g: Graph, x: str, shape: tuple[int, ...]) -> str:
    return str(g.add("Gemm", x, g.weight(_WIDTH, _WIDTH), g.const(g.random.standard_normal(shape)), transB=1))


def _normed(g: Graph, x: str, *, by_sum: bool) -> str:
    if by_sum:  # opset 13 and later; ReduceMean took its axes as an attribute up to 17
        axes = g.ints(-1)
        mean = g.add("Mul", g.add("ReduceSum", x, axes, keepdims=1), g.const(1 / _WIDTH))
        centred = g.add("Sub", x, mean)
        variance = g.add("Mul", g.add("ReduceSum", g.add("Mul", centred, centred), axes), g.const(1 / _WIDTH))
    else:
        centred = g.add("Sub", x, g.add("ReduceMean", x, axes=[-1], keepdims=1))
        variance = g.add("ReduceMean", g.add("Pow", centred, g.const(2.0)), axes=[-1], keepdims=1)
    normal = g.add("Div", centred, g.add("Sqrt", g.add("Add", variance, g.const(1e-5))))
    return str(g.add("Add", g.add("Mul", normal, g.const(np.ones(_WIDTH))), g.weight(_WIDTH, scale=0.1)))


def _gated(g: Graph, x: str) -> str:
    return str(g.add("Mul", g.dense(x, _WIDTH, _WIDTH), g.add("Sigmoid", x)))


def _attended(g: Graph, x: str) -> str:
    q, k, v = (g.dense(x, _WIDTH, _WIDTH) for _ in range(3))
    scores = g.add("Div", g.add("MatMul", q, g.add("Transpose", k, perm=[1, 0])), g.const(3.0))
    return str(g.add("Add", x, g.add("MatMul", g.add("Softmax", scores, axis=-1), v)))


# Each maps [rows, 8] to the same shape.
ROWS: Mapping[str, Layer] = {
    "dense": lambda g, x: g.dense(x, _WIDTH, _WIDTH),
    "relu": lambda g, x: str(g.add("Relu", g.dense(x, _WIDTH, _WIDTH))),
    "gemm-n": lambda g, x: _bias(g, x, (_WIDTH,)),
    "gemm-1xn": lambda g, x: _bias(g, x, (1, _WIDTH)),
    "gemm-scalar": lambda g, x: _bias(g, x, ()),
    "matmul-add-1xn": lambda g, x: str(
        g.add("Add", g.const(g.random.standard_normal((1, _WIDTH))), g.add("MatMul", x, g.weight(_WIDTH, _WIDTH)))
    ),
    "residual": lambda g, x: str(g.add("Add", x, g.add("Relu", g.dense(x, _WIDTH, _WIDTH)))),
    "gated": _gated,
    "attention": _attended,
    "layer-norm": lambda g, x: _normed(g, x, by_sum=False),
    "layer-norm-by-sum": lambda g, x: _normed(g, x, by_sum=True),
    "twice-the-same": lambda g, x: str(g.add("Tanh", g.add("Mul", x, x))),
    "clip": lambda g, x: str(g.add("Clip", g.dense(x, _WIDTH, _WIDTH), g.const(0.0), g.const(6.0))),
    "identity": lambda g, x: str(g.add("Identity", g.add("Dropout", x))),
}
# Each maps [1, 8, 6, 6] to the same shape.
IMAGES: Mapping[str, Layer] = {
    "conv": lambda g, x: g.conv(x, _WIDTH, _WIDTH),
    "conv-relu": lambda g, x: str(g.add("Relu", g.conv(x, _WIDTH, _WIDTH))),
    "depthwise": lambda g, x: str(g.conv(x, _WIDTH, _WIDTH, group=_WIDTH)),
    "pointwise": lambda g, x: g.conv(x, _WIDTH, _WIDTH, 1),
    "residual": lambda g, x: str(g.add("Add", x, g.conv(x, _WIDTH, _WIDTH))),
    "relu-6": lambda g, x: str(g.add("Clip", g.conv(x, _WIDTH, _WIDTH), g.const(0.0), g.const(6.0))),
    "hard-swish": lambda g, x: str(
        g.add("Mul", x, g.add("HardSigmoid", g.conv(x, _WIDTH, _WIDTH, 1), alpha=0.2, beta=0.5))
    ),
    "pooled": lambda g, x: str(g.add("MaxPool", x, kernel_shape=[3, 3], pads=[1, 1, 1, 1])),
    "bias-added": lambda g, x: str(
        g.add("Add", g.add("Conv", x, g.weight(_WIDTH, _WIDTH, 1, 1)), g.weight(1, _WIDTH, 1, 1))
    ),
    "channels-last-and-back": lambda g, x: str(
        g.add("Transpose", g.add("Relu", g.add("Transpose", x, perm=[0, 2, 3, 1])), perm=[0, 3, 1, 2])
    ),
}


def _list_initializers(model: ModelProto) -> None:
    for tensor in model.graph.initializer:
        model.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))


def _unname(model: ModelProto) -> None:
    for node in model.graph.node:
        node.name = ""


def _describe(model: ModelProto) -> None:
    helper.set_model_props(model, {"names": "{0: 'cat'}"})


def _share_biases(model: ModelProto) -> None:
    """Merge initializers with equal contents, as space-saving exporters do."""
    first: dict[bytes, str] = {}
    names = {
        tensor.name: first.setdefault(tensor.SerializeToString().replace(tensor.name.encode(), b""), tensor.name)
        for tensor in model.graph.initializer
    }
    for node in model.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
    kept = [tensor for tensor in model.graph.initializer if names[tensor.name] == tensor.name]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)


# Changes to the finished model.
FORMS: Mapping[str, Callable[[ModelProto], object]] = {
    "initializers-are-inputs": _list_initializers,
    "nodes-unnamed": _unname,
    "metadata": _describe,
    "shared-initializers": _share_biases,
    "output-shapes-missing": lambda model: [value.type.tensor_type.ClearField("shape") for value in model.graph.output],
}


@dataclass(frozen=True)
class Composition:
    """The parts of a random network; ``middle``: the layer whose value is an output as well."""

    images: bool
    layers: tuple[str, ...]
    forms: frozenset[str]
    middle: int | None
    open_batch: bool
    ids: bool
    opset: int
    number: int

    def case(self, name: str) -> Case:
        return Case(name, "composed", self._grow, self.opset)

    def _grow(self, g: Graph) -> None:
        g.random = np.random.default_rng(self.number)
        x = self._begin(g)
        for at, layer in enumerate(self.layers):
            x = (IMAGES if self.images else ROWS)[layer](g, x)
            if at == self.middle and at + 1 < len(self.layers):
                g.output(x)
        last = g.conv(x, _WIDTH, 4, 1) if self.images else g.dense(x, _WIDTH, 4)
        g.output(last)
        g.edits += [FORMS[form] for form in sorted(self.forms)]

    def _begin(self, g: Graph) -> str:
        batch = "batch" if self.open_batch else None
        if self.images:
            return g.conv(g.input("pixels", (batch or 1, 3, 6, 6), real=(1, 3, 6, 6)), 3, _WIDTH)
        if self.ids:
            rows = g.input("ids", (batch or 4,), INT64, real=(1 if batch else 4,), high=16)
            return str(g.add("Gather", g.weight(16, _WIDTH, scale=1.0), rows))
        return g.input("x", (batch or 4, _WIDTH), FLOAT, real=(1 if batch else 4, _WIDTH))


@st.composite
def compositions(draw: st.DrawFn) -> Composition:
    images = draw(st.booleans())
    layers = draw(st.lists(st.sampled_from([*(IMAGES if images else ROWS)]), min_size=1, max_size=5))
    by_sum = "layer-norm-by-sum" in layers
    return Composition(
        images,
        tuple(layers),
        draw(st.frozensets(st.sampled_from([*FORMS]), max_size=3)),
        draw(st.none() | st.integers(0, 4)),
        draw(st.booleans()),
        draw(st.booleans()),
        draw(st.sampled_from([13, 15, 17] if by_sum else [11, 12, 13, 15, 17])),
        draw(st.integers(0, 9)),
    )
