"""Small ONNX models for scenarios that start with one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def perceptron(path: Path, *, width: int = 64, classes: int = 16, seed: int = 0) -> Path:
    """Save ``logits = relu(x W1 + b1) W2 + b2`` for ``x`` of ``[4, width]``, which every precision and QNN supports."""
    random = np.random.default_rng(seed)

    def weights(name: str, *shape: int) -> TensorProto:
        return numpy_helper.from_array((random.normal(size=shape) / np.sqrt(shape[0])).astype(np.float32), name)

    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["xw"], name="first"),
        helper.make_node("Add", ["xw", "b1"], ["sum"], name="bias"),
        helper.make_node("Relu", ["sum"], ["hidden"], name="relu"),
        helper.make_node("MatMul", ["hidden", "w2"], ["hw"], name="second"),
        helper.make_node("Add", ["hw", "b2"], ["logits"], name="head"),
    ]
    graph = helper.make_graph(
        nodes,
        "perceptron",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, width])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [4, classes])],
        [weights("w1", width, width), weights("b1", width), weights("w2", width, classes), weights("b2", classes)],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    return path


def samples(path: Path, *, scale: float = 1.0, width: int = 64, count: int = 8) -> Path:
    """Save calibration data for :func:`perceptron`."""
    random = np.random.default_rng(1)
    np.savez(path, x=(scale * random.normal(size=(count, 4, width))).astype(np.float32))
    return path


def foreign(
    path: Path, *, batch: str | int | None, side: str | int = 8, opset: int = 17, last: str = "Identity"
) -> Path:
    """Save a small network for ``x`` of ``[batch, 3, side, side]``, whose nodes look up the batch, as exporters leave
    it.
    """
    random = np.random.default_rng(0)

    def weights(name: str, *shape: int) -> TensorProto:
        return numpy_helper.from_array((random.normal(size=shape) / 5).astype(np.float32), name)

    axes = [] if opset < 13 else ["first"]
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c"], pads=[1, 1, 1, 1], name="conv"),
        helper.make_node("Sigmoid", ["c"], ["s"], name="sigmoid"),
        helper.make_node(last, ["s"], ["r"], name="last"),
        helper.make_node("GlobalAveragePool", ["r"], ["g"], name="pool"),
        helper.make_node("Shape", ["g"], ["shape"], name="shape"),
        helper.make_node("Gather", ["shape", "zero"], ["size"], name="size"),
        helper.make_node("Unsqueeze", ["size", *axes], ["sizes"], name="sizes", **({} if axes else {"axes": [0]})),
        helper.make_node("Concat", ["sizes", "rest"], ["flat"], axis=0, name="flat"),
        helper.make_node("Reshape", ["g", "flat"], ["v"], name="reshape"),
        helper.make_node("MatMul", ["v", "w2"], ["y"], name="head"),
    ]
    constants = [
        numpy_helper.from_array(np.array(value, np.int64), name)
        for name, value in (("zero", 0), ("rest", [-1]), *([("first", [0])] if axes else []))
    ]
    graph = helper.make_graph(
        nodes,
        "foreign",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 3, side, side])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 10])],
        [weights("w1", 8, 3, 3, 3), weights("b1", 8), weights("w2", 8, 10), *constants],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8), path)
    return path
