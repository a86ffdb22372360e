from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from pydantic import BaseModel
from recipe_strategies import recipes

from winml_dag.recipe.load import parse_recipe
from winml_dag.recipe.schema import Quant, Recipe


def fields_set(value: object) -> Any:
    """Return the names of the set fields, at every level."""
    if isinstance(value, BaseModel):
        return {name: fields_set(getattr(value, name)) for name in value.model_fields_set}
    return [fields_set(item) for item in value] if isinstance(value, tuple) else None


@given(written=recipes)
@settings(deadline=None)
def test_a_recipe_that_is_written_out_and_read_again_is_the_same(written: dict[str, Any]) -> None:
    recipe = Recipe.model_validate(written)
    again = parse_recipe(json.dumps(recipe.to_dict()), "again.json", "json")
    assert again == recipe
    assert fields_set(again) == fields_set(recipe)


def test_only_what_was_set_is_written_under_the_names_of_winml_cli() -> None:
    written = {
        "export": None,
        "quant": {"mode": "qdq"},
        "compile": {"ep_config": {"provider": "qnn"}, "validate": False},
    }
    assert Recipe.model_validate(written).to_dict() == {
        "export": None,
        "quant": {"mode": "static"},
        "compile": {"execution_provider": "qnn", "validate": False},
    }
    assert Recipe().to_dict() == {}


def test_what_is_put_into_a_recipe_later_is_written_too() -> None:
    recipe = Recipe().model_copy(update={"quant": Quant(mode="fp16")})
    assert recipe.to_dict() == {"quant": {"mode": "fp16"}}
