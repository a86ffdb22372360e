"""``winml-dag quantize``: one model into one file, sharing results with earlier and later builds."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from oneprocess import OneProcess
from onnx import TensorProto, helper, numpy_helper
from onnx_samples import perceptron, samples
from scenario import Project

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, commands: OneProcess | None) -> Project:
    """A model, data, and a cache that the tests of this file fill together."""
    project = Project(tmp_path_factory.mktemp("quantize"), commands)
    perceptron(project.folder / "model.onnx")
    samples(project.folder / "data.npz")
    return project


class Asked:
    def __init__(self, finished: subprocess.CompletedProcess[str]) -> None:
        self.code, self.messages = finished.returncode, finished.stderr
        self.value: dict[str, Any] = json.loads(finished.stdout) if finished.stdout.strip() else {}

    @property
    def ran(self) -> list[str]:
        return [stage["id"] for stage in self.value["stages"] if stage["status"] == "ran"]

    @property
    def reused(self) -> list[str]:
        return [stage["id"] for stage in self.value["stages"] if stage["status"] == "reused"]


def quantize(project: Project, *arguments: str) -> Asked:
    asked = Asked(project.run("quantize", "--format", "json", *arguments))
    assert "Traceback" not in asked.messages
    return asked


def build(project: Project, *arguments: str) -> list[str]:
    """Build and return the stages that ran."""
    finished = project.run("build", "--format", "json", *arguments)
    assert finished.returncode == 0, finished.stderr
    stages = json.loads(finished.stdout)["builds"][0]["stages"]
    return [stage["id"] for stage in stages if stage["status"] == "ran"]


def run_model(path: Path, width: int = 64) -> np.ndarray:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    x = np.random.default_rng(2).normal(size=(4, width)).astype(np.float32)
    return session.run(None, {"x": x})[0]


def test_it_finds_what_a_build_of_the_same_model_has_made(shared: Project) -> None:
    assert build(shared, "--onnx", "model.onnx", "--no-optimize", "-p", "w8a8", "-o", "built-w8a8")[-1] == "finalize"
    asked = quantize(shared, "-m", "model.onnx", "-p", "w8a8", "-o", "w8a8.onnx")
    assert asked.code == 0, asked.messages
    assert asked.ran == ["finalize"]
    assert asked.reused == ["calibrate", "quantize", "validate"]
    assert (shared.folder / "w8a8.onnx").read_bytes() == (shared.folder / "built-w8a8" / "model.onnx").read_bytes()


def test_a_build_finds_what_it_has_made(shared: Project) -> None:
    asked = quantize(shared, "-m", "model.onnx", "-p", "w8a16", "-o", "w8a16.onnx")
    assert asked.code == 0, asked.messages
    assert build(
        shared, "--onnx", "model.onnx", "--no-optimize", "--no-analyze", "-p", "w8a16", "-o", "built-w8a16"
    ) == ["finalize"]


def test_it_finds_what_a_build_has_made_of_the_model_that_the_build_optimized(shared: Project) -> None:
    """The file in the output folder is what calibrate and quantize have read."""
    ran = build(shared, "--onnx", "model.onnx", "-p", "w16a16", "-o", "optimized")
    assert {"optimize.0", "quantize"} <= set(ran)
    asked = quantize(shared, "-m", "optimized/optimized.onnx", "-p", "w16a16", "-o", "w16a16.onnx")
    assert asked.code == 0, asked.messages
    assert {"calibrate", "quantize"} <= set(asked.reused)


def test_a_build_goes_on_with_what_it_has_quantized(shared: Project) -> None:
    """The result, under the name that a build gives it, is what compile and validate would read."""
    assert quantize(shared, "-m", "model.onnx", "-p", "w8a8", "-o", "apart/quantized.onnx").code == 0
    pytest.importorskip("onnxruntime_qnn")
    first = build(shared, "--onnx", "model.onnx", "--no-optimize", "-p", "w8a8", "-d", "qnn", "-o", "one-go")
    assert "compile" in first
    again = quantize(shared, "-m", "model.onnx", "-p", "w8a8", "-d", "qnn", "-o", "qnn/quantized.onnx")
    assert again.reused[:2] == ["calibrate", "quantize"]
    later = build(shared, "--onnx", "qnn/quantized.onnx", "-d", "qnn", "-o", "two-goes")
    assert "compile" not in later
    one, two = (shared.folder / out / "model.onnx" for out in ("one-go", "two-goes"))
    assert one.read_bytes() == two.read_bytes()


def test_weights_beside_the_model_are_found_as_well(shared: Project) -> None:
    """From 100 MiB on they are in a separate file, under the name in the model."""
    width = 5200
    weight = np.random.default_rng(0).normal(size=(width, width)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "weight"], ["y"], name="only")],
        "large",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, width])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, width])],
        [numpy_helper.from_array(weight, "weight")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save_model(model, shared.folder / "large.onnx", save_as_external_data=True, location="weights.bin")
    ran = build(shared, "--onnx", "large.onnx", "-p", "dynamic", "-o", "large")
    assert {"optimize.0", "quantize"} <= set(ran)
    assert (shared.folder / "large" / "optimized.onnx.data").exists()
    asked = quantize(shared, "-m", "large/optimized.onnx", "-p", "dynamic", "-o", "large.onnx", "--no-validate")
    assert asked.code == 2, "the model in large.onnx is somebody's"
    asked = quantize(shared, "-m", "large/optimized.onnx", "-p", "dynamic", "-o", "dynamic.onnx", "--no-validate")
    assert asked.code == 0, asked.messages
    assert asked.reused == ["quantize"]


def test_weights_beside_a_model_that_is_given_are_found_both_ways(shared: Project) -> None:
    model = onnx.load(perceptron(shared.folder / "inside.onnx", seed=3))
    onnx.save_model(
        model, shared.folder / "apart.onnx", save_as_external_data=True, location="apart.weights", size_threshold=0
    )
    assert "quantize" in build(shared, "--onnx", "apart.onnx", "--no-optimize", "-p", "dynamic", "-o", "built-apart")
    assert quantize(shared, "-m", "apart.onnx", "-p", "dynamic", "-o", "dynamic-apart.onnx").ran == ["finalize"]
    assert "quantize" in quantize(shared, "-m", "apart.onnx", "-p", "int4", "-o", "int4-apart.onnx").ran
    assert build(
        shared, "--onnx", "apart.onnx", "--no-optimize", "--no-analyze", "-p", "int4", "-o", "built-apart"
    ) == ["finalize"]


def test_four_bits_and_then_float16_shares_the_first_with_four_bits_alone(shared: Project) -> None:
    alone = quantize(shared, "-m", "model.onnx", "-p", "int4", "-o", "int4.onnx")
    assert alone.code == 0, alone.messages
    chain = quantize(shared, "-m", "model.onnx", "-p", "int4", "-p", "fp16", "-o", "int4-fp16.onnx")
    assert chain.code == 0, chain.messages
    assert chain.reused == ["quantize"]
    assert [step["mode"] for step in chain.value["steps"]] == ["rtn", "fp16"]
    types = {tensor.data_type for tensor in onnx.load(shared.folder / "int4-fp16.onnx").graph.initializer}
    assert types == {TensorProto.UINT8, TensorProto.FLOAT16}
    # The same by its name, and from the result of the first.
    assert build(shared, "--onnx", "model.onnx", "--no-optimize", "--no-analyze", "-p", "w4a16", "-o", "w4a16") == [
        "finalize"
    ]
    assert {path.name for path in (shared.folder / "w4a16").iterdir()} == {
        "quantized.onnx",
        "model.onnx",
        "build_manifest.json",
        "winml_build_config.json",
    }
    made = {stage["id"]: stage["filename"] for stage in shared.manifest("w4a16")["stages"] if "id" in stage}
    assert (made["quantize"], made["quantize.1"]) == (None, "quantized.onnx")
    assert build(shared, "--onnx", "model.onnx", "--no-optimize", "--no-analyze", "-p", "w4a32", "-o", "w4a32") == [
        "finalize"
    ]
    going_on = quantize(shared, "-m", "w4a32/quantized.onnx", "-p", "fp16", "-o", "going-on.onnx")
    assert "quantize" in going_on.reused
    assert (shared.folder / "going-on.onnx").read_bytes() == (shared.folder / "int4-fp16.onnx").read_bytes()
    np.testing.assert_allclose(
        run_model(shared.folder / "int4-fp16.onnx"), run_model(shared.folder / "int4.onnx"), atol=0.02
    )


def test_the_default_is_a_file_beside_the_model_and_a_second_run_does_nothing(shared: Project) -> None:
    (shared.folder / "aside").mkdir()
    perceptron(shared.folder / "aside" / "net.onnx")
    script = """
