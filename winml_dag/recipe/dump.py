"""A recipe as plain JSON again, in winml-cli's field names: what ``winml_build_config.json`` is written from."""

from __future__ import annotations

from winml_dag.canonical import JsonObject
from winml_dag.recipe.schema import Recipe


def to_json(recipe: Recipe) -> JsonObject:
    """All that was set in *recipe*, and nothing that was not: a default written out would look like a choice.

    Loading the result gives an equal recipe with the same fields set. Shorthands and old names come back in full.
    """
    plain: JsonObject = recipe.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return plain
