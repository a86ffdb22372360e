"""Converts pydantic's errors to messages for authors of recipes: which line, which key, what is expected."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from winml_dag.errors import did_you_mean, known_instead
from winml_dag.recipe.document import Findings, Location, Positions, dotted
from winml_dag.recipe.fields import keys_of

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

# Markers that pydantic adds to a location for its own use.
_KEY = "[key]"

_EXPECTED = {
    "bool_type": "expected true or false",
    "int_type": "expected a whole number",
    "int_from_float": "expected a whole number",
    "float_type": "expected a number",
    "string_type": "expected text",
    "tuple_type": "expected a list",
    "mapping_type": "expected keys and values",
    "dict_type": "expected keys and values",
    "model_type": "expected keys and values",
    "model_attributes_type": "expected keys and values",
}
_LONGEST_SHOWN = 60
_OF_SWEEPS = ("base", "overrides", "goal", "search", "measure")


def problems(error: ValidationError, root: type[BaseModel], positions: Positions, name: str) -> tuple[str, ...]:
    """Return one line for each finding, in file order: ``bert.yaml:12: quant.sampels: unknown key; ...``."""
    findings = Findings(name, lambda: positions)
    add_errors(findings, error, root)
    return findings.lines()


def add_errors(
    findings: Findings, error: ValidationError, root: type[BaseModel], positions: Positions | None = None
) -> None:
    for location, message, is_about_key in _found(error, root):
        findings.add(location, message, about_key=is_about_key, positions=positions)


def section_problems(error: ValidationError, root: type[BaseModel], name: str) -> tuple[str, ...]:
    """Return one line for each finding in section *name* of options or of a call: ``compile.htp_arch: ...``."""
    return tuple(
        f"{'.'.join(filter(None, (name, dotted(location))))}: {message}" for location, message, _ in _found(error, root)
    )


def _found(error: ValidationError, root: type[BaseModel]) -> Iterator[tuple[Location, str, bool]]:
    for details in error.errors(include_url=False):
        location, is_about_key = _location(details)
        yield location, _message(details, location, root), is_about_key


def _location(details: ErrorDetails) -> tuple[Location, bool]:
    """Return the location of the finding, and whether it is about the key rather than its value."""
    location = details["loc"]
    if details["type"] == "recipe":
        location = (*location, *details["ctx"]["at"])
    if location and location[-1] == _KEY:
        return location[:-1], True
    return location, details["type"] == "extra_forbidden"


def _message(details: ErrorDetails, location: Location, root: type[BaseModel]) -> str:
    kind, value = details["type"], details["input"]
    if kind == "recipe":
        return details["msg"]
    if kind == "extra_forbidden":
        return _unknown_key(location, root)
    if kind == "missing":
        return "is required"
    if kind == "literal_error":
        choices = re.findall(r"'([^']*)'|(\d+)", details["ctx"]["expected"])
        choices = [text or number for text, number in choices]
        near = did_you_mean(value, choices) if isinstance(value, str) else ""
        return f"{_shown(value)} is not one of {', '.join(choices)}{near}"
    if kind == "string_type" and isinstance(value, int | float):
        return f"expected text, got {_shown(value)}; put it in quotes"
    if kind in _EXPECTED:
        return f"{_EXPECTED[kind]}, got {_shown(value)}"
    return f"{details['msg'].replace('Input should', 'must', 1)}, got {_shown(value)}"


def _unknown_key(location: Location, root: type[BaseModel]) -> str:
    sections = [kind for kind in _types_at(location[:-1], root) if _is_section(kind)]
    fields = {
        key: name for section in sections for name, info in section.model_fields.items() for key in keys_of(name, info)
    }
    word = str(location[-1])
    if word in fields:
        return f"is another name of {fields[word]!r}, which is there too; keep one of them"
    if not _is_recipe(root):
        return f"unknown key{known_instead(word, fields)}"
    is_at_top = len(location) == 1
    if is_at_top and word in _OF_SWEEPS:
        return "is a key of a sweep, which has a matrix besides"
    return f"unknown key{did_you_mean(word, (*fields, 'matrix', *_OF_SWEEPS) if is_at_top else fields)}"


def _is_recipe(root: type[BaseModel]) -> bool:
    """Return false for a single section or a configuration file: they have few keys, which can be listed."""
    # Imported here: the schema imports this module when it finds an error.
    from winml_dag.recipe.schema import Recipe

    return issubclass(root, Recipe)


def _types_at(location: Location, root: type[BaseModel]) -> list[Any]:
    """Return the types that the schema allows at *location*."""
    types: list[Any] = [root]
    for step in location:
        types = [inner for kind in types for inner in _step(kind, step)]
    return types


def _step(kind: Any, step: str | int) -> Iterator[Any]:
    if _is_section(kind):
        for name, info in kind.model_fields.items():
            if step in keys_of(name, info):
                yield from _alternatives(info.annotation)
    elif get_origin(kind) is tuple and isinstance(step, int):
        yield from _alternatives(get_args(kind)[0])
    elif get_origin(kind) is Mapping:
        yield from _alternatives(get_args(kind)[1])


def _alternatives(kind: Any) -> Iterator[Any]:
    """Yield the types in a union, without annotations."""
    if get_origin(kind) is Annotated:
        yield from _alternatives(get_args(kind)[0])
    elif get_origin(kind) in (Union, UnionType):
        for inner in get_args(kind):
            yield from _alternatives(inner)
    else:
        yield kind


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _shown(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return "a list"
    if isinstance(value, Mapping):
        return "keys and values"
    text = repr(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."
