"""A recipe put together from pieces of several files, and where each of its values was really written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from winml_dag.recipe.document import Document, Location, Position, Positions

# Two names of one field: who writes one of them means to replace the other.
_PAIRS = (("samples", "calibration_samples"), ("calibration_load_path", "load_path"))
_TWINS = {one: other for pair in _PAIRS for one, other in (pair, pair[::-1])}


@dataclass(frozen=True)
class TextFile:
    """What a file says. ``name`` is what errors call it; its text is looked through for positions once at most."""

    name: str
    document: Document

    @cached_property
    def positions(self) -> Positions:
        return self.document.positions()


@dataclass(frozen=True)
class Piece:
    """Keys and values of a recipe that stand together in a file.

    Attributes:
        value: what they say, as keys of a whole recipe; paths may be written as seen from another folder.
        file: where they stand, at ``source`` in it.
        target: the place in a recipe of what stands at ``source``: ``()`` unless only a field of it is given.
    """

    value: Mapping[str, object]
    file: TextFile
    source: Location = ()
    target: Location = ()

    def has(self, location: Location) -> bool:
        value: object = self.value
        for step in location:
            steps = dict(enumerate(value)) if isinstance(value, list) else value
            if not isinstance(steps, Mapping) or step not in steps:
                return False
            value = steps[step]
        return True

    def source_of(self, location: Location) -> Location:
        """Where in the file that is which is at *location* of the recipe, or what it belongs to."""
        return (*self.source, *location[len(self.target) :])


def at_field(field: str, value: object, file: TextFile, source: Location) -> Piece:
    """The piece that gives the *field*, whose name may lead into sections by dots, a value that stands at *source*."""
    target = tuple(field.split("."))
    for step in reversed(target):
        value = {step: value}
    assert isinstance(value, Mapping)
    return Piece(value, file, source, target)


def merged(pieces: Sequence[Piece]) -> dict[str, object]:
    """All pieces as one recipe: of mappings key by key, of anything else the last."""
    whole: dict[str, object] = {}
    for piece in pieces:
        whole = _merged(whole, piece.value)
    return whole


def _merged(under: Mapping[str, object], over: Mapping[str, object]) -> dict[str, object]:
    whole = dict(under)
    for key, value in over.items():
        before = whole.get(key)
        if (twin := _TWINS.get(key)) is not None and twin not in over:
            whole.pop(twin, None)
        whole[key] = _merged(before, value) if isinstance(before, Mapping) and isinstance(value, Mapping) else value
    return whole


class PiecedPositions(Positions):
    """Positions in what :func:`merged` makes of *pieces*: each in the file that the value comes from."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        super().__init__()
        self._pieces = pieces

    def of_value(self, location: Location) -> Position:
        piece, nearest = self._piece(location)
        return piece.file.positions.of_value(piece.source_of(nearest))

    def of_key(self, location: Location) -> Position:
        piece, nearest = self._piece(location)
        return piece.file.positions.of_key(piece.source_of(nearest))

    def file_of(self, location: Location) -> str | None:
        return self._piece(location)[0].file.name

    def within(self, place: int) -> Positions:
        raise NotImplementedError(f"no piece is a list of recipes, so there is no place {place}")

    def _piece(self, location: Location) -> tuple[Piece, Location]:
        """The last piece that says what is at *location*, or else at the nearest place around it."""
        return next((piece, near) for near in _around(location) for piece in reversed(self._pieces) if piece.has(near))


def _around(location: Location) -> Iterator[Location]:
    return (location[:length] for length in range(len(location), -1, -1))


def positions_in(pieces: Sequence[Piece]) -> Callable[[], Positions]:
    return lambda: PiecedPositions(pieces)
