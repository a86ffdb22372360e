"""What a request needs and says: its model, this machine, its folder, and the stages of a single-stage command."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pipeline_samples import resolved, save_model

from winml_dag.ep.availability import installed
from winml_dag.ep.providers.vitisai import VITISAI
from winml_dag.ep.registry import QNN
from winml_dag.errors import InputError, RecipeError, UsageError, WinmlDagError
from winml_dag.pipeline.layout import output_dir_of
from winml_dag.pipeline.onestage import build_of_one
from winml_dag.pipeline.plan import Build
from winml_dag.pipeline.plan_cache import plan_request
from winml_dag.pipeline.request import Overrides, Request
from winml_dag.stages.export import ExportConfig
from winml_dag.store.store import Store

RANDOM: dict[str, Any] = {"loader": {"task": "fill-mask", "model_type": "bert", "random_weights": {"seed": 7}}}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("model", "other"):
        (tmp_path / name).mkdir()
        config = {"model_type": "bert", "architectures": ["BertForMaskedLM"]}
        (tmp_path / name / "config.json").write_text(json.dumps(config), encoding="utf-8")
        (tmp_path / name / "model.safetensors").write_bytes(b"weights")
    save_model(tmp_path / "model.onnx")
    return tmp_path


def built(recipe: dict[str, Any], **overrides: Any) -> Build:
    return resolved(Path.cwd(), recipe, Overrides(**overrides))


def made_up(build: Build) -> bool:
    assert isinstance(build.configs["export"], ExportConfig)
    return build.configs["export"].loader.random_weights is not None


@pytest.mark.parametrize("recipe", [RANDOM, {**RANDOM, "model": "other"}])
def test_command_line_model_replaces_random_weights(folder: Path, recipe: dict[str, Any]) -> None:
    build = built(recipe, model="model")
    assert not made_up(build)
    assert build.summary.model_id == "model"
    assert {file.path for file in build.sources["model"].files} == set((folder / "model").iterdir())
    assert build.summary.settings["model"] == "../model"
    assert "random_weights" not in build.summary.settings["loader"]


@pytest.mark.parametrize(
    ("text", "own"),
    [("stages:\n  one: {command: [true]}\n", True), ('{"stages": {}}', True), ("model: m.onnx\n", False)],
)
def test_recipe_that_may_have_own_stages_is_recognized_from_its_text(folder: Path, text: str, own: bool) -> None:
    (folder / "recipe.yaml").write_text(text, encoding="utf-8")
    assert Request(folder / "recipe.yaml", Overrides()).may_have_own_stages is own
    assert not Request(folder / "missing.yaml", Overrides()).may_have_own_stages


CONFLICT = "--random-weights makes weights up, and model.* has its own"


@pytest.mark.parametrize(
    ("recipe", "overrides", "error", "words"),
    [
        (RANDOM, {"model": "./nowhere"}, InputError, "nowhere does not exist"),
        ({}, {"random_weights": True, "model": "model"}, UsageError, CONFLICT),
        ({}, {"random_weights": True, "onnx": Path("model.onnx")}, UsageError, CONFLICT),
        ({**RANDOM, "model": "model.onnx"}, {}, RecipeError, "model.onnx is ONNX already, but random weights are for"),
    ],
)
def test_missing_or_contradictory_model_is_refused(
    recipe: dict[str, Any], overrides: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        built(recipe, **overrides)


@pytest.mark.parametrize("recipe", [{**RANDOM, "model": "model"}, {"loader": {**RANDOM["loader"], "path": "model"}}])
def test_random_weights_do_not_use_an_unread_model_name(recipe: dict[str, Any]) -> None:
    build = built(recipe)
    assert made_up(build)
    assert "model" not in build.sources
    assert build.summary.model_id == "bert with random weights"
    assert "model" not in build.summary.settings


OF_QNN = {
    **RANDOM,
    "ep": "qnn",
    "compile": {"provider_options": {"op_affinity": "gone.json"}},
    "validate": {"input_data": "gone.npz"},
}


def asked(command: str) -> Build:
    Path("recipe.json").write_text(json.dumps(OF_QNN), encoding="utf-8")
    model = None if command == "export" else Path("model.onnx")
    output = Path("result.json" if command == "calibrate" else "result.onnx")
    request = Request(Path("recipe.json"), Overrides(onnx=model), command=command, output_file=output)
    return build_of_one(request, download=False)


@pytest.mark.parametrize("command", ["export", "calibrate"])
def test_validation_data_may_be_missing_for_unvalidated_commands(command: str) -> None:
    assert asked(command).sources.keys().isdisjoint(("input_data", "option_files"))


@pytest.mark.skipif(not installed(QNN), reason="needs onnxruntime-qnn")
@pytest.mark.parametrize(("command", "missing"), [("optimize", "gone.npz"), ("compile", "gone.npz|gone.json")])
def test_files_read_by_the_command_must_exist(command: str, missing: str) -> None:
    with pytest.raises(InputError, match=missing):
        asked(command)


def request_of(recipe: dict[str, Any]) -> Request:
    Path("recipe.json").write_text(json.dumps(recipe), encoding="utf-8")
    return Request(Path("recipe.json"), Overrides(random_weights=True))


@pytest.mark.skipif(installed(VITISAI), reason="this machine has VitisAI")
def test_uninstalled_provider_can_be_planned_but_not_built(tmp_path: Path) -> None:
    compile_ = {"execution_provider": "vitisai", "provider_options": {}}
    request = request_of({"loader": {"task": "image-classification", "model_type": "resnet"}, "compile": compile_})
    store = Store(tmp_path / "cache")
    for asked_for in (request, replace(request, output_dir=tmp_path / "out")):
        planned = plan_request(asked_for, store, download=False, needs_folder=False)
        assert [node.id for node in planned.graph.nodes if node.stage.name == "compile"] == ["compile"]
        assert planned.summary.execution_provider == VITISAI.name
        (told,) = (notice for notice in planned.summary.notices if "but not run" in notice)
        assert "not installed here" in told
    with pytest.raises(UsageError, match="VitisAIExecutionProvider is not installed here"):
        plan_request(replace(request, output_dir=tmp_path / "out"), store, download=True)


def test_task_follows_from_model_class(tmp_path: Path) -> None:
    request = request_of({"loader": {"model_type": "bert", "model_class": "AutoModelForMaskedLM"}})
    planned = plan_request(request, Store(tmp_path / "cache"), download=False, needs_folder=False)
    assert planned.summary.task == "fill-mask"


@pytest.mark.parametrize(
    ("loader", "said"),
    [
        (
            {"model_type": "bert", "task": "fill-maks"},
            "no task 'fill-maks' .*; did you mean 'fill-mask'",
        ),
        (
            {"user_script": "mine.py", "model_type": "bert", "task": "fill-mask"},
            "user_script: .*mine.py does not exist",
        ),
    ],
)
def test_wrong_loader_is_refused_by_a_plan(loader: dict[str, str], said: str, tmp_path: Path) -> None:
    with pytest.raises(WinmlDagError, match=said):
        plan_request(request_of({"loader": loader}), Store(tmp_path / "cache"), download=False, needs_folder=False)


RECIPES = {
    "a local model": ('{"model": "./model", "precision": "fp16"}', 2),
    "data": ('{"model": "microsoft/resnet-18", "quant": {"calibration_data": "data"}}', 2),
    "a stage": ('{"model": "microsoft/resnet-18", "stages": {"own": {"command": ["cp", "a", "b"]}}}', 2),
    "only a model of the hub": ('{"model": "microsoft/resnet-18"}', 1),
}


@pytest.mark.parametrize(("text", "count"), RECIPES.values(), ids=RECIPES)
def test_output_name_depends_on_files_named_by_recipe(text: str, count: int, tmp_path: Path) -> None:
    found = set()
    for name in ("one", "two"):
        recipe = tmp_path / name / "recipe.json"
        recipe.parent.mkdir()
        recipe.write_text(text, encoding="utf-8")
        found.add(output_dir_of(Request(recipe, Overrides(), use_cache=True), tmp_path))
    assert len(found) == count


def test_missing_model_is_reported_first(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"No model is named\. Give a recipe"):
        output_dir_of(Request(None, Overrides()), tmp_path)


@pytest.mark.parametrize("overrides", [Overrides(onnx=Path("m.onnx")), Overrides(model="model")])
def test_model_name_is_resolved_per_working_folder(
    overrides: Overrides, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = set()
    for name in ("one", "two"):
        (tmp_path / name / "model").mkdir(parents=True)
        monkeypatch.chdir(tmp_path / name)
        found.add(output_dir_of(Request(None, overrides, use_cache=True), tmp_path))
    assert len(found) == 2
