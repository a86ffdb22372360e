"""What ``base:`` names: recipes whose keys are defaults of a sweep's cells, and what those are based on in turn."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from winml_dag.errors import InputError, RecipeError, UsageError
from winml_dag.recipe.document import Location
from winml_dag.recipe.findings import Findings
from winml_dag.recipe.paths import resolve_path
from winml_dag.recipe.pieces import Piece, TextFile
from winml_dag.recipe.reading import read_recipe
from winml_dag.recipe.relocated import relocated

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
                from winml_dag.recipe.shipped import shipped_path

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
