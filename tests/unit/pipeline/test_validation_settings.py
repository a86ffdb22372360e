"""The effect of a recipe's section ``validate``: inputs, bounds, and the target that the result runs on."""

from __future__ import annotations

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
from winml_dag.pipeline.buildgraph import Build
from winml_dag.pipeline.plan import plan_build
from winml_dag.stages.quality import MINIMUM_COSINE, MINIMUM_SQNR_DB, Bounds
from winml_dag.stages.validate import ValidateConfig
from winml_dag.store.store import Store


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_model(tmp_path / "model.onnx", shape=(1,))
    save_compiled_model(tmp_path / "compiled.onnx")
    for name in ("data.npz", "more.npz"):
        np.savez(tmp_path / name, x=np.zeros((8, 1), np.float32))
    (tmp_path / "words.txt").write_text("a\nb\n", encoding="utf-8")
    (tmp_path / "processor").mkdir()
    (tmp_path / "processor" / "tokenizer.json").write_text("{}", encoding="utf-8")
    return tmp_path


def resolved(folder: Path, validate: dict[str, Any], **recipe: Any) -> Build:
    return resolved_recipe(folder, {"model": "model.onnx", **recipe, "validate": validate})


def config(build: Build) -> ValidateConfig:
    assert isinstance(build.configs["validate"], ValidateConfig)
    return build.configs["validate"]


def inputs_of(build: Build, stage: str, folder: Path) -> dict[str, str]:
    graph = plan_build(build, Store(folder / "cache").fingerprints).graph
    return dict(next(node.inputs for node in graph.nodes if node.stage.name == stage))


def test_inputs_of_the_users_are_run_whole_unless_he_says_how_many(folder):
    fields = config(resolved(folder, {"input_data": "data.npz"})).validate
    assert (fields.samples, fields.seed) == (None, None)
    assert config(resolved(folder, {"input_data": "data.npz", "samples": 3})).validate.samples == 3
    fields = config(resolved(folder, {})).validate
    assert (fields.samples, fields.seed) == (3, 0)


def test_only_a_model_with_ranges_may_have_been_calibrated_on_its_samples(folder):
    quant = {"calibration_data": "data.npz"}
    assert config(resolved(folder, {}, quant=quant)).validate.calibrated
    for mode in ("dynamic", "rtn", "fp16"):
        assert not config(resolved(folder, {}, quant={**quant, "mode": mode})).validate.calibrated
    assert not config(resolved(folder, {}, precision="fp32", quant=quant)).validate.calibrated


@pytest.mark.parametrize("written", ["quant", "compile"])
def test_data_that_a_recipe_names_is_validated_on_also_when_nothing_is_quantized(folder, written):
    named = {"calibration_data": "data.npz", "samples": 4}
    section = {"quant": named} if written == "quant" else {"compile": {"quant_config": named}}
    build = resolved(folder, {}, precision="fp32", **section)
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
        assert "data" not in resolved(folder, other, precision="fp32", **section).sources


def test_data_and_processor_reach_the_stage_that_they_are_for(folder):
    quant = {"calibration_data": "data.npz", "model_id": "processor"}
    build = resolved(folder, {"input_data": "words.txt"}, quant=quant)
    assert inputs_of(build, "calibrate", folder).keys() == {"model", "data"}
    assert inputs_of(build, "validate", folder).keys() == {"model", "reference", "input_data", "processor", "ranges"}
    turned = {"calibration_data": "words.txt", "model_id": "processor"}
    build = resolved(folder, {"input_data": "data.npz"}, quant=turned)
    assert inputs_of(build, "calibrate", folder).keys() == {"model", "data", "processor"}
    assert inputs_of(build, "validate", folder).keys() == {"model", "reference", "input_data", "ranges"}


def test_texts_go_through_the_named_processor_when_nothing_is_quantized_too(folder):
    build = resolved(folder, {"input_data": "words.txt"}, precision="fp32", quant={"model_id": "processor"})
    assert isinstance(build.configs["quantize"], Skip)
    assert "processor" in inputs_of(build, "validate", folder)


@pytest.mark.parametrize(
    ("validate", "message"),
    [
        ({"input_data": "nothing.npz"}, r"validate.input_data: .*nothing.npz does not exist"),
        ({"input_data": "model.onnx"}, r"validate.input_data: .*model.onnx is not a data file"),
        ({"input_data": "words.txt"}, "needs a tokenizer"),
    ],
)
def test_inputs_that_cannot_be_read_are_refused_before_anything_runs(folder, validate, message):
    with pytest.raises(WinmlDagError, match=message):
        resolved(folder, validate)
    assert isinstance(resolved(folder, {**validate, "enabled": False}).configs["validate"], Skip)


def test_bounds_are_those_of_the_precision_unless_the_recipe_has_others(folder):
    fields = config(resolved(folder, {}, precision="w8a8")).validate
    assert (fields.min_cosine, fields.min_sqnr_db) == (MINIMUM_COSINE["w8a8"], MINIMUM_SQNR_DB)
    assert (fields.max_abs_error, fields.min_top1_agreement) == (None, None)
    fields = config(resolved(folder, {"min_cosine": 0.3, "max_abs_error": 2.0}, precision="w8a8")).validate
    assert (fields.min_cosine, fields.min_sqnr_db, fields.max_abs_error) == (0.3, None, 2.0)


def test_a_model_that_came_compiled_is_run_alone_on_its_own_provider_only(folder):
    build = resolved(folder, {}, model="compiled.onnx", skip_optimize=True)
    assert build.target == Target(QNN, "npu")
    if not installed(QNN):
        assert isinstance(build.configs["validate"], Skip)
        assert "which the model came compiled for, is not installed" in build.configs["validate"].reason
        return
    assert config(build).target.execution_provider == QNN.name
    assert config(build).validate.bounds == Bounds()
    assert inputs_of(build, "validate", folder).keys() == {"model"}
