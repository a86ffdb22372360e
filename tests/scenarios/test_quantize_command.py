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
from oneprocess import OneProcess
from onnx import TensorProto
from onnx_samples import perceptron, samples
from scenario import Project, needs_qnn, with_status

from winml_dag import WinMLCompileConfig, WinMLQuantizationConfig, build_onnx_model
from winml_dag.onnxmodel.feeds import model_inputs, random_feeds
from winml_dag.onnxmodel.inspect import inspect_model
from winml_dag.recipe.schema import Recipe

pytestmark = pytest.mark.slow

SECTION = {"calibration_data": "data.npz", "samples": 5, "weight_type": "uint8", "activation_type": "uint16"}
AS_GIVEN = ("--no-optimize", "--no-analyze")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, commands: OneProcess | None) -> Project:
    """A model, data, and a cache that the tests of this file fill together."""
    project = Project(tmp_path_factory.mktemp("quantize"), commands)
    perceptron(project.folder / "model.onnx")
    samples(project.folder / "data.npz")
    return project


class Quantized:
    def __init__(self, told: dict[str, Any]) -> None:
        self.value = told
        self.ran, self.reused = (with_status(told, status, "id") for status in ("ran", "reused"))


def quantize(project: Project, *arguments: str) -> Quantized:
    return Quantized(project.told("quantize", *arguments))


def build(project: Project, *arguments: str) -> list[str]:
    """Build and return the stages that ran."""
    return with_status(project.told("build", *arguments), "ran", "id")


def run_model(path: Path) -> np.ndarray:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    x = np.random.default_rng(2).normal(size=(4, 64)).astype(np.float32)
    return session.run(None, {"x": x})[0]


def partitions(model: Path) -> int:
    return sum(node.op_type == "EPContext" for node in onnx.load(model, load_external_data=False).graph.node)


def test_it_finds_what_a_build_of_the_same_model_has_made(shared: Project) -> None:
    assert build(shared, "--onnx", "model.onnx", "--no-optimize", "-p", "w8a8", "-o", "built-w8a8")[-1] == "finalize"
    done = quantize(shared, "-m", "model.onnx", "-p", "w8a8", "-o", "w8a8.onnx")
    assert (done.ran, done.reused) == (["finalize"], ["calibrate", "quantize", "validate"])
    assert (shared.folder / "w8a8.onnx").read_bytes() == (shared.folder / "built-w8a8" / "model.onnx").read_bytes()


def test_a_build_finds_what_it_has_made(shared: Project) -> None:
    quantize(shared, "-m", "model.onnx", "-p", "w8a16", "-o", "w8a16.onnx")
    assert build(shared, "--onnx", "model.onnx", *AS_GIVEN, "-p", "w8a16", "-o", "built-w8a16") == ["finalize"]


def test_it_finds_what_a_build_has_made_of_the_model_that_the_build_optimized(shared: Project) -> None:
    """The file in the output folder is what calibrate and quantize have read."""
    assert {"optimize.0", "quantize"} <= {
        *build(shared, "--onnx", "model.onnx", "-p", "w16a16", "-o", "optimized"),
    }
    done = quantize(shared, "-m", "optimized/optimized.onnx", "-p", "w16a16", "-o", "w16a16.onnx")
    assert {"calibrate", "quantize"} <= {*done.reused}


@needs_qnn
def test_a_build_goes_on_with_what_it_has_quantized(shared: Project) -> None:
    """The result, under the name that a build gives it, is what compile and validate would read."""
    target = ("-p", "w8a8", "-d", "qnn")
    assert "compile" in build(shared, "--onnx", "model.onnx", "--no-optimize", *target, "-o", "one-go")
    again = quantize(shared, "-m", "model.onnx", *target, "-o", "qnn/quantized.onnx")
    assert again.reused[:2] == ["calibrate", "quantize"]
    assert "compile" not in build(shared, "--onnx", "qnn/quantized.onnx", "-d", "qnn", "-o", "two-goes")
    one, two = (shared.folder / out / "model.onnx" for out in ("one-go", "two-goes"))
    assert one.read_bytes() == two.read_bytes()


