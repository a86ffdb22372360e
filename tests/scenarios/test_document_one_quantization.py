"""One quantization for the whole product, and builds that start with ONNX: one test per requirement.

Compilation quantizes with the same stages and the same section as quantization by itself. Where behaviour differs from
the requirements, this package's is asserted; docs/how-to/coming-from-other-tools.md explains why.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from oneprocess import OneProcess
from onnx_samples import perceptron, samples
from scenario import Project

import winml_dag
from winml_dag import WinMLCompileConfig, WinMLQuantizationConfig, build_onnx_model, compile_onnx
from winml_dag.ep.availability import resolve_target
from winml_dag.onnxmodel.feeds import model_inputs, random_feeds
from winml_dag.onnxmodel.inspect import inspect_model
from winml_dag.pipeline.quantization import with_types
from winml_dag.recipe.schema import Compile, EpSettings, Quant, Recipe
from winml_dag.stages.compile import CompileFields

# Sizes that make models of each architecture within a second.
_LAYERS = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
_TEXT = {"vocab_size": 100, "max_position_embeddings": 40}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "roberta": ("text-classification", {**_LAYERS, **_TEXT, "type_vocab_size": 1}),
    "distilbert": ("text-classification", {**_TEXT, "dim": 32, "n_layers": 1, "n_heads": 2, "hidden_dim": 64}),
    "gpt2": ("feature-extraction", {"vocab_size": 100, "n_positions": 40, "n_embd": 32, "n_layer": 1, "n_head": 2}),
    "vit": ("image-classification", {**_LAYERS, "image_size": 32, "patch_size": 8}),
    "convnext": (
        "image-classification",
        {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2, "image_size": 32},
    ),
}
SECTION = {"calibration_data": "data.npz", "samples": 5, "weight_type": "uint8", "activation_type": "uint16"}


def test_qdqconfig_and_calibrationconfig_removed_from_compiler() -> None:
    """Neither has a replacement: compile's own fields, in a recipe and in the stage, exclude quantization."""
    package = Path(winml_dag.__file__).parent
    classes = {
        name
        for path in package.rglob("*.py")
        for name in re.findall(r"^\s*class\s+(\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert Quant.__name__ in classes
    assert not classes & {"QDQConfig", "CalibrationConfig"}
    of_quantization = Quant.model_fields.keys()
    assert not of_quantization & (Compile.model_fields.keys() | EpSettings.model_fields.keys())
    assert not of_quantization & CompileFields.__dataclass_fields__.keys()


def test_winml_quantization_config_is_the_single_quant_config_used_by_both_modules() -> None:
    sections = {
        "quant": Recipe.model_validate({"quant": {}}).quant,
        "compile.quant_config": Recipe.model_validate({"compile": {"quant_config": {}}}).compile.quant_config,
    }
    assert {type(section) for section in sections.values()} == {WinMLQuantizationConfig}
    assert sections["quant"] == sections["compile.quant_config"]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, commands: OneProcess | None) -> Project:
    """An ONNX model, data, and a cache that the tests of this file fill together."""
    project = Project(tmp_path_factory.mktemp("one"), commands)
    perceptron(project.folder / "model.onnx")
    samples(project.folder / "data.npz")
    samples(project.folder / "wider.npz", scale=20.0)
    made = project.run("quantize", "-m", "model.onnx", "-p", "w8a8", "-d", "cpu", "-o", "qdq.onnx", "--no-validate")
    assert made.returncode == 0, made.stderr
    return project


def build(project: Project, recipe: dict[str, Any], out: str) -> list[str]:
    """Build *recipe* into *out*, and return the stages that ran."""
    (project.folder / f"{out}.json").write_text(json.dumps(recipe), encoding="utf-8")
    result = project.build(recipe=f"{out}.json", out=out)
    assert result.code == 0, result.messages
    return result.ran


def partitions(model: Path) -> int:
    return sum(node.op_type == "EPContext" for node in onnx.load(model, load_external_data=False).graph.node)


@pytest.mark.slow
def test_compiler_quantization_uses_quantize_onnx_internally(shared: Project) -> None:
    """Its stages are those of a recipe that only quantizes: nothing runs again, every byte is the same."""
    pytest.importorskip("onnxruntime_qnn")
    compile_ = {"model": "model.onnx", "compile": {"execution_provider": "qnn", "quant_config": SECTION}}
    assert {"calibrate", "quantize", "compile", "validate"} <= set(build(shared, compile_, "in-compile"))
    assert partitions(shared.folder / "in-compile" / "model.onnx") == 1
    quant = {"model": "model.onnx", "quant": SECTION, "compile": {"execution_provider": "qnn"}}
    assert build(shared, quant, "in-quant") == []
    models = [name for name in shared.contents("in-compile") if name.endswith((".onnx", ".bin"))]
    assert {"quantized.onnx", "compiled.onnx", "model.onnx"} <= set(models)
    one, two = shared.contents("in-compile"), shared.contents("in-quant")
    assert {name: one[name] for name in models} == {name: two[name] for name in models}


@pytest.mark.slow
def test_no_more_broken_calibrate_and_qdq(shared: Project) -> None:
    """quantize uses the ranges that calibrate finds: other data, other scales."""
    recipe = {"model": "model.onnx", "compile": {"execution_provider": "cpu", "quant_config": SECTION}}
    build(shared, recipe, "narrow")
    wider = {**SECTION, "calibration_data": "wider.npz"}
    ran = build(shared, {**recipe, "compile": {"execution_provider": "cpu", "quant_config": wider}}, "wide")
    assert {"calibrate", "quantize"} <= set(ran)
    narrow, wide = (_input_scale(shared.folder / out / "quantized.onnx") for out in ("narrow", "wide"))
    assert wide == pytest.approx(20 * narrow, rel=1e-5)


def _input_scale(model: Path) -> float:
    graph = onnx.load(model).graph
    constants = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    first = next(node for node in graph.node if node.op_type == "QuantizeLinear" and node.input[0] == "x")
    return float(constants[first.input[1]])


@pytest.mark.parametrize(
    ("ep", "weight_type"), [("cpu", "uint8"), ("qnn", "uint8"), ("openvino", "int8"), ("vitisai", "int8")]
)
def test_the_type_of_weights_that_nobody_names_is_the_provider_s(ep: str, weight_type: str) -> None:
    """Build and compile share the default, which depends on the provider; the same applies to per-channel scales."""
    section = with_types(Quant(), resolve_target(ep, None))
    assert section.weight_type == weight_type
    assert section.per_channel is (ep != "vitisai")


@pytest.mark.slow
@pytest.mark.parametrize("place", ["quant", "compile"])
def test_samples_default_to_ten_in_both_places(shared: Project, place: str) -> None:
    section = {"activation_type": "uint16", "seed": 3}
    both = {"quant": {"quant": section}, "compile": {"compile": {"execution_provider": "cpu", "quant_config": section}}}
    recipe = {"model": "model.onnx", "ep": "cpu", "validate": {"enabled": False}, **both[place]}
    build(shared, recipe, f"samples-{place}")
    calibrate = next(stage for stage in shared.manifest(f"samples-{place}")["stages"] if stage["name"] == "calibrate")
    assert calibrate["metrics"]["samples"] == 10


@pytest.mark.slow
def test_distribution_seed_and_load_path_are_used(shared: Project) -> None:
    """They may also be combined, if the ranges were found with the same settings."""
    recipe = {"model": "model.onnx", "ep": "cpu", "validate": {"enabled": False}}
    how = {"activation_type": "uint16", "samples": 2, "distribution": "normal", "seed": 5}
    kinds = {"as-said": how, "seed": {**how, "seed": 6}, "uniform": {**how, "distribution": "uniform"}}
    scales = set()
    for out, quant in kinds.items():
        build(shared, {**recipe, "quant": {**quant, "save_calibration": out == "as-said"}}, out)
        scales.add(_input_scale(shared.folder / out / "quantized.onnx"))
    assert len(scales) == len(kinds)
    loaded = {**how, "load_path": "as-said/calibration_ranges.json"}
    assert "calibrate" not in build(shared, {**recipe, "quant": loaded}, "loaded")
    stages = {stage["name"]: stage for stage in shared.manifest("loaded")["stages"]}
    assert stages["calibrate"]["status"] == "skipped"
    assert shared.contents("loaded")["quantized.onnx"] == shared.contents("as-said")["quantized.onnx"]
    (shared.folder / "other.json").write_text(json.dumps({**recipe, "quant": {**loaded, "seed": 6}}), encoding="utf-8")
    refused = shared.run("build", "-c", "other.json", "-o", "other")
    assert refused.returncode == 2
    assert "quant.seed is 6, but the ranges in" in refused.stderr


@pytest.mark.slow
def test_compile_quantizes_with_its_quant_config_or_refuses_it(shared: Project) -> None:
    pytest.importorskip("onnxruntime_qnn")
    section = {"execution_provider": "qnn", "quant_config": SECTION}
    (shared.folder / "compile.json").write_text(json.dumps({"compile": section}), encoding="utf-8")
    command = ("compile", "-m", "model.onnx", "-c", "compile.json", "-o", "compiled.onnx", "--format", "json")
    finished = shared.run(*command)
    if finished.returncode:
        assert "quant_config" in finished.stderr
        return
    stages = {stage["stage"]: stage["status"] for stage in json.loads(finished.stdout)["stages"]}
    assert stages["quantize"] in ("ran", "reused")


@pytest.mark.slow
def test_compile_onnx_quantizes_with_its_quant_config_or_refuses_it(shared: Project) -> None:
    pytest.importorskip("onnxruntime_qnn")
    quant = WinMLQuantizationConfig.from_dict({**SECTION, "calibration_data": str(shared.folder / "data.npz")})
    config = WinMLCompileConfig.from_dict({"execution_provider": "qnn", "quant_config": quant.to_dict()})
    try:
        compile_onnx(shared.folder / "model.onnx", shared.folder / "python.onnx", config=config, cache_dir=shared.cache)
    except ValueError as error:
        assert "quant_config" in str(error)  # noqa: PT017 - it may be honoured instead
    else:
        types = {node.op_type for node in onnx.load(shared.folder / "python.onnx").graph.node}
        assert "QuantizeLinear" in types


@pytest.mark.slow
@pytest.mark.parametrize("section", [{}, {"quantize": False}])
def test_without_quant_config_compile_quantizes_nothing(shared: Project, section: dict[str, Any]) -> None:
    recipe = {"model": "model.onnx", "ep": "cpu", "compile": section, "validate": {"enabled": False}}
    assert "quantize" not in build(shared, recipe, f"without-{len(section)}")


@pytest.mark.slow
def test_compile_quantize_is_taken_where_it_says_what_happens_and_is_no_switch(shared: Project) -> None:
    """A model with Q and DQ is not quantized again, whatever an old file says."""
    recipe = {"ep": "cpu", "compile": {"quantize": True}, "validate": {"enabled": False}}
    assert "quantize" not in build(shared, {**recipe, "model": "qdq.onnx"}, "old-qdq")
    assert not json.loads(shared.contents("old-qdq")["winml_build_config.json"])["compile"]
    (shared.folder / "old.json").write_text(json.dumps({**recipe, "model": "model.onnx"}), encoding="utf-8")
    refused = shared.run("build", "-c", "old.json", "-o", "old")
    assert refused.returncode == 2
    assert "compile.quantize is true, but nothing would be quantized" in refused.stderr
    assert "compile.quant_config" in refused.stderr


@pytest.mark.parametrize("section", [{}, SECTION, {"weight_type": "int8", "node_overrides": {"a": {}}}])
def test_compile_goes_to_a_dict_and_back_by_way_of_the_quantization_config(section: dict[str, Any]) -> None:
    quant = WinMLQuantizationConfig.from_dict(section)
    config = WinMLCompileConfig.from_dict({"execution_provider": "qnn", "validate": False, "quant_config": section})
    assert config.quant_config == quant
    assert config.to_dict()["quant_config"] == quant.to_dict() == section
    again = WinMLCompileConfig.from_dict(json.loads(json.dumps(config.to_dict())))
    assert (again, again.model_fields_set) == (config, config.model_fields_set)


@pytest.mark.slow
def test_value_error_when_both_quant_and_compile_quant_config_are_set(shared: Project) -> None:
    both = {"model": "model.onnx", "quant": {}, "compile": {"execution_provider": "cpu", "quant_config": {}}}
    (shared.folder / "both.json").write_text(json.dumps(both), encoding="utf-8")
    finished = shared.run("build", "-c", "both.json", "-o", "both")
    assert finished.returncode == 2
    assert "both.json:1: compile.quant_config: there is a quant section as well; keep one of the two" in finished.stderr
    assert not (shared.folder / "both").exists()
    quant = WinMLQuantizationConfig()
    sections = {"quant": quant, "compile": WinMLCompileConfig(quant_config=quant)}
    with pytest.raises(ValueError, match="there is a quant section as well"):
        build_onnx_model(shared.folder / "model.onnx", shared.folder / "both", config=sections)


@pytest.mark.slow
def test_build_onnx_device_qnn_precision_uint8_works(shared: Project) -> None:
    """Exactly as required; the result is one partition, and runs."""
    pytest.importorskip("onnxruntime_qnn")
    finished = shared.run("build", "--onnx", "model.onnx", "--device", "qnn", "--precision", "uint8", "-o", "output/")
    assert finished.returncode == 0, finished.stderr
    assert partitions(shared.folder / "output" / "model.onnx") == 1
    manifest = shared.manifest("output")
    assert (manifest["source"], manifest["precision"], manifest["execution_provider"]) == (
        "onnx",
        "w8a8",
        "QNNExecutionProvider",
    )
    stages = {stage["name"]: stage for stage in manifest["stages"]}
    assert stages["export"]["status"] == "skipped"
    assert stages["validate"]["metrics"]["execution_provider"] == "QNNExecutionProvider"


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["uint8", "int8", "fp16", "fp32"])
@pytest.mark.parametrize("device", ["qnn", "dml", "cpu"])
def test_build_onnx_maps_device_and_precision_to_the_configs(shared: Project, device: str, precision: str) -> None:
    """Models can be built for DirectML without it, so this works where it is not installed too."""
    if device == "qnn":
        pytest.importorskip("onnxruntime_qnn")
    out = f"{device}-{precision}"
    finished = shared.run("build", "--onnx", "model.onnx", "--device", device, "--precision", precision, "-o", out)
    assert finished.returncode == 0, finished.stderr
    stages = {stage["name"]: stage for stage in shared.manifest(out)["stages"]}
    assert (stages["quantize"]["status"] == "skipped") == (precision == "fp32")
    assert (stages["compile"]["status"] == "completed") == (device == "qnn")
    model = shared.folder / out / "model.onnx"
    assert partitions(model) == (device == "qnn")
    if device != "qnn":
        x = np.random.default_rng(2).normal(size=(4, 64)).astype(np.float32)
        session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
        assert np.isfinite(session.run(None, {"x": x})[0]).all()
    if device == "dml":
        assert "DmlExecutionProvider is not installed here" in " ".join(shared.manifest(out)["notices"])


