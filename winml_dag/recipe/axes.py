"""The axes of a matrix: the label of each value, and what it sets in a cell."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from winml_dag.errors import InputError, RecipeError, UsageError, did_you_mean
from winml_dag.names import is_safe_part
from winml_dag.recipe.document import Document, Findings, Location, Position, Positions
from winml_dag.recipe.fields import resolve_path
from winml_dag.recipe.load import relocated
from winml_dag.recipe.reading import read_recipe
from winml_dag.recipe.schema import Recipe

# A recipe merged from pieces of several files, with the position at which each value was written.
#
# Pieces come from the sweep itself and from recipes in ``base:``, whose keys are defaults of a sweep's cells, and their
# own bases in turn.

# Two names of one field: writing either replaces the other.
_PAIRS = (("samples", "calibration_samples"), ("calibration_load_path", "load_path"))
_TWINS = {one: other for pair in _PAIRS for one, other in (pair, pair[::-1])}


@dataclass(frozen=True)
class Piece:
    """Keys and values of a recipe that are together in a file.

    Attributes:
        value: keys of a whole recipe; paths may be relative to another folder.
        file: the file that contains them, at ``source``.
        target: the location in a recipe of what is at ``source``: ``()`` unless only a field of it is given.
    """

    value: Mapping[str, object]
    file: Document
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
        """Return the location in the file of what is at *location* of the recipe, or of its container."""
        return (*self.source, *location[len(self.target) :])


def _at_field(field: str, value: object, file: Document, source: Location) -> Piece:
    """Return a piece that sets *field*, a name with dots for sections, to a value written at *source*."""
    target = tuple(field.split("."))
    for step in reversed(target):
        value = {step: value}
    assert isinstance(value, Mapping)
    return Piece(value, file, source, target)


def merged(pieces: Sequence[Piece]) -> dict[str, object]:
    """Merge all pieces to one recipe: mappings key by key, of anything else the last."""
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
    """Positions in the result of :func:`merged` for *pieces*: each in the file that the value comes from."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        super().__init__()
        self._pieces = pieces

    def of_value(self, location: Location) -> Position:
        piece, nearest = self._piece(location)
        return piece.file.positions().of_value(piece.source_of(nearest))

    def of_key(self, location: Location) -> Position:
        piece, nearest = self._piece(location)
        return piece.file.positions().of_key(piece.source_of(nearest))

    def file_of(self, location: Location) -> str | None:
        return self._piece(location)[0].file.name

    def _piece(self, location: Location) -> tuple[Piece, Location]:
        """Return the last piece with a value at *location*, or at the nearest enclosing location."""
        around = (location[:length] for length in range(len(location), -1, -1))
        return next((piece, near) for near in around for piece in reversed(self._pieces) if piece.has(near))


_CATALOG = "catalog:"


class Bases:
    """The recipes that a sweep in the file *path* is based on; each is read once.

    ``files``: all that were read, and all paths checked to distinguish paths from ids on the hub.
    """

    def __init__(self, path: Path, findings: Findings) -> None:
        self._path = path
        self._findings = findings
        self._read: dict[Path, Piece | None] = {}
        self._looked_at: list[Path] = []

    @property
    def files(self) -> tuple[Path, ...]:
        return (*self._read, *dict.fromkeys(self._looked_at))

    def of(self, named: object, at: Location) -> tuple[Piece, ...]:
        """Return the contents of the recipes that the sweep has *named* at *at* in its file; the last wins."""
        return tuple(self._all(named, self._path, at, (self._path.resolve(),)))

    def _all(self, named: object, by: Path, at: Location, chain: tuple[Path, ...]) -> Iterator[Piece]:
        """Yield the pieces. *by*: the file that names them. *at* is always a location in the sweep's file."""
        names = named if isinstance(named, list) else [named]
        for place, name in enumerate(names):
            here = (*at, place) if isinstance(named, list) and by == self._path else at
            if not isinstance(name, str) or not name.strip() or not name.isprintable():
                self._findings.add(here, f"{_origin(by, self._path)}expected the path of a recipe, or catalog:NAME")
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
            self._findings.add(at, f"{_origin(by, self._path)}{error}")
            return None

    def _one(self, path: Path, at: Location, chain: tuple[Path, ...]) -> Iterator[Piece]:
        if path not in self._read:
            self._read[path] = self._content(path, at)
        read = self._read[path]
        if read is None:
            return
        if "base" in read.value:
            yield from self._all(read.value["base"], path, at, chain)
        yield replace(read, value={key: value for key, value in read.value.items() if key != "base"})

    def _content(self, path: Path, at: Location) -> Piece | None:
        try:
            document, _ = read_recipe(path)
        except (InputError, RecipeError) as error:
            if isinstance(error, RecipeError) and error.problems:
                raise
            self._findings.add(at, str(error))
            return None
        except OSError as error:  # a name that is too long, for example, causes an error
            self._findings.add(at, f"{path} cannot be read: {error.strerror}")
            return None
        value = document.value
        if not isinstance(value, Mapping) or "matrix" in value:
            what = "is a sweep itself" if isinstance(value, Mapping) else "is not a recipe of one build"
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
        # The output folder of that build is wrong for others.
        kept.pop("output_dir", None)
        return Piece(kept, document)


def _origin(by: Path, sweep: Path) -> str:
    return "" if by == sweep else f"{by}: "


