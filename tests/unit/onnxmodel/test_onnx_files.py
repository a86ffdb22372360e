from __future__ import annotations

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


def test_canonical_model_has_no_trace_of_its_origin(branching: onnx.ModelProto) -> None:
    canonicalise(branching)
    content = branching.SerializeToString()
    for trace in (b"somebody", b"my-laptop", b"line", b"text"):
        assert trace not in content
    assert branching.producer_name == "hand"
    assert [(entry.key, entry.value) for entry in branching.metadata_props] == [("winml.note", "kept")]


def test_models_differing_only_in_notes_have_equal_bytes(linear: ModelMaker, tmp_path: Path) -> None:
    first, second = linear(), linear()
    first.producer_version, second.producer_version = "9+cpu", "9+cu130"
    second.graph.node[0].doc_string = "elsewhere"
    second.graph.initializer[0].metadata_props.add(key="pkg.torch", value="/other/place.py")
    for model, name in ((first, "a.onnx"), (second, "b.onnx")):
        canonicalise(model)
        save_model(model, tmp_path / name)
    assert _names(tmp_path) == ["a.onnx", "b.onnx"]
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


def test_external_data_threshold_is_100_mib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert files.EXTERNAL_DATA_THRESHOLD == 100 * 2**20
    monkeypatch.setattr(files, "EXTERNAL_DATA_THRESHOLD", 4096)
    for length, expected in ((4095, ["m.onnx"]), (4096, ["m.onnx", "m.onnx.data"])):
        model = onnx.ModelProto(ir_version=10, opset_import=[onnx.OperatorSetIdProto(version=21)])
        model.graph.initializer.add(name="w", data_type=onnx.TensorProto.UINT8, dims=[length], raw_data=bytes(length))
        save_model(model, tmp_path / "m.onnx")
        assert _names(tmp_path) == expected


@pytest.mark.usefixtures("low_threshold")
def test_large_model_stores_large_tensors_externally(linear: ModelMaker, tmp_path: Path) -> None:
    model, path = linear(), tmp_path / "m.onnx"
    (tmp_path / "plain").mkdir()
    onnx.save(model, tmp_path / "plain" / "m.onnx")
    save_model(model, path)
    assert model == linear(), "the caller's model keeps its weights"
    assert _names(tmp_path) == ["m.onnx", "m.onnx.data", "plain"]
    assert inspect_model(path).files == ("m.onnx", "m.onnx.data")
    lean = load_model(path, weights=False)
    assert [bool(tensor.external_data) for tensor in lean.graph.initializer] == [True, False]  # the bias has 256 bytes
    assert load_model(path) == model
    np.testing.assert_array_equal(_run(path), _run(tmp_path / "plain" / "m.onnx"))

    # Typed data counts and moves like raw data.
    expected = [file.read_bytes() for file in (path, tmp_path / "m.onnx.data")]
    weight = model.graph.initializer[0]
    weight.float_data.extend(numpy_helper.to_array(weight).ravel())
    weight.ClearField("raw_data")
    save_model(model, path)
    assert [file.read_bytes() for file in (path, tmp_path / "m.onnx.data")] == expected

    # A model that shrinks leaves no old weights behind.
    save_model(linear(rows=4), path)
    assert _names(tmp_path) == ["m.onnx", "plain"]


@pytest.mark.usefixtures("low_threshold")
@pytest.mark.parametrize("name", ["INT4", "UINT4", "FLOAT16", "BFLOAT16", "INT8", "DOUBLE", "BOOL", "UINT16", "INT64"])
def test_every_element_type_survives_external_storage(name: str, linear: ModelMaker, tmp_path: Path) -> None:
    data_type = onnx.TensorProto.DataType.Value(name)
    model = linear()
    values = [value % 2 for value in range(20001)]
    model.graph.initializer.append(onnx.helper.make_tensor("other", data_type, [20001], values))
    save_model(model, tmp_path / "m.onnx")
    other = load_model(tmp_path / "m.onnx").graph.initializer[-1]
    np.testing.assert_array_equal(numpy_helper.to_array(other).astype(np.float64), values)


@pytest.mark.usefixtures("low_threshold")
def test_string_tensors_stay_inline(linear: ModelMaker, tmp_path: Path) -> None:
    model = linear()
    model.graph.initializer.append(onnx.helper.make_tensor("text", onnx.TensorProto.STRING, [1], [b"a" * 2000]))
    save_model(model, tmp_path / "m.onnx")
    assert load_model(tmp_path / "m.onnx") == model


