"""The file of a recipe as plain values, and whether it has one recipe or a list of them, before the schema has a say.

Light: which builds a file is about is asked at the start of every build, and the schema takes 0.1 s to import.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from winml_dag.errors import InputError, RecipeError
from winml_dag.readlog import before_reading
from winml_dag.recipe.document import Document, Position, unreadable
from winml_dag.smallfiles import read_bytes

RecipeFormat: TypeAlias = Literal["json", "yaml"]

_FORMATS: dict[str, RecipeFormat] = {".json": "json", ".yaml": "yaml", ".yml": "yaml"}
# The key that makes a sweep of a recipe.
MATRIX = "matrix"
# What builds and sweeps leave in their folders. Both files of a build: that no folder of recipes has them by chance.
_OF_BUILDS = ("build_manifest.json", "winml_build_config.json")
_OF_SWEEPS = ("sweep.json", "report.json")
# A key of these, and none of a recipe.
_BEGAN = b'"began_at"'
# Enough to find it in: before it stands what the sweep is called, and its recipes.
_HEAD_BYTES = 64 * 1024
# What the first thing that a list has to say can begin with; after the last two anything may follow.
_LIST_BEGINS = {"json": "[", "yaml": "-[&!"}


@dataclass(frozen=True)
class ModuleItem:
    """One recipe of a list: the module that it is about, and the class of that as the recipe has it, if it does."""

    module_path: str
    class_name: str | None

    def label(self, place: int) -> str:
        """What the build of the module at *place* of its list is called, and its folder."""
        return f"{re.sub(r'[^0-9A-Za-z_-]+', '_', self.class_name or 'module')}_{place}"


def read_recipe(path: Path) -> tuple[Document, RecipeFormat]:
    """What the file *path* says, whose ending tells whether it is JSON or YAML.

    Raises:
        InputError: when there is no such file, or it cannot be read as text.
        RecipeError: when its name or its text is of neither format.
    """
    kind = _format(path)
    return read_text(_read(path), str(path), kind), kind


def read_text(text: str, name: str, format: RecipeFormat) -> Document:  # noqa: A002 - the word that users know
    """What *text* says; *name* is what errors call it. Raises RecipeError when it is not of that *format*."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        line = text.count("\n", 0, error.start) + 1
        raise unreadable(name, [(Position(line, 1), "the text has half of a character")]) from None
    if format == "json":
        from winml_dag.recipe.json_text import read_json

        return read_json(text, name)
    from winml_dag.recipe.yaml_text import read_yaml

    return read_yaml(text, name)


def module_items(path: Path) -> tuple[ModuleItem, ...] | None:
    """The recipes that the file *path* lists, each for one module of a model; None when it has one recipe.

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
    """Whether the file *path* has a matrix of builds, told by its text alone where that has no word of one.

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
    """The files of recipes that are *named*: each itself, all in a folder but what builds have left there, or all that
    match a pattern.

    Raises:
        InputError: for a folder or pattern without any.
    """
    found: list[Path] = []
    for path in named:
        inside = [path]
        if path.is_dir():
            inside = _recipes_in(path)
        elif any(letter in str(path) for letter in "*?[") and not path.exists():
            inside = sorted(Path(path.anchor).glob(str(path.relative_to(path.anchor))))  # left to us on Windows
        if not inside:
            raise InputError(f"There is no recipe in {path}.", advice="The name of a recipe ends with .json or .yaml.")
        found += inside
    return tuple(dict.fromkeys(found))


def _recipes_in(folder: Path) -> list[Path]:
    """Outputs may lie in a folder of recipes, and some are JSON: a second run would take them for further recipes."""
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
    """Whether *file* tells what became of a sweep, and is no recipe of that name. It may be larger than any recipe."""
    try:
        with file.open("rb") as opened:
            return _BEGAN in opened.read(_HEAD_BYTES)
    except OSError:
        return False  # to be told of as a recipe


def labels_of(files: Sequence[Path]) -> tuple[str, ...]:
    """A name for each of *files* that no other has: its own, or with folders where that is not enough. Upper and lower
    case are one: folders are named by it, and there are systems to which they are.
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
    """Whether the first line that says something begins as a list does: most recipes are told by that to be none."""
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
        raise InputError(f"There is no recipe {path}.") from None
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
