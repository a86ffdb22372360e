"""Quantization by every way that leads to it: one model into one file, a build, a section of compile, Python.

All of them are the same stages with the same keys, so each finds the results of the others. Where behaviour differs
from winml-cli's, docs/how-to/coming-from-other-tools.md explains why.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto
from onnx_samples import perceptron, samples
from scenario import Project, needs_qnn, with_status

from winml_dag import (
    QuantizeResult,
    WinMLCompileConfig,
    WinMLQuantizationConfig,
    build_onnx_model,
    quantize_onnx,
)
from winml_dag.errors import StageError, UsageError
from winml_dag.onnxmodel.feeds import model_inputs, random_feeds
from winml_dag.onnxmodel.inspect import inspect_model
from winml_dag.recipe.schema import Recipe

pytestmark = pytest.mark.slow

SECTION = {"weight_type": "uint8", "activation_type": "uint16", "seed": 3}
AS_GIVEN = ("--no-optimize", "--no-analyze")


def ran(project: Project, *arguments: str) -> list[str]:
    """Return the stages that a command ran."""
    return with_status(project.told(*arguments), "ran", "id")


def run_model(path: Path) -> np.ndarray:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    x = np.random.default_rng(2).normal(size=(4, 64)).astype(np.float32)
    return session.run(None, {"x": x})[0]


def partitions(model: Path) -> int:
    return sum(node.op_type == "EPContext" for node in onnx.load(model, load_external_data=False).graph.node)


def test_quantize_command_and_build_reuse_each_other(shared: Project) -> None:
    shared.told("quantize", "-m", "model.onnx", "-p", "w8a16", "-o", "w8a16.onnx")
    assert ran(shared, "build", "--onnx", "model.onnx", *AS_GIVEN, "-p", "w8a16", "-o", "built") == ["finalize"]
    assert (shared.folder / "w8a16.onnx").read_bytes() == (shared.folder / "built" / "model.onnx").read_bytes()
    # The file in the output folder is what calibrate and quantize have read.
    built = ran(shared, "build", "--onnx", "model.onnx", "-p", "w16a16", "-o", "optimized")
    assert {"optimize.0", "quantize"} <= {*built}
    done = shared.told("quantize", "-m", "optimized/optimized.onnx", "-p", "w16a16", "-o", "w16a16.onnx")
    assert {"calibrate", "quantize"} <= {*with_status(done, "reused", "id")}
    # Weights beside the model.
    model = onnx.load(perceptron(shared.folder / "inside.onnx", seed=3))
    apart = {"save_as_external_data": True, "location": "apart.weights", "size_threshold": 0}
    onnx.save_model(model, shared.folder / "apart.onnx", **apart)
    built = ran(shared, "build", "--onnx", "apart.onnx", "--no-optimize", "-p", "dynamic", "-o", "built-apart")
    assert "quantize" in built
    assert ran(shared, "quantize", "-m", "apart.onnx", "-p", "dynamic", "-o", "quantized-apart.onnx") == ["finalize"]


@needs_qnn
def test_build_continues_from_quantized_model(shared: Project) -> None:
    """The result, under the name that a build gives it, is what compile and validate would read."""
    target = ("-p", "w8a8", "-d", "qnn")
    assert "compile" in ran(shared, "build", "--onnx", "model.onnx", "--no-optimize", *target, "-o", "one-go")
    again = shared.told("quantize", "-m", "model.onnx", *target, "-o", "qnn/quantized.onnx")
    assert with_status(again, "reused", "id")[:2] == ["calibrate", "quantize"]
    assert "compile" not in ran(shared, "build", "--onnx", "qnn/quantized.onnx", "-d", "qnn", "-o", "two-goes")
    one, two = (shared.folder / out / "model.onnx" for out in ("one-go", "two-goes"))
    assert one.read_bytes() == two.read_bytes()


def test_int4_fp16_chain_shares_int4_stage(shared: Project) -> None:
    shared.told("quantize", "-m", "model.onnx", "-p", "int4", "-o", "int4.onnx")
    chain = shared.told("quantize", "-m", "model.onnx", "-p", "int4", "-p", "fp16", "-o", "int4-fp16.onnx")
    assert with_status(chain, "reused", "id") == ["quantize"]
    assert [step["mode"] for step in chain["steps"]] == ["rtn", "fp16"]
    types = {tensor.data_type for tensor in onnx.load(shared.folder / "int4-fp16.onnx").graph.initializer}
    assert types == {TensorProto.UINT8, TensorProto.FLOAT16}
    # The same by its name, and from the result of the first.
    assert ran(shared, "build", "--onnx", "model.onnx", *AS_GIVEN, "-p", "w4a16", "-o", "w4a16") == ["finalize"]
    assert set(shared.contents("w4a16")) == {
        *("quantized.onnx", "model.onnx", "build_manifest.json", "winml_build_config.json")
    }
    made = {stage["id"]: stage["filename"] for stage in shared.manifest("w4a16")["stages"] if "id" in stage}
    assert (made["quantize"], made["quantize.1"]) == (None, "quantized.onnx")
    assert ran(shared, "build", "--onnx", "model.onnx", *AS_GIVEN, "-p", "w4a32", "-o", "w4a32") == ["finalize"]
    going_on = shared.told("quantize", "-m", "w4a32/quantized.onnx", "-p", "fp16", "-o", "going-on.onnx")
    assert "quantize" in with_status(going_on, "reused", "id")
    assert (shared.folder / "going-on.onnx").read_bytes() == (shared.folder / "int4-fp16.onnx").read_bytes()
    np.testing.assert_allclose(
        run_model(shared.folder / "int4-fp16.onnx"), run_model(shared.folder / "int4.onnx"), atol=0.02
    )


def test_default_output_is_beside_model_and_second_run_is_up_to_date(shared: Project) -> None:
    (shared.folder / "aside").mkdir()
    perceptron(shared.folder / "aside" / "net.onnx")
    made = shared.folder / "aside" / "net_quantized.onnx"
    name = Path("aside/net_quantized.onnx")
    first = shared.says("quantize", "-m", "aside/net.onnx").splitlines()
    assert any(line.startswith("quality: cosine") for line in first)
    assert first[-1].startswith(f"Built {name} (w8a8, cpu) in ")
    assert sorted(path.name for path in made.parent.iterdir()) == ["net.onnx", made.name]
    before = made.stat().st_mtime_ns
    assert shared.says("quantize", "-m", "aside/net.onnx").startswith(f"Up to date: {name} (w8a8, cpu)")
    assert made.stat().st_mtime_ns == before
    made.unlink()
    restored = shared.says("quantize", "-m", "aside/net.onnx")
    assert restored.splitlines()[-1].startswith(f"Restored {name}")


def test_foreign_file_is_overwritten_only_on_request(shared: Project) -> None:
    theirs = shared.folder / "theirs.onnx"
    theirs.write_bytes(b"mine")
    arguments = ("quantize", "-m", "model.onnx", "-p", "w8a8", "-o", "theirs.onnx")
    refused = shared.says(*arguments, code=2)
    assert "theirs.onnx is in the way" in refused
    assert "--overwrite" in refused
    assert theirs.read_bytes() == b"mine"
    shared.says(*arguments, "--overwrite")
    # From now on the file is owned: another precision may replace it.
    shared.says("quantize", "-m", "model.onnx", "-p", "w8a16", "-o", "theirs.onnx")
    run_model(theirs)
    theirs.write_bytes(b"edited")
    shared.says(*arguments, code=2)
    assert theirs.read_bytes() == b"edited"


def test_result_is_one_json_object(shared: Project) -> None:
    told = ("quantize", "-m", "model.onnx", "-p", "w8a8", "--calibration-data", "data.npz", "-o", "data.onnx")
    value = shared.told(*told)
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
    failed = shared.told("quantize", "-m", "model.onnx", "--exclude-node", "*", "-o", "nothing.onnx", code=1)
    assert (failed["success"], failed["output_path"], len(failed["errors"])) == (False, None, 1)
    assert not (shared.folder / "nothing.onnx").exists()


def test_recipe_and_option_paths_have_their_own_base(shared: Project) -> None:
    """The recipe's quant section applies, in either of its positions, and the command line takes precedence."""
    (shared.folder / "recipes").mkdir()
    samples(shared.folder / "recipes" / "here.npz", scale=2.0)
    section = {"calibration_data": "here.npz", "samples": 4, "weight_type": "int8", "activation_type": "uint8"}
    shared.save("recipes/quant.yaml", {"quant": section, "optim": {"gelu_fusion": True}})
    shared.save("recipes/compile.yaml", {"compile": {"quant_config": section}})
    to = ("-m", "model.onnx", "-o", "recipe.onnx")
    first = shared.told("quantize", *to, "-c", "recipes/quant.yaml")
    assert (first["steps"][0]["weight_type"], first["calibration"]["samples"]) == ("int8", 4)
    assert ran(shared, "quantize", *to, "-c", "recipes/compile.yaml") == []
    wins = shared.told("quantize", *to, "-c", "recipes/quant.yaml", "--calibration-data", "data.npz")
    assert "calibrate" in with_status(wins, "ran", "id")
    assert wins["steps"][0]["weight_type"] == "int8"


