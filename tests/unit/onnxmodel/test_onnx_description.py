"""The description of a model file, the files that belong to it, and definite errors in it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

from winml_dag.errors import InputError
from winml_dag.onnxmodel.description import Sidecar, TensorSize, describe_model, findings
from winml_dag.onnxmodel.files import save_model
from winml_dag.onnxmodel.graphfile import read_model

ModelMaker = Callable[..., onnx.ModelProto]


def written(
    path: Path, nodes: list[NodeProto], opset: int = 21, shape: tuple[object, ...] = (4,), **numbers: object
) -> Path:
    """Save a model from ``x`` to ``y`` with the constants *numbers*."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape)) for name in "xy")
    constants = [numpy_helper.from_array(np.asarray(value), name) for name, value in numbers.items()]
    graph = helper.make_graph(nodes, "g", [x], [y], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10), path)
    return path


def qdq(scale: float, zero_point: object = np.uint8(0), **kwargs: object) -> Callable[[Path], Path]:
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"]),
    ]
    return lambda path: written(path, nodes, scale=np.float32(scale), zero=zero_point, **kwargs)


def warnings(path: Path, *, for_npu: bool = False) -> str:
    return " ".join(describe_model(path, for_npu=for_npu).warnings)


def test_tensors_are_listed_the_largest_first(linear: ModelMaker, branching: onnx.ModelProto, tmp_path: Path) -> None:
    save_model(linear(), tmp_path / "m.onnx")
    assert describe_model(tmp_path / "m.onnx").tensors == (
        TensorSize("weight", "float32", (64, 64), 16384, ""),
        TensorSize("bias", "float32", (64,), 256, ""),
    )
    onnx.save(branching, tmp_path / "b.onnx")
    found = describe_model(tmp_path / "b.onnx")
    assert [tensor.name for tensor in found.tensors] == ["big", "sparse_at", "sparse", "condition"]
    assert sum(tensor.size for tensor in found.tensors) == found.summary.weight_size


@pytest.mark.usefixtures("low_threshold")
def test_weights_beside_the_model_are_told_as_what_they_are(linear: ModelMaker, tmp_path: Path) -> None:
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
    data.unlink()
    found = describe_model(tmp_path / "m.onnx")
    assert found.sidecars[0].size is None
    assert "m.onnx.data, which m.onnx needs, does not exist." in found.problems[0]
    assert found.summary.op_counts == {"Add": 1, "MatMul": 1}


def test_a_compiled_model_without_its_binary_is_still_described(tmp_path: Path) -> None:
    node = helper.make_node("EPContext", ["x"], ["y"], domain="com.microsoft", embed_mode=0, ep_cache_context="a.bin")
    written(tmp_path / "m.onnx", [node])
    model = onnx.load(tmp_path / "m.onnx")
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    model.metadata_props.add(key="ep_compatibility_info.QNNExecutionProvider", value="v2:73")
    onnx.save(model, tmp_path / "m.onnx")
    found = describe_model(tmp_path / "m.onnx")
    assert found.compatibility == {"QNNExecutionProvider": "v2:73"}
    assert (found.sidecars[0].name, found.sidecars[0].holds, found.sidecars[0].size) == ("a.bin", "binary", None)
    assert "a.bin, which m.onnx needs, does not exist" in found.problems[0]
    (tmp_path / "a.bin").touch()
    assert "a.bin is cut short" in describe_model(tmp_path / "m.onnx").problems[0]
    (tmp_path / "a.bin").write_bytes(b"binary")
    assert not describe_model(tmp_path / "m.onnx").problems


