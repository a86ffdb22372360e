"""What is wrong with a well-formed recipe: collected while a build is planned, and told all at once, line by line.

The schema sees one value at a time; that an input names a stage which is not there is seen only by who knows them all.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from winml_dag.errors import RecipeError
from winml_dag.recipe.document import Location, Positions

# More lines than anybody reads; one wrong folder can make thousands.
_MOST_TOLD = 50


class Findings:
    """Problems of the recipe *path*; *positions* is called only when there is one."""

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
