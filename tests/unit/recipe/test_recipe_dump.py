"""What is read is written out again: whole recipes, and the classes of sections that Python has."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from pydantic import BaseModel
from recipe_strategies import QUANT_FIELDS, compile_sections, recipes

from winml_dag import WinMLCompileConfig, WinMLQuantizationConfig
from winml_dag.errors import RecipeError
from winml_dag.recipe.load import parse_recipe
from winml_dag.recipe.schema import Quant, Recipe


def fields_set(value: object) -> Any:
    """Return the names of the set fields, at every level."""
    if isinstance(value, BaseModel):
        return {name: fields_set(getattr(value, name)) for name in value.model_fields_set}
    return [fields_set(item) for item in value] if isinstance(value, tuple) else None


@settings(max_examples=50)
@given(written=recipes)
def test_a_recipe_that_is_written_out_and_read_again_is_the_same(written: dict[str, Any]) -> None:
    assert QUANT_FIELDS.keys() == Quant.model_fields.keys(), "every field is among those tried"
    recipe = parse_recipe(json.dumps(written), "recipe.json", "json")
    again = Recipe.model_validate(json.loads(json.dumps(recipe.to_dict())))
    assert again == recipe
    assert fields_set(again) == fields_set(recipe)


@settings(max_examples=50)
@given(written=compile_sections)
def test_the_classes_that_python_has_go_to_a_mapping_and_back(written: dict[str, Any]) -> None:
    config = WinMLCompileConfig.from_dict(written)
    plain = json.loads(json.dumps(config.to_dict()))
    again = WinMLCompileConfig.from_dict(plain)
    assert again == config
    assert fields_set(again) == fields_set(config)
    if written.get("quant_config") is not None:
        quant = WinMLQuantizationConfig.from_dict(written["quant_config"])
        assert plain["quant_config"] == quant.to_dict()
        assert again.quant_config == quant
        # One class: no field has a meaning or default in one position that it lacks in the other.
        assert Recipe.model_validate({"quant": written["quant_config"]}).quant == again.quant_config


def test_only_what_was_set_is_written_under_the_names_of_winml_cli() -> None:
    nested = {"ep_config": {"provider": "qnn", "embed_context": True}, "validate": False}
    flat = {"execution_provider": "qnn", "embed_context": True, "validate": False}
    recipe = Recipe.model_validate({"export": None, "quant": {"mode": "qdq"}, "compile": nested})
    assert recipe.to_dict() == {"export": None, "quant": {"mode": "static"}, "compile": flat}
    assert WinMLCompileConfig.from_dict({**nested, "quant_config": {"samples": 3}}).to_dict() == {
        **flat,
        "quant_config": {"samples": 3},
    }
    assert Recipe().to_dict() == {}
    assert WinMLQuantizationConfig.from_dict({"load_path": "r.json"}).to_dict() == {"calibration_load_path": "r.json"}
    # What is put into a recipe later is written too.
    assert Recipe().model_copy(update={"quant": Quant(mode="fp16")}).to_dict() == {"quant": {"mode": "fp16"}}


def test_what_is_wrong_with_a_mapping_is_told_all_at_once() -> None:
    with pytest.raises(RecipeError, match="is another name of 'calibration_load_path'"):
        WinMLQuantizationConfig.from_dict({"load_path": "r.json", "calibration_load_path": "r.json"})
    with pytest.raises(RecipeError) as caught:
        WinMLQuantizationConfig.from_dict({"sampels": 3, "mode": "banana"})
    assert "sampels: unknown key; did you mean 'samples'?" in str(caught.value)
    assert "'banana' is not one of static, dynamic, rtn, fp16" in str(caught.value)