import sys
from winml_dag.cli import run
code = run(["quantize", "-m", "aside/net.onnx"])
heavy = {"torch", "transformers", "onnx", "onnxruntime", "numpy", "pydantic", "networkx", "rich"} & sys.modules.keys()
print(code, sorted(heavy))
"""
    first = shared.python(script)
    assert "quality: cosine" in first.stdout, first.stderr
    assert first.stdout.splitlines()[-2].startswith(f"Built {Path('aside/net_quantized.onnx')} (w8a8, cpu) in ")
    assert sorted(path.name for path in (shared.folder / "aside").iterdir()) == ["net.onnx", "net_quantized.onnx"]
    before = (shared.folder / "aside" / "net_quantized.onnx").stat().st_mtime_ns
    again = shared.python(script)
    assert again.stdout.splitlines()[0].startswith(f"Up to date: {Path('aside/net_quantized.onnx')} (w8a8, cpu)")
    assert again.stdout.splitlines()[-1] == "0 []", again.stdout + again.stderr
    assert (shared.folder / "aside" / "net_quantized.onnx").stat().st_mtime_ns == before
    (shared.folder / "aside" / "net_quantized.onnx").unlink()
    restored = shared.run("quantize", "-m", "aside/net.onnx")
    assert restored.stdout.splitlines()[-1].startswith(f"Restored {Path('aside/net_quantized.onnx')}")


def test_a_file_that_is_not_ours_is_overwritten_only_when_that_is_asked_for(shared: Project) -> None:
    theirs = shared.folder / "theirs.onnx"
    theirs.write_bytes(b"mine")
    arguments = ("-m", "model.onnx", "-p", "w8a8", "-o", "theirs.onnx")
    refused = quantize(shared, *arguments)
    assert refused.code == 2
    assert "theirs.onnx is in the way" in refused.messages
    assert "--overwrite" in refused.messages
    assert theirs.read_bytes() == b"mine"
    assert quantize(shared, *arguments, "--overwrite").code == 0
    # From now on the file is owned: another precision may replace it.
    assert quantize(shared, "-m", "model.onnx", "-p", "w8a16", "-o", "theirs.onnx").code == 0
    run_model(theirs)
    theirs.write_bytes(b"edited")
    assert quantize(shared, *arguments).code == 2
    assert theirs.read_bytes() == b"edited"


def test_one_json_object_says_what_was_done(shared: Project) -> None:
    asked = quantize(shared, "-m", "model.onnx", "-p", "w8a8", "--calibration-data", "data.npz", "-o", "data.onnx")
    assert asked.code == 0, asked.messages
    value = asked.value
    assert value["success"] is True
    assert value["output_path"] == "data.onnx"
    assert value["nodes_quantized"] > value["nodes_skipped"] == 0
    assert value["calibration"]["data"] == "npz"
    assert value["calibration_time_seconds"] > 0
    assert value["qdq_insertion_time_seconds"] > 0
    assert value["size_before_bytes"] > value["size_after_bytes"] > 0
    assert value["quality"]["cosine"] > 0.99
    assert value["quality"]["top1_of"] > 0
    assert value["errors"] == []
    failed = quantize(shared, "-m", "model.onnx", "--exclude-node", "*", "-o", "nothing.onnx")
    assert failed.code == 1
    assert failed.value["success"] is False
    assert failed.value["output_path"] is None
    assert len(failed.value["errors"]) == 1
    assert not (shared.folder / "nothing.onnx").exists()


def test_data_relative_to_where_the_user_stands_and_a_recipe_elsewhere(shared: Project) -> None:
    """The recipe's quant section applies, in either of its positions, and the command line takes precedence."""
    (shared.folder / "recipes").mkdir()
    samples(shared.folder / "recipes" / "here.npz", scale=2.0)
    section = {"calibration_data": "here.npz", "samples": 4, "weight_type": "int8", "activation_type": "uint8"}
    recipe = shared.folder / "recipes" / "quant.json"
    recipe.write_text(json.dumps({"quant": section, "optim": {"gelu_fusion": True}}), encoding="utf-8")
    in_compile = shared.folder / "recipes" / "compile.json"
    in_compile.write_text(json.dumps({"compile": {"quant_config": section}}), encoding="utf-8")
    first = quantize(shared, "-m", "model.onnx", "-c", "recipes/quant.json", "-o", "recipe.onnx")
    assert first.code == 0, first.messages
    assert first.value["steps"][0]["weight_type"] == "int8"
    assert first.value["calibration"]["samples"] == 4
    second = quantize(shared, "-m", "model.onnx", "-c", "recipes/compile.json", "-o", "recipe.onnx")
    assert second.ran == []
    wins = quantize(
        shared, "-m", "model.onnx", "-c", "recipes/quant.json", "--calibration-data", "data.npz", "-o", "recipe.onnx"
    )
    assert "calibrate" in wins.ran
    assert wins.value["steps"][0]["weight_type"] == "int8"


