"""The output folder of a real build: the meaning of each file, its fields, and what becomes of it later."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import onnx
import pytest
from oneprocess import OneProcess
from onnx import ModelProto, TensorProto, numpy_helper
from onnx_samples import perceptron
from scenario import Project

from winml_dag import build_hf_model, build_onnx_model
from winml_dag.store.digest import digest_file

pytestmark = pytest.mark.slow

INTERMEDIATE = ("export.onnx", "optimized.onnx", "quantized.onnx", "compiled.onnx")
FILENAMES = {
    "export": "export.onnx",
    "optimize": "optimized.onnx",
    "analyze": "analyze_result.json",
    "calibrate": None,
    "quantize": "quantized.onnx",
    "compile": "compiled.onnx",
    "validate": None,
    "finalize": "model.onnx",
}


@pytest.fixture(scope="module")
def shared(built_project: Project, tmp_path_factory: pytest.TempPathFactory, commands: OneProcess | None) -> Project:
    """A copy of the built project, to which the tests of this file add folders."""
    folder = tmp_path_factory.mktemp("outputs") / "project"
    shutil.copytree(built_project.folder, folder)
    copy = Project(folder, commands)
    assert copy.build().ran == []
    return copy


def operators(model: ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in model.graph.node)


def test_output_folder_has_exactly_expected_files(built_project: Project) -> None:
    names = {*INTERMEDIATE, "model.onnx", "compiled_qnn.bin", "model_qnn.bin", "export_htp_metadata.json"}
    names |= {"analyze_result.json", "build_manifest.json", "winml_build_config.json"}
    assert set(built_project.contents()) == names
    assert {path.name for path in built_project.folder.iterdir()} == {"model", "recipe.yaml", "out", "cache"}


def test_each_intermediate_matches_its_name(built_project: Project) -> None:
    export, optimized, quantized, compiled = (onnx.load(built_project.out / name) for name in INTERMEDIATE)
    assert {tensor.data_type for tensor in export.graph.initializer} <= {TensorProto.FLOAT, TensorProto.INT64}
    assert not operators(export).keys() & {"QuantizeLinear", "DequantizeLinear", "EPContext"}
    assert len(optimized.graph.node) < len(export.graph.node)
    stated = {value.name for value in (*optimized.graph.value_info, *optimized.graph.output)}
    assert stated >= {name for node in optimized.graph.node for name in node.output if name}
    assert operators(quantized).keys() >= {"QuantizeLinear", "DequantizeLinear"}
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in quantized.graph.initializer}
    scales = {
        float(constants[node.input[1]])
        for node in quantized.graph.node
        if node.op_type == "QuantizeLinear" and constants[node.input[1]].ndim == 0
    }
    assert len(scales) > 10, "each activation has a scale of its own"
    assert operators(compiled)["EPContext"] == 1


def test_final_model_is_compiled_model_with_own_binary(built_project: Project) -> None:
    model, compiled = (onnx.load(built_project.out / f"{stem}.onnx") for stem in ("model", "compiled"))
    binaries = {}
    for stem, made in (("model", model), ("compiled", compiled)):
        (context,) = (node for node in made.graph.node if node.op_type == "EPContext")
        (named,) = (attribute for attribute in context.attribute if attribute.name == "ep_cache_context")
        assert named.s.decode() == f"{stem}_qnn.bin"
        binaries[stem] = (built_project.out / named.s.decode()).read_bytes()
        named.s = b""
    assert model == compiled
    assert binaries["model"] == binaries["compiled"] != b""


@pytest.mark.parametrize(
    ("options", "last"),
    [(("--no-compile",), "quantized"), (("--no-quant", "--no-compile"), "optimized")],
    ids=["no compile", "neither"],
)
def test_model_onnx_is_output_of_last_stage(shared: Project, options: tuple[str, ...], last: str) -> None:
    assert shared.build(*options, out=last).code == 0
    folder = shared.folder / last
    assert {name for name in INTERMEDIATE if (folder / name).exists()} == {
        *("export.onnx", "optimized.onnx", f"{last}.onnx")
    }
    assert (folder / "model.onnx").read_bytes() == (folder / f"{last}.onnx").read_bytes()


def test_export_metadata_has_modules_tracing_and_coverage(built_project: Project) -> None:
    found = built_project.json("out", "export_htp_metadata.json")
    assert found["modules"]["class_name"] == "BertForSequenceClassification"
    assert found["modules"]["children"]["bert"]["children"].keys() >= {"embeddings", "encoder"}
    assert found["tracing"]["modules_traced"] > 20
    assert found["tracing"]["outputs"] == ["logits"]
    statistics, nodes = found["statistics"], len(onnx.load(built_project.out / "export.onnx").graph.node)
    assert statistics["onnx_nodes"] == nodes
    assert statistics["coverage_percentage"] == pytest.approx(100 * statistics["tagged_nodes"] / nodes, abs=0.01)
    assert statistics["coverage_percentage"] > 90


def test_analysis_counts_and_classifies_operators(built_project: Project) -> None:
    analysis = built_project.json("out", "analyze_result.json")
    counts = operators(onnx.load(built_project.out / "optimized.onnx"))
    about = analysis["metadata"]
    assert about["operator_counts"] == dict(counts)
    assert (about["total_operators"], about["unique_operator_types"]) == (counts.total(), len(counts))
    assert about["opset_version"] == 21
    version = metadata.version("torch").partition("+")[0]
    assert (about["producer_name"], about["producer_version"]) == ("pytorch", version)
    assert about["detected_pattern_count"]
    (result,) = analysis["results"]
    assert (result["ihv_type"], result["ep_type"], result["device_type"]) == ("QC", "QNNExecutionProvider", "npu")
    assert result["classification"].keys() == {"supported", "partial", "unsupported", "unknown"}
    assert result["classification"]["supported"] == [f"OP/ai.onnx/{name}" for name in counts]
    assert (result["runtime_support"], result["has_errors"], result["has_warnings"]) == (True, False, False)
    # The manifest has the time, so that equal models give equal files.
    assert analysis["analysis_timestamp"] is None
    assert datetime.fromisoformat(built_project.manifest()["analysis_timestamp"])


def test_manifest_has_expected_fields_and_digests(built_project: Project) -> None:
    manifest = built_project.manifest()
    assert (manifest["schema_version"], manifest["task"]) == (1, "text-classification")
    assert "model" in manifest["model_id"]
    assert all(re.fullmatch("[0-9a-f]{64}", manifest[name]) for name in ("cache_key", "config_hash"))
    assert datetime.fromisoformat(manifest["timestamp"]).utcoffset() is not None
    assert manifest["elapsed_seconds"] > 0
    assert manifest["final_artifact"] == "model.onnx"
    assert (manifest["analyze_iterations"], manifest["analyze_unsupported_node_count"]) == (1, 0)
    assert manifest["analyze_details"].keys() == {"lint", "autoconf", "autoconf_not_converged"}
    for entry in manifest["files"]:
        path = built_project.out / entry["name"]
        assert (digest_file(path), path.stat().st_size) == (entry["digest"], entry["size"])
    stages = {stage["name"]: stage for stage in manifest["stages"]}
    assert [(stage["name"], stage["filename"]) for stage in manifest["stages"]] == list(FILENAMES.items())
    read = {"cache_key", "config_hash", "inputs", "outputs", "cached", "reason", "toolchain", "elapsed_seconds"}
    for stage in stages.values():
        assert stage["status"] == "completed"
        assert stage.keys() >= read
    assert stages["quantize"]["nodes_quantized"] > 0
    assert stages["quantize"]["nodes_skipped"] == 0
    assert stages["quantize"]["qdq_insertion_time_seconds"] > 0
    assert stages["calibrate"]["calibration_time_seconds"] > 0
    assert stages["calibrate"]["metrics"]["data"] == "random"
    assert stages["compile"]["ep_context_partitions"] == 1
    assert stages["compile"]["cpu_nodes"] == []
    assert stages["compile"]["ep_sdk_version"].startswith("v2.")
    assert stages["compile"]["binary_size_bytes"] > 0
    assert stages["compile"]["compile_time_seconds"] > 0
    # The chain of digests is closed: a stage reads what the previous one made.
    assert stages["compile"]["inputs"]["model"]["digest"] == stages["quantize"]["outputs"]["model"]["digest"]
    assert any(name.startswith("qnn library") for name in stages["compile"]["toolchain"])


def test_models_contain_no_local_paths(built_project: Project) -> None:
    for name, data in built_project.contents().items():
        if name.endswith((".onnx", ".bin", "metadata.json")):
            assert str(built_project.folder).encode() not in data, name
            assert b"/scratch/" not in data, name


def test_written_settings_give_same_build(shared: Project) -> None:
    settings = shared.json("out", "winml_build_config.json")
    assert settings["auto"] is False
    assert settings.keys() >= {"loader", "export", "optim", "quant", "compile"}
    assert settings["quant"]["weight_type"] == "uint8"
    assert settings["compile"]["provider_options"]["soc_model"]
    result = shared.build(recipe="out/winml_build_config.json", out="again")
    assert result.code == 0, result.messages
    assert result.ran == []
    assert shared.models("again") == shared.models()


def test_python_and_command_line_share_results(shared: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shared.folder)
    for name, value in shared.environment().items():
        monkeypatch.setenv(name, value)
    config = {"loader": {"task": "text-classification"}, "ep": "qnn", "precision": "w8a8", "quant": {"samples": 8}}
    for model, recipe in (("model", "recipe.yaml"), ("model", config), (None, {"model": Path("model"), **config})):
        result = build_hf_model(model, "python-out", config=recipe)
        assert [view.stage for view in result.stages if view.status == "ran"] == []
    here, there = shared.contents(), shared.contents("python-out")
    assert here.keys() == there.keys()
    assert {name for name in here if here[name] != there[name]} <= {"build_manifest.json", "winml_build_config.json"}
    assert shared.manifest().keys() == shared.manifest("python-out").keys()


def test_python_rebuild_runs_all_stages(tmp_path: Path) -> None:
    model, out = perceptron(tmp_path / "model.onnx"), tmp_path / "out"
    how: dict[str, Any] = {"cache_dir": tmp_path / "cache", "precision": "fp32", "ep": "cpu", "validate": False}
    how |= {"optimize": False, "analyze": False}
    for is_asked, ran in ((False, ["finalize"]), (False, []), (True, ["finalize"])):
        result = build_onnx_model(model, out, **how, rebuild=is_asked)
        assert [view.stage for view in result.stages if view.status == "ran"] == ran


def test_use_cache_keeps_results_in_cache_folder(shared: Project) -> None:
    (build,) = shared.told("build", "-c", "recipe.yaml", "--use-cache")["builds"]
    assert [stage["status"] for stage in build["stages"] if stage["status"] == "ran"] == []
    assert Path(build["final_artifact"]).is_relative_to(shared.cache / "outputs")
    assert Path(build["final_artifact"]).exists()


def test_exported_model_given_as_onnx_is_reused_and_not_replaced(shared: Project) -> None:
    before = (shared.out / "export.onnx").read_bytes()
    result = shared.build("--onnx", "out/export.onnx", out="from-onnx")
    assert result.code == 0, result.messages
    assert result.ran == []
    assert "export.onnx" in shared.refused("build", "--onnx", "out/export.onnx", "-o", "out", "--rebuild")
    assert (shared.out / "export.onnx").read_bytes() == before


def test_failed_build_leaves_folder_unchanged(shared: Project) -> None:
    before, times = shared.contents(), shared.times()
    result = shared.build("--set", "validate.min_cosine=0.99999999")
    assert result.code == 1
    assert result.with_status("failed") == ["validate"]
    assert "cosine" in result.messages
    assert (shared.contents(), shared.times()) == (before, times)


def test_up_to_date_build_imports_no_heavy_modules(shared: Project) -> None:
    script = """
