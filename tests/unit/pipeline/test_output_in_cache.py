"""The output folder in the cache of builds without a named one: one per distinct request."""

from __future__ import annotations

from pathlib import Path

import pytest

from winml_dag.errors import UsageError
from winml_dag.pipeline.layout import output_dir_of
from winml_dag.pipeline.request import Overrides, Request

RECIPES = {
    "a local model": ('{"model": "./model", "precision": "fp16"}', 2),
    "data": ('{"model": "microsoft/resnet-18", "quant": {"calibration_data": "data"}}', 2),
    "a stage": ('{"model": "microsoft/resnet-18", "stages": {"own": {"command": ["cp", "a", "b"]}}}', 2),
    "only a model of the hub": ('{"model": "microsoft/resnet-18"}', 1),
}


@pytest.mark.parametrize(("text", "count"), RECIPES.values(), ids=RECIPES)
def test_equal_recipes_in_two_folders_name_different_files_unless_they_name_none(
    text: str, count: int, tmp_path: Path
) -> None:
    found = set()
    for name in ("one", "two"):
        recipe = tmp_path / name / "recipe.json"
        recipe.parent.mkdir()
        recipe.write_text(text, encoding="utf-8")
        found.add(output_dir_of(Request(recipe, Overrides(), use_cache=True), tmp_path))
    assert len(found) == count


def test_without_recipe_and_model_the_missing_model_is_named_first(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"No model is named\. Give a recipe"):
        output_dir_of(Request(None, Overrides()), tmp_path)


@pytest.mark.parametrize("overrides", [Overrides(onnx=Path("m.onnx")), Overrides(model="model")])
def test_one_name_of_a_model_is_another_file_in_another_folder(
    overrides: Overrides, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = set()
    for name in ("one", "two"):
        (tmp_path / name / "model").mkdir(parents=True)
        monkeypatch.chdir(tmp_path / name)
        found.add(output_dir_of(Request(None, overrides, use_cache=True), tmp_path))
    assert len(found) == 2
