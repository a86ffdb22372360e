"""The options that set fields of a recipe have the types of the schema."""

from __future__ import annotations

from typing import Any

import click
import pytest

from winml_dag.cli.settings import BOUNDS, GROUPS, Settings
from winml_dag.recipe.schema import Recipe

SCHEMA: Any = Recipe.model_json_schema()


def _field(section: str, name: str) -> dict[str, Any]:
    """The schema of a field, without null."""
    held = SCHEMA["properties"][section]
    choices = [held, *held.get("anyOf", ())]
    (reference,) = (choice["$ref"] for choice in choices if "$ref" in choice)
    field = SCHEMA["$defs"][reference.rpartition("/")[2]]["properties"][name]
    return next((choice for choice in field.get("anyOf", ()) if choice.get("type") != "null"), field)


def _options(group: Settings) -> list[click.Option]:
    command = click.command()(group(lambda **_: None))
    return [option for option in command.params if isinstance(option, click.Option)]


@pytest.mark.parametrize(
    ("section", "name", "option"),
    [
        pytest.param(group.section, name, option, id=f"{group.section}.{name}")
        for group in (*GROUPS, BOUNDS)
        for name, option in zip(group.fields, _options(group), strict=True)
    ],
)
def test_an_option_takes_the_values_of_its_field(section: str, name: str, option: click.Option) -> None:
    field = _field(section, name)
    if "enum" in field and isinstance(option.type, click.Choice):
        assert list(option.type.choices) == field["enum"]
    elif isinstance(option.type, click.IntRange | click.FloatRange):
        lowest = field.get("minimum", field.get("exclusiveMinimum", field.get("enum", [None])[0]))
        assert option.type.min == (1 if field.get("exclusiveMinimum") == 0 else lowest)
    elif option.is_flag:
        assert field["type"] == "boolean"
    elif option.multiple:
        assert field["type"] in ("array", "object")
    else:
        assert field.get("type", "string") in ("string", "integer")
