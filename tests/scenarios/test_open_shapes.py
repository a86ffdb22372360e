"""Foreign ONNX files on the command line: open dimensions, inputs that are initializers, old opsets."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from oneprocess import OneProcess
from onnx_samples import foreign, save
from scenario import Project, needs_qnn, with_status

from winml_dag.onnxmodel.inspect import inspect_model

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
QNN = ["--ep", "qnn", "-p", "w8a16"]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, commands: OneProcess | None) -> Project:
    """Foreign models, and a cache that the tests of this file fill together."""
    project = Project(tmp_path_factory.mktemp("open"), commands)
    foreign(project.folder / "named.onnx", batch="N")
    foreign(project.folder / "unnamed.onnx", batch=None)
    foreign(project.folder / "side.onnx", batch="N", side="side")
    foreign(project.folder / "old.onnx", batch="N", opset=11)
    foreign(project.folder / "fixed.onnx", batch=1)
    return project


def build(project: Project, out: str, *arguments: str) -> list[str]:
    """Run a build into *out* that must succeed, and return the stages that ran."""
    return with_status(project.told("build", "-o", out, *arguments), "ran")


def shape(project: Project, path: str) -> tuple[int | str, ...]:
    return inspect_model(project.folder / path).inputs[0].shape


@needs_qnn
def test_open_batch_becomes_1_with_notice(shared: Project) -> None:
    build(shared, "unnamed", "--onnx", "unnamed.onnx", *QNN)
    compiled = inspect_model(shared.folder / "unnamed/model.onnx")
    assert (compiled.is_compiled, compiled.inputs[0].shape) == (True, (1, 3, 8, 8))
    (notice,) = (each for each in shared.manifest("unnamed")["notices"] if "open batch" in each)
    assert "--batch-size" in notice
    assert shape(shared, "unnamed.onnx")[0] != 1, "it is fixed on a copy"
    settings = shared.stage("normalize", "unnamed")["config"]["export"]
    assert settings["input_tensors"]["x"]["shape"] == [1, 3, 8, 8]
    assert "float32[1, 3, 8, 8]" in shared.says("inspect", "unnamed/normalized.onnx")


def test_other_open_dimension_is_refused_with_option(shared: Project) -> None:
    for command in (["plan"], ["build", "-o", "refused"]):
        said = shared.says(*command, "--onnx", "side.onnx", *QNN, code=2)
        assert "'side' of input 'x' (axis 2 of [N, 3, side, side])" in said
        assert """--shape-config '{"side": 224}'""" in said
    assert not (shared.folder / "refused").exists()
    other = ("--dynamic-axes", '{"x": {"0": "N"}}')
    assert "export.dynamic_axes" in shared.says("plan", "--onnx", "named.onnx", *other, code=2)


@needs_qnn
def test_sizes_are_accepted_by_name_by_input_and_in_file(shared: Project) -> None:
    (shared.folder / "sizes.json").write_text('{"side": 8}', encoding="utf-8")
    specs = '{"x": {"shape": [1, 3, 8, 8]}}'
    build(shared, "by-name", "--onnx", "side.onnx", *QNN, "--shape-config", '{"side": 8}')
    assert shape(shared, "by-name/model.onnx") == (1, 3, 8, 8)
    for out, option, given in (("by-file", "--shape-config", "sizes.json"), ("by-input", "--input-specs", specs)):
        assert build(shared, out, "--onnx", "side.onnx", *QNN, option, given) == [], "it is the same model"


def test_open_shape_target_gets_given_sizes(shared: Project) -> None:
    assert "normalize" in build(shared, "cpu", "--onnx", "side.onnx", "-p", "fp32", "--batch-size", "2")
    assert shape(shared, "cpu/model.onnx") == (2, 3, "side", "side")
    model = onnx.load(shared.folder / "fixed.onnx")
    model.graph.input[0].type.tensor_type.ClearField("shape")
    onnx.save(model, shared.folder / "shapeless.onnx")
    specs = ("--input-specs", '{"x": {"shape": [2, 3, 8, 8]}}')
    build(shared, "shapeless", "--onnx", "shapeless.onnx", "-p", "fp32", *specs)
    assert shape(shared, "shapeless/model.onnx") == (2, 3, 8, 8)


@pytest.mark.parametrize("name", ["side", "fixed", "old"])
def test_model_fit_for_its_target_is_not_normalized(shared: Project, name: str) -> None:
    stages = shared.told("build", "-o", name, "--onnx", f"{name}.onnx", "-p", "fp32")["builds"][0]["stages"]
    assert [stage["stage"] for stage in stages][:2] == ["export", "optimize"]
    assert "normalize" not in [stage["name"] for stage in shared.manifest(name)["stages"]]
    assert shape(shared, f"{name}/model.onnx") == shape(shared, f"{name}.onnx")


def test_written_settings_give_same_model(shared: Project) -> None:
    build(shared, "first", "--onnx", "side.onnx", "-p", "w8a8", "--batch-size", "2", "--shape-config", '{"side": 8}')
    written = shared.json("first", "winml_build_config.json")
    assert written["export"] == {"input_tensors": [{"name": "x", "shape": [2, 3, 8, 8]}]}
    assert build(shared, "again", "-c", "first/winml_build_config.json") == []
    assert shared.models("again")["model.onnx"] == shared.models("first")["model.onnx"]
    planned = shared.says("plan", "-c", "first/winml_build_config.json", "-o", "again", "--batch-size", "4")
    assert "export.input_tensors.x.shape: [2,3,8,8] -> [4,3,8,8]" in planned, "an option holds over the recipe"


def test_batch_edit_runs_normalize_and_later_stages(shared: Project) -> None:
    recipe = {"model": "named.onnx", "ep": "cpu", "precision": "w8a8", "export": {"batch_size": 2}, "auto": False}
    shared.built(recipe, "edited")
    shared.save("edited.yaml", {**recipe, "export": {"batch_size": 3}})
    planned = shared.plan(recipe="edited.yaml", out="edited")
    assert planned.reason("normalize").startswith("export.input_tensors.x.shape: ")
    again = shared.build(recipe="edited.yaml", out="edited")
    assert again.ran == ["normalize", "optimize", "calibrate", "quantize", "validate", "finalize"]
    assert shared.built(recipe, "edited").ran == []
    assert shape(shared, "edited/model.onnx") == (2, 3, 8, 8)


def test_shape_sweep_normalizes_once_per_shape(shared: Project) -> None:
    sides = {"small": 6, "large": 10}
    axis = [{"name": name, "export": {"shape_config": {"side": side}}} for name, side in sides.items()]
    recipe = {"model": "side.onnx", "ep": "cpu", "auto": False, "export": {"batch_size": 1}}
    shared.save("sweep.yaml", {**recipe, "matrix": {"export.shape_config": axis, "precision": ["fp32", "fp16"]}})
    shared.says("build", "-c", "sweep.yaml", "-o", "sweep")
    assert "2 normalize" in shared.says("plan", "-c", "sweep.yaml", "-o", "sweep")
    for name, size in sides.items():
        for precision in ("fp32", "fp16"):
            assert shape(shared, f"sweep/{name}/{precision}/model.onnx") == (1, 3, size, size)


@needs_qnn
@pytest.mark.parametrize("command", ["optimize", "quantize", "compile"])
def test_single_stage_command_fixes_shapes(shared: Project, command: str) -> None:
    out = f"{command}.onnx"
    shared.says(command, "-m", "unnamed.onnx", "--ep", "qnn", "--batch-size", "2", "-o", out)
    assert shape(shared, out) == (2, 3, 8, 8)


def test_ranges_apply_only_to_model_with_same_sizes(shared: Project) -> None:
    shared.says("calibrate", "-m", "unnamed.onnx", "--batch-size", "2", "-o", "ranges.json")
    shared.python("""
