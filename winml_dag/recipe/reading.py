"""The files of recipes: which there are, and whether one has one recipe, a list or a sweep, without the schema.

Every build starts by checking which builds a file contains, and the schema takes 0.1 s to import.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from winml_dag.errors import InputError, RecipeError, did_you_mean
from winml_dag.file_reading import before_reading, read_bytes
from winml_dag.recipe.document import Document
from winml_dag.recipe.text import RecipeFormat, read_text

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


def module_items(path: Path) -> tuple[ModuleItem, ...] | None:
    """Return the recipes that the file *path* lists, each for one module of a model; None if it has one recipe.

    Raises InputError, RecipeError as :func:`read_recipe`, and for a list that names no modules.
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

    Raises InputError, RecipeError as :func:`read_recipe`.
    """
    kind = _format(path)
    text = _read(path)
    if MATRIX not in text:
        return False
    document = read_text(text, str(path), kind)
    return isinstance(document.value, Mapping) and MATRIX in document.value


def recipe_files(named: Sequence[Path]) -> tuple[Path, ...]:
    """Return the recipe files that are *named*: files, all in a folder except outputs, or all that match a pattern.

    Raises InputError if a folder or pattern has none.
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
        stripped = line.strip()
        if stripped and not stripped.startswith(("#", "---", "%")):
            return stripped[0] in _LIST_BEGINS[format]
        if stripped.startswith("---") and stripped != "---":
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
