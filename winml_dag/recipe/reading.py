"""Read the file of a recipe as plain values, and determine whether it has one recipe or a list, without the schema.

Every build starts by checking which builds a file contains, and the schema takes 0.1 s to import.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, TypeAlias

from winml_dag.errors import InputError, RecipeError
from winml_dag.file_reading import before_reading, read_bytes
from winml_dag.recipe.document import (
    HALF_CHARACTER,
    MAX_DEPTH,
    MAX_DIGITS,
    Document,
    Location,
    Position,
    Positions,
    decimal_number,
    did_you_mean,
    unreadable,
    whole_number,
)

# Recipes in JSON: strict, unlike Python's reader, which accepts NaN and uses the last of two equal keys.
#
# Python reads; positions are found in a second, slower pass that runs only if there is an error.

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[][{}:,]|[^][{}:,"\s]+', re.DOTALL)

_WORDS = ("true", "false", "null")


def read_json(text: str, name: str) -> Document:
    """Parse *text*.

    Raises:
        RecipeError: it is not JSON, with line and column; all findings at once if possible.
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
    # The middle condition means only "perhaps", which is sufficient because it is rare.
    if suspicions or "\\ud" in text.casefold() or _is_too_deep(value):
        findings = _Scan(text).findings
        if findings:
            raise unreadable(name, findings)
    return Document(value, partial(_positions, text))


def _is_too_deep(value: object) -> bool:
    """Return whether lists and objects are nested deeper than MAX_DEPTH, checked level by level."""
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
    """An object or array that is being read: ``step`` is the key or index of the next value."""

    location: Location
    step: str | int | None
    is_object: bool

    def next_location(self) -> Location:
        return self.location if self.step is None else (*self.location, self.step)


class _Scan:
    """One pass over the tokens of a valid JSON text."""

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


RecipeFormat: TypeAlias = Literal["json", "yaml"]

_FORMATS: dict[str, RecipeFormat] = {".json": "json", ".yaml": "yaml", ".yml": "yaml"}
# The key that turns a recipe into a sweep.
MATRIX = "matrix"
# Files that builds and sweeps leave in their folders. A build needs both files, so that no folder of recipes matches by
# chance.
_OF_BUILDS = ("build_manifest.json", "winml_build_config.json")
_OF_SWEEPS = ("sweep.json", "report.json")
# A key of these files that no recipe has.
_BEGAN = b'"began_at"'
# Enough to contain that key: only the sweep's name and recipes come before it.
_HEAD_BYTES = 64 * 1024
# Possible first characters of a list; after the last two anything may follow.
_LIST_BEGINS = {"json": "[", "yaml": "-[&!"}


@dataclass(frozen=True)
class ModuleItem:
    """One recipe of a list: the path of its module, and the class of the module if the recipe has it."""

    module_path: str
    class_name: str | None

    def label(self, place: int) -> str:
        """Return the name of the build of the module at index *place* of its list, and of its folder."""
        return f"{re.sub(r'[^0-9A-Za-z_-]+', '_', self.class_name or 'module')}_{place}"


def read_recipe(path: Path) -> tuple[Document, RecipeFormat]:
    """Read the file *path*, whose suffix determines JSON or YAML.

    Raises:
        InputError: the file does not exist, or cannot be read as text.
        RecipeError: its name or its text is of neither format.
    """
    kind = _format(path)
    return read_text(_read(path), str(path), kind), kind


