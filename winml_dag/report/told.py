"""Values out of JSON that others may have written: what is not of the expected kind counts as not told."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping

from winml_dag.canonical import JsonObject, JsonValue

_NOTHING: JsonObject = {}
_LARGEST = sys.float_info.max


def at(value: JsonValue, *names: str) -> JsonValue:
    """What is below *names*, one in the other; None where there is no such place."""
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def object_at(value: JsonValue, *names: str) -> JsonObject:
    """An empty object for anything else."""
    found = at(value, *names)
    return found if isinstance(found, Mapping) else _NOTHING


def objects_at(value: JsonValue, *names: str) -> Iterator[JsonObject]:
    """Those of a list that are objects."""
    found = at(value, *names)
    if isinstance(found, list | tuple):
        yield from (each for each in found if isinstance(each, Mapping))


def text_at(value: JsonValue, *names: str) -> str:
    """An empty text for anything else."""
    found = at(value, *names)
    return found if isinstance(found, str) else ""


def texts_at(value: JsonValue, *names: str) -> tuple[str, ...]:
    found = at(value, *names)
    return tuple(each for each in found if isinstance(each, str)) if isinstance(found, list | tuple) else ()


def number_at(value: JsonValue, *names: str) -> float | None:
    """A finite number; JSON of Python has others, which nothing can be compared with, and whole ones beyond floats."""
    found = at(value, *names)
    if isinstance(found, bool) or not isinstance(found, int | float) or abs(found) > _LARGEST or math.isnan(found):
        return None
    return found


def count_at(value: JsonValue, *names: str) -> int | None:
    found = number_at(value, *names)
    return None if found is None or found < 0 else int(found)


def counts_at(value: JsonValue, *names: str) -> dict[str, int]:
    """Counts by name; others are left out."""
    found = object_at(value, *names)
    return {name: count for name in found if (count := count_at(found, name)) is not None}


def words_at(value: JsonValue, *names: str) -> dict[str, str]:
    """Texts by name; others are left out."""
    return {name: each for name, each in object_at(value, *names).items() if isinstance(each, str)}