@pytest.mark.slow
def test_a_provider_that_is_missing_is_refused_with_what_else_to_do(shared: Project) -> None:
    arguments = ("build", "--onnx", "model.onnx", "--device", "vitisai", "--precision", "int8", "-o", "vitisai")
    finished = shared.run(*arguments)
    assert finished.returncode == 2
    assert "VitisAIExecutionProvider is not installed here" in finished.stderr
    assert "--no-compile" in finished.stderr
    assert shared.run(*arguments, "--no-compile").returncode == 0


@pytest.mark.slow
def test_quantize_result_is_propagated_into_the_build_manifest(shared: Project) -> None:
    recipe = {"model": "model.onnx", "compile": {"execution_provider": "cpu", "quant_config": SECTION}}
    build(shared, recipe, "manifest")
    quantized = next(stage for stage in shared.manifest("manifest")["stages"] if stage["name"] == "quantize")
    assert quantized["nodes_quantized"] > 0
    assert quantized["nodes_skipped"] == 0
    assert quantized["calibration_time_seconds"] > 0
    assert quantized["qdq_insertion_time_seconds"] > 0


@pytest.mark.slow
def test_quantize_result_is_in_the_result_of_a_build(shared: Project) -> None:
    section = {**SECTION, "calibration_data": str(shared.folder / "data.npz")}
    config = {"compile": {"execution_provider": "cpu", "quant_config": section}}
    result = build_onnx_model(shared.folder / "model.onnx", shared.folder / "py", config=config, cache_dir=shared.cache)
    done = result.quantization
    assert done is not None
    quantize = next(view.result for view in result.stages if view.stage == "quantize")
    assert quantize is not None
    assert quantize.record is not None
    assert done.nodes_quantized == quantize.record.metrics["nodes_quantized"] > 0
    assert done.calibration_time_seconds > 0
    assert done.qdq_insertion_time_seconds > 0