from winml_dag import quantize_onnx
quantize_onnx("unnamed.onnx", "loaded.onnx", precision="w8a8", export={"batch_size": 2}, validate=False,
              config={"calibration_load_path": "ranges.json"})
""")
    assert shape(shared, "loaded.onnx") == (2, 3, 8, 8)
    other = ("--load-calibration", "ranges.json", "-p", "w8a8", "-o", "other.onnx")
    assert shared.run("quantize", "-m", "unnamed.onnx", *other).returncode != 0


def test_analyze_uses_fixed_shapes(shared: Project) -> None:
    foreign(shared.folder / "reciprocal.onnx", batch="N", last="Reciprocal")
    told = shared.told("analyze", "reciprocal.onnx", "--ep", "qnn")
    assert "open batch" in told["notices"][0]
    unsupported = [each["operator"] for each in told["targets"][0]["unsupported"]]
    assert not [operator for operator in unsupported if "Reciprocal" in operator]
    assert not [each for each in told["analysis"]["lint"]["errors"] if each["check"] == "dynamic_inputs"]
    assert "--shape-config" in shared.says("analyze", "side.onnx", "--ep", "qnn", code=2)


@pytest.mark.parametrize("precision", ["fp16", "w8a16"])
def test_old_zoo_model_builds(shared: Project, precision: str) -> None:
    """Its format lists every weight among the inputs, and its opset has no per-channel scales."""
    shutil.copy(LIGHT / "light_squeezenet.onnx", shared.folder / "zoo.onnx")
    out = f"zoo-{precision}"
    build(shared, out, "--onnx", "zoo.onnx", "-p", precision, "--no-analyze")
    metrics = shared.stage("normalize", out)["metrics"]
    assert metrics["initializers_dropped_from_inputs"] == 52
    assert metrics["opset_after"] == (21 if precision.startswith("w8") else 9)
    assert [spec.name for spec in inspect_model(shared.folder / out / "model.onnx").inputs] == ["data_0"]


# A layer between two equal biases, and a product that QNN leaves to the CPU.
LISTED = """<ir_version: 8, opset_import: ["": 17]> g (float[1, 4] x) => (float[1, 4] y) {
    a = Add(x, before) h = MatMul(a, weight) d = Cast<to = 11>(h) m = Mul(d, double) f = Cast<to = 1>(m)
    r = Relu(f) y = Add(r, after)
}"""


@pytest.fixture(scope="module")
def listed(shared: Project) -> Project:
    """With a model that lists every constant among its inputs too."""
    bias, weight = np.full(1, 0.5, np.float32), np.random.default_rng(3).standard_normal((4, 4)).astype(np.float32)
    constants = {"before": bias, "weight": weight, "double": np.full(1, 2.0), "after": bias}
    model = onnx.load(save(shared.folder / "listed.onnx", LISTED, **constants))
    for tensor in model.graph.initializer:
        model.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    onnx.save(model, shared.folder / "listed.onnx")
    return shared


@needs_qnn
@pytest.mark.parametrize(
    ("command", "made"),
    [
        ("build -p fp32 -o listed-fp32 --onnx", "listed-fp32/model.onnx"),
        ("build -p fp16 -o listed-fp16 --onnx", "listed-fp16/model.onnx"),
        ("compile -o listed.qnn.onnx -m", "listed.qnn.onnx"),
    ],
)
def test_compiled_model_with_listed_constants_is_validated(listed: Project, command: str, made: str) -> None:
    told = listed.told(*command.split(), "listed.onnx", "--ep", "qnn")
    summary = inspect_model(listed.folder / made)
    assert (summary.is_compiled, [spec.name for spec in summary.inputs]) == (True, ["x"])
    assert "validate" in with_status(told, "ran")


@needs_qnn
def test_command_stage_can_precede_normalize(shared: Project) -> None:
    copy = [sys.executable, "-c", "import shutil, sys; shutil.copy(*sys.argv[1:])", "{inputs.model}", "{outputs.model}"]
    own = {"command": copy, "inputs": {"model": "named.onnx"}, "outputs": {"model": "mine.onnx"}}
    stages = {"mine": own, "normalize": {"inputs": {"model": "mine.model"}}}
    shared.built({"model": "named.onnx", "ep": "qnn", "precision": "w8a16", "stages": stages}, "own")
    assert shared.stage("normalize", "own")["inputs"]["model"]["from"] == "mine"
    assert inspect_model(shared.folder / "own/model.onnx").is_compiled
