"""One calibration for every precision, the effect of real data on scales, and saved and loaded ranges."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pyarrow
import pyarrow.parquet
import pytest
import yaml
from oneprocess import OneProcess
from onnx import TensorProto, helper, numpy_helper
from scenario import Project

pytestmark = pytest.mark.slow

RANGES = "calibration/ranges.json"


def save_model(path: Path, seed: int = 0) -> None:
    generator = np.random.default_rng(seed)
    weights = {name: generator.standard_normal((8, 8)).astype(np.float32) for name in ("w1", "w2")}
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["m"], "first"),
        helper.make_node("Relu", ["m"], ["r"], "relu"),
        helper.make_node("MatMul", ["r", "w2"], ["y"], "second"),
    ]
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)


def save_data(path: Path, seed: int, scale: float = 1.0) -> None:
    samples = np.random.default_rng(seed).standard_normal((24, 1, 8)).astype(np.float32)
    np.savez(path, x=samples * np.float32(scale))


def scales(model: Path) -> Mapping[str, float]:
    """Return the scale of every quantized activation."""
    graph = onnx.load(model).graph
    values = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    return {node.input[0]: float(values[node.input[1]]) for node in graph.node if node.op_type == "QuantizeLinear"}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, commands: OneProcess | None) -> Project:
    """A small ONNX model built in w8a8 with 8 samples of a file."""
    folder = tmp_path_factory.mktemp("built")
    project = Project(folder, commands)
    save_model(folder / "float.onnx")
    save_data(folder / "data.npz", seed=1)
    recipe = {
        "model": "float.onnx",
        "ep": "cpu",
        "precision": "w8a8",
        "quant": {"samples": 8, "calibration_data": "data.npz"},
        # Eight samples of a normal distribution do not cover its range.
        "validate": {"min_cosine": 0.5},
    }
    project.recipe_file.write_text(yaml.safe_dump(recipe), encoding="utf-8")
    first = project.build()
    assert first.code == 0, first.messages
    assert "calibrate" in first.ran
    return project


@pytest.fixture
def calibrated(built: Project, tmp_path: Path, commands: OneProcess | None) -> Project:
    """A copy for one test, built again since builds are recorded by folder."""
    folder = tmp_path / "project"
    shutil.copytree(built.folder, folder)
    copy = Project(folder, commands)
    assert copy.build().ran == []
    return copy


def calibrate_of(project: Project) -> dict[str, object]:
    return next(stage for stage in project.manifest()["stages"] if stage["name"] == "calibrate")


def test_one_calibration_serves_w8a8_w8a16_w16a8_and_int16(calibrated: Project) -> None:
    ranges = calibrate_of(calibrated)["outputs"]
    for precision in ("w8a16", "w16a8", "int16"):
        calibrated.edit(precision=precision)
        result = calibrated.build()
        assert result.ran == ["analyze", "quantize", "validate", "finalize"], result.messages
        assert calibrate_of(calibrated)["outputs"] == ranges


def test_keeping_back_more_samples_leaves_the_ranges_alone_as_long_as_there_are_enough(calibrated: Project) -> None:
    calibrated.edit(validate__samples=6)
    result = calibrated.build()
    assert result.ran == ["calibrate", "validate", "finalize"]
    assert result.reason("calibrate") == "validate.samples: 3 -> 6"


@pytest.mark.parametrize("method", ["minmax", "entropy", "percentile"])
def test_other_data_move_the_scales_of_the_quantized_model(calibrated: Project, method: str) -> None:
    calibrated.edit(quant__calibration_method=method)
    assert calibrated.build().code == 0
    before = scales(calibrated.out / "quantized.onnx")
    save_data(calibrated.folder / "data.npz", seed=2, scale=5)
    result = calibrated.build()
    assert result.code == 0, result.messages
    assert result.ran[:2] == ["calibrate", "quantize"]
    after = scales(calibrated.out / "quantized.onnx")
    assert after.keys() == before.keys()
    assert all(after[name] > 2 * before[name] for name in before)


def test_what_the_manifest_says_of_the_data_is_what_was_used(calibrated: Project) -> None:
    stages = {stage["name"]: stage["metrics"] for stage in calibrated.manifest()["stages"] if "metrics" in stage}
    assert (stages["calibrate"]["data"], stages["calibrate"]["samples"]) == ("npz", 8)
    assert (stages["validate"]["data"], stages["validate"]["held_out"]) == ("npz", True)
    assert not any("random" in notice for notice in calibrated.manifest()["notices"])
    calibrated.edit(quant={"samples": 8})
    assert calibrated.build().code == 0
    stages = {stage["name"]: stage["metrics"] for stage in calibrated.manifest()["stages"] if "metrics" in stage}
    assert stages["calibrate"]["data"] == stages["validate"]["data"] == "random"
    assert any("random data" in notice for notice in calibrated.manifest()["notices"])


def test_without_a_seed_the_first_samples_are_taken_and_with_one_a_choice(calibrated: Project) -> None:
    first = calibrate_of(calibrated)["outputs"]
    calibrated.edit(quant__seed=7)
    result = calibrated.build()
    assert result.ran[0] == "calibrate"
    assert result.reason("calibrate") == "quant.seed: null -> 7"
    assert calibrate_of(calibrated)["outputs"] != first
    # Of 24 samples 3 are kept back, so 21 are all that remain: the same with any seed.
    calibrated.edit(quant__samples=21)
    calibrated.build()
    calibrated.edit(quant__seed=8)
    assert calibrated.build().ran == ["calibrate"]


def test_saved_ranges_are_kept_where_the_recipe_says(calibrated: Project) -> None:
    calibrated.edit(quant__calibration_save_path=RANGES, quant__save_calibration=True)
    result = calibrated.build()
    assert result.ran == []
    saved, shown = calibrated.folder / RANGES, calibrated.out / "calibration_ranges.json"
    content = json.loads(saved.read_text(encoding="utf-8"))
    assert saved.read_bytes() == shown.read_bytes()
    assert content["from"]["samples"] == 8
    stages = calibrated.manifest()["stages"]
    read = next(stage for stage in stages if stage["name"] == "calibrate")["inputs"]["model"]["digest"]
    assert content["from"]["model"] == read

    saved.unlink()
    assert calibrated.build().ran == []
    assert saved.read_bytes() == shown.read_bytes()
    calibrated.edit(quant__calibration_save_path="elsewhere.json")
    assert calibrated.build().ran == []
    assert not saved.exists()
    assert (calibrated.folder / "elsewhere.json").read_bytes() == shown.read_bytes()
    assert calibrated.run("clean", "-c", "recipe.yaml", "-o", "out").returncode == 0
    assert not shown.exists()
    assert not (calibrated.folder / "elsewhere.json").exists()


def test_ranges_are_never_saved_over_somebody_elses_file(calibrated: Project) -> None:
    (calibrated.folder / "notes.json").write_text("mine", encoding="utf-8")
    calibrated.edit(quant__calibration_save_path="notes.json")
    refused = calibrated.run("build", "-c", "recipe.yaml", "-o", "out")
    assert refused.returncode == 2
    assert "notes.json is in the way" in refused.stderr
    assert (calibrated.folder / "notes.json").read_text(encoding="utf-8") == "mine"


def test_loaded_ranges_take_the_place_of_calibration(calibrated: Project) -> None:
    calibrated.edit(quant__calibration_save_path=RANGES)
    calibrated.build()
    quantized = (calibrated.out / "quantized.onnx").read_bytes()
    calibrated.edit(quant={"calibration_load_path": RANGES, "calibration_data": "data.npz"})
    result = calibrated.build(out="loaded")
    assert result.code == 0, result.messages
    assert "quantize" not in result.ran, "the same ranges of the same model: its record is found"
    assert "validate" not in result.ran, "the same model on the same samples"
    assert result.reason("calibrate") == f"the activation ranges come from {RANGES}"
    assert (calibrated.folder / "loaded" / "quantized.onnx").read_bytes() == quantized

    ranges = calibrated.folder / RANGES
    content = json.loads(ranges.read_text(encoding="utf-8"))
    content["ranges"] = {name: [low * 2, high * 2] for name, (low, high) in content["ranges"].items()}
    ranges.write_text(json.dumps(content), encoding="utf-8")
    edited = calibrated.build(out="loaded")
    assert "quantize" in edited.ran
    before, after = scales(calibrated.out / "quantized.onnx"), scales(calibrated.folder / "loaded" / "quantized.onnx")
    assert after == pytest.approx({name: 2 * value for name, value in before.items()})


def test_ranges_of_another_model_are_refused(calibrated: Project) -> None:
    calibrated.edit(quant__calibration_save_path=RANGES)
    calibrated.build()
    calibrated.edit(quant={"calibration_load_path": RANGES})
    save_model(calibrated.folder / "float.onnx", seed=9)
    refused = calibrated.run("build", "-c", "recipe.yaml", "-o", "loaded")
    assert refused.returncode == 1
    assert "ranges are of another model" in refused.stderr


def test_a_data_set_in_the_hubs_cache_is_used_without_a_connection(
    calibrated: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = calibrated.folder / "hub" / "datasets--org--rows"
    split = repository / "snapshots" / "c0ffee" / "data" / "train-00000-of-00001.parquet"
    split.parent.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("c0ffee", encoding="utf-8")
    with np.load(calibrated.folder / "data.npz") as data:
        rows = [{"embedding": sample.tolist(), "label": index} for index, sample in enumerate(data["x"])]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), split)
    monkeypatch.setenv("HF_HUB_CACHE", str(calibrated.folder / "hub"))
    before = calibrate_of(calibrated)["outputs"]
    calibrated.edit(quant={"samples": 8, "dataset_name": "org/rows", "columns_mapping": {"x": "embedding"}})
    result = calibrated.build()
    assert result.code == 0, result.messages
    stages = {stage["name"]: stage["metrics"] for stage in calibrated.manifest()["stages"] if "metrics" in stage}
    assert stages["calibrate"]["data"] == stages["validate"]["data"] == "dataset"
    assert stages["validate"]["held_out"]
    # The samples equal those of the earlier file, and so do the ranges, except for the recorded kind of data.
    assert calibrate_of(calibrated)["outputs"] != before
    assert result.ran == ["calibrate", "quantize", "validate", "finalize"]
    assert calibrated.build().ran == []


def test_another_file_with_the_same_samples_gives_the_same_ranges(calibrated: Project) -> None:
    with np.load(calibrated.folder / "data.npz") as data:
        samples = data["x"]
    np.savez_compressed(calibrated.folder / "packed.npz", x=samples)
    calibrated.edit(quant__calibration_data="packed.npz")
    assert calibrated.build().ran == ["calibrate", "validate"]
