"""``docs/reference/recipe.md`` from the schema of a recipe and the descriptions of its fields."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

from recipe_fields import FIELDS, SAME_AS, SECTIONS, Meaning
from tables import join, table

from winml_dag.recipe.schema import Recipe


def recipe() -> str:
    """A section for every section of the schema: fields with type, default and meaning.

    Raises:
        ValueError: when a field has no description, or a description no field.
    """
    sections = recipe_sections()
    fields = {join(path, name) for path, section in sections.items() for name in _fields(path, section)}
    if differing := fields ^ FIELDS.keys():
        raise ValueError(f"docs/recipe_fields.py and the schema differ in: {', '.join(sorted(differing))}")
    return "\n\n".join(_section(path, section) for path, section in sections.items())


@functools.cache
def recipe_sections() -> dict[str, Mapping[str, Any]]:
    """Every section of a recipe by its path (``""``: the top), as JSON schema, outermost first."""
    schema: Mapping[str, Any] = Recipe.model_json_schema()
    return dict(_sections("", schema, schema["$defs"]))


def _sections(
    path: str, schema: Mapping[str, Any], definitions: Mapping[str, Any]
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield path, schema
    for name, field in schema["properties"].items():
        inner, within = _section_of(field), join(path, name)
        if inner and inner != "JsonValue" and within not in SAME_AS:
            yield from _sections(within, definitions[inner], definitions)


def _section_of(field: Mapping[str, Any]) -> str:
    """The definition that *field* holds, alone, in a list or under names; empty for a plain value."""
    for choice in (field, *field.get("anyOf", ())):
        for holder in (choice, choice.get("items"), choice.get("additionalProperties")):
            if isinstance(holder, dict) and "$ref" in holder:
                return str(holder["$ref"]).rpartition("/")[2]
    return ""


def _fields(path: str, section: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The fields of a section that get a row: not the sections at the top, which are headings."""
    return {name: field for name, field in section["properties"].items() if path or name not in SECTIONS}


def _section(path: str, section: Mapping[str, Any]) -> str:
    meanings = {name: FIELDS[join(path, name)] for name in _fields(path, section)}
    text = fields_table(_fields(path, section), meanings)
    return "\n\n".join(part for part in (f"## {path or 'Top level'}", SECTIONS[path], text) if part)


def fields_table(fields: Mapping[str, Mapping[str, Any]], meanings: Mapping[str, Meaning]) -> str:
    """A row for each of *fields*, which are JSON schema by name."""
    rows = []
    for name, field in fields.items():
        meaning = meanings[name]
        mark = f"**{meaning.mark}**. " if meaning.mark else ""
        rows.append((f"`{name}`", _type(field), _default(field), (mark + meaning.text).strip()))
    return table(("field", "type", "default", "meaning"), rows)


def _type(field: Mapping[str, Any]) -> str:
    if "anyOf" in field:
        return " or ".join(_type(choice) for choice in field["anyOf"] if choice.get("type") != "null")
    if "$ref" in field:
        return "any" if field["$ref"].endswith("/JsonValue") else "keys and values"
    if "enum" in field or "const" in field:
        return ", ".join(f"`{value}`" for value in field.get("enum", [field.get("const")]))
    kind = field.get("type")
    if kind == "array":
        return f"list of {_type(field.get('items', {}))}" if "items" in field else "two numbers"
    if kind == "object":
        inner = field.get("additionalProperties")
        return f"keys to {_type(inner)}" if isinstance(inner, dict) and inner else "keys and values"
    return _KINDS.get(str(kind), "any") + _limits(field)


_KINDS = {"string": "text", "integer": "whole number", "number": "number", "boolean": "`true`, `false`"}


def _limits(field: Mapping[str, Any]) -> str:
    if field.get("exclusiveMinimum") == 0:
        return " above 0"
    if "minimum" in field and "maximum" in field:
        return f" from {field['minimum']:g} to {field['maximum']}"
    return f" from {field['minimum']:g}" if "minimum" in field else ""


def _default(field: Mapping[str, Any]) -> str:
    value = field.get("default")
    if value is None:
        return ""
    return f"`{str(value).lower()}`" if isinstance(value, bool) else f"`{value}`"
