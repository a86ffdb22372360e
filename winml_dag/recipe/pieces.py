"""A recipe put together from pieces of several files, and where each of its values was written.

Pieces come from the sweep itself and from what ``base:`` names: recipes whose keys are defaults of a sweep's cells, and
what those are based on in turn.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from winml_dag.errors import InputError, RecipeError, UsageError
from winml_dag.recipe.document import Document, Findings, Location, Position, Positions
from winml_dag.recipe.paths import relocated, resolve_path
from winml_dag.recipe.reading import read_recipe

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


_CATALOG = "catalog:"


@dataclass(frozen=True)
class _Read:
    path: Path
    file: TextFile
    value: Mapping[str, object]


class Bases:
    """The recipes that a sweep in the file *path* is based on; each is read once.

    ``files``: all that were read, and what was looked for to tell paths from ids on the hub.
    """

    def __init__(self, path: Path, findings: Findings) -> None:
        self._path = path
        self._findings = findings
        self._read: dict[Path, _Read | None] = {}
        self._looked_at: list[Path] = []

    @property
    def files(self) -> tuple[Path, ...]:
        return (*self._read, *dict.fromkeys(self._looked_at))

    def of(self, named: object, at: Location) -> tuple[Piece, ...]:
        """What the recipes say that the sweep has *named* *at* a place of its file, the last with the last word."""
        return tuple(self._all(named, self._path, at, (self._path.resolve(),)))

    def _all(self, named: object, by: Path, at: Location, chain: tuple[Path, ...]) -> Iterator[Piece]:
        """*by*: the file that has them named. *at* is always a place in the sweep's."""
        names = named if isinstance(named, list) else [named]
        for place, name in enumerate(names):
            here = (*at, place) if isinstance(named, list) and by == self._path else at
            if not isinstance(name, str) or not name.strip() or not name.isprintable():
                self._findings.add(here, f"{_told(by, self._path)}expected the path of a recipe, or catalog:NAME")
                continue
            path = self._file(name, by, here)
            if path is None:
                continue
            known = path.resolve()
            if known in chain:
                way = " -> ".join(each.name for each in (*chain[chain.index(known) :], known))
                self._findings.add(here, f"these recipes are based on each other: {way}")
                continue
            yield from self._one(path, here, (*chain, known))

    def _file(self, name: str, by: Path, at: Location) -> Path | None:
        try:
            if name.startswith(_CATALOG):
                from winml_dag.recipe.load import shipped_path

                return shipped_path(name.removeprefix(_CATALOG))
            return Path(os.path.normpath(resolve_path(by.parent, name)))
        except (UsageError, InputError) as error:
            self._findings.add(at, f"{_told(by, self._path)}{error}")
            return None

    def _one(self, path: Path, at: Location, chain: tuple[Path, ...]) -> Iterator[Piece]:
        if path not in self._read:
            self._read[path] = self._content(path, at)
        read = self._read[path]
        if read is None:
            return
        if "base" in read.value:
            yield from self._all(read.value["base"], path, at, chain)
        yield Piece({key: value for key, value in read.value.items() if key != "base"}, read.file)

    def _content(self, path: Path, at: Location) -> _Read | None:
        try:
            document, _ = read_recipe(path)
        except (InputError, RecipeError) as error:
            if isinstance(error, RecipeError) and error.problems:
                raise
            self._findings.add(at, str(error))
            return None
        except OSError as error:  # a name that is too long, for one, is not even looked for
            self._findings.add(at, f"{path} cannot be read: {error.strerror}")
            return None
        value = document.value
        if not isinstance(value, Mapping) or "matrix" in value:
            what = "is a sweep itself" if isinstance(value, Mapping) else "is no recipe of one build"
            self._findings.add(at, f"{path} {what}; base takes recipes of one build")
            return None
        if path.parent.resolve() == self._path.parent.resolve():
            kept = dict(value)
        else:
            kept, looked_at = relocated(value, path.parent)
            self._looked_at += looked_at
            if "stages" in value:
                message = "has stages of its own, which work in its folder; base takes those of this folder only"
                self._findings.add(at, f"{path} {message}")
                return None
        # Where that build puts its result is no place for others.
        kept.pop("output_dir", None)
        return _Read(path, TextFile(str(path), document), kept)


def _told(by: Path, sweep: Path) -> str:
    return "" if by == sweep else f"{by}: "