def test_models_that_share_a_binary_name_each_other(tmp_path: Path) -> None:
    def compiled(name: str, binary: str) -> Path:
        attributes = {"embed_mode": 0, "ep_cache_context": binary}
        return written(
            tmp_path / name, [helper.make_node("EPContext", ["x"], ["y"], domain="com.microsoft", **attributes)]
        )

    one, two, alone = compiled("1.onnx", "a.bin"), compiled("2.onnx", "a.bin"), compiled("3.onnx", "b.bin")
    (tmp_path / "a.bin").write_bytes(b"both")
    (tmp_path / "4.onnx").write_bytes(b"no model")
    assert describe_model(one).sidecars == (Sidecar("a.bin", "binary", 4, 1, "", ("2.onnx",)),)
    assert describe_model(two).sidecars[0].shared_with == ("1.onnx",)
    assert describe_model(alone).sidecars[0].shared_with == ()


def test_a_file_outside_of_the_folder_is_refused(tmp_path: Path) -> None:
    node = helper.make_node("EPContext", ["x"], ["y"], domain="com.microsoft", embed_mode=0, ep_cache_context="../a")
    with pytest.raises(InputError, match="not a plain name"):
        describe_model(written(tmp_path / "m.onnx", [node]))


@pytest.mark.parametrize(
    ("make", "warning"),
    [
        (qdq(0.0), "A scale that is zero, negative or no number makes nonsense of what it scales: scale."),
        (qdq(-1.0), "A scale that is zero"),
        (qdq(float("nan")), "A scale that is zero"),
        (qdq(1.0, np.uint16(0), opset=19), "have no uint16 in opset 19: export with opset 21"),
        (lambda path: written(path, [helper.make_node("Relu", ["x"], ["z"])]), "No node makes y"),
        (
            lambda path: written(path, [helper.make_node("Gelu", ["x"], ["y"], domain="com.microsoft")]),
            "operators of com.microsoft, of which it declares no version",
        ),
    ],
)
def test_what_no_runtime_can_use_is_told(make: Callable[[Path], Path], warning: str, tmp_path: Path) -> None:
    assert warning in warnings(make(tmp_path / "m.onnx"))


@pytest.mark.parametrize(
    "make",
    [
        qdq(1.0),
        qdq(1e-30),
        qdq(1.0, np.uint16(0)),
        qdq(1.0, opset=13),
        lambda path: written(path, [helper.make_node("Relu", ["x"], ["y"])], shape=("batch",)),
    ],
)
def test_sound_models_are_not_complained_about(make: Callable[[Path], Path], tmp_path: Path) -> None:
    assert warnings(make(tmp_path / "m.onnx")) == ""


@pytest.mark.parametrize("free", ["batch", -1, None])
def test_open_shapes_are_a_complaint_for_an_npu_only(free: str | int | None, tmp_path: Path) -> None:
    path = written(tmp_path / "m.onnx", [helper.make_node("Relu", ["x"], ["y"])], shape=(free, 4))
    assert warnings(path) == ""
    assert warnings(path, for_npu=True) == (
        "x has no fixed shape, and an NPU needs one: give sizes with --batch-size, --shape-config or --input-specs."
    )
    written(path, [helper.make_node("Relu", ["x"], ["y"])])
    assert warnings(path, for_npu=True) == ""


def test_no_model_of_the_onnx_package_is_called_wrong(onnx_test_models: list[Path]) -> None:
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


@pytest.mark.parametrize("after", [HALF, (1.0, 0), (0.5, 128)], ids=["both", "zero point", "scale"])
@pytest.mark.parametrize("dtype", ["uint8", "int16"])
def test_an_addition_of_zero_whose_sum_has_numbers_of_its_own_is_named(tmp_path, after, dtype):
    path = model(tmp_path, after, dtype=dtype)
    (sentence,) = told(path)
    assert told(with_numbers_as_bytes(path)) == [sentence]
    assert "QNN computes something else" in sentence
    assert "behind sum." in sentence


@pytest.mark.parametrize(
    "given",
    [{"after": WHOLE}, {"added": "3,3,4,3"}, {"turned": True}],
    ids=["same numbers", "not zero", "zero first"],
)
def test_what_qnn_computes_rightly_is_passed_over(tmp_path, given):
    path = model(tmp_path, **given)
    assert told(path) == told(with_numbers_as_bytes(path)) == []
