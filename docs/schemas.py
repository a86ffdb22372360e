"""The JSON Schemas of recipes and sweeps in ``recipes/``, for editors, from the code and the described fields."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from recipe_fields import FIELDS
from recipe_tables import recipe_sections
from tables import join

from winml_dag.recipe.goal import Goal
from winml_dag.recipe.matrix import ManyGoals, OneGoal
from winml_dag.recipe.schema import Recipe

_DRAFT = "https://json-schema.org/draft/2020-12/schema"
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_CELLS: dict[str, Any] = {"type": "array", "items": {"type": "object"}}


def schemas(recipes: Path) -> Iterator[tuple[Path, str]]:
    """Each schema's file below *recipes*, with its text."""
    for name, schema in (("recipe", _recipe()), ("sweep", _sweep())):
        yield recipes / f"{name}.schema.json", json.dumps({"$schema": _DRAFT, **schema}, indent=1) + "\n"


def _recipe() -> dict[str, Any]:
    """Internal docstrings of the code are replaced by the descriptions of the reference."""
    schema = Recipe.model_json_schema()
    sections = recipe_sections()
    for section in [schema, *schema["$defs"].values()]:
        section.pop("description", None)
    for path, section in sections.items():
        ours = schema if not path else schema["$defs"][section["title"]]
        for name, field in ours["properties"].items():
            if meaning := FIELDS.get(join(path, name)):
                field["description"] = _LINK.sub(r"\1", meaning.text)
    return schema


def _sweep() -> dict[str, Any]:
    schema = _recipe()
    head, goals = OneGoal.model_json_schema(), ManyGoals.model_json_schema()
    schema["$defs"] |= head["$defs"] | goals["$defs"]
    schema["properties"] |= head["properties"] | {
        "goal": {"anyOf": [{"$ref": f"#/$defs/{Goal.__name__}"}, goals["properties"]["goal"]]},
        "base": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
        "matrix": {
            "type": "object",
            "properties": {"include": _CELLS, "exclude": _CELLS},
            "additionalProperties": {"type": "array"},
        },
        "overrides": _CELLS,
    }
    return schema | {"title": "Sweep"}
