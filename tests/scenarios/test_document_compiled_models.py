"""A compiled model given to commands that take models: recognized by its EPContext nodes, and rejected in one sentence.

One test per line of the report on ``optimize``, and on ``quantize`` with the same cause: onnxruntime's
``NOT_IMPLEMENTED`` in a session without the provider.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import onnx
import pytest
from oneprocess import OneProcess
from onnx import TensorProto, helper
from onnx_samples import perceptron
from scenario import Project

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, commands: OneProcess | None) -> Project:
    """A model that ``config`` and ``build`` have compiled for QNN, and copies with other names, binaries and
    producers.
    """
    pytest.importorskip("onnxruntime_qnn")
    project = Project(tmp_path_factory.mktemp("compiled"), commands)
    perceptron(project.folder / "plain.onnx")
    for arguments in (
        ("config", "--onnx", "plain.onnx", "--ep", "qnn", "-p", "w8a8", "-o", "config.json"),
        ("build", "-c", "config.json", "-m", "plain.onnx", "-o", "build", "--no-validate"),
        ("build", "-c", "config.json", "-m", "plain.onnx", "-o", "inside", "--embed", "--no-validate"),
    ):
        finished = project.run(*arguments)
        assert finished.returncode == 0, finished.stderr
    away = project.folder / "away"
    away.mkdir()
    shutil.copy(project.folder / "inside" / "model.onnx", away / "any-name.onnx")
    _of_another(project.folder / "openvino.onnx", "OpenVINOExecutionProvider")
    return project


def _of_another(path: Path, provider: str) -> None:
    node = helper.make_node(
        "EPContext", ["x"], ["y"], domain="com.microsoft", ep_cache_context=b"binary", embed_mode=1, source=provider
    )
    graph = helper.make_graph(
        [node],
        "compiled",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8])],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    onnx.save_model(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)


MODELS = ["build/model.onnx", "build/compiled.onnx", "inside/model.onnx", "away/any-name.onnx", "openvino.onnx"]


def test_config_and_build_make_a_compiled_model(built: Project) -> None:
    for folder in ("build", "inside"):
        model = onnx.load(built.folder / folder / "model.onnx")
        assert [node.op_type for node in model.graph.node].count("EPContext") == 1


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("command", "participle"), [("optimize", "optimized"), ("quantize", "quantized")])
def test_it_is_refused_with_what_to_give_instead(built: Project, model: str, command: str, participle: str) -> None:
    finished = built.run(command, "-m", model, "-o", f"{command}.onnx")
    assert finished.returncode == 2
    (said,) = finished.stderr.strip().splitlines()
    assert said.startswith(f"error: {model} is a compiled model: its EPContext nodes hold the binary of ")
    assert f"cannot be {participle}. Use the ONNX model that it was compiled from." in said
    assert "NOT_IMPLEMENTED" not in said
    assert not (built.folder / f"{command}.onnx").exists()


@pytest.mark.parametrize("command", ["optimize", "quantize"])
def test_nothing_is_done_before_it_is_refused(built: Project, command: str) -> None:
    before = {path for path in built.cache.rglob("*") if "records" in path.parts or "blobs" in path.parts}
    assert before
    built.run(command, "-m", "build/model.onnx", "-o", "none.onnx", "--format", "json")
    assert before == {path for path in built.cache.rglob("*") if "records" in path.parts or "blobs" in path.parts}


def test_the_error_is_an_object_for_programs(built: Project) -> None:
    finished = built.run("optimize", "-m", "build/model.onnx", "-o", "none.onnx", "--format", "json")
    (error,) = json.loads(finished.stdout)["errors"]
    assert "is a compiled model" in error


@pytest.mark.parametrize("model", MODELS[-1:])
def test_whose_binary_it_is_is_said(built: Project, model: str) -> None:
    said = built.run("optimize", "-m", model, "-o", "none.onnx").stderr
    assert "the binary of OpenVINOExecutionProvider" in said


# The same cause in other commands: the target of a compiled model is in its nodes, and nothing may contradict it.


def test_config_writes_no_recipe_that_a_build_refuses(built: Project) -> None:
    """Either the command rejects it, or its recipe is for the provider, and builds."""
    finished = built.run("config", "--onnx", "build/model.onnx", "-o", "of-compiled.json")
    if finished.returncode:
        assert "compiled model" in finished.stderr
        return
    assert json.loads((built.folder / "of-compiled.json").read_text(encoding="utf-8"))["ep"] == "qnn"
    assert built.run("build", "-c", "of-compiled.json", "-o", "of-compiled").returncode == 0
    assert built.manifest("of-compiled")["execution_provider"] == "QNNExecutionProvider"


def test_a_build_tells_whose_it_is(built: Project) -> None:
    """Either the build is rejected, or the manifest has the provider of the nodes."""
    asked = ("build", "--onnx", "build/model.onnx", "--no-optimize", "--no-analyze", "--no-validate", "-o", "as-it-is")
    finished = built.run(*asked)
    if finished.returncode:
        assert "compiled model" in finished.stderr
        return
    assert built.manifest("as-it-is")["execution_provider"] == "QNNExecutionProvider"


def test_one_of_another_provider_is_not_laid_at_the_door_of_qnn(built: Project) -> None:
    left_out = ("--no-quant", "--no-optimize", "--no-analyze", "--no-compile")
    finished = built.run("build", "--onnx", "openvino.onnx", "--ep", "qnn", *left_out, "-o", "wrong")
    assert finished.returncode != 0
    assert "OpenVINOExecutionProvider" in finished.stderr
    assert "QNNExecutionProvider compiled this model" not in finished.stderr


def test_build_reads_the_model_that_the_command_line_names(built: Project) -> None:
    config = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    loader = {"task": "text-classification", "model_type": "bert", "random_weights": {"config": config}}
    (built.folder / "random.json").write_text(json.dumps({"loader": loader, "precision": "fp32"}), encoding="utf-8")
    finished = built.run("plan", "-c", "random.json", "-m", "./none", "-o", "named")
    assert finished.returncode in (2, 3)
