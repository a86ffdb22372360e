"""Single-stage commands do what builds do, and both reuse each other's results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
from scenario import Project, with_status

from winml_dag import CommandResult, calibrate_onnx, compile_onnx, optimize_onnx, validate_onnx
from winml_dag.errors import MeasuredError, UsageError

pytestmark = pytest.mark.slow

DATA = ("--calibration-data", "data.npz")


@pytest.fixture(scope="module")
def shared(shared: Project) -> Project:
    """The same with a recipe."""
    pytest.importorskip("onnxruntime_qnn")
    shared.save("recipe.yaml", {"quant": {"calibration_data": "data.npz"}, "compile": {}})
    return shared


@pytest.fixture(scope="module")
def single(shared: Project) -> dict[str, Any]:
    """Return what each single-stage command tells. Each continues from the file of the previous one."""
    commands = {
        "optimize": ("-m", "model.onnx", "-o", "a/optimized.onnx", "-d", "qnn"),
        "calibrate": ("-m", "a/optimized.onnx", *DATA),
        "quantize": ("-m", "a/optimized.onnx", *DATA, "-p", "w8a16", "-d", "qnn", "-o", "a/quantized.onnx"),
        "compile": ("-m", "a/quantized.onnx", "-d", "qnn", "-o", "a/net.onnx"),
    }
    return {name: shared.told(name, *arguments) for name, arguments in commands.items()}


VALIDATE = ("validate", "cpu/quantized.onnx", "--reference", "model.onnx")


@pytest.fixture(scope="module")
def validated(shared: Project) -> dict[str, Any]:
    """Return what validate tells of the model of a build."""
    shared.told("build", "--onnx", "model.onnx", "-p", "w8a16", "-o", "cpu")
    told: dict[str, Any] = shared.told(*VALIDATE)
    return told


def test_build_reuses_all_single_stage_commands(shared: Project, single: dict[str, Any]) -> None:
    """The files have the names that a build gives them."""
    assert single["optimize"]["metrics"]["nodes_after"] < single["optimize"]["metrics"]["nodes_before"]
    assert single["optimize"]["validation"]["quality"]["cosine"] > 0.9999
    assert single["calibrate"]["output_path"] == str(Path("a/optimized_ranges.json"))
    assert json.loads((shared.folder / "a" / "optimized_ranges.json").read_text())["method"] == "minmax"
    assert with_status(single["quantize"], "reused") == ["calibrate"]
    assert single["compile"]["metrics"]["ep_context_partitions"] == 1
    assert {path.name for path in (shared.folder / "a").glob("net*")} == {"net.onnx", "net_qnn.bin"}

    build = ("build", "-c", "recipe.yaml", "--onnx", "model.onnx", "-d", "qnn", "-p", "w8a16", "-o", "built")
    built = shared.told(*build)
    assert with_status(built, "ran") == ["analyze", "validate", "finalize"]
    assert {"optimize", "calibrate", "quantize", "compile"} <= {*with_status(built, "reused")}


def test_single_stage_command_reuses_build(shared: Project) -> None:
    target = ("-d", "qnn", "--htp-optimization-level", "1", "--no-validate")
    shared.told("build", "-c", "recipe.yaml", "--onnx", "model.onnx", "-p", "w8a16", "-o", "built", *target)
    compiled = shared.told("compile", "-m", "built/quantized.onnx", "-o", "b.onnx", *target)
    assert with_status(compiled, "ran") == ["finalize"]
    assert compiled["cached"]


@pytest.mark.usefixtures("single")
def test_binary_is_restored_and_removed_with_its_model(shared: Project) -> None:
    compile_ = ("compile", "-m", "a/quantized.onnx", "-d", "qnn", "-o", "c/net.onnx", "--no-validate")
    shared.told(*compile_)
    (shared.folder / "c" / "net_qnn.bin").unlink()
    assert with_status(shared.told(*compile_), "ran") == []
    assert (shared.folder / "c" / "net_qnn.bin").exists()
    shared.told(*compile_, "--embed")
    assert [path.name for path in (shared.folder / "c").iterdir()] == ["net.onnx"]


@pytest.mark.usefixtures("single")
def test_validate_reuses_build_result_and_fails_below_bound(shared: Project, validated: dict[str, Any]) -> None:
    assert (validated["measured"], validated["precision"]) == ("cached", "w8a16")
    assert validated["outputs"]["logits"]["cosine"] > validated["min_cosine"] == 0.85
    alone = shared.told("validate", "a/net.onnx")
    assert (alone["execution_provider"], alone["reference"]) == ("QNNExecutionProvider", False)
    failed = shared.run(*VALIDATE, "--min-cosine", "1", "-f", "json")
    told = json.loads(failed.stdout)
    (error,) = told["errors"]
    assert failed.returncode == 1
    assert "below validate.min_cosine of 1" in error
    assert told["outputs"] == validated["outputs"]
    assert told["broken"] == {"logits": ["min_cosine"]}
    assert failed.stderr.count("not kept: min_cosine") == 1, failed.stderr


@pytest.mark.usefixtures("single")
def test_second_call_is_up_to_date_and_imports_no_heavy_modules(shared: Project) -> None:
    script = """