# Characters not allowed in a label: they have a meaning in filters and templates, and labels are names of folders.
_NOT_IN_LABELS = re.compile(r"[,=!\[\]{}]")
_LONGEST_LABEL = 80
# Words that appear next to axes in `include` and `exclude`, or apply to the whole sweep.
_TAKEN = ("name", "base", "because", "when", "include", "exclude", "output_dir")
_FIELDS = tuple(info.alias or name for name, info in Recipe.model_fields.items())


@dataclass(frozen=True)
class Value:
    """One value of an axis: ``bases`` are what it inherits, ``piece`` what it sets itself."""

    label: str
    piece: Piece
    bases: tuple[Piece, ...] = ()


@dataclass(frozen=True)
class Axis:
    """An axis of the matrix.

    ``takes_plain``: some of its values are plain values of a field, so further plain ones may be added. ``values``: by
    label.
    """

    name: str
    values: Mapping[str, Value]
    takes_plain: bool

    def with_value(self, value: Value) -> Axis:
        return replace(self, values={**self.values, value.label: value})


class AxisReader:
    """Reads axes from the matrix in *file*, and reports errors to *findings*."""

    def __init__(self, file: Document, bases: Bases, findings: Findings) -> None:
        self._file = file
        self._bases = bases
        self._findings = findings

    def axes(self, matrix: Mapping[str, object]) -> tuple[Axis, ...]:
        return tuple(axis for name, listed in matrix.items() if (axis := self._axis(name, listed)) is not None)

    def _axis(self, name: str, listed: object) -> Axis | None:
        at = ("matrix", name)
        if name in _TAKEN or not name or _NOT_IN_LABELS.search(name):
            self._findings.add(at, "an axis cannot have this name", about_key=True)
        elif not isinstance(listed, list) or not listed:
            what = "has no values" if listed in (None, [], {}) else "expected a list of values"
            self._findings.add(at, f"{what}; write some, such as [w8a8, w8a16]", about_key=not listed)
        else:
            is_plain = [not isinstance(each, Mapping) for each in listed]
            if any(is_plain) and not self._is_field(name, (*at, is_plain.index(True))):
                return None
            found: dict[str, Value] = {}
            for place, each in enumerate(listed):
                value = self.value(name, each, (*at, place))
                if value is not None and value.label in found:
                    self._findings.add((*at, place), f"there is a value {value.label!r} already; give each a name")
                elif value is not None:
                    found[value.label] = value
            return Axis(name, found, any(is_plain))
        return None

    def _is_field(self, axis: str, at: Location) -> bool:
        word = axis.partition(".")[0]
        if word in _FIELDS:
            return True
        hint = did_you_mean(word, _FIELDS)
        message = f"{axis!r} is not a field of a recipe, so each value has to say what it means, as {{name: ..., ...}}"
        self._findings.add(at, message + hint)
        return False

    def value(self, axis: str, written: object, at: Location) -> Value | None:
        """Return the value of *axis* that is *written* at *at* in the file; None if it is invalid."""
        if isinstance(written, Mapping):
            return self._named(written, at)
        if isinstance(written, list):
            self._findings.add(at, f"a list needs a name: {{name: ..., {_nested(axis)}}}")
            return None
        label = label_of(written)
        if wrong := _wrong_label(label):
            self._findings.add(at, f"no folder can be called {label!r} ({wrong}): {{name: ..., {_nested(axis)}}}")
            return None
        return Value(label, _at_field(axis, written, self._file, at))

    def _named(self, written: Mapping[str, object], at: Location) -> Value | None:
        name = written.get("name")
        if name is None:
            self._findings.add(at, "keys and values need a name: {name: ..., ...}")
            return None
        label = name if isinstance(name, str) else label_of(name) if isinstance(name, int | float) else ""
        if wrong := _wrong_label(label) if label else "expected text":
            self._findings.add((*at, "name"), wrong)
            return None
        keys = {key: value for key, value in written.items() if key not in ("name", "base")}
        self.refuse_whole(keys, at)
        bases = self._bases.of(written["base"], (*at, "base")) if "base" in written else ()
        return Value(label, Piece(keys, self._file, at), bases)

    def refuse_whole(self, keys: Mapping[str, object], at: Location) -> None:
        """Report *keys* of a cell that only a whole sweep may have."""
        if "output_dir" in keys:
            message = "is of the whole sweep; cells go below it, as `folder` says"
            self._findings.add((*at, "output_dir"), message, about_key=True)


def label_of(value: object) -> str:
    """Return the label of a plain value of an axis: as written; for a path or an id on the hub, its last part."""
    if not isinstance(value, str):
        return json.dumps(value)
    end = re.split(r"[/\\]", value.rstrip("/\\"))[-1]
    return re.sub(r'[<>:"|?*,=!\[\]{}]+', "_", re.sub(r"\.onnx$", "", end, flags=re.IGNORECASE))


def labels_in(written: object) -> Iterator[str]:
    """Yield labels and patterns, which are written as one value or as a list."""
    for each in written if isinstance(written, Sequence) and not isinstance(written, str) else (written,):
        yield each if isinstance(each, str) else label_of(each)


def _wrong_label(label: str) -> str:
    """Return why *label* is invalid; empty if it is valid."""
    if not is_safe_part(label) or _NOT_IN_LABELS.search(label) or not label.isprintable():
        return 'a name is that of a folder on every system, without < > : " / \\ | ? * , = ! [ ] { }'
    return f"longer than {_LONGEST_LABEL} letters" if len(label) > _LONGEST_LABEL else ""


def _nested(axis: str) -> str:
    *sections, field = axis.split(".")
    return "".join(f"{section}: {{" for section in sections) + f"{field}: ..." + "}" * len(sections)
