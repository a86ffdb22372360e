"""What a recipe's text says, before anybody asks whether it makes sense: plain values, and where each was written."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from winml_dag.errors import RecipeError

# More than any sensible recipe has, and less than what would exhaust the stack of whatever reads it next.
MAX_DEPTH = 64
# A number with more digits is a slip of the keyboard, or an attempt to keep us busy.
MAX_DIGITS = 40

# Half of a character that UTF-16 writes as two: no file can hold it, but an escape can write it.
HALF_CHARACTER = re.compile("[\ud800-\udfff]")

Location: TypeAlias = tuple[str | int, ...]


class Position(NamedTuple):
    """Line and column, both counted from 1."""

    line: int
    column: int


@dataclass
class Positions:
    """Where each value, and the key that it stands under, was written."""

    keys: dict[Location, Position] = field(default_factory=dict)
    values: dict[Location, Position] = field(default_factory=dict)

    def of_value(self, location: Location) -> Position:
        return _nearest(self.values, location)

    def within(self, place: int) -> Positions:
        """Positions in what stands at *place* of a list, as if it stood alone."""
        return Positions(
            {where[1:]: at for where, at in self.keys.items() if where[:1] == (place,)},
            {where[1:]: at for where, at in self.values.items() if where[:1] == (place,)},
        )

    def of_key(self, location: Location) -> Position:
        return self.keys.get(location) or self.of_value(location)

    def file_of(self, location: Location) -> str | None:  # noqa: ARG002 - for recipes that several files make up
        """The file that what is at *location* was written in; None where all is in one."""
        return None


def _nearest(positions: Mapping[Location, Position], location: Location) -> Position:
    """The position of *location*, or of the nearest thing around it that was written."""
    for length in range(len(location), 0, -1):
        if location[:length] in positions:
            return positions[location[:length]]
    return positions.get((), Position(1, 1))


@dataclass(frozen=True)
class Document:
    """``positions`` is called only when there is something to complain about."""

    value: object
    positions: Callable[[], Positions]

    def item(self, place: int) -> Document:
        """The document that the list which this is has at *place*; an empty one when it has no such place."""
        within = self.value[place] if isinstance(self.value, list) and place < len(self.value) else None
        return Document(within, lambda: self.positions().within(place))


def whole_number(digits: str) -> int | None:
    """The number, or None when it has more digits than make sense."""
    return int(digits) if len(digits) <= MAX_DIGITS else None


def decimal_number(digits: str) -> float | None:
    """The number, or None when it is larger than a float can be."""
    number = float(digits)
    return number if math.isfinite(number) else None


def unreadable(name: str, findings: list[tuple[Position, str]]) -> RecipeError:
    """The error for text that is not even JSON or YAML; *findings* in any order."""
    problems = tuple(f"{name}:{line}:{column}: {what}" for (line, column), what in sorted(findings))
    return RecipeError(f"The recipe {name} cannot be read.", problems=problems)
