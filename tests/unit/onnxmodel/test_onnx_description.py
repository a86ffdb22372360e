"""The summary and the description of a model file, the files that belong to it, and definite errors in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

from winml_dag.errors import InputError
from winml_dag.onnxmodel.description import Sidecar, TensorSize, describe_model, findings
from winml_dag.onnxmodel.files import save_model
from winml_dag.onnxmodel.graphfile import read_model
from winml_dag.onnxmodel.inspect import EpContext, TensorSpec, inspect_model

ModelMaker = Callable[..., onnx.ModelProto]


def written(
    path: Path, *nodes: str | NodeProto, opset: int = 21, shape: tuple[object, ...] = (4,), **numbers: object
) -> Path:
    """Save a model from ``x`` to ``y`` with the constants *numbers*."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape)) for name in "xy")
    constants = [numpy_helper.from_array(np.asarray(value), name) for name, value in numbers.items()]
    parsed = [onnx.parser.parse_node(node) if isinstance(node, str) else node for node in nodes]
    graph = helper.make_graph(parsed, "g", [x], [y], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10), path)
    return path


def compiled(path: Path, binary: str) -> Path:
    node = helper.make_node("EPContext", ["x"], ["y"], domain="com.microsoft", embed_mode=0, ep_cache_context=binary)
    return written(path, node)


RELU = "y = Relu(x)"
QDQ = ("q = QuantizeLinear(x, scale, zero)", "y = DequantizeLinear(q, scale, zero)")


def scaled(scale: float, zero: object = np.uint8(0), **options: object) -> dict[str, object]:
    return {"scale": np.float32(scale), "zero": zero, **options}


def warnings(path: Path, *, for_npu: bool = False) -> str:
    return " ".join(describe_model(path, for_npu=for_npu).warnings)


def test_float_model_is_summarized(linear: ModelMaker, tmp_path: Path) -> None:
    model = linear()
    # Older models list initializers as inputs; a caller need not feed them.
    model.graph.input.append(helper.make_tensor_value_info("weight", TensorProto.FLOAT, [64, 64]))
    save_model(model, tmp_path / "m.onnx")
    found = inspect_model(tmp_path / "m.onnx")
    assert (found.ir_version, found.opsets) == (10, {"": 21})
    assert (found.op_counts, found.total_nodes) == ({"Add": 1, "MatMul": 1}, 2)
    assert found.inputs == (TensorSpec("x", "float32", ("batch", 64)),)
    assert found.outputs == (TensorSpec("y", "float32", ("batch", 64)),)
    assert found.listed_initializers == 1
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


def test_unknown_dimensions_and_ranks_have_placeholders(tmp_path: Path) -> None:
    nodes = [helper.make_node("Identity", [name], [name + "_out"]) for name in ("a", "b")]
    a = helper.make_tensor_value_info("a", TensorProto.INT64, [None, "n", 3, -1])
    b = helper.make_tensor_value_info("b", TensorProto.FLOAT16, None)
    path = tmp_path / "m.onnx"
    path.write_bytes(helper.make_model(helper.make_graph(nodes, "g", [a, b], [a])).SerializeToString())
    assert inspect_model(path).inputs == (
        TensorSpec("a", "int64", ("?", "n", 3, "?")),
        TensorSpec("b", "float16", ("...",)),
    )


def test_compiled_model_lists_its_binaries(tmp_path: Path) -> None:
    qnn = {"source": "QNNExecutionProvider", "embed_mode": 0}
    contexts = (
        {**qnn, "ep_cache_context": "model_qnn.bin", "partition_name": "p", "ep_sdk_version": "v2"},
        {**qnn, "main_context": 0},
        {"source": "OpenVINOExecutionProvider", "embed_mode": 1, "ep_cache_context": b"\xff" * 10000},
        {"ep_cache_context": b"\xff\xfe"},
    )
    path = tmp_path / "m.onnx"
    nodes = [helper.make_node("EPContext", ["x"], ["y"], domain="com.microsoft", **each) for each in contexts]
    path.write_bytes(helper.make_model(helper.make_graph(nodes, "g", [], [])).SerializeToString())
    with pytest.raises(InputError, match=r"model_qnn\.bin, which m\.onnx needs, does not exist"):
        inspect_model(path)
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


@pytest.mark.parametrize("name", ["../model_qnn.bin", "/tmp/model_qnn.bin", "C:\\model_qnn.bin", "a" * 5000])
def test_binary_outside_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    path = compiled(tmp_path / "m.onnx", name)
    for read in (inspect_model, describe_model):
        with pytest.raises(InputError, match=r"m\.onnx"):
            read(path)


