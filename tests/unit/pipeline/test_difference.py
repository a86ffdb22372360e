"""The first difference of two files is reported in terms of their format."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from winml_dag.onnxmodel import difference, files
from winml_dag.onnxmodel.difference import first_difference
from winml_dag.pipeline.assess.reproduce import changed_files
from winml_dag.store.artifact import Artifact, FileEntry

properties = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def _told(folder: Path, name: str, before: bytes | None, now: bytes | None) -> str:
    for side, content in (("before", before), ("now", now)):
        (folder / side).mkdir(exist_ok=True)
        (folder / side / name).unlink(missing_ok=True)
        if content is not None:
            (folder / side / name).write_bytes(content)
    return first_difference(folder / "before", folder / "now", name)


@properties
@given(same=st.binary(max_size=40), before=st.binary(max_size=5), now=st.binary(max_size=5))
def test_first_differing_byte_is_found(tmp_path: Path, same: bytes, before: bytes, now: bytes) -> None:
    if before[:1] == now[:1]:
        before, now = b"a" + before, b"b" + now
    told = []
    for buffer in (8, 1 << 20):  # across buffers and within one
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(difference, "_BUFFER", buffer)
            told.append(_told(tmp_path, "file.bin", same + before, same + now))
    sizes = "" if len(before) == len(now) else f" ({len(same + before)} -> {len(same + now)} bytes)"
    assert told == [f"differs from byte {len(same)} on{sizes}"] * 2


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ('{"a": {"b": [1, {"c": 2}]}}', '{"a": {"b": [1, {"c": 3}]}}', "a.b[1].c: 2 -> 3"),
        ('{"a": 1}', '{"a": 1.0}', "a: 1 -> 1.0"),
        ('{"a": 1}', '{"a": 1, "b": null}', "b: absent -> null"),
        ('{"a": [1, 2]}', '{"a": [1]}', "a[1]: 2 -> absent"),
        ('{"a": {}}', '{"a": []}', "a: {} -> []"),
        ('"x"', '"y"', 'the value: "x" -> "y"'),
        ('{"a": 1}', '{"a":  1}', "differs from byte 6 on (8 -> 9 bytes)"),
        ('{"a": 1}', "not JSON", "differs from byte 0 on"),
    ],
)
def test_json_difference_is_reported_by_path(tmp_path: Path, before: str, now: str, expected: str) -> None:
    assert _told(tmp_path, "report.json", before.encode(), now.encode()) == expected


def test_file_on_one_side_only_is_reported(tmp_path: Path) -> None:
    assert _told(tmp_path, "a.txt", b"a", None) == "present -> absent"
    assert _told(tmp_path, "a.txt", None, b"a") == "absent -> present"
    before = Artifact.of([FileEntry("a", "xxh3-128:" + "0" * 32, 1), FileEntry("b", "xxh3-128:" + "0" * 32, 1)])
    now = Artifact.of([FileEntry("b", "xxh3-128:" + "1" * 32, 1), FileEntry("c", "xxh3-128:" + "0" * 32, 1)])
    assert changed_files(before, now) == ("a", "b", "c")


def test_invalid_model_difference_is_reported_by_byte(tmp_path: Path) -> None:
    assert _told(tmp_path, "model.onnx", b"no model", b"no Model") == "differs from byte 3 on"


def test_unreadable_tensor_difference_is_reported_by_byte(tmp_path: Path) -> None:
    models = []
    for value in (b"\1", b"\2"):
        tensor = onnx.TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2])
        tensor.float_data.append(value[0])
        models.append(helper.make_model(helper.make_graph([], "g", [], [], [tensor])).SerializeToString())
    assert _told(tmp_path, "model.onnx", *models).startswith("differs from byte ")


def test_external_weight_difference_is_reported_by_tensor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "EXTERNAL_DATA_THRESHOLD", 4096)
    for side, value in (("before", 0.5), ("now", 0.25)):
        (tmp_path / side).mkdir()
        weight = np.zeros((64, 64), np.float32)
        weight[3, 5] = value
        graph = helper.make_graph([], "g", [], [], [numpy_helper.from_array(weight, "weight")])
        files.save_model(helper.make_model(graph), tmp_path / side / "model.onnx")
    assert (tmp_path / "before" / "model.onnx").read_bytes() == (tmp_path / "now" / "model.onnx").read_bytes()
    told = first_difference(tmp_path / "before", tmp_path / "now", "model.onnx.data")
    assert told == "initializer 'weight' (float32 [64, 64]), element [3, 5]: 0.5 -> 0.25"


def test_external_padding_difference_is_reported_by_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "EXTERNAL_DATA_THRESHOLD", 4096)
    for side in ("before", "now"):
        (tmp_path / side).mkdir()
        weights = [numpy_helper.from_array(np.zeros(1500, np.float32), name) for name in "ab"]
        model = helper.make_model(helper.make_graph([], "g", [], [], weights))
        files.save_model(model, tmp_path / side / "model.onnx")
    with (tmp_path / "now" / "model.onnx.data").open("r+b") as file:
        file.seek(6000)  # after the first tensor's 6000 bytes
        file.write(b"x")
    told = first_difference(tmp_path / "before", tmp_path / "now", "model.onnx.data")
    assert told == "differs from byte 6000 on"


def test_compiled_binary_difference_is_reported_by_name_and_byte(tmp_path: Path) -> None:
    for side in ("before", "now"):
        (tmp_path / side).mkdir()
        node = helper.make_node(
            "EPContext", ["x"], ["y"], domain="com.microsoft", embed_mode=0, ep_cache_context="compiled_qnn.bin"
        )
        model = helper.make_model(helper.make_graph([node], "g", [], []))
        (tmp_path / side / "compiled.onnx").write_bytes(model.SerializeToString())
    told = _told(tmp_path, "compiled_qnn.bin", b"\0" * 20, b"\0" * 10 + b"\1" * 10)
    assert told == "the binary of compiled.onnx differs from byte 10 on"
