"""The effect of the settings of calibration and validation, which contradict each other, and what is read of data."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pipeline_samples import resolved as resolved_recipe
from pipeline_samples import save_compiled_model, save_model

from winml_dag.engine.stage import Skip
from winml_dag.ep.availability import installed
from winml_dag.ep.registry import QNN, Target
from winml_dag.errors import WinmlDagError
from winml_dag.onnxmodel.inspect import TensorSpec
from winml_dag.pipeline.data import calibration_source, packages_of
from winml_dag.pipeline.plan import Build, plan_build
from winml_dag.stages.quality import MINIMUM_COSINE, MINIMUM_SQNR_DB, Bounds
from winml_dag.stages.samples.read import read_samples
from winml_dag.stages.validate import ValidateConfig
from winml_dag.store.store import Store

RANGES = json.dumps({"method": "minmax", "from": {"seed": 0, "distribution": "normal"}})
OF_DATA = json.dumps({"method": "minmax", "from": {"seed": None, "distribution": None}})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_model(tmp_path / "model.onnx", shape=(1,))
    save_compiled_model(tmp_path / "compiled.onnx")
    for name in ("data.npz", "more.npz"):
        np.savez(tmp_path / name, x=np.zeros((8, 1), np.float32))
    for name in ("ranges.json", "words.txt", "photo.png", "rows.parquet", "rows.jsonl"):
        (tmp_path / name).write_text(RANGES, encoding="utf-8")
    (tmp_path / "of_data.json").write_text(OF_DATA, encoding="utf-8")
    (tmp_path / "processor").mkdir()
    (tmp_path / "processor" / "tokenizer.json").write_text("{}", encoding="utf-8")
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "train.csv").write_text("x\n1\n", encoding="utf-8")
    return tmp_path


def resolved(folder: Path, **quant: Any) -> Build:
    return resolved_recipe(folder, {"model": "model.onnx", "ep": "cpu", "quant": quant})


def validated(folder: Path, validate: dict[str, Any], **recipe: Any) -> Build:
    return resolved_recipe(folder, {"model": "model.onnx", **recipe, "validate": validate})


@pytest.mark.parametrize(
    ("quant", "message"),
    [
        ({"calibration_load_path": "ranges.json", "calibration_save_path": "a.json"}, "load_path and .*save_path"),
        ({"calibration_load_path": "ranges.json", "save_calibration": True}, "load_path and .*save_calibration"),
        ({"load_path": "ranges.json", "seed": 3}, "quant.seed is 3, .*ranges.json were found with 0"),
        ({"load_path": "ranges.json", "distribution": "uniform"}, "quant.distribution is uniform.*with normal"),
        ({"load_path": "of_data.json", "seed": 0}, "quant.seed is 0.*with data and no seed"),
        ({"calibration_load_path": "ranges.json", "calibration_method": "entropy"}, "entropy.* found with minmax"),
        ({"calibration_load_path": "none.json"}, "none.json is not a file"),
        ({"calibration_load_path": "model.onnx"}, "has no activation ranges"),
        ({"calibration_data": "data.npz", "dataset_name": "set"}, "two sets of data"),
        ({"calibration_data": "."}, "has files of several kinds: "),
        ({"calibration_data": "words.txt"}, "needs a tokenizer"),
        ({"calibration_data": "photo.png"}, "needs an image processor"),
        ({"calibration_data": "rows.jsonl", "columns_mapping": {"text": "a"}}, "needs a tokenizer"),
        ({"calibration_data": "words.txt", "model_id": "set"}, "neither a tokenizer nor an image processor"),
        *(
            ({"calibration_save_path": path}, "calibration_save_path")
            for path in ("../a.json", "/a.json", "~/a.json", "a/", ".", "con", ".winml-dag/a.json", "a\\..\\..\\b")
        ),
    ],
)
def test_invalid_quant_settings_are_refused_before_running(folder, quant, message):
    with pytest.raises(WinmlDagError, match=message):
        resolved(folder, **quant)


@pytest.mark.parametrize(
    "agreeing",
    [
        {"calibration_load_path": "ranges.json"},
        {"load_path": "ranges.json", "seed": 0, "distribution": "normal"},
        {"load_path": "ranges.json", "seed": None, "calibration_method": "minmax"},
        {"load_path": "of_data.json", "distribution": "uniform"},
    ],
)
def test_loaded_ranges_replace_calibration_beside_consistent_settings(folder, agreeing):
    build, (name, *_) = resolved(folder, **agreeing), agreeing.values()
    assert isinstance(build.configs["calibrate"], Skip)
    assert build.configs["calibrate"].reason == f"the activation ranges come from {name}"
    assert [file.path for file in build.sources["ranges"].files] == [folder / name]


def test_data_beside_loaded_ranges_is_used_for_validation(folder):
    build = resolved(folder, calibration_load_path="ranges.json", calibration_data="data.npz")
    assert isinstance(build.configs["calibrate"], Skip)
    assert {"ranges", "data"} <= build.sources.keys()
    assert not isinstance(build.configs["validate"], Skip)
    assert build.configs["validate"].validate.seed is None
    assert not any("random" in notice for notice in build.summary.notices)


@pytest.mark.parametrize("mode", ["dynamic", "rtn", "fp16"])
@pytest.mark.parametrize("field", ["calibration_load_path", "calibration_save_path"])
def test_modes_without_ranges_report_unused_range_fields(folder, mode, field):
    build = resolved(folder, mode=mode, **{field: "ranges.json"})
    assert isinstance(build.configs["calibrate"], Skip)
    assert build.configs["calibrate"].reason == f"{mode} needs no activation ranges, so quant.{field} has no effect"
    assert "ranges" not in build.sources
    assert build.save_ranges is None


def test_seed_defaults_to_0_for_random_data_only(folder):
    def seed_of(**quant: Any) -> int | None:
        return resolved(folder, **quant).configs["calibrate"].quant.seed

    assert (seed_of(), seed_of(seed=4)) == (0, 4)
    assert (seed_of(calibration_data="data.npz"), seed_of(calibration_data="data.npz", seed=4)) == (None, 4)
    assert seed_of(calibration_data="data.npz", seed=0) == 0


def test_random_data_is_warned_about_and_real_data_is_not(folder):
    def told(**quant: str) -> str:
        return " ".join(resolved(folder, **quant).summary.notices)

    assert "random data" in told()
    assert "random" not in told(calibration_data="data.npz")
    assert "Validating on random data" in told(calibration_load_path="ranges.json")


def test_task_sets_default_dataset_columns(folder):
    quant = {"dataset_name": "set", "model_id": "processor"}
    build = resolved(folder, **quant, task="question-answering")
    assert not isinstance(build.configs["calibrate"], Skip)
    assert build.configs["calibrate"].quant.columns_mapping == {"text": "question", "text_pair": "context"}
    mapped = resolved(folder, **quant, task="question-answering", columns_mapping={"text": "x"})
    assert mapped.configs["calibrate"].quant.columns_mapping == {"text": "x"}


@pytest.mark.parametrize(
    ("data", "packages"),
    [
        ("data.npz", set()),
        ("words.txt", {"transformers", "tokenizers", "sentencepiece"}),
        ("photo.png", {"transformers", "pillow"}),
        ("rows.parquet", {"pyarrow", "transformers", "tokenizers", "sentencepiece", "pillow"}),
        ("rows.jsonl", {"transformers", "tokenizers", "sentencepiece", "pillow"}),
    ],
)
def test_data_kind_determines_required_packages(folder, data, packages):
    build = resolved(folder, calibration_data=data, model_id="processor")
    assert set(packages_of(build.sources["data"], build.sources.get("processor"))) == packages


def test_missing_package_is_named_when_planning(folder, monkeypatch):
    known = "winml_dag.pipeline.data.distribution_version"
    monkeypatch.setattr(known, lambda name: None if name == "pyarrow" else "1")
    with pytest.raises(WinmlDagError, match="needs pyarrow, which is not installed") as caught:
        resolved(folder, calibration_data="rows.parquet")
    assert "winml_dag[datasets]" in caught.value.advice


def test_written_settings_rebuild_equally(folder):
    build = resolved(
        folder, calibration_data="rows.jsonl", model_id="processor", calibration_save_path="a.json", seed=3
    )
    quant = build.summary.settings["quant"]
    assert isinstance(quant, dict)
    assert (quant["calibration_data"], quant["model_id"], quant["seed"]) == ("../rows.jsonl", "../processor", 3)
    assert "calibration_save_path" not in quant
    (folder / "out").mkdir()
    rebuilt = resolved_recipe(folder / "out", build.summary.settings)
    assert rebuilt.configs["calibrate"] == build.configs["calibrate"]
    assert [file.path.resolve() for file in rebuilt.sources["processor"].files] == [
        folder / "processor" / "tokenizer.json"
    ]


@pytest.mark.parametrize("name", ["input_ids.npy", "any name.npz"])
def test_single_array_file_is_readable(tmp_path: Path, name: str) -> None:
    arrays = np.arange(12, dtype=np.int32).reshape(3, 4)
    path = tmp_path / name
    np.save(path, arrays) if path.suffix == ".npy" else np.savez(path, input_ids=arrays)
    placed = tmp_path / "input"
    placed.mkdir()
    for file in calibration_source(path).files:
        shutil.copy(file.path, placed / file.name)
    assert [
        feed["input_ids"].tolist() for feed in read_samples(placed, [TensorSpec("input_ids", "int32", (1, 4))], None)
    ] == arrays[:, None].tolist()


def test_only_images_are_read_from_image_folder(tmp_path: Path) -> None:
    for name in ("b.PNG", "a/c.jpeg", "metadata.csv", "notes.md", "labels.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"content")
    assert [file.name for file in calibration_source(tmp_path).files] == ["a/c.jpeg", "b.PNG"]


def config(build: Build) -> ValidateConfig:
    assert isinstance(build.configs["validate"], ValidateConfig)
    return build.configs["validate"]


def inputs_of(build: Build, stage: str, folder: Path) -> dict[str, str]:
    graph = plan_build(build, Store(folder / "cache").fingerprints).graph
    return dict(next(node.inputs for node in graph.nodes if node.stage.name == stage))


def test_all_user_inputs_are_validated_unless_limited(folder):
    fields = config(validated(folder, {"input_data": "data.npz"})).validate
    assert (fields.samples, fields.seed) == (None, None)
    assert config(validated(folder, {"input_data": "data.npz", "samples": 3})).validate.samples == 3
    fields = config(validated(folder, {})).validate
    assert (fields.samples, fields.seed) == (3, 0)


def test_only_models_with_ranges_count_as_calibrated(folder):
    quant = {"calibration_data": "data.npz"}
    assert config(validated(folder, {}, quant=quant)).validate.calibrated
    for mode in ("dynamic", "rtn", "fp16"):
        assert not config(validated(folder, {}, quant={**quant, "mode": mode})).validate.calibrated
    assert not config(validated(folder, {}, precision="fp32", quant=quant)).validate.calibrated


@pytest.mark.parametrize("written", ["quant", "compile"])
def test_calibration_data_is_validated_on_without_quantization(folder, written):
    named = {"calibration_data": "data.npz", "samples": 4}
    section = {"quant": named} if written == "quant" else {"compile": {"quant_config": named}}
    build = validated(folder, {}, precision="fp32", **section)
    assert isinstance(build.configs["quantize"], Skip)
    assert config(build).validate.seed is None
    assert inputs_of(build, "validate", folder).keys() == {"model", "reference", "data"}
    # The settings that the build writes mean the same.
    (folder / "out").mkdir()
    rebuilt = resolved_recipe(folder / "out", build.summary.settings)
    assert (rebuilt.configs["quantize"], rebuilt.configs["validate"]) == (
        build.configs["quantize"],
        build.configs["validate"],
    )
    assert rebuilt.sources["data"].files[0].path.samefile(folder / "data.npz")
    # With its own inputs, or without validate, nobody reads it.
    for other in ({"input_data": "more.npz"}, {"enabled": False}):
        assert "data" not in validated(folder, other, precision="fp32", **section).sources


def test_data_and_processor_reach_their_stage_only(folder):
    quant = {"calibration_data": "data.npz", "model_id": "processor"}
    build = validated(folder, {"input_data": "words.txt"}, quant=quant)
    assert inputs_of(build, "calibrate", folder).keys() == {"model", "data"}
    assert inputs_of(build, "validate", folder).keys() == {"model", "reference", "input_data", "processor", "ranges"}
    turned = {"calibration_data": "words.txt", "model_id": "processor"}
    build = validated(folder, {"input_data": "data.npz"}, quant=turned)
    assert inputs_of(build, "calibrate", folder).keys() == {"model", "data", "processor"}
    assert inputs_of(build, "validate", folder).keys() == {"model", "reference", "input_data", "ranges"}
    unquantized = validated(folder, {"input_data": "words.txt"}, precision="fp32", quant={"model_id": "processor"})
    assert inputs_of(unquantized, "validate", folder).keys() == {"model", "reference", "input_data", "processor"}


@pytest.mark.parametrize(
    ("validate", "message"),
    [
        ({"input_data": "nothing.npz"}, r"validate.input_data: .*nothing.npz does not exist"),
        ({"input_data": "model.onnx"}, r"validate.input_data: .*model.onnx is not a data file"),
        ({"input_data": "words.txt"}, "needs a tokenizer"),
    ],
)
def test_unreadable_input_data_is_refused_before_running(folder, validate, message):
    with pytest.raises(WinmlDagError, match=message):
        validated(folder, validate)
    assert isinstance(validated(folder, {**validate, "enabled": False}).configs["validate"], Skip)


def test_validation_bounds_default_to_those_of_precision(folder):
    fields = config(validated(folder, {}, precision="w8a8")).validate
    assert (fields.min_cosine, fields.min_sqnr_db) == (MINIMUM_COSINE["w8a8"], MINIMUM_SQNR_DB)
    assert (fields.max_abs_error, fields.min_top1_agreement) == (None, None)
    fields = config(validated(folder, {"min_cosine": 0.3, "max_abs_error": 2.0}, precision="w8a8")).validate
    assert (fields.min_cosine, fields.min_sqnr_db, fields.max_abs_error) == (0.3, None, 2.0)


def test_compiled_model_is_validated_alone_on_its_provider(folder):
    build = validated(folder, {}, model="compiled.onnx", skip_optimize=True)
    assert build.target == Target(QNN, "npu")
    if not installed(QNN):
        assert isinstance(build.configs["validate"], Skip)
        assert "which the model is compiled for, is not installed" in build.configs["validate"].reason
        return
    assert config(build).target.execution_provider == QNN.name
    assert config(build).validate.bounds == Bounds()
    assert inputs_of(build, "validate", folder).keys() == {"model"}
