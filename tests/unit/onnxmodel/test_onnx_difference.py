"""The first difference between two models is found wherever it is, with a name that locates it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from winml_dag.onnxmodel import files
from winml_dag.onnxmodel.difference import model_difference

Change = Callable[[onnx.ModelProto], object]
ModelMaker = Callable[..., onnx.ModelProto]


def _difference(folder: Path, before: onnx.ModelProto, now: onnx.ModelProto) -> str | None:
    for name, model in (("before", before), ("now", now)):
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "model.onnx").write_bytes(model.SerializeToString())
    return model_difference(folder / "before" / "model.onnx", folder / "now" / "model.onnx")


def _changed(model: onnx.ModelProto, change: Change) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    change(copy)
    return copy


def _with_tensor(tensor: onnx.TensorProto) -> onnx.ModelProto:
    return helper.make_model(helper.make_graph([], "only", [], [], [tensor]))


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(row=st.integers(0, 63), column=st.integers(0, 63), value=st.floats(width=32), large=st.booleans())
def test_changed_weight_is_reported_with_index_and_values(
    tmp_path: Path, linear: ModelMaker, row: int, column: int, value: float, large: bool
) -> None:
    """For weights inside the model and in an external file."""
    model = linear()
    weight = numpy_helper.to_array(model.graph.initializer[0]).copy()
    old = weight[row, column]
    weight[row, column] = value
    now = _changed(model, lambda copy: copy.graph.initializer[0].CopyFrom(numpy_helper.from_array(weight, "weight")))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "EXTERNAL_DATA_THRESHOLD", 4096 if large else 2**30)
        for name, saved in (("before", model), ("now", now)):
            (tmp_path / name).mkdir(exist_ok=True)
            files.save_model(saved, tmp_path / name / "model.onnx")
    assert (tmp_path / "now" / "model.onnx.data").exists() == large
    told = model_difference(tmp_path / "before" / "model.onnx", tmp_path / "now" / "model.onnx")
    if old.tobytes() == np.float32(value).tobytes():
        assert told is None
    else:
        where = f"initializer 'weight' (float32 [64, 64]), element [{row}, {column}]"
        assert told == f"{where}: {old!s} -> {np.float32(value)!s}"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda m: m.opset_import[0].ClearField("version"), "opset_import 0, version: 21 -> absent"),
        (lambda m: setattr(m, "ir_version", 9), "ir_version: 10 -> 9"),
        (lambda m: setattr(m, "producer_name", "foot"), "producer_name: 'hand' -> 'foot'"),
        (lambda m: setattr(m.metadata_props[0], "value", "x"), "metadata_props 'host', value: 'my-laptop' -> 'x'"),
        (lambda m: m.metadata_props.pop(), "metadata_props 1: 'winml.note' -> absent"),
        (lambda m: setattr(m.graph, "name", "other"), "name: 'branching' -> 'other'"),
        (lambda m: setattr(m.graph.node[2], "op_type", "Relu"), "node 2: 2 (Clip) -> 2 (Relu)"),
        (lambda m: m.graph.node[2].input.append("lowest"), "node 2 (Clip), input, element 1: absent -> 'lowest'"),
        (lambda m: m.graph.node.add(op_type="Neg", name="minus"), "node 3: absent -> 'minus' (Neg)"),
        (
            lambda m: m.graph.node[0].attribute[0].t.CopyFrom(numpy_helper.from_array(np.asarray(False), "condition")),
            "node 0 (Constant), attribute 'value' (bool []), element []: True -> False",
        ),
        (
            lambda m: setattr(m.graph.node[1].attribute[0], "name", "first_branch"),
            "node 1 (If), attribute 0: 'else_branch' -> 'first_branch'",
        ),
        (
            lambda m: setattr(m.graph.node[1].attribute[1].g.node[0], "domain", "other"),
            "node 1 (If), attribute 'then_branch', node 0 (Add), domain: absent -> 'other'",
        ),
        (lambda m: m.graph.sparse_initializer[0].dims.append(1), "sparse_initializer 0, dims, element 1: absent -> 1"),
        (
            lambda m: m.graph.sparse_initializer[0].values.CopyFrom(helper.make_tensor("sparse", 1, [1], [4.0])),
            "sparse_initializer 0, values (float32 [1]), element [0]: 3.0 -> 4.0",
        ),
        (
            lambda m: setattr(m.graph.output[0].type.tensor_type, "elem_type", TensorProto.FLOAT16),
            "output 'y', type, tensor_type, elem_type: float32 -> float16",
        ),
        (
            lambda m: setattr(m.graph.input[0].type.tensor_type.shape.dim[0], "dim_param", "batch"),
            "input 'x', type, tensor_type, shape, dim 0, dim_value: 512 -> absent",
        ),
        (lambda m: setattr(m.functions[0].node[0], "op_type", "Mul"), "functions 'Twice', node 0: 0 (Add) -> 0 (Mul)"),
    ],
)
def test_every_model_field_is_compared(
    tmp_path: Path, branching: onnx.ModelProto, change: Change, expected: str
) -> None:
    assert _difference(tmp_path, branching, _changed(branching, change)) == expected


def _with_node(op: str, **attributes: object) -> onnx.ModelProto:
    node = helper.make_node(op, ["a"], ["y"], name="fc", **attributes)
    return helper.make_model(helper.make_graph([node], "g", [], []))


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (0.1, 0.2, ": 0.1 -> 0.2"),
        (0.0, -0.0, ": 0.0 -> -0.0"),
        (float("nan"), float("nan"), None),
        (1, 2, ": 1 -> 2"),
        ([1, 2], [1, 3], ", element 1: 2 -> 3"),
        ("same", "other", ": 'same' -> 'other'"),
        (1, 1.0, ", type: INT -> FLOAT"),
    ],
)
def test_changed_attribute_is_reported_with_values(
    tmp_path: Path, old: object, new: object, expected: str | None
) -> None:
    told = _difference(tmp_path, _with_node("Gemm", alpha=old), _with_node("Gemm", alpha=new))
    assert told == (None if expected is None else f"node 'fc' (Gemm), attribute 'alpha'{expected}")


def test_changed_embedded_binary_is_reported_by_byte_and_size(tmp_path: Path) -> None:
    binary = bytes(range(256)) * 40
    other = bytearray(binary)
    other[7777] ^= 1
    where = "node 'fc' (EPContext), attribute 'ep_cache_context' differs from byte"
    for changed, told in ((bytes(other), "7777 on"), (binary[:-1], "10239 on (10240 -> 10239 bytes)")):
        models = (_with_node("EPContext", ep_cache_context=each) for each in (binary, changed))
        assert _difference(tmp_path, *models) == f"{where} {told}"


@given(place=st.integers(0, 6), bits=st.sampled_from([TensorProto.INT4, TensorProto.UINT4]), value=st.integers(0, 7))
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_changed_4_bit_element_is_found(tmp_path: Path, place: int, bits: int, value: int) -> None:
    values = [1, 2, 3, 4, 5, 6, 7]
    changed = [*values[:place], value, *values[place + 1 :]]
    models = [_with_tensor(helper.make_tensor("w", bits, [7], numbers)) for numbers in (values, changed)]
    name = "int4" if bits == TensorProto.INT4 else "uint4"
    expected = f"initializer 'w' ({name} [7]), element [{place}]: {values[place]} -> {value}"
    assert _difference(tmp_path, *models) == (None if value == values[place] else expected)


NANS = [np.frombuffer(bytes.fromhex(text), "<f4") for text in ("0000c07f", "0100c07f")]


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        # Shape and type come before values.
        (np.zeros((2, 3), "float32"), np.zeros((3, 2), "float32"), ", shape: [2, 3] -> [3, 2]"),
        (np.zeros(2, "float32"), np.zeros(2, "float16"), ", type: float32 -> float16"),
        (np.array(["a", "b"]), np.array(["a", "c"]), " (string [2]), element 1: 'b' -> 'c'"),
        # What reads alike is shown by its bytes: two NaNs are equal in numpy.
        (*NANS, " (float32 [1]), element [0]: 0x0000c07f -> 0x0100c07f"),
    ],
)
def test_tensors_are_compared_by_shape_type_and_values(
    tmp_path: Path, before: np.ndarray, now: np.ndarray, expected: str
) -> None:
    models = [_with_tensor(numpy_helper.from_array(each, "w")) for each in (before, now)]
    assert _difference(tmp_path, *models) == f"initializer 'w'{expected}"


@pytest.mark.usefixtures("low_threshold")
def test_inline_and_external_layouts_are_equal(tmp_path: Path, linear: ModelMaker) -> None:
    """In one file as typed data, and as raw bytes in an external file."""
    before, now = tmp_path / "before.onnx", tmp_path / "now.onnx"
    before.write_bytes(linear().SerializeToString())
    files.save_model(linear(), now)
    assert now.with_name("now.onnx.data").exists()
    assert model_difference(before, now) is None


def test_every_onnx_test_model_equals_itself(tmp_path: Path, onnx_test_models: list[Path]) -> None:
    """Every operator and nesting in onnx's own tests."""
    for path in onnx_test_models[::25]:
        model = onnx.load(path)
        assert _difference(tmp_path, model, model) is None, path
