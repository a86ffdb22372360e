"""Facts on builds for any format: names, tools, folders of many files, and universally readable texts."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packageurl import PackageURL

from winml_dag.pipeline.documents import BuildManifest
from winml_dag.report.provenance.facts import (
    BuildFacts,
    Dependency,
    ReadFile,
    Tool,
    encodable,
    last_part,
    without_places,
)

_TEXTS = st.text(st.characters(), max_size=8)  # lone surrogates too: a path may contain bytes that are not text
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXTS, inner, max_size=3),
    max_leaves=8,
)


@given(value=_JSON)
def test_encodable_values_survive_utf_8_and_float_only_readers(value: Any) -> None:
    told = encodable(value)
    text = json.dumps(told, ensure_ascii=False)
    assert json.loads(text.encode("utf-8"), parse_int=lambda digits: int(float(digits))) == told


@pytest.mark.parametrize(
    ("name", "called"),
    [
        ("org/name", "org/name"),
        ("bert with random weights", "bert with random weights"),
        ("/home/somebody/secret/net", "net"),
        ("C:\\Users\\somebody\\net", "net"),
        ("../models/net/", "net"),
        ("models/net.onnx", "net.onnx"),
    ],
)
def test_last_part_hides_local_paths(name: str, called: str) -> None:
    assert last_part(name) == called


def test_only_distributions_have_pypi_purl() -> None:
    assert Tool("onnxruntime_qnn", "2.7.0", "").purl == "pkg:pypi/onnxruntime-qnn@2.7.0"
    torch = Tool("torch", "2.13.0+cpu", "").purl
    assert PackageURL.from_string(torch).version == "2.13.0+cpu"
    library = Tool("qnn library libQnnHtp.so", "xxh3-128:" + "0" * 32, "")
    assert (library.purl, library.digest) == ("", ("xxh3_128", "0" * 32))
    assert Tool("processor", "Some Processor at 2 GHz", "").purl == ""
    assert Tool("onnx", "not installed", "").purl == ""


def _files(count: int, algorithm: str = "sha256") -> tuple[ReadFile, ...]:
    return tuple(ReadFile(f"{place:03}.npy", algorithm, f"{place:064x}", 1) for place in range(count))


@pytest.mark.parametrize("value", [10**400, -(10**400), float("inf"), float("nan"), True, "1", None])
def test_non_finite_or_non_numeric_value_is_missing(value: Any) -> None:
    assert BuildManifest.model_validate({"elapsed_seconds": value}).elapsed_seconds is None
    assert BuildManifest.model_validate({"elapsed_seconds": 1e308}).elapsed_seconds == 1e308


def test_folder_of_many_files_has_one_digest() -> None:
    assert Dependency("data", "calibration data", "sha256:00", _files(64)).folder_digest is None
    many = Dependency("data", "calibration data", "sha256:00", _files(65)[::-1])
    # Hash1 of golang.org/x/mod/sumdb/dirhash: "%x  %s\n" per file, ordered by name.
    lines = "".join(f"{place:064x}  {place:03}.npy\n" for place in range(65))
    assert many.folder_digest == ("dirHash", hashlib.sha256(lines.encode()).hexdigest())
    unknown = Dependency("data", "calibration data", "sha256:00", (*_files(64), *_files(1, "xxh3_128")))
    assert unknown.folder_digest is not None
    assert unknown.folder_digest[0] == "digestsSha256"


def test_tool_in_two_versions_has_no_wheel_digest() -> None:
    stages = [{"status": "completed", "toolchain": {"numpy": version, "onnx": "1.0"}} for version in ("1.0", "2.0")]
    wheels = {"numpy": "a" * 64, "onnx": "b" * 64}
    facts = BuildFacts("", {"stages": stages, "run": {"wheels": wheels}}, {}, (), ())
    assert [(tool.name, tool.version, tool.record[:1]) for tool in facts.tools] == [
        ("numpy", "1.0", ""),
        ("numpy", "2.0", ""),
        ("onnx", "1.0", "b"),
    ]
    assert all(re.fullmatch(r"pkg:pypi/[a-z]+@[0-9.]+", tool.purl) for tool in facts.tools)


def test_local_paths_in_config_are_shortened_to_last_part() -> None:
    given = {
        "model": "/home/somebody/net.onnx",
        "quant": {"calibration_data": "C:\\Users\\somebody\\data", "nodes_to_exclude": ["/layer/MatMul"], "samples": 4},
        "validate": {"input_data": "../../home/somebody/data.npz"},
        "export": {"output_tensors": [{"name": "/head/Gemm_output_0"}]},
        "loader": {"path": "models/net", "task": "fill-mask", "user_script": "..\\own.py"},
        "eval": {"model_id": "org/net"},
    }
    assert without_places(given) == {
        "model": "net.onnx",
        "quant": {"calibration_data": "data", "nodes_to_exclude": ["/layer/MatMul"], "samples": 4},
        "validate": {"input_data": "data.npz"},
        "export": {"output_tensors": [{"name": "/head/Gemm_output_0"}]},
        "loader": {"path": "models/net", "task": "fill-mask", "user_script": "own.py"},
        "eval": {"model_id": "org/net"},
    }