def test_tensors_are_listed_largest_first(linear: ModelMaker, branching: onnx.ModelProto, tmp_path: Path) -> None:
    save_model(linear(), tmp_path / "m.onnx")
    assert describe_model(tmp_path / "m.onnx").tensors == (
        TensorSize("weight", "float32", (64, 64), 16384, None),
        TensorSize("bias", "float32", (64,), 256, None),
    )
    onnx.save(branching, tmp_path / "b.onnx")
    found = describe_model(tmp_path / "b.onnx")
    assert [tensor.name for tensor in found.tensors] == ["big", "sparse_at", "sparse", "condition"]
    assert sum(tensor.size_bytes for tensor in found.tensors) == found.summary.weight_size


@pytest.mark.usefixtures("low_threshold")
def test_external_weights_are_described_and_missing_ones_reported(linear: ModelMaker, tmp_path: Path) -> None:
    save_model(linear(), tmp_path / "m.onnx")
    data = tmp_path / "m.onnx.data"
    size = data.stat().st_size
    found = describe_model(tmp_path / "m.onnx")
    assert found.sidecars == (Sidecar("m.onnx.data", "weights", size, 16384, ""),)
    assert found.total_size == found.size + size
    assert found.tensors[0].file == "m.onnx.data"
    assert not found.problems

    data.write_bytes(bytes(16383))
    (problem,) = describe_model(tmp_path / "m.onnx").problems
    assert "m.onnx.data is cut short: m.onnx needs 16384 bytes of it, and it has 16383." in problem
    data.write_bytes(b"")  # a summary never opens it
    assert inspect_model(tmp_path / "m.onnx").external_data == ("m.onnx.data",)
    data.unlink()
    with pytest.raises(InputError, match=r"m\.onnx\.data, which m\.onnx needs, does not exist"):
        inspect_model(tmp_path / "m.onnx")
    found = describe_model(tmp_path / "m.onnx")
    assert found.sidecars[0].size_bytes is None
    assert "m.onnx.data, which m.onnx needs, does not exist." in found.problems[0]
    assert found.summary.op_counts == {"Add": 1, "MatMul": 1}


def test_compiled_model_without_binary_is_described(tmp_path: Path) -> None:
    path = compiled(tmp_path / "m.onnx", "a.bin")
    model = onnx.load(path)
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    model.metadata_props.add(key="ep_compatibility_info.QNNExecutionProvider", value="v2:73")
    onnx.save(model, path)
    found = describe_model(path)
    assert found.compatibility == {"QNNExecutionProvider": "v2:73"}
    assert (found.sidecars[0].name, found.sidecars[0].holds, found.sidecars[0].size_bytes) == ("a.bin", "binary", None)
    assert "a.bin, which m.onnx needs, does not exist" in found.problems[0]
    (tmp_path / "a.bin").touch()
    assert "a.bin is cut short" in describe_model(path).problems[0]
    (tmp_path / "a.bin").write_bytes(b"binary")
    assert not describe_model(path).problems


def test_models_sharing_a_binary_list_each_other(tmp_path: Path) -> None:
    binaries = {"1.onnx": "a.bin", "2.onnx": "a.bin", "3.onnx": "b.bin"}
    one, two, alone = (compiled(tmp_path / name, binary) for name, binary in binaries.items())
    (tmp_path / "a.bin").write_bytes(b"both")
    (tmp_path / "4.onnx").write_bytes(b"no model")
    assert describe_model(one).sidecars == (Sidecar("a.bin", "binary", 4, 1, "", ("2.onnx",)),)
    assert describe_model(two).sidecars[0].shared_with == ("1.onnx",)
    assert describe_model(alone).sidecars[0].shared_with == ()


@pytest.mark.parametrize(
    ("nodes", "options", "warning"),
    [
        (QDQ, scaled(0.0), "A scale that is zero, negative or no number makes nonsense of what it scales: scale."),
        (QDQ, scaled(-1.0), "A scale that is zero"),
        (QDQ, scaled(float("nan")), "A scale that is zero"),
        (QDQ, scaled(1.0, np.uint16(0), opset=19), "have no uint16 in opset 19: export with opset 21"),
        (["z = Relu(x)"], {}, "No node makes y"),
        (["y = com.microsoft.Gelu(x)"], {}, "operators of com.microsoft, of which it declares no version"),
        # Intact ones.
        (QDQ, scaled(1.0), None),
        (QDQ, scaled(1e-30), None),
        (QDQ, scaled(1.0, np.uint16(0)), None),
        (QDQ, scaled(1.0, opset=13), None),
        ([RELU], {"shape": ("batch",)}, None),
    ],
)
def test_only_unusable_models_are_warned_about(
    nodes: Sequence[str], options: Mapping[str, Any], warning: str | None, tmp_path: Path
) -> None:
    found = warnings(written(tmp_path / "m.onnx", *nodes, **options))
    assert found == "" if warning is None else warning in found


