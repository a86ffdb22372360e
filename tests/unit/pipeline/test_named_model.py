"""Which of the models named by recipe and command line is built; no other name appears in the result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pipeline_samples import resolved

from winml_dag.errors import InputError, RecipeError, UsageError
from winml_dag.pipeline.buildgraph import Build
from winml_dag.pipeline.request import Overrides
from winml_dag.stages.export import ExportConfig

RANDOM: dict[str, Any] = {"loader": {"task": "fill-mask", "model_type": "bert", "random_weights": {"seed": 7}}}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("model", "other"):
        (tmp_path / name).mkdir()
        config = {"model_type": "bert", "architectures": ["BertForMaskedLM"]}
        (tmp_path / name / "config.json").write_text(json.dumps(config), encoding="utf-8")
        (tmp_path / name / "model.safetensors").write_bytes(b"weights")
    return tmp_path


def built(recipe: dict[str, Any], **overrides: Any) -> Build:
    return resolved(Path.cwd(), recipe, Overrides(**overrides))


def made_up(build: Build) -> bool:
    assert isinstance(build.configs["export"], ExportConfig)
    return build.configs["export"].loader.random_weights is not None


@pytest.mark.parametrize("recipe", [RANDOM, {**RANDOM, "model": "other"}])
def test_a_model_on_the_command_line_takes_the_place_of_random_weights(folder: Path, recipe: dict[str, Any]) -> None:
    build = built(recipe, model="model")
    assert not made_up(build)
    assert build.summary.model_id == "model"
    assert {file.path for file in build.sources["model"].files} == set((folder / "model").iterdir())
    assert build.summary.settings["model"] == "../model"
    assert "random_weights" not in build.summary.settings["loader"]


def test_a_model_on_the_command_line_that_is_not_there_is_missed() -> None:
    with pytest.raises(InputError, match="nowhere does not exist"):
        built(RANDOM, model="./nowhere")


@pytest.mark.parametrize("named", [{"model": "model"}, {"onnx": Path("model.onnx")}])
def test_one_command_line_cannot_ask_for_both(named: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"--random-weights makes weights up, and model.* has its own"):
        built({}, random_weights=True, **named)


@pytest.mark.parametrize("recipe", [{**RANDOM, "model": "model"}, {"loader": {**RANDOM["loader"], "path": "model"}}])
def test_random_weights_do_not_go_by_the_name_of_a_model_that_was_not_read(recipe: dict[str, Any]) -> None:
    build = built(recipe)
    assert made_up(build)
    assert "model" not in build.sources
    assert build.summary.model_id == "bert with random weights"
    assert "model" not in build.summary.settings


def test_random_weights_have_no_onnx_file() -> None:
    with pytest.raises(RecipeError, match=r"model\.onnx is ONNX already, but random weights are for a model"):
        built({**RANDOM, "model": "model.onnx"})
