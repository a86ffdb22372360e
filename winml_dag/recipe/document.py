"""What a recipe's text says before the schema checks it: plain values, where each was written, and what is wrong.

Light: JSON, YAML, the schema and the planner share these types, and the words for what somebody may have meant.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
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


# More lines than anybody reads; one wrong folder can make thousands.
_MOST_TOLD = 50


class Findings:
    """Problems of the well-formed recipe *path*, collected while a build is planned and reported all at once.

    The schema sees one value at a time; for example, that an input names a stage which does not exist shows only in the
    whole. *positions* is called only when there is a problem.
    """

    def __init__(self, path: Path, positions: Callable[[], Positions]) -> None:
        self._path = path
        self._positions = positions
        self._found: list[tuple[Location, bool, str]] = []

    def add(self, location: Location, message: str, *, about_key: bool = False) -> None:
        """*about_key*: the key at *location* is wrong, not the value under it."""
        self._found.append((location, about_key, message))

    def refuse(self) -> None:
        """Raise RecipeError when something was found."""
        if not self._found:
            return
        from winml_dag.recipe.problems import problem_line

        positions = self._positions()
        lines = []
        for location, about_key, message in self._found:
            position = positions.of_key(location) if about_key else positions.of_value(location)
            file = positions.file_of(location) or str(self._path)
            lines.append((file, position, problem_line(file, position, location, message)))
        count = "one problem" if len(lines) == 1 else f"{len(lines)} problems"
        # Sorted by place; one and the same finding about a thing that is named twice is told once.
        told = tuple(dict.fromkeys(line for *_, line in sorted(lines)))
        more = (f"... and {len(told) - _MOST_TOLD} more",) if len(told) > _MOST_TOLD else ()
        raise RecipeError(f"The recipe {self._path} has {count}:", problems=told[:_MOST_TOLD] + more)

    @property
    def are_any(self) -> bool:
        return bool(self._found)

    @property
    def are_few(self) -> bool:
        """Whether there are so few that each is worth a search for what may have been meant."""
        return len(self._found) < _MOST_TOLD


# More than any list of ours has; the labels of an axis may be thousands.
_MOST_SHOWN = 200


def did_you_mean(word: object, choices: Iterable[str]) -> str:
    """``; did you mean 'samples'?`` for the nearest of *choices*, or nothing when none is near."""
    # Imported here, since only a mistake needs it.
    from difflib import get_close_matches

    by_folded = {choice.casefold(): choice for choice in choices}
    nearest = get_close_matches(str(word).casefold(), by_folded, n=1, cutoff=0.6)
    return f"; did you mean {by_folded[nearest[0]]!r}?" if nearest else ""


def known_instead(word: object, choices: Iterable[str]) -> str:
    """Like :func:`did_you_mean`, but with all of *choices* when none is near, or the first of very many."""
    choices = tuple(choices)
    more = f" and {len(choices) - _MOST_SHOWN} more" if len(choices) > _MOST_SHOWN else ""
    return did_you_mean(word, choices) or f"; known are {', '.join(choices[:_MOST_SHOWN])}{more}"
