"""The files that a model refers to: which names are safe, and their new names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from winml_dag.errors import InputError
from winml_dag.onnxmodel.inspect import inspect_model, sidecar_name, sidecar_path
from winml_dag.onnxmodel.sidecar import write_renamed

MODEL = Path("folder/model.onnx")


UNSAFE = (
    *("", ".", "..", "../model.data", "weights/../../model.data", "/etc/passwd", "//server/share/file"),
    *("C:/model.data", "C:model.data", "weights\\model.data", "\\\\server\\share", "nul", "NUL.data"),
    *("weights/com1.bin", "model.data.", "model.data ", "model.data:stream", "model\x00.data", "*/_ORT_MEM_ADDR_/*"),
)


@pytest.mark.parametrize("location", UNSAFE)
def test_names_that_leave_the_folder_are_refused(location: str) -> None:
    with pytest.raises(InputError, match=r"model\.onnx"):
        sidecar_name(MODEL, location)


@pytest.mark.parametrize(
    ("location", "name"),
    [
        ("model.onnx.data", "model.onnx.data"),
        ("./model.data", "model.data"),
        ("weights//part-1.bin", "weights/part-1.bin"),
        ("Grüße.bin", "Grüße.bin"),
    ],
)
def test_plain_names_are_normalized(location: str, name: str) -> None:
    assert sidecar_name(MODEL, location) == name


@given(st.text(alphabet=st.sampled_from("ab./\\:~ \x00"), max_size=12))
def test_accepted_name_stays_in_its_folder(location: str) -> None:
    try:
        name = sidecar_name(MODEL, location)
    except InputError:
        return
    folder = MODEL.parent.absolute()
    assert folder in (folder / name).resolve().parents


def test_link_is_refused_wherever_it_points(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "w.bin").write_bytes(b"1")
    try:
        (tmp_path / "link.bin").symlink_to(tmp_path / "real" / "w.bin")
        (tmp_path / "folder").symlink_to(tmp_path / "real", target_is_directory=True)
    except OSError:
        pytest.skip("this user may not make links")
    for location in ("link.bin", "folder/w.bin"):
        with pytest.raises(InputError, match="is a link"):
            sidecar_path(tmp_path / "model.onnx", location)
    assert sidecar_path(tmp_path / "model.onnx", "real/w.bin") == tmp_path / "real" / "w.bin"
    with pytest.raises(InputError, match=r"w\.data, which model\.onnx needs"):
        sidecar_path(tmp_path / "model.onnx", "w.data")


_NAMES = st.text("abcdefghij.-_", min_size=1, max_size=300).filter(lambda name: name[-1] != ".")


def _model(binary: str, data: str) -> onnx.ModelProto:
    """Return a model with both kinds of reference, also inside a branch, and texts that only look like references."""

    def context(output: str, embed_mode: int = 0, **texts: str) -> onnx.NodeProto:
        attributes = {"embed_mode": embed_mode, "ep_cache_context": binary, **texts}
        return helper.make_node("EPContext", ["x"], [output], domain="com.microsoft", **attributes)

    value = helper.make_tensor_value_info("i", TensorProto.FLOAT, [4])
    branch = helper.make_graph([context("i")], "branch", [], [value])
    choice = helper.make_node("If", ["on"], ["y"], then_branch=branch, else_branch=branch)
    weight = numpy_helper.from_array(np.ones(4, np.float32), "w")
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    for key, text in (("location", data), ("offset", "0"), ("length", "16")):
        weight.external_data.add(key=key, value=text)
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy")
    on = helper.make_tensor_value_info("on", TensorProto.BOOL, [])
    graph = helper.make_graph([context("c", notes=binary), context("e", 1), choice], "g", [x, on], [y], [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@settings(max_examples=40)
@given(_NAMES, _NAMES, _NAMES, _NAMES)
def test_renaming_updates_every_reference_and_no_other_byte(
    tmp_path_factory: pytest.TempPathFactory, binary: str, data: str, new_binary: str, new_data: str
) -> None:
    folder = tmp_path_factory.mktemp("renamed")
    (folder / "m.onnx").write_bytes(_model(binary, data).SerializeToString())
    names = {data: new_data, binary: new_binary}
    write_renamed(folder / "m.onnx", folder / "n.onnx", names)
    expected = _model(binary, data)
    then, other = (attribute.g for attribute in expected.graph.node[2].attribute)
    for node in (expected.graph.node[0], then.node[0], other.node[0]):
        next(each for each in node.attribute if each.name == "ep_cache_context").s = names[binary].encode()
    expected.graph.initializer[0].external_data[0].value = names[data]
    assert (folder / "n.onnx").read_bytes() == expected.SerializeToString()


def test_renamed_binary_is_found_and_other_references_are_unchanged(tmp_path: Path) -> None:
    source, renamed = tmp_path / "m.onnx", tmp_path / "n.onnx"
    source.write_bytes(_model("./a.bin", "b.data").SerializeToString())
    write_renamed(source, renamed, {"c.bin": "d.bin"})
    assert renamed.read_bytes() == source.read_bytes()
    write_renamed(source, renamed, {"a.bin": "n.bin"})
    for name in ("n.bin", "b.data"):
        (tmp_path / name).write_bytes(b"x" * 16)
    assert inspect_model(renamed).files == ("n.onnx", "b.data", "n.bin")


@pytest.mark.parametrize("content", [b"no model at all", _model("a", "b").SerializeToString()[:-9]])
def test_invalid_model_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "m.onnx").write_bytes(content)
    with pytest.raises(InputError, match="not an ONNX model"):
        write_renamed(tmp_path / "m.onnx", tmp_path / "n.onnx", {})
