"""Builds for OpenVINO, as a build of onnxruntime and as a plugin; ``make ep-openvino`` creates their environments."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from onnx_samples import perceptron
from scenario import Project, Result

from winml_dag.configuration import ENVIRONMENTS_VARIABLE
from winml_dag.onnxmodel.inspect import inspect_model

ROOT = Path(__file__).parents[2]
ENVIRONMENT, PLUGIN = ROOT / ".venv-openvino", ROOT / ".venv-openvino-plugin"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not ((ENVIRONMENT / "with-openvino").is_file() and (PLUGIN / "with-openvino").is_file()),
        reason="make ep-openvino has not made its environments",
    ),
]

TARGET = ("--ep", "openvino", "--device", "cpu", "--precision", "fp32")


@pytest.fixture
def openvino(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project with a model, with the environment configured."""
    perceptron(tmp_path / "model.onnx")
    monkeypatch.setenv(ENVIRONMENTS_VARIABLE, f"openvino={ENVIRONMENT}")
    return Project(tmp_path)


def build(project: Project, *arguments: str, out: str = "out") -> Result:
    finished = project.run("build", "--onnx", "model.onnx", *TARGET, "-o", out, "--format", "json", *arguments)
    return Result(finished.returncode, json.loads(finished.stdout), finished.stderr)


def stage(result: Result, name: str) -> dict[str, Any]:
    return next(entry for entry in result.stages if entry["stage"] == name)


def test_compiled_model_is_validated_in_openvino_environment(openvino: Project) -> None:
    """Not every processor can load what OpenVINO has compiled on it: whether this one can, onnxruntime itself tells."""
    compiled = stage(build(openvino, "--no-validate", out="unvalidated"), "compile")
    assert compiled["status"] == "ran"
    assert compiled["metrics"]["ep_context_partitions"] == 1
    python = ENVIRONMENT / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    load = "import sys, onnxruntime as ort; ort.InferenceSession(sys.argv[1], providers=['OpenVINOExecutionProvider'])"
    loading = openvino.finished([str(python), "-c", load, "unvalidated/model.onnx"])
    result = build(openvino)
    validated = stage(result, "validate")
    assert (result.code == 0) == (loading.returncode == 0), loading.stderr
    if result.code == 0:
        assert validated["metrics"]["assigned_nodes"] == {"OpenVINOExecutionProvider": {"EPContext": 1}}
        return
    assert validated["error"].startswith("OpenVINOExecutionProvider compiled this model and cannot load it back: ")
    assert validated["advice"].startswith("--no-compile ships the ONNX model, which OpenVINOExecutionProvider compiles")
    assert not openvino.out.exists()


def test_openvino_plugin_loads_its_compiled_model(openvino: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENVIRONMENTS_VARIABLE, f"openvino={PLUGIN}")
    result = build(openvino)
    if "finds no cpu on this machine" in stage(result, "compile").get("error", ""):
        pytest.skip("the plugin drives processors of Intel only")
    assert result.code == 0, result.messages
    validated = stage(result, "validate")["metrics"]
    assert validated["assigned_nodes"] == {"OpenVINOExecutionProvider": {"EPContext": 1}}
    assert validated["outputs"]["logits"]["cosine"] > 0.999
    (manifest,) = [entry for entry in openvino.manifest()["stages"] if entry["name"] == "compile"]
    assert "onnxruntime-ep-openvino" in manifest["toolchain"]
    assert inspect_model(openvino.out / "model.onnx").is_compiled


def test_openvino_compilation_is_deterministic(openvino: Project) -> None:
    contents = []
    for out in ("one", "two"):
        assert build(openvino, "--no-validate", "--rebuild", out=out).code == 0
        contents.append(openvino.contents(out))
    assert inspect_model(openvino.folder / "one" / "model.onnx").is_compiled
    models = [{name: data for name, data in files.items() if not name.endswith(".json")} for files in contents]
    assert models[0] == models[1]


def test_uncompiled_model_is_validated_on_openvino(openvino: Project) -> None:
    result = build(openvino, "--no-compile")
    assert result.code == 0, result.messages
    told = stage(result, "validate")["metrics"]
    assert told["execution_provider"] == "OpenVINOExecutionProvider"
    assert set(told["assigned_nodes"]) == {"OpenVINOExecutionProvider"}
    assert told["outputs"]["logits"]["cosine"] > 0.9999
    (manifest,) = [entry for entry in openvino.manifest()["stages"] if entry["name"] == "validate"]
    assert manifest["toolchain"]["onnxruntime-openvino"]
    assert any(name.startswith("openvino library ") for name in manifest["toolchain"])
    assert build(openvino, "--no-compile").ran == []
    quickly = ("--iterations", "3", "--warmup", "0", "--loads", "1", "--no-baseline")
    measured = json.loads(openvino.run("perf", "out", *quickly, "--format", "json").stdout)
    assert measured["execution_provider"] == "OpenVINOExecutionProvider"
    assert measured["onnxruntime"] == manifest["toolchain"]["onnxruntime-openvino"]


def test_missing_device_becomes_one_sentence(openvino: Project) -> None:
    result = build(openvino, "--no-compile", "--device", "npu")
    if result.code == 0:
        pytest.skip("this machine has an NPU that OpenVINO drives")
    assert stage(result, "validate")["error"].startswith(
        "OpenVINOExecutionProvider cannot be set up for device 'npu' here: "
    )