def test_weights_beside_a_model_that_is_given_are_found_both_ways(shared: Project) -> None:
    model = onnx.load(perceptron(shared.folder / "inside.onnx", seed=3))
    onnx.save_model(
        model, shared.folder / "apart.onnx", save_as_external_data=True, location="apart.weights", size_threshold=0
    )
    assert "quantize" in build(shared, "--onnx", "apart.onnx", "--no-optimize", "-p", "dynamic", "-o", "built-apart")
    assert quantize(shared, "-m", "apart.onnx", "-p", "dynamic", "-o", "dynamic-apart.onnx").ran == ["finalize"]
    assert "quantize" in quantize(shared, "-m", "apart.onnx", "-p", "int4", "-o", "int4-apart.onnx").ran
    assert build(shared, "--onnx", "apart.onnx", *AS_GIVEN, "-p", "int4", "-o", "built-apart") == ["finalize"]


def test_four_bits_and_then_float16_shares_the_first_with_four_bits_alone(shared: Project) -> None:
    quantize(shared, "-m", "model.onnx", "-p", "int4", "-o", "int4.onnx")
    chain = quantize(shared, "-m", "model.onnx", "-p", "int4", "-p", "fp16", "-o", "int4-fp16.onnx")
    assert chain.reused == ["quantize"]
    assert [step["mode"] for step in chain.value["steps"]] == ["rtn", "fp16"]
    types = {tensor.data_type for tensor in onnx.load(shared.folder / "int4-fp16.onnx").graph.initializer}
    assert types == {TensorProto.UINT8, TensorProto.FLOAT16}
    # The same by its name, and from the result of the first.
    assert build(shared, "--onnx", "model.onnx", *AS_GIVEN, "-p", "w4a16", "-o", "w4a16") == ["finalize"]
    assert set(shared.contents("w4a16")) == {
        *("quantized.onnx", "model.onnx", "build_manifest.json", "winml_build_config.json")
    }
    made = {stage["id"]: stage["filename"] for stage in shared.manifest("w4a16")["stages"] if "id" in stage}
    assert (made["quantize"], made["quantize.1"]) == (None, "quantized.onnx")
    assert build(shared, "--onnx", "model.onnx", *AS_GIVEN, "-p", "w4a32", "-o", "w4a32") == ["finalize"]
    assert "quantize" in quantize(shared, "-m", "w4a32/quantized.onnx", "-p", "fp16", "-o", "going-on.onnx").reused
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
    assert "quality: cosine" in first
    assert first.splitlines()[-2].startswith(f"Built {Path('aside/net_quantized.onnx')} (w8a8, cpu) in ")
    assert sorted(path.name for path in (shared.folder / "aside").iterdir()) == ["net.onnx", "net_quantized.onnx"]
    before = (shared.folder / "aside" / "net_quantized.onnx").stat().st_mtime_ns
    again = shared.python(script).splitlines()
    assert again[0].startswith(f"Up to date: {Path('aside/net_quantized.onnx')} (w8a8, cpu)")
    assert again[-1] == "0 []"
    assert (shared.folder / "aside" / "net_quantized.onnx").stat().st_mtime_ns == before
    (shared.folder / "aside" / "net_quantized.onnx").unlink()
    restored = shared.says("quantize", "-m", "aside/net.onnx")
    assert restored.splitlines()[-1].startswith(f"Restored {Path('aside/net_quantized.onnx')}")


def test_a_file_that_is_not_ours_is_overwritten_only_when_that_is_asked_for(shared: Project) -> None:
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


def test_one_json_object_says_what_was_done(shared: Project) -> None:
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


