"""Foreign ONNX files on the command line: open dimensions, inputs that are initializers, old opsets."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import yaml
from oneprocess import OneProcess
from onnx_samples import foreign
from scenario import Project

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


def build(project: Project, out: str, *arguments: str) -> dict[str, Any]:
    """Run a build into *out* that must succeed, and return the data on every stage, and the notices."""
    done = project.run("build", "-o", out, "--format", "json", *arguments)
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout)["builds"][0]
    return said


def ran(said: dict[str, Any]) -> list[str]:
    return [stage["stage"] for stage in said["stages"] if stage["status"] == "ran"]


def shape(path: Path) -> tuple[int | str, ...]:
    return inspect_model(path).inputs[0].shape


def normalized(project: Project, out: str) -> dict[str, Any]:
    found: dict[str, Any] = next(stage for stage in project.manifest(out)["stages"] if stage["name"] == "normalize")
    return found


@pytest.mark.parametrize("name", ["named", "unnamed"])
def test_an_open_batch_is_one_for_a_target_of_fixed_shapes_and_that_is_said(shared: Project, name: str) -> None:
    pytest.importorskip("onnxruntime_qnn")
    build(shared, name, "--onnx", f"{name}.onnx", *QNN)
    compiled = inspect_model(shared.folder / name / "model.onnx")
    assert compiled.is_compiled
    assert compiled.inputs[0].shape == (1, 3, 8, 8)
    (notice,) = (each for each in shared.manifest(name)["notices"] if "open batch" in each)
    assert "--batch-size" in notice
    assert shape(shared.folder / f"{name}.onnx")[0] != 1, "it is fixed on a copy"
    settings = normalized(shared, name)["config"]["export"]
    assert settings["input_tensors"]["x"]["shape"] == [1, 3, 8, 8]
    told = shared.run("inspect", f"{name}/normalized.onnx").stdout
    assert "float32[1, 3, 8, 8]" in told


def test_another_open_dimension_is_refused_at_once_with_the_flag_to_give(shared: Project) -> None:
    for command in (["plan"], ["build", "-o", "refused"]):
        done = shared.run(*command, "--onnx", "side.onnx", *QNN)
        assert done.returncode == 2
        assert "'side' of input 'x' (axis 2 of [N, 3, side, side])" in done.stderr
        assert """--shape-config '{"side": 224}'""" in done.stderr
    assert not (shared.folder / "refused").exists()


def test_sizes_may_be_given_by_name_by_input_and_in_a_file(shared: Project) -> None:
    pytest.importorskip("onnxruntime_qnn")
    (shared.folder / "sizes.json").write_text('{"side": 8}', encoding="utf-8")
    specs = '{"x": {"shape": [1, 3, 8, 8]}}'
    build(shared, "by-name", "--onnx", "side.onnx", *QNN, "--shape-config", '{"side": 8}')
    assert shape(shared.folder / "by-name" / "model.onnx") == (1, 3, 8, 8)
    for out, option, given in (("by-file", "--shape-config", "sizes.json"), ("by-input", "--input-specs", specs)):
        assert ran(build(shared, out, "--onnx", "side.onnx", *QNN, option, given)) == [], "it is the same model"


def test_a_target_that_takes_open_shapes_gets_the_sizes_that_are_given(shared: Project) -> None:
    build(shared, "cpu", "--onnx", "side.onnx", "-p", "fp32", "--batch-size", "2")
    assert shape(shared.folder / "cpu" / "model.onnx") == (2, 3, "side", "side")
    said = build(shared, "open", "--onnx", "side.onnx", "-p", "fp32")
    assert shape(shared.folder / "open" / "model.onnx") == ("N", 3, "side", "side")
    assert "normalize" not in [stage["stage"] for stage in said["stages"]]


def test_a_model_that_needs_nothing_has_the_line_that_it_had(shared: Project) -> None:
    said = build(shared, "fixed", "--onnx", "fixed.onnx", "-p", "fp32")
    assert [stage["stage"] for stage in said["stages"]][:2] == ["export", "optimize"]
    assert "normalize" not in [stage["name"] for stage in shared.manifest("fixed")["stages"]]


def test_the_recipe_that_a_build_leaves_gives_the_same_model(shared: Project) -> None:
    build(shared, "first", "--onnx", "side.onnx", "-p", "w8a8", "--batch-size", "2", "--shape-config", '{"side": 8}')
    written = json.loads((shared.folder / "first" / "winml_build_config.json").read_text(encoding="utf-8"))
    assert written["export"] == {"input_tensors": [{"name": "x", "shape": [2, 3, 8, 8]}]}
    assert ran(build(shared, "again", "-c", "first/winml_build_config.json")) == []
    assert shared.contents("again")["model.onnx"] == shared.contents("first")["model.onnx"]
    planned = shared.run("plan", "-c", "first/winml_build_config.json", "-o", "again", "--batch-size", "4").stdout
    assert "export.input_tensors.x.shape: [2,3,8,8] -> [4,3,8,8]" in planned, "an option holds over the recipe"


def test_an_edit_of_the_batch_runs_normalize_and_what_follows_and_one_back_nothing(shared: Project) -> None:
    recipe = {"model": "named.onnx", "ep": "cpu", "precision": "w8a8", "export": {"batch_size": 2}, "auto": False}
    file = shared.folder / "edited.yaml"
    file.write_text(yaml.safe_dump(recipe), encoding="utf-8")
    build(shared, "edited", "-c", "edited.yaml")
    file.write_text(yaml.safe_dump({**recipe, "export": {"batch_size": 3}}), encoding="utf-8")
    planned = json.loads(shared.run("plan", "-c", "edited.yaml", "-o", "edited", "--format", "json").stdout)
    reasons = {stage["stage"]: stage["reason"] for stage in planned["builds"][0]["stages"]}
    assert reasons["normalize"].startswith("export.input_tensors.x.shape: ")
    again = ran(build(shared, "edited", "-c", "edited.yaml"))
    assert again == ["normalize", "optimize", "calibrate", "quantize", "validate", "finalize"]
    file.write_text(yaml.safe_dump(recipe), encoding="utf-8")
    assert ran(build(shared, "edited", "-c", "edited.yaml")) == []
    assert shape(shared.folder / "edited" / "model.onnx") == (2, 3, 8, 8)


def test_a_sweep_over_shapes_has_one_normalized_model_for_each(shared: Project) -> None:
    sweep = {
        "model": "side.onnx",
        "ep": "cpu",
        "auto": False,
        "export": {"batch_size": 1},
        "matrix": {
            "export.shape_config": [
                {"name": "small", "export": {"shape_config": {"side": 6}}},
                {"name": "large", "export": {"shape_config": {"side": 10}}},
            ],
            "precision": ["fp32", "fp16"],
        },
    }
    (shared.folder / "sweep.yaml").write_text(yaml.safe_dump(sweep), encoding="utf-8")
    done = shared.run("build", "-c", "sweep.yaml", "-o", "sweep")
    assert done.returncode == 0, done.stderr
    assert "2 normalize" in shared.run("plan", "-c", "sweep.yaml", "-o", "sweep").stdout
    for size, name in ((6, "small"), (10, "large")):
        for precision in ("fp32", "fp16"):
            assert shape(shared.folder / "sweep" / name / precision / "model.onnx") == (1, 3, size, size)


def test_an_input_without_a_shape_is_validated_in_the_one_that_it_gets(shared: Project) -> None:
    model = onnx.load(shared.folder / "fixed.onnx")
    model.graph.input[0].type.tensor_type.ClearField("shape")
    onnx.save(model, shared.folder / "shapeless.onnx")
    build(
        shared, "shapeless", "--onnx", "shapeless.onnx", "-p", "fp32", "--input-specs", '{"x": {"shape": [2, 3, 8, 8]}}'
    )
    assert shape(shared.folder / "shapeless" / "model.onnx") == (2, 3, 8, 8)


@pytest.mark.parametrize("command", ["optimize", "quantize", "compile"])
def test_a_command_for_one_stage_fixes_shapes_too(shared: Project, command: str) -> None:
    pytest.importorskip("onnxruntime_qnn")
    out = f"{command}.onnx"
    done = shared.run(command, "-m", "unnamed.onnx", "--ep", "qnn", "--batch-size", "2", "-o", out)
    assert done.returncode == 0, done.stderr
    assert shape(shared.folder / out) == (2, 3, 8, 8)


def test_functions_for_one_stage_take_sizes_as_well(shared: Project) -> None:
    script = """
