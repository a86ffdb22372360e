"""What is compiled, for which target and from what, including providers that compile nothing and unquantized models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from oneprocess import OneProcess
from onnx_samples import perceptron, samples
from scenario import Project

from winml_dag.onnxmodel.inspect import inspect_model

pytestmark = pytest.mark.slow

QUANT = {"calibration_data": "data.npz", "samples": 5, "weight_type": "uint8", "activation_type": "uint16"}
NOTHING_COMPILED = "Nothing was compiled ahead of time: {} runs the ONNX model as it is."


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, commands: OneProcess | None) -> Project:
    """A model, data, recipes, and a cache that the tests of this file fill together."""
    project = Project(tmp_path_factory.mktemp("compile"), commands)
    perceptron(project.folder / "model.onnx")
    samples(project.folder / "data.npz")
    for name, recipe in {
        "quantizing": {"compile": {"quant_config": QUANT}},
        "quant": {"quant": QUANT},
        "plain": {"model": "model.onnx", "validate": {"samples": 1}},
    }.items():
        (project.folder / f"{name}.json").write_text(json.dumps(recipe), encoding="utf-8")
    return project


def told(project: Project, *arguments: str) -> dict[str, Any]:
    finished = project.run(*arguments, "--format", "json")
    assert finished.returncode == 0, finished.stderr
    value: dict[str, Any] = json.loads(finished.stdout)
    return value


def with_status(stages: list[dict[str, Any]], status: str) -> list[str]:
    return [stage["stage"] for stage in stages if stage["status"] == status]


def keys(value: dict[str, Any], *stages: str) -> dict[str, str]:
    return {stage["stage"]: stage["cache_key"] for stage in value["stages"] if stage["stage"] in stages}


def finite(model: Path) -> bool:
    """Return whether the runtime loads *model* by itself, and its outputs are finite."""
    x = np.random.default_rng(2).normal(size=(4, 64)).astype(np.float32)
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return all(np.isfinite(output).all() for output in session.run(None, {"x": x}))


def partitions(model: Path) -> int:
    return sum(node.op_type == "EPContext" for node in onnx.load(model, load_external_data=False).graph.node)


def test_the_quant_config_of_compile_quantizes_by_the_stages_of_quantize(shared: Project) -> None:
    pytest.importorskip("onnxruntime_qnn")
    compiled = told(shared, "compile", "-m", "model.onnx", "-c", "quantizing.json", "-d", "qnn", "-o", "net.onnx")
    assert with_status(compiled["stages"], "ran") == ["calibrate", "quantize", "compile", "validate", "finalize"]
    assert partitions(shared.folder / "net.onnx") == compiled["metrics"]["ep_context_partitions"] == 1
    assert compiled["validation"]["data"] == "npz"  # compared with the float model, on samples kept back
    quantized = told(shared, "quantize", "-m", "model.onnx", "-c", "quant.json", "-d", "qnn", "-o", "quantized.onnx")
    of_quantize = keys(quantized, "calibrate", "quantize")
    assert keys(compiled, "calibrate", "quantize") == of_quantize
    again = told(shared, "compile", "-m", "quantized.onnx", "-d", "qnn", "-o", "again.onnx")
    assert keys(again, "compile") == keys(compiled, "compile")


def test_python_hands_on_the_whole_compile_section(shared: Project) -> None:
    pytest.importorskip("onnxruntime_qnn")
    script = f"""
from winml_dag import WinMLQuantizationConfig, compile_onnx
quant = {QUANT!r}
for name, config in {{"fields": quant, "config": WinMLQuantizationConfig.from_dict(quant)}}.items():
    done = compile_onnx("model.onnx", name + ".onnx", config={{"execution_provider": "qnn", "quant_config": config}})
    assert done.metrics["ep_context_partitions"] == 1, done
    assert done.validation["data"] == "npz", done
