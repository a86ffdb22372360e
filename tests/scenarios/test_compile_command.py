"""``winml-dag compile``: what is compiled, for which target and from what, and what is done with a compiled model.

The time that a compiled model saves when loading is measured by perf and not asserted: it depends on the machine.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper
from onnx_samples import compiled, perceptron
from scenario import Project, needs_qnn, with_status

from winml_dag.onnxmodel.inspect import inspect_model

pytestmark = pytest.mark.slow

QUANT = {"calibration_data": "data.npz", "samples": 5, "weight_type": "uint8", "activation_type": "uint16"}
QNN = ("--ep", "qnn")


@pytest.fixture(scope="module")
def shared(shared: Project) -> Project:
    """The same with recipes, and a model that is compiled for another provider."""
    compiled(shared.folder / "openvino.onnx", "OpenVINOExecutionProvider")
    shared.save("quantizing.yaml", {"compile": {"quant_config": QUANT}})
    shared.save("quant.yaml", {"quant": QUANT})
    shared.save("plain.yaml", {"model": "model.onnx", "validate": {"samples": 1}})
    return shared


@pytest.fixture(scope="module")
def made(shared: Project) -> Project:
    """The same with the model quantized, and that compiled with the binary beside it and inside."""
    shared.says("quantize", "-m", "model.onnx", "-c", "quant.yaml", *QNN, "-o", "qdq.onnx", "--no-validate")
    shared.says("compile", "-m", "qdq.onnx", *QNN, "-o", "beside/net.onnx")
    shared.says("compile", "-m", "qdq.onnx", *QNN, "-o", "inside/net.onnx", "--embed", "--no-validate")
    return shared


def keys(told: dict[str, Any], *stages: str) -> dict[str, str]:
    return {stage["stage"]: stage["cache_key"] for stage in told["stages"] if stage["stage"] in stages}


def context(path: Path) -> dict[str, Any]:
    """Return the attributes of the only EPContext node of a model that has no other nodes but Q and DQ."""
    nodes = onnx.load(path).graph.node
    (found,) = (node for node in nodes if node.op_type == "EPContext")
    assert {node.op_type for node in nodes} <= {"EPContext", "QuantizeLinear", "DequantizeLinear"}
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in found.attribute}


def outputs(model: Path) -> np.ndarray:
    """Return what onnxruntime by itself computes with *model*."""
    x = np.random.default_rng(2).normal(size=(4, 64)).astype(np.float32)
    return onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]


@needs_qnn
def test_compile_quant_config_reuses_quantize_stages(shared: Project) -> None:
    net = shared.told("compile", "-m", "model.onnx", "-c", "quantizing.yaml", "-d", "qnn", "-o", "net.onnx")
    assert with_status(net, "ran") == ["calibrate", "quantize", "compile", "validate", "finalize"]
    assert net["metrics"]["ep_context_partitions"] == 1
    assert context(shared.folder / "net.onnx")["source"] == b"QNNExecutionProvider"
    assert net["validation"]["data"] == "npz"  # compared with the float model, on samples kept back
    quantize = ("quantize", "-m", "model.onnx", "-c", "quant.yaml", "-d", "qnn", "-o", "quantized.onnx")
    assert keys(shared.told(*quantize), "calibrate", "quantize") == keys(net, "calibrate", "quantize")
    again = shared.told("compile", "-m", "quantized.onnx", "-d", "qnn", "-o", "again.onnx")
    assert keys(again, "compile") == keys(net, "compile")


@needs_qnn
def test_python_compile_accepts_every_form_of_config(shared: Project) -> None:
    shared.python(f"""
from winml_dag import WinMLCompileConfig, WinMLQuantizationConfig, compile_onnx
quant = {QUANT!r}
given = {{"execution_provider": "qnn", "quant_config": quant}}
for name, config in {{
    "fields": given,
    "config": {{**given, "quant_config": WinMLQuantizationConfig.from_dict(quant)}},
    "whole": WinMLCompileConfig.from_dict(given),
}}.items():
    done = compile_onnx("model.onnx", name + ".onnx", config=config)
    assert done.metrics["ep_context_partitions"] == 1, done
    assert done.validation["data"] == "npz", done
