"""Ahead-of-time compilation as documented: the outputs, the location of the binary, and the checks.

One test per statement of winml-cli's page. Where behaviour differs, this package's is asserted;
docs/how-to/coming-from-other-tools.md explains why. The time that a compiled model saves when loading is measured by
perf and not asserted, since it depends on the machine.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from oneprocess import OneProcess
from onnx import TensorProto, helper
from onnx_samples import perceptron
from scenario import Project

from winml_dag import WinMLCompileConfig, compile_onnx

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, commands: OneProcess | None) -> Project:
    """A float model, its quantized form, and that compiled for QNN with the binary as a file and embedded."""
    pytest.importorskip("onnxruntime_qnn")
    project = Project(tmp_path_factory.mktemp("compile"), commands)
    perceptron(project.folder / "model.onnx")
    told(project, "quantize", "-m", "model.onnx", "-p", "w8a8", "-d", "qnn", "-o", "qdq.onnx", "--no-validate")
    told(project, "compile", "-m", "qdq.onnx", "--ep", "qnn", "-o", "beside/net.onnx")
    told(project, "compile", "-m", "qdq.onnx", "--ep", "qnn", "-o", "inside/net.onnx", "--embed")
    return project


def told(project: Project, *arguments: str) -> dict[str, Any]:
    finished = project.run(*arguments, "--format", "json")
    assert finished.returncode == 0, finished.stderr
    value: dict[str, Any] = json.loads(finished.stdout)
    return value


def with_status(said: dict[str, Any], status: str) -> set[str]:
    return {stage["stage"] for stage in said["stages"] if stage["status"] == status}


def context_of(path: Path) -> dict[str, Any]:
    """Return the attributes of a model's only EPContext node."""
    (node,) = (each for each in onnx.load(path).graph.node if each.op_type == "EPContext")
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}


# What compilation produces