@pytest.mark.parametrize("free", ["batch", -1, None])
def test_open_shapes_are_warned_about_for_npu_only(free: str | int | None, tmp_path: Path) -> None:
    path = written(tmp_path / "m.onnx", RELU, shape=(free, 4))
    assert warnings(path) == ""
    assert warnings(path, for_npu=True) == (
        "x has no fixed shape, and an NPU needs one: give sizes with --batch-size, --shape-config or --input-specs."
    )
    assert warnings(written(path, RELU), for_npu=True) == ""


def test_valid_onnx_test_models_have_no_warnings(onnx_test_models: list[Path]) -> None:
    told = {path.parent.name: warnings(path) for path in onnx_test_models}
    assert {name: text for name, text in told.items() if text} == {}


HALF = (0.5, 0)
WHOLE = (1.0, 128)


def model(
    folder: Path, after: tuple[float, int] = HALF, added: str = "3,3,3,3", *, turned: bool = False, dtype: str = "uint8"
) -> Path:
    """Return ``x + added`` in QDQ: x has scale and zero point :data:`WHOLE`, the sum those of *after*."""
    operands = "b_float, x_float" if turned else "x_float, b_float"
    text = f"""<ir_version: 10, opset_import: ["": 21]> g (float[1, 4] x) => (float[1, 4] y)
    <float x_scale = {{{WHOLE[0]}}}, {dtype} x_zero = {{{WHOLE[1]}}}, {dtype}[4] codes = {{{added}}},
     float b_scale = {{1.0}}, {dtype} b_zero = {{3}},
     float y_scale = {{{after[0]}}}, {dtype} y_zero = {{{after[1]}}}> {{
        x_codes = QuantizeLinear (x, x_scale, x_zero)
        x_float = DequantizeLinear (x_codes, x_scale, x_zero)
        b_float = DequantizeLinear (codes, b_scale, b_zero)
        sum = Add ({operands})
        y_codes = QuantizeLinear (sum, y_scale, y_zero)
        y = DequantizeLinear (y_codes, y_scale, y_zero)
    }}"""
    onnx.save(onnx.parser.parse_model(text), folder / "model.onnx")
    return folder / "model.onnx"


def with_numbers_as_bytes(path: Path) -> Path:
    """Store numbers as raw bytes; onnxruntime's tools, like the parser, store zero points as integers."""
    made = onnx.load(path)
    for tensor in made.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor), tensor.name))
    onnx.save(made, path)
    return path


def told(path: Path) -> list[str]:
    return list(findings(path, read_model(path)))


@pytest.mark.parametrize("dtype", ["uint8", "int16"])
@pytest.mark.parametrize("after", [HALF, (1.0, 0), (0.5, 128)], ids=["both", "zero point", "scale"])
def test_effective_addition_of_zero_is_warned_about_for_qnn(tmp_path, after, dtype):
    path = model(tmp_path, after, dtype=dtype)
    (sentence,) = told(path)
    assert told(with_numbers_as_bytes(path)) == [sentence]
    assert "QNN computes something else" in sentence
    assert "behind sum." in sentence


@pytest.mark.parametrize("given", [{"after": WHOLE}, {"added": "3,3,4,3"}, {"turned": True}])
def test_harmless_addition_of_zero_is_not_warned_about(tmp_path, given):
    path = model(tmp_path, **given)
    assert told(path) == told(with_numbers_as_bytes(path)) == []


def test_normalization_in_training_mode_is_named(tmp_path):
    text = """<ir_version: 10, opset_import: ["": 15]> g (float[2, 3] x) => (float[2, 3] y)
        <float[3] a = {1.0, 1.0, 1.0}, float[3] b = {0.0, 0.0, 0.0}> {
        [bn] y, m, v = BatchNormalization <training_mode = MODE> (x, a, b, b, a) }"""
    for mode, count in (("1", 1), ("0", 0)):
        onnx.save(onnx.parser.parse_model(text.replace("MODE", mode)), tmp_path / "model.onnx")
        found = told(tmp_path / "model.onnx")
        assert len(found) == count
        assert all("bn" in each and "model.eval()" in each for each in found)