def test_data_relative_to_where_the_user_stands_and_a_recipe_elsewhere(shared: Project) -> None:
    """The recipe's quant section applies, in either of its positions, and the command line takes precedence."""
    (shared.folder / "recipes").mkdir()
    samples(shared.folder / "recipes" / "here.npz", scale=2.0)
    section = {"calibration_data": "here.npz", "samples": 4, "weight_type": "int8", "activation_type": "uint8"}
    shared.save("recipes/quant.yaml", {"quant": section, "optim": {"gelu_fusion": True}})
    shared.save("recipes/compile.yaml", {"compile": {"quant_config": section}})
    to = ("-m", "model.onnx", "-o", "recipe.onnx")
    first = quantize(shared, *to, "-c", "recipes/quant.yaml").value
    assert (first["steps"][0]["weight_type"], first["calibration"]["samples"]) == ("int8", 4)
    assert quantize(shared, *to, "-c", "recipes/compile.yaml").ran == []
    wins = quantize(shared, *to, "-c", "recipes/quant.yaml", "--calibration-data", "data.npz")
    assert "calibrate" in wins.ran
    assert wins.value["steps"][0]["weight_type"] == "int8"


def test_python_does_the_same(shared: Project) -> None:
    quantize(shared, "-m", "model.onnx", "-p", "w8a8", "--calibration-data", "data.npz", "-o", "python.onnx")
    said = shared.python("""
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
""")
    assert "nothing can follow" in said


# Of a build


@needs_qnn
def test_a_section_of_compile_quantizes_as_that_of_the_recipe_does(shared: Project) -> None:
    """Nothing runs again, every byte is the same."""
    in_compile = {"model": "model.onnx", "compile": {"execution_provider": "qnn", "quant_config": SECTION}}
    assert {"calibrate", "quantize", "compile", "validate"} <= {*shared.built(in_compile, "in-compile").ran}
    assert partitions(shared.folder / "in-compile" / "model.onnx") == 1
    in_quant = {"model": "model.onnx", "quant": SECTION, "compile": {"execution_provider": "qnn"}}
    assert shared.built(in_quant, "in-quant").ran == []
    models = shared.models("in-compile")
    assert {"quantized.onnx", "compiled.onnx", "model.onnx"} <= models.keys()
    assert shared.models("in-quant") == models


@pytest.mark.parametrize("section", [{}, SECTION, {"weight_type": "int8", "node_overrides": {"a": {}}}])
def test_both_sections_are_the_same_config_which_goes_to_a_dict_and_back(section: dict[str, Any]) -> None:
    quant = WinMLQuantizationConfig.from_dict(section)
    assert Recipe.model_validate({"quant": section}).quant == quant
    config = WinMLCompileConfig.from_dict({"execution_provider": "qnn", "validate": False, "quant_config": section})
    assert config.quant_config == quant
    assert config.to_dict()["quant_config"] == quant.to_dict() == section
    again = WinMLCompileConfig.from_dict(json.loads(json.dumps(config.to_dict())))
    assert (again, again.model_fields_set) == (config, config.model_fields_set)


def test_both_sections_at_once_are_a_value_error(tmp_path: Path) -> None:
    """test_bad_input.py has the message of the command line."""
    model, quant = perceptron(tmp_path / "model.onnx"), WinMLQuantizationConfig()
    with pytest.raises(ValueError, match="there is a quant section as well"):
        build_onnx_model(
            model, tmp_path / "both", config={"quant": quant, "compile": WinMLCompileConfig(quant_config=quant)}
        )


def test_samples_default_to_ten_in_both_sections(shared: Project) -> None:
    section = {"activation_type": "uint16", "seed": 3}
    recipe = {"model": "model.onnx", "ep": "cpu", "validate": {"enabled": False}}
    shared.built({**recipe, "quant": section}, "ten-in-quant")
    shared.built({**recipe, "compile": {"execution_provider": "cpu", "quant_config": section}}, "ten-in-compile")
    for out in ("ten-in-quant", "ten-in-compile"):
        assert shared.stage("calibrate", out)["metrics"]["samples"] == 10


def test_compile_without_a_quant_config_quantizes_nothing_and_says_so_to_who_asks_for_it(shared: Project) -> None:
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


def test_distribution_seed_and_load_path_are_used(shared: Project) -> None:
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