def read_text(text: str, name: str, format: RecipeFormat) -> Document:  # noqa: A002 - the word that users know
    """Parse *text*; *name* is for messages. Raises RecipeError if it is not in that *format*."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        line = text.count("\n", 0, error.start) + 1
        raise unreadable(name, [(Position(line, 1), "the text has half of a character")]) from None
    if format == "json":
        return read_json(text, name)
    from winml_dag.recipe.yaml_text import read_yaml

    return read_yaml(text, name)


def module_items(path: Path) -> tuple[ModuleItem, ...] | None:
    """Return the recipes that the file *path* lists, each for one module of a model; None if it has one recipe.

    Raises:
        InputError, RecipeError: as :func:`read_recipe`, and for a list that names no modules.
    """
    kind = _format(path)
    text = _read(path)
    if not _may_be_list(text, kind):
        return None
    document = read_text(text, str(path), kind)
    if not isinstance(document.value, list):
        return None
    if not document.value:
        raise RecipeError(f"{path} is an empty list, so there is nothing to build.")
    items = [_item(value) for value in document.value]
    if None in items:
        problems = tuple(
            f"{path}:{document.positions().of_value((place,)).line}: has no loader.module_path"
            for place, item in enumerate(items)
            if item is None
        )
        raise RecipeError(
            f"{path} is a list, and each recipe of a list is for one module of a model:", problems=problems
        )
    return tuple(item for item in items if item is not None)


def is_sweep(path: Path) -> bool:
    """Return whether the file *path* has a matrix of builds, without parsing if its text does not contain that word.

    Raises:
        InputError, RecipeError: as :func:`read_recipe`.
    """
    kind = _format(path)
    text = _read(path)
    if MATRIX not in text:
        return False
    document = read_text(text, str(path), kind)
    return isinstance(document.value, Mapping) and MATRIX in document.value


def recipe_files(named: Sequence[Path]) -> tuple[Path, ...]:
    """Return the recipe files that are *named*: files, all in a folder except outputs, or all that match a pattern.

    Raises:
        InputError: a folder or pattern has none.
    """
    found: list[Path] = []
    for path in named:
        inside = [path]
        if path.is_dir():
            inside = _recipes_in(path)
        elif any(letter in str(path) for letter in "*?[") and not path.exists():
            # shells on Windows do not expand patterns
            inside = sorted(Path(path.anchor).glob(str(path.relative_to(path.anchor))))
        if not inside:
            raise InputError(f"There is no recipe in {path}.", advice="The name of a recipe ends with .json or .yaml.")
        found += inside
    return tuple(dict.fromkeys(found))


def _recipes_in(folder: Path) -> list[Path]:
    """Return the recipes in *folder* without outputs, which are partly JSON and would be taken for recipes."""
    found = [file for file in folder.rglob("*") if file.suffix.casefold() in _FORMATS and file.is_file()]
    every = set(found)
    built = {file.parent for file in found if all(file.with_name(name) in every for name in _OF_BUILDS)}
    swept = {file.parent for file in found if file.name == _OF_SWEEPS[0] and _is_of_a_run(file)}
    return sorted(
        file
        for file in found
        if not (file.parent in built and file.suffix == ".json")
        and not (file.parent in swept and file.name in _OF_SWEEPS)
    )


def _is_of_a_run(file: Path) -> bool:
    """Return whether *file* is the result of a sweep, not a recipe of that name. It may be larger than any recipe."""
    try:
        with file.open("rb") as opened:
            return _BEGAN in opened.read(_HEAD_BYTES)
    except OSError:
        return False  # it will be reported as a recipe


def labels_of(files: Sequence[Path]) -> tuple[str, ...]:
    """Return a unique name for each of *files*: its own, or with folders if necessary.

    Case is ignored: folders are named after it, and some systems ignore case.
    """
    names = [file.stem for file in files]
    if _differ(names):
        return tuple(names)
    whole = [file.resolve().with_suffix("") for file in files]
    shared = next(folder for folder in whole[0].parents if all(path.is_relative_to(folder) for path in whole))
    names = [path.relative_to(shared).as_posix() for path in whole]
    if _differ(names):
        return tuple(names)
    return tuple(f"{name}{file.suffix}" for name, file in zip(names, files, strict=True))


def _differ(names: Sequence[str]) -> bool:
    return len({name.casefold() for name in names}) == len(names)


def _item(value: object) -> ModuleItem | None:
    loader = value.get("loader") if isinstance(value, Mapping) else None
    if not isinstance(loader, Mapping) or not isinstance(loader.get("module_path"), str):
        return None
    name = loader.get("model_class")
    return ModuleItem(loader["module_path"], name if isinstance(name, str) else None)


def _may_be_list(text: str, format: RecipeFormat) -> bool:  # noqa: A002
    """Return whether the first line with content begins like a list, which excludes most recipes."""
    for line in text.splitlines():
        said = line.strip()
        if said and not said.startswith(("#", "---", "%")):
            return said[0] in _LIST_BEGINS[format]
        if said.startswith("---") and said != "---":
            return True
    return False


def _format(path: Path) -> RecipeFormat:
    kind = _FORMATS.get(path.suffix.casefold())
    if kind is None:
        raise RecipeError(f"{path} is not a recipe.", advice="The name of a recipe ends with .json, .yaml or .yml.")
    return kind


def _read(path: Path) -> str:
    before_reading(path)
    if path.is_dir():
        raise InputError(f"{path} is a folder, not a recipe.", advice="Name the file in it.")
    try:
        data = read_bytes(path)
    except FileNotFoundError:
        near = (each.name for each in path.parent.glob("*") if each.suffix.casefold() in _FORMATS)
        raise InputError(f"There is no recipe {path}{did_you_mean(path.name, near) or '.'}") from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise InputError(f"The recipe {path} cannot be read: {why}.") from None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"{path}:{line}: the recipe is not UTF-8 text.", advice="Save it with the encoding UTF-8."
        ) from None
