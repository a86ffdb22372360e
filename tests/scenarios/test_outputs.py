"""The contents of the output folder: every file under its name, and a manifest that says where each came from."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path

import onnx
import pytest
from scenario import Project

from winml_dag.store.digest import digest_file

pytestmark = pytest.mark.slow

FIELDS_OF_WINML_CLI = {
    "schema_version",
    "model_id",
    "task",
    "cache_key",
    "config_hash",
    "timestamp",
    "elapsed_seconds",
    "final_artifact",
    "analyze_iterations",
    "analyze_unsupported_node_count",
    "analyze_details",
    "stages",
}


def test_every_file_has_its_name(project: Project) -> None:
    assert set(project.contents()) == {
        "export.onnx",
        "export_htp_metadata.json",
        "optimized.onnx",
        "quantized.onnx",
        "compiled.onnx",
        "compiled_qnn.bin",
        "model.onnx",
        "model_qnn.bin",
        "analyze_result.json",
        "build_manifest.json",
        "winml_build_config.json",
    }


def test_the_analysis_says_what_the_model_was_exported_with(project: Project) -> None:
    analysis = json.loads((project.out / "analyze_result.json").read_text(encoding="utf-8"))
    version = metadata.version("torch").partition("+")[0]
    assert (analysis["metadata"]["producer_name"], analysis["metadata"]["producer_version"]) == ("pytorch", version)


@pytest.mark.parametrize("stem", ["model", "compiled"])
def test_the_sidecar_lies_under_the_name_that_the_model_refers_to(project: Project, stem: str) -> None:
    model = onnx.load(project.out / f"{stem}.onnx")
    nodes = [node for node in model.graph.node if node.op_type == "EPContext"]
    names = {
        attribute.s.decode() for node in nodes for attribute in node.attribute if attribute.name == "ep_cache_context"
    }
    assert names == {f"{stem}_qnn.bin"}
    assert (project.out / f"{stem}_qnn.bin").stat().st_size > 0


def test_the_manifest_has_the_fields_that_users_know_and_accounts_for_every_byte(project: Project) -> None:
    manifest = project.manifest()
    assert manifest.keys() >= FIELDS_OF_WINML_CLI
    assert manifest["analyze_details"].keys() == {"lint", "autoconf", "autoconf_not_converged"}
    for entry in manifest["files"]:
        path = project.out / entry["name"]
        assert (digest_file(path), path.stat().st_size) == (entry["digest"], entry["size"])
    stages = {stage["name"]: stage for stage in manifest["stages"]}
    assert [stage["name"] for stage in manifest["stages"]] == [
        "export",
        "optimize",
        "analyze",
        "calibrate",
        "quantize",
        "compile",
        "validate",
        "finalize",
    ]
    assert {name: stage["filename"] for name, stage in stages.items()} == {
        "export": "export.onnx",
        "optimize": "optimized.onnx",
        "analyze": "analyze_result.json",
        "calibrate": None,
        "quantize": "quantized.onnx",
        "compile": "compiled.onnx",
        "validate": None,
        "finalize": "model.onnx",
    }
    assert stages["quantize"]["nodes_quantized"] > 0
    assert stages["quantize"]["qdq_insertion_time_seconds"] > 0
    assert stages["calibrate"]["calibration_time_seconds"] > 0
    assert stages["calibrate"]["metrics"]["data"] == "random"
    assert stages["compile"]["ep_context_partitions"] == 1
    assert stages["compile"]["cpu_nodes"] == []
    assert stages["compile"]["ep_sdk_version"].startswith("v2.")
    assert stages["compile"]["binary_size_bytes"] > 0
    assert stages["compile"]["compile_time_seconds"] > 0
    completed = [stage for stage in stages.values() if stage["status"] == "completed"]
    for stage in completed:
        assert stage.keys() >= {
            "cache_key",
            "config_hash",
            "inputs",
            "outputs",
            "cached",
            "reason",
            "toolchain",
            "elapsed_seconds",
        }
    # The chain of digests is closed: a stage reads what the previous one made.
    assert stages["compile"]["inputs"]["model"]["digest"] == stages["quantize"]["outputs"]["model"]["digest"]
    assert any(name.startswith("qnn library") for name in stages["compile"]["toolchain"])


def test_nothing_of_this_machine_or_moment_is_in_the_models(project: Project) -> None:
    for name, data in project.contents().items():
        if name.endswith((".onnx", ".bin", "metadata.json")):
            assert str(project.folder).encode() not in data, name
            assert b"/scratch/" not in data, name


def test_the_written_settings_give_the_same_build(project: Project) -> None:
    settings = json.loads((project.out / "winml_build_config.json").read_text(encoding="utf-8"))
    assert settings["auto"] is False
    assert settings["quant"]["weight_type"] == "uint8"
    assert settings["compile"]["provider_options"]["soc_model"]
    result = project.build(recipe="out/winml_build_config.json", out="again")
    assert result.code == 0, result.messages
    assert result.ran == []
    models = [name for name in project.contents() if name.endswith((".onnx", ".bin"))]
    again = project.contents("again")
    assert {name: again[name] for name in models} == {name: project.contents()[name] for name in models}


def test_python_and_command_line_write_the_same(project: Project) -> None:
    """And each reuses the other's results."""
    script = """
from pathlib import Path
from winml_dag import build_hf_model
result = build_hf_model("model", "python-out", config="recipe.yaml")
assert [view.stage for view in result.stages if view.status == "ran"] == [], result
again = build_hf_model("model", "python-out", config={"loader": {"task": "text-classification"}, "ep": "qnn",
                       "precision": "w8a8", "quant": {"samples": 8}})
assert [view.stage for view in again.stages if view.status == "ran"] == [], again
given = build_hf_model(None, "python-out", config={"model": Path("model"), "loader": {"task": "text-classification"},
                       "ep": "qnn", "precision": "w8a8", "quant": {"samples": 8}})
assert [view.stage for view in given.stages if view.status == "ran"] == [], given
"""
    project.python(script)
    here, there = project.contents(), project.contents("python-out")
    assert here.keys() == there.keys()
    assert {name for name in here if here[name] != there[name]} <= {"build_manifest.json", "winml_build_config.json"}
    assert project.manifest().keys() == project.manifest("python-out").keys()