@pytest.mark.parametrize("precision", ["uint8", "int8", "fp16", "fp32"])
@pytest.mark.parametrize("device", [pytest.param("qnn", marks=needs_qnn), "dml", "cpu"])
def test_a_build_of_onnx_is_for_the_device_and_precision_that_are_named(
    shared: Project, device: str, precision: str
) -> None:
    """Models can be built for DirectML without it, so this works where it is not installed too."""
    out = f"{device}-{precision}"
    shared.says("build", "--onnx", "model.onnx", "--device", device, "--precision", precision, "-o", f"{out}/")
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


def test_a_provider_that_is_missing_is_refused_with_what_else_to_do(shared: Project) -> None:
    arguments = ("build", "--onnx", "model.onnx", "--device", "vitisai", "--precision", "int8", "-o", "vitisai")
    refused = shared.says(*arguments, code=2)
    assert "VitisAIExecutionProvider is not installed here" in refused
    assert "--no-compile" in refused
    shared.says(*arguments, "--no-compile")


def test_the_result_of_a_build_from_python_has_what_quantization_did(shared: Project) -> None:
    section = {**SECTION, "calibration_data": str(shared.folder / "data.npz")}
    config = {"compile": {"execution_provider": "cpu", "quant_config": section}}
    result = build_onnx_model(shared.folder / "model.onnx", shared.folder / "py", config=config, cache_dir=shared.cache)
    done = result.quantization
    assert done is not None
    quantized = next(view.result for view in result.stages if view.stage == "quantize")
    assert quantized is not None
    assert quantized.record is not None
    assert done.nodes_quantized == quantized.record.metrics["nodes_quantized"] > 0
    assert done.calibration_time_seconds > 0
    assert done.qdq_insertion_time_seconds > 0


def test_a_build_of_onnx_exports_nothing_and_leaves_out_on_request_what_the_model_has_behind_it(
    shared: Project,
) -> None:
    asked = ("build", "--onnx", "model.onnx", "--device", "cpu", "--precision", "fp32", "--no-validate")
    for options, skipped in (((), set()), (AS_GIVEN, {"optimize", "analyze"})):
        out = f"skip-{len(options)}"
        shared.says(*asked, *options, "-o", out)
        stages = {stage["name"]: stage["status"] for stage in shared.manifest(out)["stages"]}
        assert {name for name in ("export", "optimize", "analyze") if stages[name] == "skipped"} == {"export", *skipped}


# Sizes that make models of each architecture within a second.
_LAYERS = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
_TEXT = {"vocab_size": 100, "max_position_embeddings": 40}


@pytest.mark.parametrize(
    ("model_type", "task", "config"),
    [
        ("roberta", "text-classification", {**_LAYERS, **_TEXT, "type_vocab_size": 1}),
        ("distilbert", "text-classification", {**_TEXT, "dim": 32, "n_layers": 1, "n_heads": 2, "hidden_dim": 64}),
        ("gpt2", "feature-extraction", {"vocab_size": 100, "n_positions": 40, "n_embd": 32, "n_layer": 1, "n_head": 2}),
        ("vit", "image-classification", {**_LAYERS, "image_size": 32, "patch_size": 8}),
        (
            "convnext",
            "image-classification",
            {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2, "image_size": 32},
        ),
    ],
)
def test_an_architecture_is_exported_quantized_and_runs(
    shared: Project, model_type: str, task: str, config: dict[str, Any]
) -> None:
    """test_sweep_shipped.py has BERT and ResNet."""
    pytest.importorskip("transformers")
    loader = {"task": task, "model_type": model_type, "random_weights": {"config": config}}
    # A session of the test replaces validate, which the other tests cover.
    recipe = {"loader": loader, "precision": "w8a16", "quant": {"samples": 2}, "validate": {"enabled": False}}
    assert {"calibrate", "quantize"} <= {*shared.built(recipe, model_type).ran}
    model = shared.folder / model_type / "model.onnx"
    assert inspect_model(model).is_quantized
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    for feed in random_feeds(model_inputs(model), seed=0, count=1):
        assert all(np.isfinite(output).all() for output in session.run(None, dict(feed)))