@pytest.mark.slow
def test_build_onnx_leaves_out_what_the_model_has_behind_it(shared: Project) -> None:
    """Export is always skipped; optimize and analyze on request, since a foreign model may need them."""
    asked = ("build", "--onnx", "model.onnx", "--device", "cpu", "--precision", "fp32", "--no-validate")
    for options, skipped in (((), set()), (("--no-optimize", "--no-analyze"), {"optimize", "analyze"})):
        out = f"skip-{len(options)}"
        assert shared.run(*asked, *options, "-o", out).returncode == 0
        stages = {stage["name"]: stage["status"] for stage in shared.manifest(out)["stages"]}
        assert {name for name in ("export", "optimize", "analyze") if stages[name] == "skipped"} == {"export", *skipped}


@pytest.mark.slow
def test_device_qnn_compiles_what_a_recipe_describes(shared: Project) -> None:
    pytest.importorskip("onnxruntime_qnn")
    recipe = {"model": "model.onnx", "quant": SECTION}
    (shared.folder / "device.json").write_text(json.dumps(recipe), encoding="utf-8")
    finished = shared.run("build", "-c", "device.json", "--device", "qnn", "-o", "device")
    assert finished.returncode == 0, finished.stderr
    assert partitions(shared.folder / "device" / "model.onnx") == 1


