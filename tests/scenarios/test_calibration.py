"""One calibration for every precision, the effect of real data on scales, and saved and loaded ranges."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pyarrow
import pyarrow.parquet
import pytest
import yaml
from oneprocess import OneProcess
from onnx import numpy_helper
from onnx_samples import perceptron, samples
from scenario import Project

pytestmark = pytest.mark.slow

RANGES = "calibration/ranges.json"


def scales(model: Path) -> Mapping[str, float]:
    """Return the scale of every quantized activation."""
    graph = onnx.load(model).graph
    values = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    return {node.input[0]: float(values[node.input[1]]) for node in graph.node if node.op_type == "QuantizeLinear"}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, commands: OneProcess) -> Project:
    """A small ONNX model built in w8a8 with 8 samples of a file."""
    project = Project(tmp_path_factory.mktemp("built"), commands)
    perceptron(project.folder / "float.onnx", width=8)
    samples(project.folder / "data.npz", width=8, count=24)
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
def calibrated(built: Project, tmp_path: Path, commands: OneProcess) -> Project:
    """A copy for one test, built again since builds are recorded by folder."""
    folder = tmp_path / "project"
    shutil.copytree(built.folder, folder)
    copy = Project(folder, commands)
    assert copy.build().ran == []
    return copy


def metrics(project: Project) -> dict[str, dict[str, Any]]:
    return {stage["name"]: stage["metrics"] for stage in project.manifest()["stages"] if "metrics" in stage}


def test_all_static_precisions_share_one_calibration(calibrated: Project) -> None:
    ranges = calibrated.stage("calibrate")["outputs"]
    for precision in ("w8a16", "w16a8", "int16"):
        calibrated.edit(precision=precision)
        result = calibrated.build()
        assert result.ran == ["analyze", "quantize", "validate", "finalize"], result.messages
        assert calibrated.stage("calibrate")["outputs"] == ranges


@pytest.mark.parametrize("method", ["minmax", "entropy", "percentile"])
def test_calibration_data_change_quantization_scales(calibrated: Project, method: str) -> None:
    calibrated.edit(quant__calibration_method=method)
    assert calibrated.build().code == 0
    before = scales(calibrated.out / "quantized.onnx")
    samples(calibrated.folder / "data.npz", width=8, count=24, scale=5)
    result = calibrated.build()
    assert result.code == 0, result.messages
    assert result.ran[:2] == ["calibrate", "quantize"]
    after = scales(calibrated.out / "quantized.onnx")
    assert after.keys() == before.keys()
    assert all(after[name] > 2 * before[name] for name in before)


def test_samples_depend_on_seed_and_held_out_count(calibrated: Project) -> None:
    first = calibrated.stage("calibrate")["outputs"]
    with np.load(calibrated.folder / "data.npz") as data:
        np.savez_compressed(calibrated.folder / "packed.npz", x=data["x"])
    calibrated.edit(quant__calibration_data="packed.npz")
    assert calibrated.build().ran == ["calibrate", "validate"], "another file with the same samples"
    assert calibrated.stage("calibrate")["outputs"] == first
    calibrated.edit(validate__samples=6)
    more = calibrated.build()
    assert more.ran == ["calibrate", "validate", "finalize"], "there are enough for the same ranges"
    assert more.reason("calibrate") == "validate.samples: 3 -> 6"
    calibrated.edit(quant__seed=7)
    result = calibrated.build()
    assert result.ran[0] == "calibrate"
    assert result.reason("calibrate") == "quant.seed: null -> 7"
    assert calibrated.stage("calibrate")["outputs"] != first
    # Of 24 samples 6 are kept back, so 18 are all that remain: the same with any seed.
    calibrated.edit(quant__samples=18)
    calibrated.build()
    calibrated.edit(quant__seed=8)
    assert calibrated.build().ran == ["calibrate"]


def test_manifest_reports_calibration_data_used(calibrated: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    used, first = metrics(calibrated), calibrated.stage("calibrate")["outputs"]
    assert (used["calibrate"]["data"], used["calibrate"]["samples"]) == ("npz", 8)
    assert (used["validate"]["data"], used["validate"]["held_out"]) == ("npz", True)
    assert not any("random" in notice for notice in calibrated.manifest()["notices"])
    calibrated.edit(quant={"samples": 8})
    assert calibrated.build().code == 0
    used = metrics(calibrated)
    assert used["calibrate"]["data"] == used["validate"]["data"] == "random"
    assert any("random data" in notice for notice in calibrated.manifest()["notices"])
    # A data set in the hub's cache is used without a connection.
    repository = calibrated.folder / "hub" / "datasets--org--rows"
    split = repository / "snapshots" / "c0ffee" / "data" / "train-00000-of-00001.parquet"
    split.parent.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("c0ffee", encoding="utf-8")
    with np.load(calibrated.folder / "data.npz") as data:
        rows = [{"embedding": sample.tolist(), "label": index} for index, sample in enumerate(data["x"])]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), split)
    monkeypatch.setenv("HF_HUB_CACHE", str(calibrated.folder / "hub"))
    calibrated.edit(quant={"samples": 8, "dataset_name": "org/rows", "columns_mapping": {"x": "embedding"}})
    result = calibrated.build()
    assert result.code == 0, result.messages
    used = metrics(calibrated)
    assert used["calibrate"]["data"] == used["validate"]["data"] == "dataset"
    assert used["validate"]["held_out"]
    # The samples equal those of the file, and so do the ranges, except for the recorded kind of data.
    assert calibrated.stage("calibrate")["outputs"] != first
    assert result.ran == ["calibrate", "quantize", "validate", "finalize"]
    assert calibrated.build().ran == []


def test_saved_ranges_follow_recipe_and_never_overwrite_foreign_file(calibrated: Project) -> None:
    (calibrated.folder / "notes.json").write_text("mine", encoding="utf-8")
    calibrated.edit(quant__calibration_save_path="notes.json")
    assert "notes.json is in the way" in calibrated.says("build", "-c", "recipe.yaml", "-o", "out", code=2)
    assert (calibrated.folder / "notes.json").read_text(encoding="utf-8") == "mine"

    calibrated.edit(quant__calibration_save_path=RANGES, quant__save_calibration=True)
    assert calibrated.build().ran == []
    saved, shown = calibrated.folder / RANGES, calibrated.out / "calibration_ranges.json"
    content = json.loads(saved.read_text(encoding="utf-8"))
    assert saved.read_bytes() == shown.read_bytes()
    assert content["from"]["samples"] == 8
    assert content["from"]["model"] == calibrated.stage("calibrate")["inputs"]["model"]["digest"]

    saved.unlink()
    assert calibrated.build().ran == []
    assert saved.read_bytes() == shown.read_bytes()
    calibrated.edit(quant__calibration_save_path="elsewhere.json")
    assert calibrated.build().ran == []
    assert not saved.exists()
    assert (calibrated.folder / "elsewhere.json").read_bytes() == shown.read_bytes()
    calibrated.says("clean", "-c", "recipe.yaml", "-o", "out")
    assert not shown.exists()
    assert not (calibrated.folder / "elsewhere.json").exists()


def test_loaded_ranges_replace_calibration_of_same_model(calibrated: Project) -> None:
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

    perceptron(calibrated.folder / "float.onnx", width=8, seed=9)
    assert "ranges are of another model" in calibrated.says("build", "-c", "recipe.yaml", "-o", "loaded", code=1)
