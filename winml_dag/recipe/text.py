"""The text of a recipe as plain values. Python reads JSON; :mod:`winml_dag.recipe.events` reads YAML, and finds
positions in both, for JSON only when there is an error: importing PyYAML takes longer than reading a recipe.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Literal, TypeAlias, TypeVar

from winml_dag.file_reading import nests_deeper
from winml_dag.recipe.document import (
    MAX_DEPTH,
    Document,
    Position,
    Positions,
    decimal_number,
    unreadable,
    whole_number,
)

RecipeFormat: TypeAlias = Literal["json", "yaml"]

T = TypeVar("T")


def read_text(text: str, name: str, format: RecipeFormat) -> Document:  # noqa: A002 - the word that users know
    """Parse *text*; *name* is for messages. Raises RecipeError if it is not in that *format*."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        line = text.count("\n", 0, error.start) + 1
        raise unreadable(name, [(Position(line, 1), "the text has half of a character")]) from None
    if format == "json":
        return _read_json(text, name)
    from winml_dag.recipe.events import read_yaml

    return read_yaml(text, name)


def _read_json(text: str, name: str) -> Document:
    """Parse *text* as strict JSON. Python's reader also accepts NaN, and uses the last of two equal keys.

    Raises RecipeError, with line and column, if it is not JSON; all findings at once if possible.
    """
    suspicions: list[str] = []

    def checked(read: Callable[[str], T | None]) -> Callable[[str], T | None]:
        def number(digits: str) -> T | None:
            if (found := read(digits)) is None:
                suspicions.append(digits)
            return found

        return number

    def unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found = dict(pairs)
        if len(found) < len(pairs):
            suspicions.append("duplicate key")
        return found

    try:
        value = json.loads(
            text,
            object_pairs_hook=unique_keys,
            parse_int=checked(whole_number),
            parse_float=checked(decimal_number),
            parse_constant=suspicions.append,
        )
    except json.JSONDecodeError as error:
        what = error.msg[:1].lower() + error.msg[1:]
        raise unreadable(name, [(Position(error.lineno, error.colno), what)]) from None
    except RecursionError:
        raise unreadable(name, [(Position(1, 1), "nested too deeply")]) from None
    # The middle condition means only "perhaps", which is sufficient because it is rare.
    if suspicions or "\\ud" in text.casefold() or nests_deeper(value, MAX_DEPTH):
        from winml_dag.recipe.events import refuse_json

        refuse_json(text, name)

    def positions() -> Positions:
        from winml_dag.recipe.events import positions_in_json

        return positions_in_json(text)

    return Document(name, value, cache(positions))