def test_python_does_the_same(shared: Project) -> None:
    first = quantize(shared, "-m", "model.onnx", "-p", "w8a8", "--calibration-data", "data.npz", "-o", "python.onnx")
    assert first.code == 0, first.messages
    script = """
from pathlib import Path
from winml_dag import QuantizeResult, WinMLQuantizationConfig, quantize_onnx
from winml_dag.errors import StageError, UsageError
done = quantize_onnx("model.onnx", "python.onnx", precision="w8a8", calibration_data="data.npz")
assert isinstance(done, QuantizeResult) and done.cached and done.output_path == Path("python.onnx"), done
config = WinMLQuantizationConfig(calibration_data="data.npz", weight_type="uint8", activation_type="uint8")
assert quantize_onnx("model.onnx", "python.onnx", config=config).cached
assert quantize_onnx("model.onnx", "python.onnx", config=config.to_dict()).cached
chain = quantize_onnx("model.onnx", "python.onnx", precision=["int4", "fp16"])
assert [step.mode for step in chain.steps] == ["rtn", "fp16"]
for arguments, error in (
    ({"precision": ["int8", "int4"]}, UsageError),
    ({"precision": "fp32"}, UsageError),
    ({"config": {"nodes_to_exclude": ["nope"]}}, StageError),
):
    try:
        quantize_onnx("model.onnx", "python.onnx", **arguments)
    except error as caught:
        print(caught)
    else:
        raise AssertionError(arguments)
"""
    finished = shared.python(script)
    assert finished.returncode == 0, finished.stderr
    assert "nothing can follow" in finished.stdout
