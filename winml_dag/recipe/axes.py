"""The axes of a matrix: what each value is called, and what it says of a cell that has it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from winml_dag.names import is_safe_part
from winml_dag.recipe.document import Findings, Location
from winml_dag.recipe.pieces import Bases, Piece, TextFile, at_field
from winml_dag.recipe.schema import Recipe
from winml_dag.recipe.spelling import did_you_mean

# What a label cannot have in it: filters and templates mean something by them, and a folder is named by labels.
_NOT_IN_LABELS = re.compile(r"[,=!\[\]{}]")
_LONGEST_LABEL = 80
# Words that stand beside axes in `include` and `exclude`, or say something of the whole sweep.
_TAKEN = ("name", "base", "because", "when", "include", "exclude", "output_dir")
_FIELDS = tuple(info.alias or name for name, info in Recipe.model_fields.items())


@dataclass(frozen=True)
class Value:
    """One value of an axis: ``bases`` are what it inherits, ``pieces`` what it says itself."""

    label: str
    pieces: tuple[Piece, ...] = ()
    bases: tuple[Piece, ...] = ()


@dataclass(frozen=True)
class Axis:
    """``takes_plain``: some of its values are those of a field, so that another one may be written where it is meant.

    ``values``: by label.
    """

    name: str
    values: Mapping[str, Value]
    takes_plain: bool

    def with_value(self, value: Value) -> Axis:
        return replace(self, values={**self.values, value.label: value})


class AxisReader:
    """Reads axes out of the matrix in *file*, and says what is wrong with them to *findings*."""

    def __init__(self, file: TextFile, bases: Bases, findings: Findings) -> None:
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
        message = f"{axis!r} is no field of a recipe, so each value has to say what it means, as {{name: ..., ...}}"
        self._findings.add(at, message + hint)
        return False

    def value(self, axis: str, written: object, at: Location) -> Value | None:
        """The value of *axis* that is *written* at a place of the file; None for one that is wrong."""
        if isinstance(written, Mapping):
            return self._named(written, at)
        if isinstance(written, list):
            self._findings.add(at, f"a list needs a name: {{name: ..., {_nested(axis)}}}")
            return None
        label = label_of(written)
        if wrong := _wrong_label(label):
            self._findings.add(at, f"no folder can be called {label!r} ({wrong}): {{name: ..., {_nested(axis)}}}")
            return None
        return Value(label, (at_field(axis, written, self._file, at),))

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
        return Value(label, (Piece(keys, self._file, at),), bases)

    def refuse_whole(self, keys: Mapping[str, object], at: Location) -> None:
        """Find fault with *keys* of a cell that only a whole sweep has."""
        if "output_dir" in keys:
            message = "is of the whole sweep; cells go below it, as `folder` says"
            self._findings.add((*at, "output_dir"), message, about_key=True)


def label_of(value: object) -> str:
    """What a plain value of an axis is called: as it is written, of a path or an id on the hub its end."""
    if not isinstance(value, str):
        return json.dumps(value)
    end = re.split(r"[/\\]", value.rstrip("/\\"))[-1]
    return re.sub(r'[<>:"|?*,=!\[\]{}]+', "_", re.sub(r"\.onnx$", "", end, flags=re.IGNORECASE))


def labels_meant(written: object) -> Iterator[str]:
    """The labels and patterns that are written as one or as a list of them."""
    for each in written if isinstance(written, Sequence) and not isinstance(written, str) else (written,):
        yield each if isinstance(each, str) else label_of(each)


def _wrong_label(label: str) -> str:
    """Why *label* cannot be one; empty when it can."""
    if not is_safe_part(label) or _NOT_IN_LABELS.search(label) or not label.isprintable():
        return 'a name is that of a folder on every system, without < > : " / \\ | ? * , = ! [ ] { }'
    return f"longer than {_LONGEST_LABEL} letters" if len(label) > _LONGEST_LABEL else ""


def _nested(axis: str) -> str:
    *sections, field = axis.split(".")
    return "".join(f"{section}: {{" for section in sections) + f"{field}: ..." + "}" * len(sections)
