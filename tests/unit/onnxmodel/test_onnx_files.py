from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper

from winml_dag.errors import InputError
from winml_dag.onnxmodel import files
from winml_dag.onnxmodel.files import load_model, resave, save_model
from winml_dag.onnxmodel.inspect import inspect_model
from winml_dag.onnxmodel.metadata import canonicalise

ModelMaker = Callable[..., onnx.ModelProto]


def _run(path: Path) -> np.ndarray:
    """Return the model's first output for one fixed input, in a new session."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    feed = session.get_inputs()[0]
    shape = [dim if isinstance(dim, int) else 2 for dim in feed.shape]
    return session.run(None, {feed.name: np.linspace(-1, 1, int(np.prod(shape)), dtype=np.float32).reshape(shape)})[0]


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_canonical_models_tell_nothing_of_where_they_were_made(branching: onnx.ModelProto) -> None:
    canonicalise(branching)
    content = branching.SerializeToString()
    for trace in (b"somebody", b"my-laptop", b"line", b"text"):
        assert trace not in content
    assert branching.producer_name == "hand"
    assert [(entry.key, entry.value) for entry in branching.metadata_props] == [("winml.note", "kept")]


def test_models_that_differ_only_in_notes_are_the_same_bytes(linear: ModelMaker, tmp_path: Path) -> None:
    first, second = linear(), linear()
    first.producer_version, second.producer_version = "9+cpu", "9+cu130"
    second.graph.node[0].doc_string = "elsewhere"
    second.graph.initializer[0].metadata_props.add(key="pkg.torch", value="/other/place.py")
    for model, name in ((first, "a.onnx"), (second, "b.onnx")):
        canonicalise(model)
        save_model(model, tmp_path / name)
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


def test_small_models_are_one_file(linear: ModelMaker, tmp_path: Path) -> None:
    model = linear()
    save_model(model, tmp_path / "m.onnx")
    assert _names(tmp_path) == ["m.onnx"]
    assert load_model(tmp_path / "m.onnx") == model


def test_the_threshold_is_at_100_mebibytes(tmp_path: Path) -> None:
    size = 100 * 2**20
    for length, expected in ((size - 1, ["m.onnx"]), (size, ["m.onnx", "m.onnx.data"])):
        model = onnx.ModelProto(ir_version=10, opset_import=[onnx.OperatorSetIdProto(version=21)])
        model.graph.initializer.add(name="w", data_type=onnx.TensorProto.UINT8, dims=[length], raw_data=bytes(length))
        save_model(model, tmp_path / "m.onnx")
        assert _names(tmp_path) == expected


@pytest.mark.usefixtures("low_threshold")
def test_large_models_have_their_large_tensors_beside_them(linear: ModelMaker, tmp_path: Path) -> None:
    model = linear()
    (tmp_path / "plain").mkdir()
    onnx.save(model, tmp_path / "plain" / "m.onnx")
    save_model(model, tmp_path / "m.onnx")
    assert _names(tmp_path) == ["m.onnx", "m.onnx.data", "plain"]
    assert inspect_model(tmp_path / "m.onnx").files == ("m.onnx", "m.onnx.data")
    # The bias has only 256 bytes.
    assert [bool(t.external_data) for t in load_model(tmp_path / "m.onnx", weights=False).graph.initializer] == [
        True,
        False,
    ]
    assert load_model(tmp_path / "m.onnx") == model
    np.testing.assert_array_equal(_run(tmp_path / "m.onnx"), _run(tmp_path / "plain" / "m.onnx"))


@pytest.mark.usefixtures("low_threshold")
def test_typed_data_counts_and_moves_like_raw_data(linear: ModelMaker, tmp_path: Path) -> None:
    raw, typed = linear(), linear()
    weight = typed.graph.initializer[0]
    weight.float_data.extend(numpy_helper.to_array(weight).ravel())
    weight.ClearField("raw_data")
    save_model(raw, tmp_path / "m.onnx")
    expected = [(tmp_path / name).read_bytes() for name in ("m.onnx", "m.onnx.data")]
    save_model(typed, tmp_path / "m.onnx")
    assert [(tmp_path / name).read_bytes() for name in ("m.onnx", "m.onnx.data")] == expected


@pytest.mark.usefixtures("low_threshold")
@pytest.mark.parametrize("name", ["INT4", "UINT4", "FLOAT16", "BFLOAT16", "INT8", "DOUBLE", "BOOL", "UINT16", "INT64"])
def test_every_element_type_survives_being_stored_outside(name: str, linear: ModelMaker, tmp_path: Path) -> None:
    data_type = onnx.TensorProto.DataType.Value(name)
    model = linear()
    values = [value % 2 for value in range(20001)]
    model.graph.initializer.append(onnx.helper.make_tensor("other", data_type, [20001], values))
    save_model(model, tmp_path / "m.onnx")
    other = load_model(tmp_path / "m.onnx").graph.initializer[-1]
    np.testing.assert_array_equal(numpy_helper.to_array(other).astype(np.float64), values)


@pytest.mark.usefixtures("low_threshold")
def test_texts_stay_inside(linear: ModelMaker, tmp_path: Path) -> None:
    model = linear()
    model.graph.initializer.append(onnx.helper.make_tensor("text", onnx.TensorProto.STRING, [1], [b"a" * 2000]))
    save_model(model, tmp_path / "m.onnx")
    assert load_model(tmp_path / "m.onnx") == model


def test_weights_of_subgraphs_move_too(
    branching: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(files, "EXTERNAL_DATA_THRESHOLD", 1024)
    save_model(branching, tmp_path / "m.onnx")
    assert (tmp_path / "m.onnx.data").stat().st_size == 2048
    assert load_model(tmp_path / "m.onnx") == branching


@pytest.mark.usefixtures("low_threshold")
def test_saving_leaves_the_callers_weights_in_place(linear: ModelMaker, tmp_path: Path) -> None:
    model, untouched = linear(), linear()
    save_model(model, tmp_path / "m.onnx")
    assert model == untouched


@pytest.mark.usefixtures("low_threshold")
def test_a_model_that_shrinks_leaves_no_old_weights_behind(linear: ModelMaker, tmp_path: Path) -> None:
    save_model(linear(), tmp_path / "m.onnx")
    save_model(linear(rows=4), tmp_path / "m.onnx")
    assert _names(tmp_path) == ["m.onnx"]


@pytest.mark.usefixtures("low_threshold")
def test_a_graph_can_be_edited_without_its_weights(linear: ModelMaker, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    save_model(linear(), tmp_path / "in" / "a.onnx")
    model = load_model(tmp_path / "in" / "a.onnx", weights=False)
    assert model.ByteSize() < 1000
    model.graph.node[0].name = "renamed"
    save_model(model, tmp_path / "out" / "b.onnx")
    assert _names(tmp_path / "out") == ["b.onnx", "b.onnx.data"]
    assert str(tmp_path).encode() not in (tmp_path / "out" / "b.onnx").read_bytes()
    np.testing.assert_array_equal(_run(tmp_path / "out" / "b.onnx"), _run(tmp_path / "in" / "a.onnx"))


@pytest.mark.usefixtures("low_threshold")
def test_a_model_without_its_weights_can_replace_itself(linear: ModelMaker, tmp_path: Path) -> None:
    save_model(linear(), tmp_path / "m.onnx")
    before = (tmp_path / "m.onnx.data").read_bytes()
    save_model(load_model(tmp_path / "m.onnx", weights=False), tmp_path / "m.onnx")
    assert (tmp_path / "m.onnx.data").read_bytes() == before
    assert _names(tmp_path) == ["m.onnx", "m.onnx.data"]


@pytest.mark.usefixtures("low_threshold")
def test_resaved_weights_are_the_same_bytes(linear: ModelMaker, tmp_path: Path) -> None:
    save_model(linear(), tmp_path / "a.onnx")
    resave(tmp_path / "a.onnx", tmp_path / "b.onnx")
    assert (tmp_path / "b.onnx.data").read_bytes() == (tmp_path / "a.onnx.data").read_bytes()
    assert load_model(tmp_path / "b.onnx") == load_model(tmp_path / "a.onnx")


@pytest.mark.usefixtures("low_threshold")
def test_other_layouts_of_external_data_become_ours(linear: ModelMaker, tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    model = linear()
    save_model(model, tmp_path / "expected.onnx")
    onnx.save(
        model,
        tmp_path / "theirs" / "m.onnx",
        save_as_external_data=True,
        all_tensors_to_one_file=False,
        size_threshold=0,
        convert_attribute=True,
    )
    assert len(_names(tmp_path / "theirs")) > 1
    resave(tmp_path / "theirs" / "m.onnx", tmp_path / "m.onnx")
    assert (tmp_path / "m.onnx.data").read_bytes() == (tmp_path / "expected.onnx.data").read_bytes()
    np.testing.assert_array_equal(_run(tmp_path / "m.onnx"), _run(tmp_path / "theirs" / "m.onnx"))


def test_external_data_of_a_small_model_comes_back_inside(linear: ModelMaker, tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    model = linear()
    save_model(model, tmp_path / "expected.onnx")
    onnx.save(model, tmp_path / "theirs" / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=1024)
    resave(tmp_path / "theirs" / "m.onnx", tmp_path / "m.onnx")
    assert (tmp_path / "m.onnx").read_bytes() == (tmp_path / "expected.onnx").read_bytes()


def test_constants_stored_outside_come_inside(branching: onnx.ModelProto, tmp_path: Path) -> None:
    save_model(branching, tmp_path / "expected.onnx")
    (tmp_path / "theirs").mkdir()
    onnx.save(
        branching,
        tmp_path / "theirs" / "m.onnx",
        save_as_external_data=True,
        location="w.bin",
        size_threshold=0,
        convert_attribute=True,
    )
    assert inspect_model(tmp_path / "theirs" / "m.onnx").external_data == ("w.bin",)
    resave(tmp_path / "theirs" / "m.onnx", tmp_path / "m.onnx")
    assert (tmp_path / "m.onnx").read_bytes() == (tmp_path / "expected.onnx").read_bytes()


@pytest.mark.usefixtures("low_threshold")
def test_missing_short_and_misplaced_weights_are_told_apart(linear: ModelMaker, tmp_path: Path) -> None:
    path, data = tmp_path / "m.onnx", tmp_path / "m.onnx.data"
    save_model(linear(), path)
    content = data.read_bytes()
    for weights in (True, False):
        data.write_bytes(content[:-1])
        with pytest.raises(InputError, match=r"m\.onnx\.data is cut short"):
            load_model(path, weights=weights)
        data.unlink()
        with pytest.raises(InputError, match=r"m\.onnx\.data, which m\.onnx needs, does not exist"):
            load_model(path, weights=weights)
        for key, value in (("offset", "-1"), ("length", "7"), ("offset", "many"), ("location", "../m.onnx.data")):
            data.write_bytes(content)
            model = onnx.load(path, load_external_data=False)
            next(entry for entry in model.graph.initializer[0].external_data if entry.key == key).value = value
            bad = tmp_path / "bad.onnx"
            bad.write_bytes(model.SerializeToString())
            with pytest.raises(InputError, match=r"bad\.onnx"):
                load_model(bad, weights=weights)


def test_a_folder_that_the_file_itself_names_is_ignored(branching: onnx.ModelProto, tmp_path: Path) -> None:
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "key").write_bytes(bytes(2048))
    weight = branching.graph.initializer.add(name="w", data_type=1, dims=[512])
    condition = branching.graph.node[0].attribute[0].t
    condition.ClearField("raw_data")
    for tensor in (weight, condition):
        path = tmp_path / f"{tensor.name}.onnx"
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="key")
        tensor.external_data.add(key="basepath", value=str(tmp_path / "secrets"))
        path.write_bytes(branching.SerializeToString())
        for weights in (True, False):
            with pytest.raises(InputError, match="does not exist"):
                load_model(path, weights=weights)
        tensor.data_location = onnx.TensorProto.DEFAULT


def test_what_is_not_a_model_is_an_input_error(linear: ModelMaker, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    with pytest.raises(InputError, match="does not exist"):
        load_model(path)
    content = linear().SerializeToString()
    for wrong in (b"", b"a text", content[:-300], content[: len(content) // 2]):
        path.write_bytes(wrong)
        with pytest.raises(InputError, match="not an ONNX model"):
            load_model(path)


@settings(max_examples=200, deadline=None)
@given(flips=st.lists(st.tuples(st.integers(0, 10**9), st.integers(1, 255)), min_size=1, max_size=4))
def test_flipped_bytes_load_or_are_an_input_error(
    flips: list[tuple[int, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "flipped.onnx"
    tensor = onnx.TensorProto(name="w", data_type=1, dims=[2], data_location=1)
    for key, value in (("location", "flipped.data"), ("offset", "0"), ("length", "8")):
        tensor.external_data.add(key=key, value=value)
    path.with_suffix(".data").write_bytes(bytes(8))
    node = onnx.helper.make_node("Add", ["x", "w"], ["y"])
    value = onnx.helper.make_tensor_value_info("x", 1, [2])
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "g", [value], [value], [tensor]))
    content = bytearray(model.SerializeToString())
    for where, bits in flips:
        content[where % len(content)] ^= bits
    path.write_bytes(content)
    for weights in (True, False):
        try:
            loaded = load_model(path, weights=weights)
        except InputError:
            continue
        save_model(loaded, path.with_name("again.onnx"))


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no resource module to measure the peak with")
def test_large_weights_are_never_in_memory_twice(tmp_path: Path) -> None:
    """256 MiB of weights: the first save takes little more memory than the model, the second almost none."""
    build = (
        "import onnx, resource, sys\n"
        "from pathlib import Path\n"
        "from winml_dag.onnxmodel.files import resave, save_model\n"
        "unit = 1 if sys.platform == 'darwin' else 1024\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit // 2**20\n"
    )
    save = (
        "model = onnx.ModelProto(ir_version=10, opset_import=[onnx.OperatorSetIdProto(version=21)])\n"
        "for i in range(16):\n"
        "    model.graph.initializer.add(name=str(i), data_type=2, dims=[2**24], raw_data=bytes([i]) * 2**24)\n"
        "before = peak()\n"
        "save_model(model, Path('a.onnx'))\n"
        "print(peak() - before)\n"
    )
    again = "before = peak()\nresave(Path('a.onnx'), Path('b.onnx'))\nprint(peak() - before)\n"
    for code in (save, again):
        done = subprocess.run(
            [sys.executable, "-c", build + code],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
            env=os.environ,
        )
        assert int(done.stdout) < 96  # MiB: a tensor and its copy, not the model
    assert (tmp_path / "a.onnx.data").stat().st_size == (tmp_path / "b.onnx.data").stat().st_size == 2**28
