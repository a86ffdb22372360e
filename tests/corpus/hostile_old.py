"""Hostile graphs: old files. IR 3, where initializers are also inputs, opsets from 7 on, and their changes."""

from __future__ import annotations

import numpy as np
from netgraphs import INT64, Graph, Registry
from onnx import ModelProto, helper, numpy_helper

OLD = Registry("old")
CASES = (OLD,)


def _list_initializers(model: ModelProto) -> None:
    """IR 3: every initializer is also an input of the graph."""
    model.ir_version = 3
    for tensor in model.graph.initializer:
        model.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))


def _classifier(g: Graph) -> None:
    """Conv, BatchNormalization, Relu, pooling, Reshape, Gemm, Softmax: the old model zoo."""
    x = g.add("Conv", g.input("data_0", (1, 3, 16, 16)), g.weight(8, 3, 3, 3), pads=[1, 1, 1, 1])
    x = g.add("Relu", norm(g, x, 8))
    x = g.add("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = g.add("Add", g.add("Relu", g.conv(x, 8, 8)), x)
    x = g.add("GlobalAveragePool", x)
    x = g.add("Reshape", x, g.ints(1, 8))
    g.output(g.add("Softmax", g.add("Gemm", x, g.weight(10, 8), g.weight(10, scale=0.1), transB=1), axis=1))


def norm(g: Graph, x: str, channels: int) -> str:
    """BatchNormalization with trained statistics."""
    scale, variance = (g.const(g.random.uniform(0.5, 1.5, channels)) for _ in range(2))
    shift, mean = (g.weight(channels, scale=0.1) for _ in range(2))
    return str(g.add("BatchNormalization", x, scale, shift, mean, variance))


for _opset in range(7, 23):
    OLD.case(f"classifier-opset-{_opset}", _opset)(_classifier)


def _ir3(g: Graph) -> None:
    _classifier(g)
    g.edits.append(_list_initializers)


OLD.case("ir3-opset-7", 7)(_ir3)
OLD.case("ir3-opset-8", 8)(_ir3)
OLD.case("ir3-opset-9", 9)(_ir3)


@OLD.case("ir3-equal-initializers", 9)
def _(g: Graph) -> None:
    x = g.input(shape=(1, 4, 8, 8))
    for _ in range(3):
        x = g.add("Reshape", g.conv(x, 4, 4), g.ints(1, 4, 8, 8))
    g.output(g.add("Reshape", x, g.ints(1, 256)))
    g.edits.append(_list_initializers)


@OLD.case("ir6-overridable-initializers", 11)
def _(g: Graph) -> None:
    _classifier(g)
    g.edits.append(_list_initializers)
    g.edits.append(lambda model: setattr(model, "ir_version", 6))


@OLD.case("ir3-constant-of-shape", 9)
def _(g: Graph) -> None:
    x = g.input(shape=(1, 3, 8, 8))
    value = numpy_helper.from_array(np.array([0.02], np.float32))
    weight = g.add("ConstantOfShape", g.ints(8, 3, 3, 3), value=value)
    g.output(g.add("Conv", x, weight, pads=[1, 1, 1, 1]))
    g.edits.append(_list_initializers)


def _batched(g: Graph, *, opset_axis: int = 1) -> None:
    x = g.input(shape=(1, 2, 4, 4))
    g.output(g.add("Softmax", g.conv(x, 2, 6), axis=opset_axis))


OLD.case("softmax-flattens-opset-11", 11)(_batched)
OLD.case("softmax-flattens-opset-12", 12)(_batched)
OLD.case("softmax-axis-opset-13", 13)(_batched)


@OLD.case("attributes-that-became-inputs", 8)
def _(g: Graph) -> None:
    x = g.conv(g.input(shape=(1, 4, 8, 8)), 4, 4)
    x = g.add("Pad", x, pads=[0, 0, 1, 1, 0, 0, 1, 1], mode="reflect")
    x = g.add("Slice", x, axes=[2, 3], starts=[0, 0], ends=[8, 8])
    x = g.add("Clip", x, min=-1.0, max=1.0)
    left, right = g.add("Split", x, axis=1, split=[1, 3], outputs=2)
    x = g.add("Concat", left, right, axis=1)
    x = g.add("Squeeze", g.add("ReduceSum", x, axes=[3]), axes=[3])
    x = g.add("Unsqueeze", g.add("ReduceMean", x, axes=[2], keepdims=0), axes=[0])
    g.output(g.add("Dropout", x, ratio=0.5))


@OLD.case("upsample-7", 7)
def _(g: Graph) -> None:
    x = g.conv(g.input(shape=(1, 4, 4, 4)), 4, 4)
    g.output(g.conv(g.add("Upsample", x, scales=[1.0, 1.0, 2.0, 2.0], mode="nearest"), 4, 4))


@OLD.case("upsample-9", 9)
def _(g: Graph) -> None:
    x = g.conv(g.input(shape=(1, 4, 4, 4)), 4, 4)
    g.output(g.conv(g.add("Upsample", x, g.const([1.0, 1.0, 2.0, 2.0]), mode="linear"), 4, 4))


@OLD.case("resize-10", 10)
def _(g: Graph) -> None:
    x = g.conv(g.input(shape=(1, 4, 4, 4)), 4, 4)
    g.output(g.conv(g.add("Resize", x, g.const([1.0, 1.0, 2.0, 2.0]), mode="linear"), 4, 4))


@OLD.case("topk-1-by-attribute", 9)
def _(g: Graph) -> None:
    x = g.dense(g.input(shape=(4, 16)), 16, 8)
    values, indices = g.add("TopK", x, k=3, axis=1, outputs=2)
    g.output(values)
    g.output(indices, INT64)


@OLD.case("per-channel-conv-opset-10", 10)
def _(g: Graph) -> None:
    x = g.input(shape=(1, 4, 8, 8))
    g.output(g.conv(g.add("Relu", g.conv(x, 4, 8)), 8, 4))


@OLD.case("dense-opset-12", 12)
def _(g: Graph) -> None:
    g.output(g.dense(g.add("Relu", g.dense(g.input(shape=(4, 16)), 16, 32)), 32, 8))
