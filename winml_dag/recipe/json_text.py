"""Recipes in JSON: strictly JSON, which Python's reader is not (it takes NaN, and the last of two equal keys).

Reading is Python's; finding positions is a second, slower pass that runs only when there is an error.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from dataclasses import dataclass
from functools import partial

from winml_dag.recipe.document import (
    HALF_CHARACTER,
    MAX_DEPTH,
    MAX_DIGITS,
    Document,
    Location,
    Position,
    Positions,
    decimal_number,
    unreadable,
    whole_number,
)

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[][{}:,]|[^][{}:,"\s]+', re.DOTALL)

_WORDS = ("true", "false", "null")


def read_json(text: str, name: str) -> Document:
    """What *text* says.

    Raises:
        RecipeError: for anything that is not JSON, with line and column; all findings at once where that is possible.
    """
    suspicions: list[str] = []

    def whole(digits: str) -> int:
        number = whole_number(digits)
        if number is None:
            suspicions.append(digits)
        return number or 0

    def decimal(digits: str) -> float:
        number = decimal_number(digits)
        if number is None:
            suspicions.append(digits)
        return number or 0.0

    def unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found = dict(pairs)
        if len(found) < len(pairs):
            suspicions.append("duplicate key")
        return found

    try:
        value = json.loads(
            text,
            object_pairs_hook=unique_keys,
            parse_int=whole,
            parse_float=decimal,
            parse_constant=suspicions.append,
        )
    except json.JSONDecodeError as error:
        what = error.msg[:1].lower() + error.msg[1:]
        raise unreadable(name, [(Position(error.lineno, error.colno), what)]) from None
    except RecursionError:
        raise unreadable(name, [(Position(1, 1), "nested too deeply")]) from None
    # The middle one says no more than "perhaps", which is enough, because it is rare.
    if suspicions or "\\ud" in text.casefold() or _is_too_deep(value):
        findings = _Scan(text).findings
        if findings:
            raise unreadable(name, findings)
    return Document(value, partial(_positions, text))


def _is_too_deep(value: object) -> bool:
    """Whether lists and objects lie in each other further than MAX_DEPTH, looked at level by level."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return False
    return True


def _positions(text: str) -> Positions:
    return _Scan(text).positions


@dataclass
class _Container:
    """An object or array that is being read: ``step`` is the key or index of the value to come."""

    location: Location
    step: str | int | None
    is_object: bool

    def next_location(self) -> Location:
        return self.location if self.step is None else (*self.location, self.step)


class _Scan:
    """One walk over the tokens of a valid JSON text."""

    def __init__(self, text: str) -> None:
        self.positions = Positions()
        self.findings: list[tuple[Position, str]] = []
        self._line_starts = [0, *(match.end() for match in re.finditer("\n", text))]
        self._open: list[_Container] = []
        for match in _TOKEN.finditer(text):
            self._take(match.group(), self._position(match.start()))

    def _position(self, offset: int) -> Position:
        line = bisect_right(self._line_starts, offset)
        return Position(line, offset - self._line_starts[line - 1] + 1)

    def _take(self, token: str, position: Position) -> None:
        container = self._open[-1] if self._open else None
        if token in "]}":
            self._open.pop()
        elif token == ",":
            if container and not container.is_object:
                assert isinstance(container.step, int)
                container.step += 1
            elif container:
                container.step = None
        elif container and container.is_object and container.step is None:
            self._take_key(container, token, position)
        elif token != ":":
            self._take_value(container.next_location() if container else (), token, position)

    def _take_key(self, container: _Container, token: str, position: Position) -> None:
        self._check_text(token, position)
        container.step = key = json.loads(token)
        location = (*container.location, key)
        if location in self.positions.keys:
            first = self.positions.keys[location].line
            self.findings.append((position, f"the key {key!r} is there twice, first on line {first}"))
        self.positions.keys.setdefault(location, position)

    def _take_value(self, location: Location, token: str, position: Position) -> None:
        self.positions.values[location] = position
        if token in "[{":
            self._open.append(_Container(location, 0 if token == "[" else None, token == "{"))
            if len(self._open) == MAX_DEPTH + 1:
                self.findings.append((position, "nested too deeply"))
        elif token[0] == '"':
            self._check_text(token, position)
        elif token not in _WORDS and _number(token) is None:
            self.findings.append((position, f"{token[:MAX_DIGITS]} is not a number that can be used here"))

    def _check_text(self, token: str, position: Position) -> None:
        if HALF_CHARACTER.search(json.loads(token)):
            self.findings.append((position, "the text has half of a character"))


def _number(token: str) -> int | float | None:
    if token.removeprefix("-").isdecimal():
        return whole_number(token)
    return decimal_number(token)