@pytest.mark.slow
def test_perf_measures_a_quantized_model(shared: Project) -> None:
    once = ("--iterations", "1", "--warmup", "0", "--no-baseline", "--format", "json")
    finished = shared.run("perf", "qdq.onnx", "--ep", "cpu", *once)
    assert finished.returncode == 0, finished.stderr
    assert json.loads(finished.stdout)["latency_ms"]["mean"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("model_type", FAMILIES)
def test_no_regression_for_all_existing_models(shared: Project, model_type: str) -> None:
    """Each supported architecture is exported, quantized, and runs; test_sweep_shipped.py has BERT and ResNet."""
    pytest.importorskip("transformers")
    task, config = FAMILIES[model_type]
    loader = {"task": task, "model_type": model_type, "random_weights": {"config": config}}
    # A session of the test replaces validate, which the other tests cover.
    recipe = {"loader": loader, "precision": "w8a16", "quant": {"samples": 2}, "validate": {"enabled": False}}
    assert {"calibrate", "quantize"} <= set(build(shared, recipe, f"family-{model_type}"))
    model = shared.folder / f"family-{model_type}" / "model.onnx"
    assert inspect_model(model).is_quantized
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    for feed in random_feeds(model_inputs(model), seed=0, count=1):
        assert all(np.isfinite(output).all() for output in session.run(None, dict(feed)))
