"""Small ONNX models for scenarios that begin with one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def perceptron(path: Path, *, width: int = 64, classes: int = 16, seed: int = 0) -> Path:
    """``logits = relu(x W1 + b1) W2 + b2`` for ``x`` of ``[4, width]``: every precision takes it, and so does QNN."""
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
    """Calibration data for :func:`perceptron`."""
    random = np.random.default_rng(1)
    np.savez(path, x=(scale * random.normal(size=(count, 4, width))).astype(np.float32))
    return path