def test_python_quantize_matches_command(shared: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    shared.told("quantize", "-m", "model.onnx", "-p", "w8a8", "--calibration-data", "data.npz", "-o", "python.onnx")
    monkeypatch.chdir(shared.folder)
    for name, value in shared.environment().items():
        monkeypatch.setenv(name, value)
    done = quantize_onnx("model.onnx", "python.onnx", precision="w8a8", calibration_data="data.npz")
    assert isinstance(done, QuantizeResult)
    assert (done.cached, done.output_path) == (True, Path("python.onnx"))
    config = WinMLQuantizationConfig(calibration_data="data.npz", weight_type="uint8", activation_type="uint8")
    for same in (config, config.to_dict()):
        assert quantize_onnx("model.onnx", "python.onnx", config=same).cached
    chain = quantize_onnx("model.onnx", "python.onnx", precision=["int4", "fp16"])
    assert [step.mode for step in chain.steps] == ["rtn", "fp16"]
    with pytest.raises(UsageError, match="nothing can follow"):
        quantize_onnx("model.onnx", "python.onnx", precision=["int8", "int4"])
    with pytest.raises(UsageError, match="fp32"):
        quantize_onnx("model.onnx", "python.onnx", precision="fp32")
    with pytest.raises(StageError, match="nope"):
        quantize_onnx("model.onnx", "python.onnx", config={"nodes_to_exclude": ["nope"]})


# Of a build


@needs_qnn
def test_compile_quant_config_equals_quant_section(shared: Project) -> None:
    """Nothing runs again, every byte is the same, and samples default to ten."""
    in_compile = {"model": "model.onnx", "compile": {"execution_provider": "qnn", "quant_config": SECTION}}
    assert {"calibrate", "quantize", "compile", "validate"} <= {*shared.built(in_compile, "in-compile").ran}
    assert partitions(shared.folder / "in-compile" / "model.onnx") == 1
    in_quant = {"model": "model.onnx", "quant": SECTION, "compile": {"execution_provider": "qnn"}}
    assert shared.built(in_quant, "in-quant").ran == []
    models = shared.models("in-compile")
    assert {"quantized.onnx", "compiled.onnx", "model.onnx"} <= models.keys()
    assert shared.models("in-quant") == models
    for out in ("in-quant", "in-compile"):
        assert shared.stage("calibrate", out)["metrics"]["samples"] == 10


@pytest.mark.parametrize("section", [{}, SECTION, {"weight_type": "int8", "node_overrides": {"a": {}}}])
def test_quant_config_round_trips_in_both_sections(section: dict[str, Any]) -> None:
    quant = WinMLQuantizationConfig.from_dict(section)
    assert Recipe.model_validate({"quant": section}).quant == quant
    config = WinMLCompileConfig.from_dict({"execution_provider": "qnn", "validate": False, "quant_config": section})
    assert config.quant_config == quant
    assert config.to_dict()["quant_config"] == quant.to_dict() == section
    again = WinMLCompileConfig.from_dict(json.loads(json.dumps(config.to_dict())))
    assert (again, again.model_fields_set) == (config, config.model_fields_set)


def test_both_quant_sections_raise_value_error(tmp_path: Path) -> None:
    """test_bad_input.py has the message of the command line."""
    model, quant = perceptron(tmp_path / "model.onnx"), WinMLQuantizationConfig()
    with pytest.raises(ValueError, match="there is a quant section as well"):
        build_onnx_model(
            model, tmp_path / "both", config={"quant": quant, "compile": WinMLCompileConfig(quant_config=quant)}
        )


def test_compile_without_quant_config_quantizes_nothing(shared: Project) -> None:
    recipe = {"model": "model.onnx", "ep": "cpu", "validate": {"enabled": False}}
    for number, section in enumerate(({}, {"quantize": False})):
        assert "quantize" not in shared.built({**recipe, "compile": section}, f"without-{number}").ran
    # A model with Q and DQ is not quantized again, whatever an old file says.
    asked = {**recipe, "compile": {"quantize": True}}
    shared.says("quantize", "-m", "model.onnx", "-p", "w8a8", "-d", "cpu", "-o", "qdq.onnx", "--no-validate")
    assert "quantize" not in shared.built({**asked, "model": "qdq.onnx"}, "old-qdq").ran
    assert not shared.json("old-qdq", "winml_build_config.json")["compile"]
    shared.save("old.yaml", asked)
    refused = shared.says("build", "-c", "old.yaml", "-o", "old", code=2)
    assert "compile.quantize is true, but nothing would be quantized" in refused
    assert "compile.quant_config" in refused


def test_distribution_seed_and_load_path_are_applied(shared: Project) -> None:
    """They may also be combined, if the ranges were found with the same settings."""
    recipe = {"model": "model.onnx", "ep": "cpu", "validate": {"enabled": False}}
    how = {"activation_type": "uint16", "samples": 2, "distribution": "normal", "seed": 5}
    kinds = {"as-said": how, "seed": {**how, "seed": 6}, "uniform": {**how, "distribution": "uniform"}}
    scales = set()
    for out, quant in kinds.items():
        shared.built({**recipe, "quant": {**quant, "save_calibration": out == "as-said"}}, out)
        scales.add(_input_scale(shared.folder / out / "quantized.onnx"))
    assert len(scales) == len(kinds)
    loaded = {**how, "load_path": "as-said/calibration_ranges.json"}
    assert "calibrate" not in shared.built({**recipe, "quant": loaded}, "loaded").ran
    assert shared.stage("calibrate", "loaded")["status"] == "skipped"
    assert shared.contents("loaded")["quantized.onnx"] == shared.contents("as-said")["quantized.onnx"]
    shared.save("other.yaml", {**recipe, "quant": {**loaded, "seed": 6}})
    refused = shared.says("build", "-c", "other.yaml", "-o", "other", code=2)
    assert "quant.seed is 6, but the ranges in" in refused


def _input_scale(model: Path) -> float:
    graph = onnx.load(model).graph
    constants = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    first = next(node for node in graph.node if node.op_type == "QuantizeLinear" and node.input[0] == "x")
    return float(constants[first.input[1]])


@pytest.mark.parametrize(
    ("device", "precision"),
    [
        pytest.param("qnn", "uint8", marks=needs_qnn),
        pytest.param("qnn", "fp32", marks=needs_qnn),
        ("dml", "int8"),
        ("cpu", "fp16"),
        ("vitisai", "int8"),
    ],
)
def test_onnx_build_uses_named_device_and_precision(shared: Project, device: str, precision: str) -> None:
    """Models can be built for DirectML without it, so this works where it is not installed too."""
    out = f"{device}-{precision}"
    named = ("build", "--onnx", "model.onnx", "--device", device, "--precision", precision, "-o", f"{out}/")
    if device == "vitisai":
        refused = shared.says(*named, code=2)
        assert "VitisAIExecutionProvider is not installed here" in refused
        assert "--no-compile" in refused
        named += ("--no-compile",)
    shared.says(*named)
    manifest, model = shared.manifest(out), shared.folder / out / "model.onnx"
    stages = {stage["name"]: stage for stage in manifest["stages"]}
    assert (manifest["source"], stages["export"]["status"]) == ("onnx", "skipped")
    assert (stages["quantize"]["status"] == "skipped") == (precision == "fp32")
    assert (stages["compile"]["status"] == "completed") == (device == "qnn")
    assert partitions(model) == (device == "qnn")
    assert manifest["precision"] == {"uint8": "w8a8", "int8": "w8a8"}.get(precision, precision)
    if device == "qnn":
        assert manifest["execution_provider"] == "QNNExecutionProvider"
        assert stages["validate"]["metrics"]["execution_provider"] == "QNNExecutionProvider"
    else:
        assert np.isfinite(run_model(model)).all()
    if device == "dml":
        assert "DmlExecutionProvider is not installed here" in " ".join(manifest["notices"])


# Sizes that make models of each architecture within a second.
_LAYERS = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}


@pytest.mark.parametrize(
    ("model_type", "task", "config"),
    [
        ("vit", "image-classification", {**_LAYERS, "image_size": 32, "patch_size": 8}),
        (
            "convnext",
            "image-classification",
            {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2, "image_size": 32},
        ),
    ],
)
def test_architecture_is_exported_quantized_and_runs(
    shared: Project, model_type: str, task: str, config: dict[str, Any]
) -> None:
    """test_sweep_shipped.py has BERT and ResNet."""
    loader = {"task": task, "model_type": model_type, "random_weights": {"config": config}}
    # A session of the test replaces validate, which the other tests cover.
    recipe = {"loader": loader, "precision": "w8a16", "quant": {"samples": 2}, "validate": {"enabled": False}}
    assert {"calibrate", "quantize"} <= {*shared.built(recipe, model_type).ran}
    model = shared.folder / model_type / "model.onnx"
    assert inspect_model(model).is_quantized
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    for feed in random_feeds(model_inputs(model), seed=0, count=1):
        assert all(np.isfinite(output).all() for output in session.run(None, dict(feed)))