""")
    binaries = [(shared.folder / f"{name}_qnn.bin").read_bytes() for name in ("fields", "config", "whole")]
    assert binaries[0] == binaries[1] == binaries[2]


@needs_qnn
def test_compiled_network_is_one_cached_partition(
    made: Project,
) -> None:
    again = made.told("compile", "-m", "qdq.onnx", *QNN, "-o", "beside/net.onnx", "--compiler", "ort")
    assert again["cached"]
    assert with_status(again, "ran") == []
    assert not {"calibrate", "quantize"} & {*with_status(again, "reused")}, "it compiles what it is given"
    assert (again["metrics"]["ep_context_partitions"], again["metrics"]["cpu_nodes"]) == (1, [])
    assert again["validation"]["execution_provider"] == "QNNExecutionProvider"
    assert again["validation"]["assigned_nodes"]["QNNExecutionProvider"] == {"EPContext": 1}
    assert again["validation"]["quality"]["cosine"] > 0.99
    folder = made.folder / "beside"
    assert {path.name for path in folder.iterdir()} == {"net.onnx", "net_qnn.bin"}
    node = context(folder / "net.onnx")
    assert (node["embed_mode"], node["ep_cache_context"]) == (0, b"net_qnn.bin"), "a path relative to the model"
    assert (folder / "net.onnx").stat().st_size < (folder / "net_qnn.bin").stat().st_size / 4
    # Embedded, there is one file that is larger by the binary.
    inside, binary = made.folder / "inside", (folder / "net_qnn.bin").read_bytes()
    assert [path.name for path in inside.iterdir()] == ["net.onnx"]
    node = context(inside / "net.onnx")
    assert (node["embed_mode"], len(node["ep_cache_context"])) == (1, len(binary))
    grown = (inside / "net.onnx").stat().st_size - (folder / "net.onnx").stat().st_size
    assert abs(grown - len(binary)) < 100
    value = made.told("compile", "-m", "qdq.onnx", "-c", "quantizing.yaml", "-d", "qnn", "-o", "as-it-is.onnx")
    assert "quantize" not in with_status(value, "ran")
    assert "compile.quant_config has no effect: qdq.onnx is quantized already." in value["warnings"]


@needs_qnn
def test_compiled_and_quantized_models_are_measured_and_evaluated(made: Project) -> None:
    once = ("--iterations", "1", "--warmup", "0", "--loads", "1", "--no-baseline")
    perf = made.told("perf", "beside/net.onnx", *QNN, *once)
    evaluated = made.told("eval", "beside/net.onnx", "--mode", "compare", *QNN, "--reference", "qdq.onnx")
    for told in (perf, evaluated):
        assert told["assigned_nodes"]["QNNExecutionProvider"] == {"EPContext": 1}
    assert made.told("perf", "qdq.onnx", "--ep", "cpu", *once)["latency_ms"]["mean"] > 0


@needs_qnn
def test_missing_binary_is_reported(made: Project) -> None:
    (made.folder / "lost").mkdir()
    shutil.copy(made.folder / "beside" / "net.onnx", made.folder / "lost")
    validate = ("validate", "lost/net.onnx", *QNN, "--reference", "qdq.onnx")
    assert "net_qnn.bin" in made.says(*validate, code=3)
    shutil.copy(made.folder / "beside" / "net_qnn.bin", made.folder / "lost")
    assert made.told(*validate)["success"]


@needs_qnn
def test_float_model_compiles_unquantized_and_low_quality_fails(made: Project) -> None:
    compile_ = ("compile", "-m", "model.onnx", *QNN)
    unchecked = made.told(*compile_, "-o", "float.onnx", "--no-validate")
    assert unchecked["metrics"]["ep_context_partitions"] == 1
    assert unchecked["validation"] is None
    done = {*with_status(unchecked, "ran"), *with_status(unchecked, "reused")}
    assert not {"calibrate", "quantize", "validate"} & done
    assert "cosine" in made.says(*compile_, "-o", "far.onnx", "--min-cosine", "1", code=1)
    assert not (made.folder / "far.onnx").exists()


@needs_qnn
def test_quantizing_models_that_share_binary_is_refused(shared: Project) -> None:
    perceptron(shared.folder / "second.onnx", seed=1)
    several = ("compile", "-m", "model.onnx", "-m", "second.onnx", "-d", "qnn", "--output-dir", "several")
    assert "compile.quant_config is for one model at a time" in shared.says(*several, "-c", "quantizing.yaml", code=2)
    assert not (shared.folder / "several").exists()


@pytest.mark.parametrize(("ep", "name"), [("cpu", "CPUExecutionProvider"), ("dml", "DmlExecutionProvider")])
def test_compile_without_compiler_gives_optimized_model(shared: Project, ep: str, name: str) -> None:
    value = shared.told("compile", "-m", "model.onnx", "--ep", ep, "-o", f"{ep}.onnx")
    model, nothing = (
        shared.folder / f"{ep}.onnx",
        f"Nothing was compiled ahead of time: {name} runs the ONNX model as it is.",
    )
    assert nothing in value["warnings"]
    assert value["metrics"]["nodes_after"] < value["metrics"]["nodes_before"]
    assert value["validation"]["quality"]["cosine"] > 0.9999
    np.testing.assert_allclose(outputs(model), outputs(shared.folder / "model.onnx"), rtol=1e-4, atol=1e-5)
    optimized = shared.told("optimize", "-m", "model.onnx", "--ep", ep, "-o", f"{ep}-optimized.onnx")
    assert keys(value, "optimize", "validate") == keys(optimized, "optimize", "validate")
    assert model.read_bytes() == (shared.folder / f"{ep}-optimized.onnx").read_bytes()
    said = shared.says("compile", "-m", "model.onnx", "--ep", ep, "-o", f"{ep}-said.onnx", "--no-validate")
    assert f"note: {nothing}" in said
    assert "optimized 5 -> 3 nodes" in said
    assert "compiled for" not in said


def test_compile_for_cpu_quantizes_and_missing_provider_is_refused(shared: Project) -> None:
    value = shared.told("compile", "-m", "model.onnx", "-c", "quantizing.yaml", "--ep", "cpu", "-o", "cpu8.onnx")
    assert {"optimize", "calibrate", "quantize"} <= {stage["stage"] for stage in value["stages"]}
    assert inspect_model(shared.folder / "cpu8.onnx").is_quantized
    assert np.isfinite(outputs(shared.folder / "cpu8.onnx")).all()
    said = shared.says("compile", "-m", "model.onnx", "--ep", "vitisai", "-o", "vitisai.onnx", code=2)
    assert "VitisAIExecutionProvider is not installed here" in said


@needs_qnn
def test_build_compiles_for_target_of_command_line(shared: Project) -> None:
    said = shared.says("build", "-c", "plain.yaml", "--device", "qnn", "-o", "named")
    assert "compiled for QNNExecutionProvider npu: 1 partition" in said
    assert context(shared.folder / "named" / "model.onnx")
    assert shared.manifest("named")["execution_provider"] == "QNNExecutionProvider"
    for target in (("--ep", "qnn"), ("--device", "npu", "--ep", "qnn")):
        assert "Up to date" in shared.says("build", "-c", "plain.yaml", *target, "-o", "named")


# A compiled model is recognized by its nodes, whatever its file is called.


@needs_qnn
def test_compiled_model_passes_through_build_on_its_provider(made: Project) -> None:
    value = made.told("build", "--onnx", "inside/net.onnx", "--no-optimize", "--no-analyze", "-o", "carried")
    assert with_status(value, "ran") == ["validate", "finalize"]
    manifest = made.manifest("carried")
    assert (manifest["execution_provider"], manifest["device"]) == ("QNNExecutionProvider", "npu")
    assert made.stage("validate", "carried")["metrics"]["execution_provider"] == "QNNExecutionProvider"
    assert context(made.folder / "carried" / "model.onnx")


@needs_qnn
@pytest.mark.parametrize(("command", "participle"), [("optimize", "optimized"), ("quantize", "quantized")])
@pytest.mark.parametrize(
    ("model", "provider"), [("beside/net", "QNN"), ("inside/net", "QNN"), ("openvino", "OpenVINO")]
)
def test_compiled_model_is_refused_by_optimize_and_quantize(
    made: Project, model: str, provider: str, command: str, participle: str
) -> None:
    def stored() -> set[Path]:
        return {path for kind in ("records", "blobs") for path in (made.cache / kind).rglob("*")}

    before = stored()
    assert before
    assert made.refused(command, "-m", f"{model}.onnx", "-o", "none.onnx") == (
        f"{model}.onnx is a compiled model: its EPContext nodes hold the binary of {provider}ExecutionProvider, "
        f"which cannot be {participle}. Use the ONNX model that it was compiled from."
    )
    # Nor is a recipe written that a build would refuse.
    assert f"{model}.onnx is a compiled model" in made.says(
        "config", "--onnx", f"{model}.onnx", "-o", "none.json", code=2
    )
    assert not list(made.folder.glob("none.*"))
    assert stored() == before


def test_model_compiled_for_other_provider_does_not_blame_target(shared: Project) -> None:
    skipped = ("--no-quant", "--no-optimize", "--no-analyze", "--no-compile")
    done = shared.run("build", "--onnx", "openvino.onnx", *QNN, *skipped, "-o", "wrong")
    assert done.returncode != 0
    assert "OpenVINOExecutionProvider" in done.stderr
    assert "QNNExecutionProvider compiled this model" not in done.stderr
