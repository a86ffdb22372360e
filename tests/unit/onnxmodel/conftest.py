"""Small real models shared by the tests of this package."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, quantize_static

from winml_dag.onnxmodel import files

ModelMaker = Callable[..., onnx.ModelProto]


def _model(graph: onnx.GraphProto, **extra: object) -> onnx.ModelProto:
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10, **extra)


@pytest.fixture
def linear() -> ModelMaker:
    """``y = x @ weight + bias``: *rows* x 64 float32 weights, the bias as typed data instead of raw bytes."""

    def make(rows: int = 64, seed: int = 0) -> onnx.ModelProto:
        values = np.random.default_rng(seed).standard_normal((rows, 64)).astype(np.float32)
        weight = numpy_helper.from_array(values, "weight")
        bias = helper.make_tensor("bias", TensorProto.FLOAT, [64], [0.5] * 64)
        nodes = [helper.make_node("MatMul", ["x", "weight"], ["t"]), helper.make_node("Add", ["t", "bias"], ["y"])]
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", rows])
        y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 64])
        return _model(helper.make_graph(nodes, "linear", [x], [y], [weight, bias]))

    return make


@pytest.fixture
def branching() -> onnx.ModelProto:
    """A bit of everything: subgraphs with their own weights, a function, constants, sparse weights, metadata."""
    big = numpy_helper.from_array(np.arange(512, dtype=np.float32), "big")
    then_out = helper.make_tensor_value_info("then_out", TensorProto.FLOAT, [512])
    else_out = helper.make_tensor_value_info("else_out", TensorProto.FLOAT, [512])
    then = helper.make_graph([helper.make_node("Add", ["x", "big"], ["then_out"])], "then", [], [then_out], [big])
    otherwise = helper.make_graph(
        [helper.make_node("Twice", ["x"], ["else_out"], domain="own")], "else", [], [else_out]
    )
    constant = numpy_helper.from_array(np.asarray(True), "condition")
    sparse = helper.make_sparse_tensor(
        helper.make_tensor("sparse", TensorProto.FLOAT, [1], [3.0]),
        helper.make_tensor("sparse_at", TensorProto.INT64, [1], [1]),
        [4],
    )
    nodes = [
        helper.make_node("Constant", [], ["condition"], value=constant, doc_string="written by hand"),
        helper.make_node("If", ["condition"], ["y"], then_branch=then, else_branch=otherwise),
        helper.make_node("Clip", ["sparse"], ["clipped"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [512])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [512])
    graph = helper.make_graph(nodes, "branching", [x], [y], sparse_initializer=[sparse])
    twice = helper.make_function(
        "own", "Twice", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])], [helper.make_opsetid("", 21)]
    )
    model = _model(graph, functions=[twice], producer_name="hand", producer_version="1", doc_string="text")
    model.opset_import.append(helper.make_opsetid("own", 1))
    model.graph.node[1].metadata_props.add(key="pkg.torch.onnx.stack_trace", value="/home/somebody/export.py:12")
    then_branch = next(attribute for attribute in model.graph.node[1].attribute if attribute.name == "then_branch")
    then_branch.g.node[0].metadata_props.add(key="pkg.torch.onnx.stack_trace", value="/home/somebody/export.py:13")
    model.functions[0].node[0].metadata_props.add(key="line", value="7")
    model.graph.input[0].metadata_props.add(key="line", value="8")
    model.metadata_props.add(key="host", value="my-laptop")
    model.metadata_props.add(key="winml.note", value="kept")
    return model


class _Samples(CalibrationDataReader):
    def __init__(self) -> None:
        self._left = [{"x": np.linspace(-1, 1, 64, dtype=np.float32).reshape(1, 64)}] * 2

    def get_next(self) -> dict[str, np.ndarray] | None:
        return self._left.pop() if self._left else None


@pytest.fixture
def quantized(tmp_path: Path) -> Callable[..., Path]:
    """Quantizes a model like that of ``linear``."""

    def quantize(model: onnx.ModelProto, **types: object) -> Path:
        onnx.save(model, tmp_path / "float.onnx")
        quantize_static(tmp_path / "float.onnx", tmp_path / "quantized.onnx", _Samples(), **types)
        return tmp_path / "quantized.onnx"

    return quantize


@pytest.fixture
def low_threshold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models of 4 KiB already count as large."""
    monkeypatch.setattr(files, "EXTERNAL_DATA_THRESHOLD", 4096)


@pytest.fixture
def onnx_test_models() -> list[Path]:
    """The test models of the onnx package: many exporters, all older operators."""
    found = sorted((Path(onnx.__file__).parent / "backend" / "test" / "data").rglob("*.onnx"))
    if not found:
        pytest.skip("this onnx distribution comes without its test models")
    return found