from winml_dag import calibrate_onnx, optimize_onnx, quantize_onnx
sizes = {"batch_size": 2}
optimize_onnx("unnamed.onnx", "api/optimized.onnx", export=sizes, validate=False)
calibrate_onnx("unnamed.onnx", "api/ranges.json", export=sizes)
quantize_onnx("unnamed.onnx", "api/quantized.onnx", precision="w8a8", export=sizes, validate=False,
              config={"calibration_load_path": "api/ranges.json"})
"""
    shared.python(script)
    assert shape(shared.folder / "api" / "optimized.onnx") == (2, 3, 8, 8)
    assert shape(shared.folder / "api" / "quantized.onnx") == (2, 3, 8, 8)


def test_ranges_of_a_model_with_sizes_are_for_the_model_with_these_sizes(shared: Project) -> None:
    sizes = ["-m", "unnamed.onnx", "--batch-size", "2"]
    done = shared.run("calibrate", *sizes, "-o", "ranges.json")
    assert done.returncode == 0, done.stderr
    with_ranges = ["--load-calibration", "ranges.json", "-p", "w8a8", "-o", "loaded.onnx"]
    done = shared.run("quantize", *sizes, *with_ranges)
    assert done.returncode == 0, done.stderr
    assert shared.run("quantize", "-m", "unnamed.onnx", *with_ranges, "--overwrite").returncode != 0


def test_analyze_judges_the_model_with_fixed_shapes(shared: Project) -> None:
    foreign(shared.folder / "reciprocal.onnx", batch="N", last="Reciprocal")
    done = shared.run("analyze", "reciprocal.onnx", "--ep", "qnn", "--format", "json")
    told = json.loads(done.stdout)
    assert "open batch" in told["notices"][0]
    unsupported = [each["operator"] for each in told["targets"][0]["unsupported"]]
    assert not [operator for operator in unsupported if "Reciprocal" in operator]
    assert not [each for each in told["analysis"]["lint"]["errors"] if each["check"] == "dynamic_inputs"]
    refused = shared.run("analyze", "side.onnx", "--ep", "qnn")
    assert (refused.returncode, "--shape-config" in refused.stderr) == (2, True)


@pytest.mark.parametrize("precision", ["fp32", "fp16", "w8a8", "w8a16"])
def test_a_model_of_the_old_zoo_builds_in_every_precision(shared: Project, precision: str) -> None:
    """Its format lists every weight among the inputs, and its opset has no per-channel scales."""
    shutil.copy(LIGHT / "light_squeezenet.onnx", shared.folder / "zoo.onnx")
    out = f"zoo-{precision}"
    # Its made-up weights give a thousand classes of 0.001 each, which 8 bits round to zero.
    validate = ["--no-validate"] if precision == "w8a8" else []
    build(shared, out, "--onnx", "zoo.onnx", "-p", precision, "--no-analyze", *validate)
    metrics = normalized(shared, out)["metrics"]
    assert metrics["initializers_dropped_from_inputs"] == 52
    assert metrics["opset_after"] == (21 if precision.startswith("w8") else 9)
    assert [spec.name for spec in inspect_model(shared.folder / out / "model.onnx").inputs] == ["data_0"]


def listed(path: Path) -> None:
    """Save a layer between two equal biases, and a product that QNN leaves to the CPU.

    Every constant is an input too.
    """
    text = (
        '<ir_version: 8, opset_import: ["": 17]> g (float[1, 4] x) => (float[1, 4] y) '
        "{ a = Add(x, before) h = MatMul(a, weight) d = Cast<to = 11>(h) m = Mul(d, double) f = Cast<to = 1>(m) "
        "r = Relu(f) y = Add(r, after) }"
    )
    model = onnx.parser.parse_model(text)
    bias, weight = np.full(1, 0.5, np.float32), np.random.default_rng(3).standard_normal((4, 4)).astype(np.float32)
    constants = {"before": bias, "weight": weight, "double": np.full(1, 2.0), "after": bias}
    for name, values in constants.items():
        tensor = onnx.numpy_helper.from_array(values, name)
        model.graph.initializer.append(tensor)
        model.graph.input.append(onnx.helper.make_tensor_value_info(name, tensor.data_type, values.shape))
    onnx.save(model, path)


@pytest.mark.parametrize(
    ("command", "made"),
    [
        ("build -p fp32 -o listed-fp32 --onnx", "listed-fp32/model.onnx"),
        ("build -p fp16 -o listed-fp16 --onnx", "listed-fp16/model.onnx"),
        ("compile -o listed.qnn.onnx -m", "listed.qnn.onnx"),
    ],
)
def test_what_is_compiled_of_a_model_whose_constants_are_inputs_is_loaded_back(
    shared: Project, command: str, made: str
) -> None:
    pytest.importorskip("onnxruntime_qnn")
    listed(shared.folder / "listed.onnx")
    done = shared.run(*command.split(), "listed.onnx", "--ep", "qnn", "--format", "json")
    assert done.returncode == 0, done.stderr
    summary = inspect_model(shared.folder / made)
    assert (summary.is_compiled, [spec.name for spec in summary.inputs]) == (True, ["x"])
    said = json.loads(done.stdout)
    (validated,) = (each for each in said.get("builds", [said])[0]["stages"] if each["stage"] == "validate")
    assert validated["status"] == "ran"


def test_an_old_opset_is_raised_for_integers_and_kept_for_floats(shared: Project) -> None:
    build(shared, "old-w8a8", "--onnx", "old.onnx", "-p", "w8a8")
    assert normalized(shared, "old-w8a8")["metrics"]["opset_after"] == 21
    said = build(shared, "old-fp32", "--onnx", "old.onnx", "-p", "fp32")
    assert "normalize" not in [stage["stage"] for stage in said["stages"]]


def test_a_stage_of_the_recipes_own_may_stand_before_normalize(shared: Project) -> None:
    pytest.importorskip("onnxruntime_qnn")
    recipe = {
        "model": "named.onnx",
        "ep": "qnn",
        "precision": "w8a16",
        "stages": {
            "mine": {
                "command": [
                    "python",
                    "-c",
                    "import shutil, sys; shutil.copy(*sys.argv[1:])",
                    "{inputs.model}",
                    "{outputs.model}",
                ],
                "inputs": {"model": "named.onnx"},
                "outputs": {"model": "mine.onnx"},
            },
            "normalize": {"inputs": {"model": "mine.model"}},
        },
    }
    (shared.folder / "own.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    build(shared, "own", "-c", "own.yaml")
    assert normalized(shared, "own")["inputs"]["model"]["from"] == "mine"
    assert inspect_model(shared.folder / "own" / "model.onnx").is_compiled


def test_other_fields_of_an_export_are_still_refused(shared: Project) -> None:
    done = shared.run("plan", "--onnx", "named.onnx", "--dynamic-axes", '{"x": {"0": "N"}}')
    assert (done.returncode, "export.dynamic_axes" in done.stderr) == (2, True)
