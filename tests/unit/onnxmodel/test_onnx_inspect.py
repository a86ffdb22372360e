from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper
from onnxruntime.quantization import QuantFormat, quantize_dynamic

from winml_dag.errors import InputError
from winml_dag.onnxmodel.files import save_model
from winml_dag.onnxmodel.inspect import EpContext, TensorSpec, inspect_model

ModelMaker = Callable[..., onnx.ModelProto]


def _ep_context(path: Path, *nodes: onnx.NodeProto) -> Path:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    path.write_bytes(
        helper.make_model(helper.make_graph(nodes, "g", [x], [y]), opset_imports=opsets).SerializeToString()
    )
    return path


def _context_node(**attributes: object) -> onnx.NodeProto:
    return helper.make_node("EPContext", ["x"], ["y"], domain="com.microsoft", **attributes)


def test_a_float_model_is_summed_up(linear: ModelMaker, tmp_path: Path) -> None:
    save_model(linear(), tmp_path / "m.onnx")
    found = inspect_model(tmp_path / "m.onnx")
    assert (found.ir_version, found.opsets) == (10, {"": 21})
    assert found.op_counts == {"Add": 1, "MatMul": 1}
    assert found.total_nodes == 2
    assert found.inputs == (TensorSpec("x", "float32", ("batch", 64)),)
    assert found.outputs == (TensorSpec("y", "float32", ("batch", 64)),)
    assert found.tensor_bytes == {"float32": 64 * 64 * 4 + 64 * 4}
    assert found.files == ("m.onnx",)
    assert not found.is_quantized
    assert not found.is_compiled


def test_subgraphs_and_functions_are_counted(branching: onnx.ModelProto, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(branching.SerializeToString())
    found = inspect_model(tmp_path / "m.onnx")
    assert found.op_counts == {"Add": 2, "Clip": 1, "Constant": 1, "If": 1, "own/Twice": 1}
    assert found.tensor_bytes == {"bool": 1, "float32": 512 * 4 + 4, "int64": 8}
    assert found.metadata == {"host": "my-laptop", "winml.note": "kept"}


def test_unknown_dimensions_and_ranks_have_words(tmp_path: Path) -> None:
    nodes = [helper.make_node("Identity", [name], [name + "_out"]) for name in ("a", "b")]
    a = helper.make_tensor_value_info("a", TensorProto.INT64, [None, "n", 3, -1])
    b = helper.make_tensor_value_info("b", TensorProto.FLOAT16, None)
    path = tmp_path / "m.onnx"
    path.write_bytes(helper.make_model(helper.make_graph(nodes, "g", [a, b], [a])).SerializeToString())
    assert inspect_model(path).inputs == (
        TensorSpec("a", "int64", ("?", "n", 3, "?")),
        TensorSpec("b", "float16", ("...",)),
    )


def test_initializers_listed_as_inputs_are_not_asked_for(linear: ModelMaker, tmp_path: Path) -> None:
    model = linear()
    model.graph.input.append(helper.make_tensor_value_info("weight", TensorProto.FLOAT, [64, 64]))
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    summary = inspect_model(tmp_path / "m.onnx")
    assert [spec.name for spec in summary.inputs] == ["x"]
    assert summary.listed_initializers == 1


def test_operators_on_integers_are_quantized_too(
    linear: ModelMaker, quantized: Callable[..., Path], tmp_path: Path
) -> None:
    onnx.save(linear(), tmp_path / "float.onnx")
    quantize_dynamic(tmp_path / "float.onnx", tmp_path / "dynamic.onnx")
    assert "MatMulInteger" in inspect_model(tmp_path / "dynamic.onnx").op_counts
    assert inspect_model(tmp_path / "dynamic.onnx").is_quantized
    assert inspect_model(quantized(linear(), quant_format=QuantFormat.QOperator)).is_quantized


def test_a_compiled_model_names_its_binaries(tmp_path: Path) -> None:
    nodes = [
        _context_node(
            embed_mode=0,
            ep_cache_context="model_qnn.bin",
            source="QNNExecutionProvider",
            partition_name="p",
            ep_sdk_version="v2",
        ),
        _context_node(embed_mode=0, main_context=0, source="QNNExecutionProvider"),
        _context_node(embed_mode=1, ep_cache_context=b"\xff" * 10000, source="OpenVINOExecutionProvider"),
        _context_node(ep_cache_context=b"\xff\xfe"),
    ]
    path = _ep_context(tmp_path / "m.onnx", *nodes)
    (tmp_path / "model_qnn.bin").write_bytes(b"binary")
    found = inspect_model(path)
    assert found.is_compiled
    assert found.ep_context == (
        EpContext("QNNExecutionProvider", 0, "model_qnn.bin", partition="p", sdk_version="v2"),
        EpContext("QNNExecutionProvider", 0, None, is_main=False),
        EpContext("OpenVINOExecutionProvider", 1, None, embedded_bytes=10000),
        EpContext("", 1, None, embedded_bytes=2),
    )
    assert found.files == ("m.onnx", "model_qnn.bin")


def test_a_missing_or_outside_binary_is_an_input_error(tmp_path: Path) -> None:
    path = _ep_context(tmp_path / "m.onnx", _context_node(embed_mode=0, ep_cache_context="model_qnn.bin"))
    with pytest.raises(InputError, match=r"model_qnn\.bin, which m\.onnx needs, does not exist"):
        inspect_model(path)
    for name in ("../model_qnn.bin", "/tmp/model_qnn.bin", "C:\\model_qnn.bin", "a" * 5000):
        path = _ep_context(tmp_path / "m.onnx", _context_node(embed_mode=0, ep_cache_context=name))
        with pytest.raises(InputError, match=r"m\.onnx"):
            inspect_model(path)


@pytest.mark.usefixtures("low_threshold")
def test_external_data_is_named_but_never_opened(linear: ModelMaker, tmp_path: Path) -> None:
    save_model(linear(), tmp_path / "m.onnx")
    data = tmp_path / "m.onnx.data"
    data.write_bytes(b"")  # any attempt to read it finds nothing
    found = inspect_model(tmp_path / "m.onnx")
    assert found.external_data == ("m.onnx.data",)
    assert found.tensor_bytes == {"float32": 64 * 64 * 4 + 64 * 4}
    data.unlink()
    with pytest.raises(InputError, match=r"m\.onnx\.data, which m\.onnx needs, does not exist"):
        inspect_model(tmp_path / "m.onnx")
