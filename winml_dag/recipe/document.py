"""A recipe's text before the schema checks it: plain values, the position of each, and errors.

This module imports nothing heavy: JSON, YAML, the schema and the planner share these types.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeAlias

from winml_dag.errors import RecipeError

# More than any reasonable recipe has, and less than what would exhaust the stack of its readers.
MAX_DEPTH = 64
# A number with more digits is a typing error, or a denial-of-service attempt.
MAX_DIGITS = 40

# Half of a UTF-16 surrogate pair: no file can contain it, but an escape can write it.
HALF_CHARACTER = re.compile("[\ud800-\udfff]")

Location: TypeAlias = tuple[str | int, ...]


class Position(NamedTuple):
    """Line and column, both counted from 1."""

    line: int
    column: int


@dataclass
class Positions:
    """The positions of each value and of its key."""

    keys: dict[Location, Position] = field(default_factory=dict)
    values: dict[Location, Position] = field(default_factory=dict)

    def of_value(self, location: Location) -> Position:
        return _nearest(self.values, location)

    def of_key(self, location: Location) -> Position:
        return self.keys.get(location) or self.of_value(location)

    def file_of(self, location: Location) -> str | None:  # noqa: ARG002 - for recipes that several files make up
        """Return the file that has what is at *location*; None if there is only one file."""
        return None


def _nearest(positions: Mapping[Location, Position], location: Location) -> Position:
    """Return the position of *location*, or of its nearest enclosing element."""
    for length in range(len(location), 0, -1):
        if location[:length] in positions:
            return positions[location[:length]]
    return positions.get((), Position(1, 1))


@dataclass(frozen=True)
class Document:
    """The content of a file. ``name`` is for messages; ``positions`` is called only for error messages."""

    name: str
    value: object
    positions: Callable[[], Positions]

    def item(self, place: int) -> Document:
        """Return the item at *place* of this list as a document; an empty one if it does not exist."""
        within = self.value[place] if isinstance(self.value, list) and place < len(self.value) else None

        def positions() -> Positions:
            every = self.positions()
            return Positions(_below(every.keys, place), _below(every.values, place))

        return Document(self.name, within, positions)


def _below(positions: Mapping[Location, Position], place: int) -> dict[Location, Position]:
    return {location[1:]: at for location, at in positions.items() if location[:1] == (place,)}


def whole_number(digits: str) -> int | None:
    """Return the number, or None if it has too many digits."""
    return int(digits) if len(digits) <= MAX_DIGITS else None


def decimal_number(digits: str) -> float | None:
    """Return the number, or None if it is too large for a float."""
    number = float(digits)
    return number if math.isfinite(number) else None


def unreadable(name: str, findings: list[tuple[Position, str]]) -> RecipeError:
    """Return the error for text that is not valid JSON or YAML; *findings* in any order."""
    problems = tuple(f"{name}:{line}:{column}: {what}" for (line, column), what in sorted(findings))
    return RecipeError(f"The recipe {name} cannot be read.", problems=problems)


def dotted(location: Location) -> str:
    text = ""
    for step in location:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            key = step if step and step.isprintable() else repr(step)
            text += f".{key}" if text else key
    return text


# More lines than anybody reads; one wrong folder can cause thousands.
_MOST_PROBLEMS = 50


class Findings:
    """Problems of the well-formed recipe *name*, collected while it is read and planned, and reported all at once.

    The schema sees one value at a time; for example, only the whole recipe shows that an input names a nonexistent
    stage. *positions* is called only if there is a problem.
    """

    def __init__(self, name: Path | str, positions: Callable[[], Positions]) -> None:
        self._name = str(name)
        self._positions = positions
        self._found: set[tuple[str, Position, str]] = set()

    def add(
        self, location: Location, message: str, *, about_key: bool = False, positions: Positions | None = None
    ) -> None:
        """Add a problem, such as ``bert.yaml:12: quant.samples: expected a whole number``.

        *about_key*: the key at *location* is wrong, not its value.
        """
        positions = positions or self._positions()
        position = positions.of_key(location) if about_key else positions.of_value(location)
        file = positions.file_of(location) or self._name
        label = f"{dotted(location)}: " if location else ""
        self._found.add((file, position, f"{file}:{position.line}: {label}{message}"))

    def lines(self) -> tuple[str, ...]:
        """Return one line for each problem, in file order."""
        return tuple(line for *_, line in sorted(self._found))

    def error(self) -> RecipeError:
        lines = self.lines()
        count = "one problem" if len(lines) == 1 else f"{len(lines)} problems"
        more = (f"... and {len(lines) - _MOST_PROBLEMS} more",) if len(lines) > _MOST_PROBLEMS else ()
        return RecipeError(f"The recipe {self._name} has {count}:", problems=lines[:_MOST_PROBLEMS] + more)

    def refuse(self) -> None:
        """Raise RecipeError if there are problems."""
        if self._found:
            raise self.error()

    @property
    def are_few(self) -> bool:
        """Whether there are few enough to search for suggestions for each."""
        return len(self._found) < _MOST_PROBLEMS