def test_results_can_stay_in_the_cache_folder(project: Project) -> None:
    finished = project.run("build", "-c", "recipe.yaml", "--use-cache", "--format", "json")
    assert finished.returncode == 0, finished.stderr
    build = json.loads(finished.stdout)["builds"][0]
    assert [stage["status"] for stage in build["stages"] if stage["status"] == "ran"] == []
    assert Path(build["final_artifact"]).is_relative_to(project.cache / "outputs")
    assert Path(build["final_artifact"]).exists()


def test_an_input_that_an_earlier_build_made_is_not_replaced(project: Project) -> None:
    before = (project.out / "export.onnx").read_bytes()
    finished = project.run("build", "--onnx", "out/export.onnx", "-o", "out", "--rebuild")
    assert finished.returncode == 2
    assert "export.onnx" in finished.stderr
    assert (project.out / "export.onnx").read_bytes() == before


def test_a_failed_build_leaves_the_folder_as_it_was(project: Project) -> None:
    before, times = project.contents(), project.times()
    project.edit(validate__min_cosine=0.99999999)
    result = project.build()
    assert result.code == 1
    assert result.with_status("failed") == ["validate"]
    assert "cosine" in result.messages
    assert (project.contents(), project.times()) == (before, times)


def test_plan_and_why_tell_what_build_does(project: Project) -> None:
    project.edit(precision="w8a16")
    planned = project.plan()
    assert planned.ran == ["analyze", "quantize", "compile", "validate", "finalize"]
    assert planned.reason("quantize").startswith("quant.activation_type: uint8 -> uint16")
    assert planned.reason("compile") == "depends on the output of quantize"
    why = project.run("why", "quantize", "-c", "recipe.yaml", "-o", "out").stdout
    assert "quant.activation_type: uint8 -> uint16" in why
    text = project.run("plan", "-c", "recipe.yaml", "-o", "out").stdout
    assert "5 would run" in text
    assert "about" in text
    assert project.build().ran == planned.ran


def test_nothing_heavy_is_imported_when_nothing_runs(project: Project) -> None:
    script = """
import sys
from winml_dag.cli import run
for arguments in (["--help"], ["plan", "-c", "recipe.yaml", "-o", "out"], ["build", "-c", "recipe.yaml", "-o", "out"]):
    assert run(arguments) == 0
heavy = {"torch", "transformers", "onnx", "onnxruntime", "numpy", "networkx", "rich", "distributed"} & set(sys.modules)
assert not heavy, heavy
"""
    project.python(script)


def test_a_model_that_was_exported_here_and_is_given_as_onnx_is_known(project: Project) -> None:
    result = project.build("--onnx", "out/export.onnx", out="from-onnx")
    assert result.code == 0, result.messages
    assert result.ran == []


def test_two_different_builds_that_begin_in_one_new_folder(project: Project) -> None:
    """The folder has the files of one of them, consistently."""
    # So that both write their files at the same time.
    assert project.build("--precision", "w8a16", out="other").code == 0
    first = project.start("build", "-c", "recipe.yaml", "-o", "shared")
    second = project.start("build", "-c", "recipe.yaml", "-o", "shared", "--precision", "w8a16")
    for process in (first, second):
        _, messages = process.communicate()
        assert process.returncode == 0, messages
    manifest = project.manifest("shared")
    assert manifest["precision"] in ("w8a8", "w8a16")
    for entry in manifest["files"]:
        assert digest_file(project.folder / "shared" / entry["name"]) == entry["digest"]


def test_a_file_where_the_output_folder_should_be(project: Project) -> None:
    """Even if everything is cached and only the files have to be written."""
    (project.folder / "file").write_text("mine", encoding="utf-8")
    for out in ("file", "file/below"):
        result = project.build(out=out)
        assert result.code == 1
        assert "is a file, not a folder" in result.messages
    assert (project.folder / "file").read_text(encoding="utf-8") == "mine"