import sys
from winml_dag.cli import run
for arguments in (["--help"], ["plan", "-c", "recipe.yaml", "-o", "out"], ["build", "-c", "recipe.yaml", "-o", "out"]):
    assert run(arguments) == 0
heavy = {"torch", "transformers", "onnx", "onnxruntime", "numpy", "networkx", "rich", "distributed"} & set(sys.modules)
assert not heavy, heavy
"""
    shared.python(script)


def test_concurrent_builds_into_one_folder_stay_consistent(tmp_path: Path, commands: OneProcess | None) -> None:
    """The folder has the files of one of them, consistently."""
    project = Project(tmp_path, commands)
    perceptron(tmp_path / "model.onnx")
    arguments = [
        ("build", "--onnx", "model.onnx", "-d", "cpu", "-p", precision, "--no-validate")
        for precision in ("fp32", "fp16")
    ]
    for each in arguments:  # so that both write their files at the same time
        project.says(*each, "-o", "before")
    for process in [project.start(*each, "-o", "shared") for each in arguments]:
        _, messages = process.communicate()
        assert process.returncode == 0, messages
    manifest = project.manifest("shared")
    assert manifest["precision"] in ("fp32", "fp16")
    for entry in manifest["files"]:
        assert digest_file(tmp_path / "shared" / entry["name"]) == entry["digest"]


@pytest.fixture
def copied(shared: Project) -> Path:
    """A copy of the output folder, ``copy``, that a test may change."""
    shutil.rmtree(shared.folder / "copy", ignore_errors=True)
    return shutil.copytree(shared.out, shared.folder / "copy")


def test_inspect_and_verify_report_compiled_output_and_damage(shared: Project, copied: Path) -> None:
    found = shared.told("inspect", "copy")
    assert found["is_compiled"]
    assert found["cpu_nodes"] == []
    assert found["precision"]["scheme"] == "compiled"
    assert found["provenance"]["precision"] == "w8a8"
    assert found["provenance"]["matches"] is True
    assert found["provenance"]["made_by"] == "finalize"
    (context,) = found["ep_context"]
    assert (context["source"], context["embedded"]) == ("QNNExecutionProvider", False)
    assert context["sdk_version"].startswith("v2.")
    assert found["ep_compatibility"]["QNNExecutionProvider"]
    (binary,) = found["files"]
    assert (binary["name"], binary["holds"], binary["present"]) == (context["file"], "binary", True)
    assert found["warnings"] == found["errors"] == []

    quantized = shared.told("inspect", "copy/quantized.onnx")
    assert (quantized["precision"]["name"], quantized["precision"]["scheme"]) == ("w8a8", "qdq")
    assert quantized["provenance"]["made_by"] == "quantize"

    assert shared.told("verify", "copy")["sound"]
    content = bytearray((copied / binary["name"]).read_bytes())
    content[len(content) // 2] ^= 1
    (copied / binary["name"]).write_bytes(content)  # onnxruntime loads such a binary without an error
    (checked,) = shared.told("verify", "copy/model.onnx", code=1)["folders"]
    assert {Path(file["path"]).name: file["found"] for file in checked["files"]} == {
        "model.onnx": "sound",
        binary["name"]: "changed",
    }
    (copied / binary["name"]).unlink()
    (error,) = shared.told("inspect", "copy", code=3)["errors"]
    assert f"{binary['name']}, which model.onnx needs, does not exist" in error


def test_intermediates_may_be_deleted(shared: Project, copied: Path) -> None:
    """``verify`` names them, and the model is still compared with the float model."""
    for name in (*INTERMEDIATE, "compiled_qnn.bin"):
        (copied / name).unlink()
    said = shared.says("verify", "copy")
    assert all(name in said for name in INTERMEDIATE)
    shared.says("eval", "copy", "--mode", "compare", "--samples", "2")