@pytest.mark.parametrize("ep", ["cpu", "dml"])
def test_for_a_provider_of_onnxruntime_itself_it_writes_a_model_that_loads_directly(made: Project, ep: str) -> None:
    finished = made.run("compile", "-m", "model.onnx", "--ep", ep, "-o", f"{ep}.onnx")
    assert finished.returncode == 0, finished.stderr
    assert "ahead of time" in finished.stdout + finished.stderr
    x = np.random.default_rng(2).normal(size=(4, 64)).astype(np.float32)
    runs = [
        onnxruntime.InferenceSession(made.folder / name, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
        for name in ("model.onnx", f"{ep}.onnx")
    ]
    np.testing.assert_allclose(runs[1], runs[0], rtol=1e-4, atol=1e-5)


def test_for_qnn_the_whole_network_becomes_a_binary_that_goes_with_the_model(made: Project) -> None:
    model = onnx.load(made.folder / "beside" / "net.onnx")
    kinds = [node.op_type for node in model.graph.node]
    assert kinds.count("EPContext") == 1
    assert {*kinds} <= {"EPContext", "QuantizeLinear", "DequantizeLinear"}
    attributes = context_of(made.folder / "beside" / "net.onnx")
    assert attributes["source"] == b"QNNExecutionProvider"
    assert (made.folder / "beside" / "net_qnn.bin").stat().st_size > 1000


def test_the_provider_runs_the_binary_and_nothing_is_left_to_the_cpu(made: Project) -> None:
    again = told(made, "compile", "-m", "qdq.onnx", "--ep", "qnn", "-o", "beside/net.onnx")
    assert again["validation"]["execution_provider"] == "QNNExecutionProvider"
    assert again["validation"]["assigned_nodes"]["QNNExecutionProvider"] == {"EPContext": 1}
    assert (again["metrics"]["ep_context_partitions"], again["metrics"]["cpu_nodes"]) == (1, [])


def test_python_compiles_for_the_provider_of_a_config(made: Project) -> None:
    for config in (WinMLCompileConfig(execution_provider="qnn"), {"execution_provider": "qnn"}):
        done = compile_onnx(made.folder / "qdq.onnx", made.folder / "py.onnx", config=config, cache_dir=made.cache)
        assert done.cached
        assert done.metrics["ep_context_partitions"] == 1


def test_it_is_done_once(made: Project) -> None:
    again = told(made, "compile", "-m", "qdq.onnx", "--ep", "qnn", "-o", "beside/net.onnx")
    assert again["cached"]
    assert with_status(again, "ran") == set()


def test_the_default_compiler_is_that_of_onnxruntime(made: Project) -> None:
    named = told(made, "compile", "-m", "qdq.onnx", "--ep", "qnn", "-o", "beside/net.onnx", "--compiler", "ort")
    assert with_status(named, "ran") == set()


def test_a_provider_that_is_not_here_is_refused_in_words(made: Project) -> None:
    finished = made.run("compile", "-m", "qdq.onnx", "--ep", "vitisai", "-o", "vitisai.onnx")
    assert finished.returncode == 2
    assert "VitisAIExecutionProvider is not installed here" in finished.stderr


def test_the_compiled_model_is_what_is_measured_and_evaluated(made: Project) -> None:
    perf = told(made, "perf", "beside/net.onnx", "--ep", "qnn", "--iterations", "1", "--warmup", "0", "--no-baseline")
    assert perf["assigned_nodes"]["QNNExecutionProvider"] == {"EPContext": 1}
    compared = ("--mode", "compare", "--ep", "qnn", "--reference", "qdq.onnx")
    evaluated = told(made, "eval", "beside/net.onnx", *compared)
    assert evaluated["assigned_nodes"]["QNNExecutionProvider"] == {"EPContext": 1}


# Embedded and external


def test_the_binary_is_beside_the_model_by_default(made: Project) -> None:
    folder = made.folder / "beside"
    assert {path.name for path in folder.iterdir()} == {"net.onnx", "net_qnn.bin"}
    attributes = context_of(folder / "net.onnx")
    assert attributes["embed_mode"] == 0
    assert attributes["ep_cache_context"] == b"net_qnn.bin", "a path relative to the model"
    assert (folder / "net.onnx").stat().st_size < (folder / "net_qnn.bin").stat().st_size / 4


def test_embedded_there_is_one_file_that_is_larger_by_the_binary(made: Project) -> None:
    folder = made.folder / "inside"
    assert [path.name for path in folder.iterdir()] == ["net.onnx"]
    attributes = context_of(folder / "net.onnx")
    assert attributes["embed_mode"] == 1
    binary = (made.folder / "beside" / "net_qnn.bin").stat().st_size
    assert len(attributes["ep_cache_context"]) == binary
    grown = (folder / "net.onnx").stat().st_size - (made.folder / "beside" / "net.onnx").stat().st_size
    assert abs(grown - binary) < 100


def test_a_model_without_its_binary_is_told_of(made: Project) -> None:
    lost = made.folder / "lost"
    lost.mkdir()
    (lost / "net.onnx").write_bytes((made.folder / "beside" / "net.onnx").read_bytes())
    finished = made.run("validate", "lost/net.onnx", "--ep", "qnn", "--reference", "qdq.onnx")
    assert finished.returncode == 3
    assert "net_qnn.bin" in finished.stderr
    (lost / "net_qnn.bin").write_bytes((made.folder / "beside" / "net_qnn.bin").read_bytes())
    assert told(made, "validate", "lost/net.onnx", "--ep", "qnn", "--reference", "qdq.onnx")["success"]


# Any model is compiled as it is


@pytest.mark.parametrize("model", ["model.onnx", "qdq.onnx"])
def test_it_compiles_what_it_is_given_and_quantizes_nothing(made: Project, model: str) -> None:
    said = told(made, "compile", "-m", model, "--ep", "qnn", "-o", f"as-it-is/{model}", "--no-validate")
    assert not {stage["stage"] for stage in said["stages"] if stage["status"] in ("ran", "reused")} & {
        "calibrate",
        "quantize",
    }
    assert said["metrics"]["ep_context_partitions"] == 1


# Validation


def test_the_result_is_run_unless_somebody_says_otherwise(made: Project) -> None:
    """Compared with the model that it was made from, with more inputs than just ones."""
    checked = told(made, "compile", "-m", "qdq.onnx", "--ep", "qnn", "-o", "beside/net.onnx")
    assert "validate" in with_status(checked, "reused")
    assert checked["validation"]["quality"]["cosine"] > 0.99
    unchecked = told(made, "compile", "-m", "qdq.onnx", "--ep", "qnn", "-o", "beside/net.onnx", "--no-validate")
    assert unchecked["validation"] is None
    assert "validate" not in with_status(unchecked, "reused") | with_status(unchecked, "ran")


def test_a_result_that_is_too_far_away_fails(made: Project) -> None:
    finished = made.run("compile", "-m", "model.onnx", "--ep", "qnn", "-o", "far.onnx", "--min-cosine", "1")
    assert finished.returncode == 1
    assert "cosine" in finished.stderr
    assert not (made.folder / "far.onnx").exists()


def without_numbers(path: Path, value: float, rows: int) -> None:
    """Save a model in which *rows* of the four outputs are *value*, whatever the input."""
    bias = np.zeros((4, 8), np.float32)
    bias[:rows] = value
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "bias"], ["y"])],
        "without_numbers",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 8])],
        [onnx.numpy_helper.from_array(bias, "bias")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)


@pytest.mark.parametrize(
    ("value", "rows"),
    [
        (np.nan, 4),
        (np.inf, 4),
        (np.nan, 1),
    ],
)
def test_outputs_with_nan_or_infinities_fail_and_name_where_they_come_from(
    made: Project, value: float, rows: int
) -> None:
    name = f"{value}-{rows}"
    without_numbers(made.folder / f"{name}.onnx", value, rows)
    build = ("build", "--onnx", f"{name}.onnx", "-d", "cpu", "-p", "fp32", "-o", f"out-{name}")
    finished = made.run(*build)
    assert finished.returncode == 1
    assert "NaN" in finished.stderr
    assert "float model" in finished.stderr
    assert made.run(*build, "--no-validate").returncode == 0
