"""The output folder as documented: the meaning of each file, its fields, and the effect of a rebuild.

One test per statement of winml-cli's page. Where behaviour differs, this package's is asserted;
docs/how-to/coming-from-other-tools.md explains why.
"""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from oneprocess import OneProcess
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnx_samples import perceptron
from scenario import Project, with_status
from support_samples import with_gelu, write_table

import winml_dag

pytestmark = pytest.mark.slow

_SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "vocab_size": 100,
    "max_position_embeddings": 40,
}
RECIPE: dict[str, Any] = {
    "loader": {"task": "text-classification", "model_type": "bert", "random_weights": {"config": _SIZES}},
    "ep": "qnn",
    "precision": "w8a16",
    "quant": {"samples": 2},
}
INTERMEDIATE = ("export.onnx", "optimized.onnx", "quantized.onnx", "compiled.onnx")
LAYOUT = {
    "model.onnx",
    "winml_build_config.json",
    "analyze_result.json",
    "build_manifest.json",
    "export_htp_metadata.json",
    *INTERMEDIATE,
}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, commands: OneProcess | None) -> Project:
    """A transformer after its full pipeline, in ``out``, which no test changes, and a small ONNX model."""
    pytest.importorskip("onnxruntime_qnn")
    pytest.importorskip("transformers")
    project = Project(tmp_path_factory.mktemp("layout"), commands)
    project.recipe_file.write_text(json.dumps(RECIPE), encoding="utf-8")
    result = project.build()
    assert result.code == 0, result.messages
    perceptron(project.folder / "model.onnx")
    return project


@pytest.fixture
def copied(built: Project) -> Project:
    """The same with a copy of its output, ``copy``, that a test may change."""
    shutil.rmtree(built.folder / "copy", ignore_errors=True)
    shutil.copytree(built.out, built.folder / "copy")
    return built


def large_weight() -> np.ndarray:
    return np.arange(5200 * 5200, dtype=np.float32).reshape(5200, 5200) / 2**24


@pytest.fixture
def large(built: Project) -> Project:
    """The project with a float model of more than 100 MiB."""
    if not (built.folder / "large.onnx").exists():
        size = len(large_weight())
        graph = helper.make_graph(
            [helper.make_node("MatMul", ["x", "weight"], ["y"])],
            "large",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, size])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, size])],
            [numpy_helper.from_array(large_weight(), "weight")],
        )
        opsets = [helper.make_opsetid("", 21)]
        onnx.save_model(helper.make_model(graph, opset_imports=opsets, ir_version=10), built.folder / "large.onnx")
        run(built, "build", "--onnx", "large.onnx", "-p", "fp32", "-d", "cpu", "--no-analyze", "-o", "large")
    return built