"""
    finished = shared.python(script)
    assert finished.returncode == 0, finished.stderr
    assert (shared.folder / "fields_qnn.bin").read_bytes() == (shared.folder / "config_qnn.bin").read_bytes()


def test_a_quantized_model_is_compiled_as_it_is_and_that_is_said(shared: Project) -> None:
    pytest.importorskip("onnxruntime_qnn")
    told(shared, "quantize", "-m", "model.onnx", "-c", "quant.json", "-d", "qnn", "-o", "qdq.onnx")
    value = told(shared, "compile", "-m", "qdq.onnx", "-c", "quantizing.json", "-d", "qnn", "-o", "as-it-is.onnx")
    assert "quantize" not in with_status(value["stages"], "ran")
    assert "compile.quant_config has no effect: qdq.onnx is quantized already." in value["warnings"]


def test_models_that_share_a_binary_are_not_quantized_on_the_way(shared: Project) -> None:
    pytest.importorskip("onnxruntime_qnn")
    perceptron(shared.folder / "second.onnx", seed=1)
    several = ("compile", "-m", "model.onnx", "-m", "second.onnx", "-d", "qnn", "--output-dir", "several")
    refused = shared.run(*several, "-c", "quantizing.json")
    assert refused.returncode == 2
    assert "compile.quant_config is for one model at a time" in refused.stderr
    assert not (shared.folder / "several").exists()


@pytest.mark.parametrize(("ep", "name"), [("cpu", "CPUExecutionProvider"), ("dml", "DmlExecutionProvider")])
def test_compile_for_a_provider_that_runs_onnx_gives_the_model_optimized_for_it(
    shared: Project, ep: str, name: str
) -> None:
    value = told(shared, "compile", "-m", "model.onnx", "--ep", ep, "-o", f"{ep}.onnx")
    model = shared.folder / f"{ep}.onnx"
    assert NOTHING_COMPILED.format(name) in value["warnings"]
    assert value["metrics"]["nodes_after"] < value["metrics"]["nodes_before"]
    assert value["validation"]["quality"]["cosine"] > 0.9999
    assert finite(model)
    optimized = told(shared, "optimize", "-m", "model.onnx", "--ep", ep, "-o", f"{ep}-optimized.onnx")
    assert keys(value, "optimize", "validate") == keys(optimized, "optimize", "validate")
    assert model.read_bytes() == (shared.folder / f"{ep}-optimized.onnx").read_bytes()


def test_what_compile_says_where_nothing_is_compiled(shared: Project) -> None:
    finished = shared.run("compile", "-m", "model.onnx", "-o", "plain.onnx", "--no-validate")
    assert finished.returncode == 0, finished.stderr
    assert f"note: {NOTHING_COMPILED.format('CPUExecutionProvider')}" in finished.stdout + finished.stderr
    assert "optimized 5 -> 3 nodes" in finished.stdout
    assert "compiled for" not in finished.stdout


def test_compile_for_the_cpu_quantizes_too(shared: Project) -> None:
    value = told(shared, "compile", "-m", "model.onnx", "-c", "quantizing.json", "--ep", "cpu", "-o", "cpu8.onnx")
    assert {"optimize", "calibrate", "quantize"} <= {stage["stage"] for stage in value["stages"]}
    assert inspect_model(shared.folder / "cpu8.onnx").is_quantized
    assert finite(shared.folder / "cpu8.onnx")


@pytest.mark.parametrize("target", [("--device", "qnn"), ("--ep", "qnn"), ("--device", "npu", "--ep", "qnn")])
def test_a_build_compiles_for_the_target_that_the_command_line_names(shared: Project, target: tuple[str, ...]) -> None:
    pytest.importorskip("onnxruntime_qnn")
    finished = shared.run("build", "-c", "plain.json", *target, "-o", "named")
    assert finished.returncode == 0, finished.stderr
    assert "compiled for QNNExecutionProvider npu: 1 partition" in finished.stdout or "Up to date" in finished.stdout
    assert partitions(shared.folder / "named" / "model.onnx") == 1
    assert shared.manifest("named")["execution_provider"] == "QNNExecutionProvider"


def test_a_compiled_model_is_carried_through_a_build_on_its_own_provider(shared: Project) -> None:
    pytest.importorskip("onnxruntime_qnn")
    told(shared, "compile", "-m", "model.onnx", "-d", "qnn", "-o", "ready.onnx", "--no-validate")
    value = told(shared, "build", "--onnx", "ready.onnx", "--no-optimize", "--no-analyze", "-o", "carried")
    assert with_status(value["builds"][0]["stages"], "ran") == ["validate", "finalize"]
    manifest = shared.manifest("carried")
    assert (manifest["execution_provider"], manifest["device"]) == ("QNNExecutionProvider", "npu")
    validated = next(stage for stage in manifest["stages"] if stage["name"] == "validate")
    assert validated["metrics"]["execution_provider"] == "QNNExecutionProvider"
    assert partitions(shared.folder / "carried" / "model.onnx") == 1