def test_subgraph_weights_are_stored_externally(
    branching: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(files, "EXTERNAL_DATA_THRESHOLD", 1024)
    save_model(branching, tmp_path / "m.onnx")
    assert (tmp_path / "m.onnx.data").stat().st_size == 2048
    assert load_model(tmp_path / "m.onnx") == branching


@pytest.mark.usefixtures("low_threshold")
def test_graph_can_be_edited_without_its_weights(linear: ModelMaker, tmp_path: Path) -> None:
    for name in ("in", "out"):
        (tmp_path / name).mkdir()
    source, edited = tmp_path / "in" / "a.onnx", tmp_path / "out" / "b.onnx"
    save_model(linear(), source)
    weights = (tmp_path / "in" / "a.onnx.data").read_bytes()
    model = load_model(source, weights=False)
    assert model.ByteSize() < 1000
    model.graph.node[0].name = "renamed"
    for path in (edited, source):  # it may replace itself
        save_model(model, path)
        assert _names(path.parent) == [path.name, f"{path.name}.data"]
        assert path.with_name(f"{path.name}.data").read_bytes() == weights
        assert str(tmp_path).encode() not in path.read_bytes()
    np.testing.assert_array_equal(_run(edited), _run(source))
    resave(source, tmp_path / "c.onnx")
    assert (tmp_path / "c.onnx.data").read_bytes() == weights
    assert load_model(tmp_path / "c.onnx") == load_model(source)


@pytest.mark.parametrize("layout", ["large in files", "small in a file", "constants in a file"])
def test_foreign_external_layouts_are_converted(
    linear: ModelMaker, branching: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    theirs = tmp_path / "theirs" / "m.onnx"
    theirs.parent.mkdir()
    how: dict[str, object] = {"location": "w.bin"}
    if layout == "large in files":
        monkeypatch.setattr(files, "EXTERNAL_DATA_THRESHOLD", 4096)
        how = {"all_tensors_to_one_file": False}
    model = branching if layout.startswith("constants") else linear()
    save_model(model, tmp_path / "m.onnx")
    expected = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    assert len(expected) == (2 if "large" in layout else 1)
    onnx.save(model, theirs, save_as_external_data=True, size_threshold=0, convert_attribute=True, **how)
    assert inspect_model(theirs).external_data
    for name in expected:
        (tmp_path / name).unlink()
    resave(theirs, tmp_path / "m.onnx")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == expected


@pytest.mark.usefixtures("low_threshold")
def test_missing_short_and_misplaced_weights_are_distinguished(linear: ModelMaker, tmp_path: Path) -> None:
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


def test_basepath_in_model_file_is_ignored(branching: onnx.ModelProto, tmp_path: Path) -> None:
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


def test_invalid_model_is_an_input_error(linear: ModelMaker, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    with pytest.raises(InputError, match="does not exist"):
        load_model(path)
    content = linear().SerializeToString()
    for wrong in (b"", b"a text", content[:-300], content[: len(content) // 2]):
        path.write_bytes(wrong)
        with pytest.raises(InputError, match="not an ONNX model"):
            load_model(path)


@settings(max_examples=50)
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
    """128 MiB of weights: the first save takes little more memory than the model, the second almost none."""
    code = """
import onnx, resource, sys
from pathlib import Path
from winml_dag.onnxmodel.files import resave, save_model
model = onnx.ModelProto(ir_version=10, opset_import=[onnx.OperatorSetIdProto(version=21)])
for i in range(0 if Path("a.onnx").exists() else 8):
    model.graph.initializer.add(name=str(i), data_type=2, dims=[2**24], raw_data=bytes([i]) * 2**24)
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
before = peak()
if model.graph.initializer:
    save_model(model, Path("a.onnx"))
else:
    resave(Path("a.onnx"), Path("b.onnx"))
print(peak() - before)
"""
    for _ in range(2):
        told = subprocess.check_output([sys.executable, "-c", code], cwd=tmp_path)
        assert int(told) < 64 * 2**20  # a tensor and its copy, not the model
    assert (tmp_path / "a.onnx.data").stat().st_size == (tmp_path / "b.onnx.data").stat().st_size == 2**27