@pytest.fixture
def without_erf(built: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """The project on a CPU without Erf, with a model that uses it, and the same model fused."""
    tables = built.folder / "cache" / "tables"
    spelled, fused = (built.folder / "cache" / name for name in ("gelu.onnx", "fused.onnx"))
    if not tables.exists():
        tables.mkdir()
        with_gelu(spelled)
        # A separate cache, so that these results are not found later.
        fuse = ("--enable-gelu-fusion", "--no-validate", "--cache-dir", "cache/other")
        run(built, "optimize", "-m", "cache/gelu.onnx", "-o", "cache/fused.onnx", *fuse)
        write_table(tables / "cpu_cpu.support", [spelled, fused], fails="Erf")
    monkeypatch.setenv("WINML_DAG_SUPPORT_DIR", str(tables))
    return built


def run(project: Project, *arguments: str, code: int = 0) -> str:
    finished = project.run(*arguments)
    assert finished.returncode == code, finished.stdout + finished.stderr
    return finished.stdout + finished.stderr


def read(path: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return value


def operators(model: ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in model.graph.node)


# Directory structure and file categories


def test_a_build_writes_all_artifacts_to_the_output_folder(built: Project) -> None:
    """And nothing outside of it; the binary of a compiled model, missing on the page, has a file per model."""
    assert set(built.contents()) == LAYOUT | {"compiled_qnn.bin", "model_qnn.bin"}
    beside = {path.name for path in built.folder.iterdir()}
    assert beside <= {"out", "cache", "recipe.yaml", "model.onnx", "copy", "large.onnx", "large"}


def test_each_intermediate_is_what_its_name_says(built: Project) -> None:
    export, optimized, quantized, compiled = (onnx.load(built.out / name) for name in INTERMEDIATE)
    assert {tensor.data_type for tensor in export.graph.initializer} <= {TensorProto.FLOAT, TensorProto.INT64}
    assert not operators(export).keys() & {"QuantizeLinear", "DequantizeLinear", "EPContext"}
    assert optimized.graph.value_info
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


def test_optimize_fuses_operators(without_erf: Project) -> None:
    spelled, fused = (onnx.load(without_erf.folder / "cache" / name) for name in ("gelu.onnx", "fused.onnx"))
    assert (operators(spelled)["Erf"], operators(spelled)["Gelu"]) == (1, 0)
    assert (operators(fused)["Erf"], operators(fused)["Gelu"]) == (0, 1)


@pytest.mark.parametrize(
    ("options", "last"),
    [
        ((), "compiled"),
        (("--no-compile",), "quantized"),
        (("--no-quant", "--no-compile"), "optimized"),
    ],
    ids=["all", "no compile", "neither"],
)
def test_model_onnx_is_the_output_of_the_last_stage(built: Project, options: tuple[str, ...], last: str) -> None:
    """Byte for byte; a compiled one has its own binary, and refers to it by its name."""
    out = f"cache/last-{'-'.join(options)}" if options else "out"
    if options:
        run(built, "build", "-c", "recipe.yaml", "-o", out, *options)
    folder = built.folder / out
    assert {name for name in INTERMEDIATE if (folder / name).exists()} == {
        "export.onnx",
        "optimized.onnx",
        *(["quantized.onnx"] if "--no-quant" not in options else []),
        *(["compiled.onnx"] if "--no-compile" not in options else []),
    }
    if last != "compiled":
        assert (folder / "model.onnx").read_bytes() == (folder / f"{last}.onnx").read_bytes()
        return
    assert (folder / "model_qnn.bin").read_bytes() == (folder / "compiled_qnn.bin").read_bytes()
    model = onnx.load(folder / "model.onnx")
    (context,) = (node for node in model.graph.node if node.op_type == "EPContext")
    (binary,) = (attribute for attribute in context.attribute if attribute.name == "ep_cache_context")
    assert binary.s == b"model_qnn.bin"
    binary.s = b"compiled_qnn.bin"
    assert model == onnx.load(folder / "compiled.onnx")


def test_the_build_config_is_the_whole_pipeline_and_gives_the_same_bytes_anywhere(built: Project) -> None:
    """Another machine is one with an empty cache."""
    settings = read(built.out / "winml_build_config.json")
    assert settings["auto"] is False
    assert settings.keys() >= {"loader", "export", "optim", "quant", "compile"}
    run(built, "build", "-c", "out/winml_build_config.json", "-o", "cache/again", "--cache-dir", "cache/other")
    for name in (*INTERMEDIATE, "model.onnx", "model_qnn.bin"):
        assert (built.folder / "cache" / "again" / name).read_bytes() == (built.out / name).read_bytes(), name


def test_the_build_config_has_the_flags_that_were_discovered(without_erf: Project) -> None:
    run(without_erf, "build", "--onnx", "cache/gelu.onnx", "-p", "fp32", "-d", "cpu", "-o", "cache/found")
    folder = without_erf.folder / "cache" / "found"
    settings = read(folder / "winml_build_config.json")
    assert (settings["auto"], settings["optim"]) == (False, {"gelu_fusion": True})
    assert read(folder / "build_manifest.json")["analyze_details"]["autoconf"] == {"gelu_fusion": True}


def test_the_export_metadata_has_modules_tracing_and_coverage(built: Project) -> None:
    metadata = read(built.out / "export_htp_metadata.json")
    assert metadata["modules"]["class_name"] == "BertForSequenceClassification"
    assert metadata["modules"]["children"]["bert"]["children"].keys() >= {"embeddings", "encoder"}
    assert metadata["tracing"]["modules_traced"] > 20
    assert metadata["tracing"]["outputs"] == ["logits"]
    statistics, nodes = metadata["statistics"], len(onnx.load(built.out / "export.onnx").graph.node)
    assert statistics["onnx_nodes"] == nodes
    assert statistics["coverage_percentage"] == pytest.approx(100 * statistics["tagged_nodes"] / nodes, abs=0.01)
    assert statistics["coverage_percentage"] > 90


# Intermediate files can be deleted after a build


def _delete_intermediates(project: Project) -> None:
    for name in (*INTERMEDIATE, "compiled_qnn.bin"):
        (project.folder / "copy" / name).unlink()


def test_intermediates_may_be_deleted(copied: Project) -> None:
    _delete_intermediates(copied)
    said = run(copied, "verify", "copy")
    for name in INTERMEDIATE:
        assert name in said


def test_without_intermediates_the_model_is_still_compared_with_the_float_model(copied: Project) -> None:
    _delete_intermediates(copied)
    run(copied, "eval", "copy", "--mode", "compare", "--samples", "2")


def test_a_missing_or_changed_shipped_file_is_an_error(copied: Project) -> None:
    binary = copied.folder / "copy" / "model_qnn.bin"
    binary.write_bytes(binary.read_bytes()[:-1] + b"!")
    assert "model_qnn.bin" in run(copied, "verify", "copy", code=1)
    binary.unlink()
    assert "model_qnn.bin" in run(copied, "verify", "copy", code=1)


# What gets written at each stage


def test_export_and_optimize_alone_write_one_model(built: Project) -> None:
    run(built, "export", "-c", "recipe.yaml", "-o", "cache/alone/bert.onnx")
    assert {path.name for path in (built.folder / "cache" / "alone").iterdir()} == {
        "bert.onnx",
        "bert_htp_metadata.json",
    }
    run(built, "optimize", "-m", "cache/alone/bert.onnx", "-o", "cache/optimized/bert.onnx", "--no-validate")
    assert [path.name for path in (built.folder / "cache" / "optimized").iterdir()] == ["bert.onnx"]


# External data


def test_weights_below_100_mib_are_in_the_model(built: Project) -> None:
    assert not [name for name in built.contents() if name.endswith(".data")]


def test_weights_of_100_mib_are_beside_every_model_that_has_them(large: Project) -> None:
    folder = large.folder / "large"
    assert {path.name for path in folder.glob("*.onnx*")} == {
        "optimized.onnx",
        "optimized.onnx.data",
        "model.onnx",
        "model.onnx.data",
    }
    assert (folder / "model.onnx.data").stat().st_size >= 100 * 2**20
    (loaded,) = onnx.load(folder / "model.onnx").graph.initializer
    np.testing.assert_array_equal(numpy_helper.to_array(loaded), large_weight())
    # In the store once, though two stages output them.
    info = json.loads(run(large, "cache", "info", "--format", "json"))
    assert info["unique_bytes"] < 1.5 * large_weight().nbytes < info["apparent_bytes"]
    (weight,) = onnx.load(folder / "model.onnx", load_external_data=False).graph.initializer
    assert {entry.key: entry.value for entry in weight.external_data}["location"] == "model.onnx.data"


def test_a_command_finds_what_a_build_has_made_of_weights_beside_the_model(large: Project) -> None:
    """They lie under the name in the model."""
    few = ("-p", "dynamic", "-d", "cpu", "--no-validate")
    run(large, "build", "--onnx", "large.onnx", *few, "--no-analyze", "-o", "cache/large8")
    assert (large.folder / "cache" / "large8" / "optimized.onnx.data").exists()
    quantize = ("quantize", "-m", "cache/large8/optimized.onnx", *few)
    run(large, *quantize, "-o", "large.onnx", code=2)  # the model in large.onnx is somebody's
    told = large.told(*quantize, "-o", "cache/dynamic.onnx")
    assert with_status(told, "reused") == ["quantize"]


def test_model_and_data_are_moved_together(large: Project, tmp_path: Path) -> None:
    def loads(path: Path) -> bool:
        try:
            onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        except Exception:  # onnxruntime's errors have no base class of their own
            return False
        return True

    shutil.copy(large.folder / "large" / "model.onnx", tmp_path)
    assert not loads(tmp_path / "model.onnx")
    (tmp_path / "model.onnx.data").hardlink_to(large.folder / "large" / "model.onnx.data")
    assert loads(tmp_path / "model.onnx")


# Analyzer result


def test_the_analysis_counts_what_is_in_the_model_and_classifies_it(built: Project) -> None:
    analysis = read(built.out / "analyze_result.json")
    counts = operators(onnx.load(built.out / "optimized.onnx"))
    metadata = analysis["metadata"]
    assert metadata["operator_counts"] == dict(counts)
    assert metadata["total_operators"] == counts.total()
    assert metadata["unique_operator_types"] == len(counts)
    assert metadata["opset_version"] == 21
    (result,) = analysis["results"]
    assert (result["ihv_type"], result["ep_type"], result["device_type"]) == ("QC", "QNNExecutionProvider", "npu")
    assert result["classification"].keys() == {"supported", "partial", "unsupported", "unknown"}
    assert result["classification"]["supported"] == [f"OP/ai.onnx/{name}" for name in counts]
    assert (result["runtime_support"], result["has_errors"], result["has_warnings"]) == (True, False, False)
    assert isinstance(result["information"], list)


def test_an_unsupported_operator_is_an_error_and_one_left_to_the_cpu_is_not(without_erf: Project) -> None:
    """Neither has support for the whole model at run time."""
    found = {}
    for ep, p in (("cpu", ()), ("qnn", ("-p", "w8a16"))):
        run(without_erf, "analyze", "-m", "cache/gelu.onnx", "--ep", ep, *p, "-o", f"cache/erf-{ep}.json", code=1)
        (found[ep],) = read(without_erf.folder / "cache" / f"erf-{ep}.json")["results"]
    erf = ["OP/ai.onnx/Erf"]
    assert [found[ep]["classification"][level] for ep, level in (("cpu", "unsupported"), ("qnn", "partial"))] == [
        erf
    ] * 2
    assert [(each["has_errors"], each["has_warnings"]) for each in found.values()] == [(True, False), (False, True)]
    assert [each["runtime_support"] for each in found.values()] == [False, False]


def test_the_time_of_an_analysis_is_where_it_makes_no_bytes_differ(built: Project) -> None:
    """The command's file has it; a build's does not, so that equal models give equal files: the manifest has it."""
    run(built, "analyze", "-m", "out/optimized.onnx", "-d", "cpu", "-o", "cache/timed.json")
    assert datetime.fromisoformat(read(built.folder / "cache" / "timed.json")["analysis_timestamp"])
    assert read(built.out / "analyze_result.json")["analysis_timestamp"] is None
    assert datetime.fromisoformat(built.manifest()["analysis_timestamp"])


def test_the_analysis_names_who_made_the_model(built: Project) -> None:
    metadata = read(built.out / "analyze_result.json")["metadata"]
    assert metadata["producer_name"] == "pytorch"
    assert re.match(r"\d+\.\d+", metadata["producer_version"])


def test_detected_patterns_are_counted_by_name(built: Project) -> None:
    patterns = read(built.out / "analyze_result.json")["metadata"]["detected_pattern_count"]
    assert patterns
    assert all(isinstance(count, int) for count in patterns.values())


@pytest.mark.parametrize("ep", ["dml", "openvino", "vitisai", "cuda"])
def test_of_a_target_that_nobody_measured_every_operator_is_unknown(built: Project, ep: str) -> None:
    built.run("analyze", "-m", "model.onnx", "--ep", ep, "-o", f"cache/{ep}.json")
    (result,) = read(built.folder / "cache" / f"{ep}.json")["results"]
    assert result["classification"]["unknown"] == ["OP/ai.onnx/MatMul", "OP/ai.onnx/Add", "OP/ai.onnx/Relu"]
    assert (result["has_errors"], result["runtime_support"]) == (False, False)


# Build manifest


def test_the_manifest_has_every_field(built: Project) -> None:
    """From the command line as well, with full hashes."""
    manifest = built.manifest()
    assert (manifest["schema_version"], manifest["task"]) == (1, "text-classification")
    assert "bert" in manifest["model_id"]
    assert all(re.fullmatch("[0-9a-f]{64}", manifest[name]) for name in ("cache_key", "config_hash"))
    assert datetime.fromisoformat(manifest["timestamp"]).utcoffset() is not None
    assert manifest["elapsed_seconds"] > 0
    assert manifest["final_artifact"] == "model.onnx"
    assert (manifest["analyze_iterations"], manifest["analyze_unsupported_node_count"]) == (1, 0)
    assert manifest["analyze_details"].keys() >= {"lint", "autoconf"}
    stages = {stage["name"]: stage for stage in manifest["stages"]}
    named = {"export": "export.onnx", "optimize": "optimized.onnx", "quantize": "quantized.onnx"}
    for name, file in {**named, "compile": "compiled.onnx"}.items():
        assert (stages[name]["status"], stages[name]["filename"]) == ("completed", file)
        assert stages[name]["elapsed_seconds"] > 0
    assert stages["quantize"]["nodes_quantized"] > 0
    assert stages["quantize"]["nodes_skipped"] == 0


def test_the_manifest_names_only_files_that_are_there(built: Project) -> None:
    names = {stage["filename"] for stage in built.manifest()["stages"]} - {None}
    assert names <= set(built.contents())


# Rebuild behavior


def test_a_build_that_is_up_to_date_runs_nothing_and_an_edit_what_it_reaches(built: Project) -> None:
    """Instead of "model.onnx exists, so nothing is built"."""
    assert built.build().ran == []
    edited = {**RECIPE, "quant": {"samples": 3}}
    (built.folder / "cache" / "edited.json").write_text(json.dumps(edited), encoding="utf-8")
    again = built.plan(recipe="cache/edited.json")
    assert again.with_status("reused") == ["export", "optimize", "analyze"]
    assert again.ran == ["calibrate", "quantize", "compile", "validate", "finalize"]


def test_rebuild_runs_everything_and_leaves_files_of_others(built: Project) -> None:
    """Instead of deleting everything that ends in .onnx."""
    plain = ("build", "--onnx", "model.onnx", "-d", "cpu", "-p", "fp32", "--no-validate", "-o", "cache/mine")
    run(built, *plain)
    folder = built.folder / "cache" / "mine"
    for name in ("other.onnx", "other.onnx.data"):
        (folder / name).write_text("mine", encoding="utf-8")
    rebuilt = json.loads(built.run(*plain, "--rebuild", "--format", "json").stdout)
    ran = {stage["stage"] for stage in rebuilt["builds"][0]["stages"] if stage["status"] == "ran"}
    assert ran == {"optimize", "analyze", "finalize"}
    assert {name: (folder / name).read_text(encoding="utf-8") for name in ("other.onnx", "other.onnx.data")} == {
        "other.onnx": "mine",
        "other.onnx.data": "mine",
    }


@pytest.mark.parametrize("name", ["rebuild", "force_rebuild"])
def test_python_is_told_to_rebuild_by_either_name(built: Project, name: str) -> None:
    build: Callable[..., Any] = winml_dag.build_onnx_model
    how: dict[str, Any] = {"cache_dir": built.cache, "precision": "fp32", "ep": "cpu", "validate": False}
    how |= {"optimize": False, "analyze": False}
    out = built.folder / "cache" / "python"
    build(built.folder / "model.onnx", out, **how)
    for asked, statuses in (({}, set()), ({name: False}, set()), ({name: True}, {"finalize"})):
        result = build(built.folder / "model.onnx", out, **how, **asked)
        assert {view.stage for view in result.stages if view.status == "ran"} == statuses
    assert read(out / "build_manifest.json")["final_artifact"] == "model.onnx"