import sys
from winml_dag.cli import run
codes = [run(call) for call in (
    ["optimize", "-m", "model.onnx", "-o", "a/optimized.onnx", "-d", "qnn"],
    ["calibrate", "-m", "a/optimized.onnx", "--calibration-data", "data.npz"],
    ["quantize", "-m", "a/optimized.onnx", "--calibration-data", "data.npz", "-p", "w8a16", "-d", "qnn"],
    ["compile", "-m", "a/quantized.onnx", "-d", "qnn", "-o", "a/net.onnx"],
)]
heavy = {"torch", "transformers", "onnx", "onnxruntime", "numpy", "pydantic", "networkx", "rich"} & sys.modules.keys()
print(codes, sorted(heavy))
"""
    shared.python(script)  # recorded separately for each way of starting Python
    *lines, last = shared.python(script).splitlines()
    assert [line.partition(" (")[0] for line in lines] == [
        f"Up to date: {Path('a/optimized.onnx')}",
        f"Up to date: {Path('a/optimized_ranges.json')}",
        f"Up to date: {Path('a/optimized_quantized.onnx')}",
        f"Up to date: {Path('a/net.onnx')}",
    ]
    assert last == "[0, 0, 0, 0] []"


@pytest.mark.usefixtures("single", "validated")
def test_python_api_matches_commands(shared: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shared.folder)
    for name, value in shared.environment().items():
        monkeypatch.setenv(name, value)
    done = optimize_onnx("model.onnx", "a/optimized.onnx", ep="qnn")
    assert isinstance(done, CommandResult)
    assert (done.cached, done.output_path) == (True, Path("a/optimized.onnx"))
    assert done.quality is not None
    assert done.quality.cosine > 0.9999
    assert calibrate_onnx("a/optimized.onnx", calibration_data="data.npz").cached
    assert compile_onnx("a/quantized.onnx", "a/net.onnx", device="qnn", config={"embed_context": False}).cached
    done = validate_onnx("cpu/quantized.onnx", reference="model.onnx")
    assert done.cached
    assert done.quality is not None
    assert done.quality.cosine > 0.99
    with pytest.raises(MeasuredError, match=r"below validate\.min_cosine of 1") as failed:
        validate_onnx("cpu/quantized.onnx", reference="model.onnx", config={"min_cosine": 1.0})
    assert failed.value.metrics["outputs"] == done.metrics["outputs"]
    with pytest.raises(UsageError, match="Models share a binary, and CPUExecutionProvider has none"):
        compile_onnx("model.onnx", ep="cpu", also=["a/optimized.onnx"])


def test_export_reuses_exported_model_of_build(project: Project) -> None:
    export = ("export", "-m", "model", "-t", "text-classification", "-o", "bert.onnx")
    value = project.told(*export)
    assert value["cached"]
    assert value["metrics"]["max_abs_difference"] < 1e-5
    assert onnxruntime.InferenceSession(project.folder / "bert.onnx").get_outputs()[0].name == "logits"
    assert (project.folder / "bert_htp_metadata.json").read_bytes() == (
        project.folder / "out" / "export_htp_metadata.json"
    ).read_bytes()
