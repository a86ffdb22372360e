"""Small ONNX models for scenarios that start with one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def save(path: Path, text: str, **constants: np.ndarray) -> Path:
    """Save the model of *text*, in ONNX's own syntax, with *constants*. Without a header it has opset 21."""
    header = "" if text.startswith("<") else '<ir_version: 10, opset_import: ["": 21]> '
    model = onnx.parser.parse_model(header + text)
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in constants.items())
    onnx.save(model, path)
    return path


def perceptron(path: Path, *, width: int = 64, classes: int = 16, seed: int = 0) -> Path:
    """Save ``logits = relu(x W1 + b1) W2 + b2`` for ``x`` of ``[4, width]``, which every precision and QNN supports."""
    random = np.random.default_rng(seed)

    def weights(*shape: int) -> np.ndarray:
        return (random.normal(size=shape) / np.sqrt(shape[0])).astype(np.float32)

    text = f"""perceptron (float[4, {width}] x) => (float[4, {classes}] logits) {{
        [first] xw = MatMul(x, w1)
        [bias] sum = Add(xw, b1)
        [relu] hidden = Relu(sum)
        [second] hw = MatMul(hidden, w2)
        [head] logits = Add(hw, b2)
    }}"""
    return save(
        path, text, w1=weights(width, width), b1=weights(width), w2=weights(width, classes), b2=weights(classes)
    )


def compiled(path: Path, provider: str) -> Path:
    """Save what a provider's compiler would: a node with a binary, which here is none."""
    header = '<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>'
    node = f'com.microsoft.EPContext <ep_cache_context = "binary", embed_mode = 1, source = "{provider}"> (x)'
    return save(path, f"{header} compiled (float[1, 8] x) => (float[1, 8] y) {{ y = {node} }}")


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
