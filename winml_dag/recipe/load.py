"""From a recipe's file to a :class:`Recipe`, or to one error that lists everything that is wrong with it.

Paths in a recipe are relative to its own folder, so that it is independent of the current folder. If a recipe is read
as part of one in another folder, :func:`relocated` makes them absolute. It changes nothing else, because two spellings
of one setting would be two keys.

Also the recipes that are shipped with winml_dag, one for each task of an architecture: the files of ``recipes/`` in the
repository, of which an installed package has a copy next to its code.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, get_args, get_origin

from pydantic import ValidationError

from winml_dag.errors import InputError, RecipeError, UsageError
from winml_dag.file_reading import before_reading
from winml_dag.frozen import frozen
from winml_dag.recipe.document import Document, Findings, Positions, did_you_mean
from winml_dag.recipe.fields import PathMark, Section, keys_of
from winml_dag.recipe.reading import MATRIX, is_sweep, read_recipe
from winml_dag.recipe.schema import Recipe
from winml_dag.recipe.text import RecipeFormat, read_text


@frozen
class LoadedRecipe:
    """A recipe, and the file that it was read from. ``positions`` is called only for error messages."""

    path: Path
    recipe: Recipe
    format: RecipeFormat
    positions: Callable[[], Positions] = Positions

    def resolve_path(self, text: str) -> Path:
        """Return the path that *text* means in this recipe.

        Raises:
            InputError: it begins with ``~`` and there is no home folder.
        """
        return resolve_path(self.path.parent, text)


def load_recipe(path: Path, item: int | None = None) -> LoadedRecipe:
    """Load the recipe in *path*, whose suffix determines JSON or YAML; of a list, the one at index *item*.

    Raises:
        InputError: the file does not exist, or cannot be read as text.
        RecipeError: its contents are invalid.
    """
    document, kind = read_recipe(path)
    if item is not None:
        document = document.item(item)
    return LoadedRecipe(path, _recipe(document), kind, document.positions)


def parse_recipe(text: str, name: str, format: RecipeFormat) -> Recipe:  # noqa: A002 - the word that users know
    """Parse *text*; *name* is for messages.

    Raises:
        RecipeError: with one line in ``problems`` for each error.
    """
    return _recipe(read_text(text.removeprefix("\ufeff"), name, format))


def _recipe(document: Document) -> Recipe:
    name = document.name
    if isinstance(document.value, list):
        raise RecipeError(
            f"{name} is a list of recipes for single modules of a model, and this is about one build.",
            advice="Give the file to `build` or `plan`, or write one recipe: an object with keys such as loader.",
        )
    if isinstance(document.value, dict) and MATRIX in document.value:
        raise RecipeError(
            f"{name} is a sweep of several builds, and this is about one.",
            advice="Give it to `build`, `plan` or `graph`, or name the winml_build_config.json in a cell's folder.",
        )
    if not isinstance(document.value, dict):
        raise RecipeError(f"{name} has no keys and values in it.", advice="A recipe has keys such as model and quant.")
    try:
        return Recipe.model_validate(document.value)
    except ValidationError as error:
        from winml_dag.recipe.problems import add_errors

        findings = Findings(name, document.positions)
        add_errors(findings, error, Recipe)
        raise findings.error() from None


V = TypeVar("V")
# Called with a value, and whether it may also be an id on the hub.
ChangePath: TypeAlias = Callable[[str, bool], str]

_HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", re.ASCII)


def is_path_like(model: str) -> bool:
    """Return whether *model* can only be a path, not a hub id: ``./bert``, ``C:/models``, ``a/b/c``, ``resnet.onnx``.

    ``bert`` and ``org/bert`` can be both; a caller that may read the file system decides.
    """
    return model.casefold().endswith(".onnx") or not _HUB_ID.fullmatch(model)


def resolve_path(folder: Path, text: str) -> Path:
    """Return the path that *text* means in a recipe in *folder*; ``~`` is the user's home.

    Raises:
        InputError: there is no home folder for ``~``.
    """
    try:
        return folder / Path(text).expanduser()
    except RuntimeError:
        raise InputError(f"The path {text!r} names a home folder that does not exist.") from None


def with_paths(section: type[Section], values: Mapping[str, V], change: ChangePath) -> dict[str, V]:
    """Return *values* of *section* with *change* applied to the fields that are paths.

    Values that the schema does not allow are not changed.
    """
    found: dict[str, Any] = dict(values)
    for key, at in _path_fields(section).items():
        value = found.get(key)
        if at.may_be_id is not None and isinstance(value, str) and value:
            found[key] = change(value, at.may_be_id)
        elif at.section is not None and isinstance(value, Mapping):
            inner = at.section
            found[key] = (
                {
                    name: with_paths(inner, each, change) if isinstance(each, Mapping) else each
                    for name, each in value.items()
                }
                if at.by_name
                else with_paths(inner, value, change)
            )
    return found


@frozen
class _PathField:
    """A field that is a path (*may_be_id* is not None), or a *section* or several *by_name* that may have some."""

    may_be_id: bool | None
    section: type[Section] | None
    by_name: bool


@cache
def _path_fields(section: type[Section]) -> Mapping[str, _PathField]:
    """Return the fields of *section* that are paths or sections, by key."""
    found = {}
    for name, info in section.model_fields.items():
        parts = [*_parts(info.annotation), *info.metadata]
        inner = next((part for part in parts if isinstance(part, type) and issubclass(part, Section)), None)
        mark = next((part for part in parts if isinstance(part, PathMark)), None)
        if inner or mark:
            may_be_id = None if mark is None else mark is PathMark.PATH_OR_ID
            field = _PathField(may_be_id, inner, get_origin(info.annotation) is Mapping)
            found.update(dict.fromkeys(keys_of(name, info), field))
    return found


def _parts(kind: object) -> Iterator[object]:
    """Yield the types that *kind* consists of, and what they are annotated with."""
    yield kind
    for inner in get_args(kind):
        yield from _parts(inner)


def relocated(recipe: Mapping[str, V], folder: Path) -> tuple[dict[str, V], tuple[Path, ...]]:
    """Make the paths of *recipe*, which are relative to *folder*, absolute.

    Also returns the paths whose existence was checked to distinguish paths from other values. Values that the schema
    does not allow are not changed.
    """
    folder = folder.absolute()
    looked_at: list[Path] = []

    def exists(value: str, *, as_file: bool = False) -> bool:
        """Return whether a file, or anything, exists that *value* may mean."""
        path = folder / value
        before_reading(path)
        try:
            found = path.is_file() if as_file else path.exists()
        except (OSError, ValueError):
            return False
        looked_at.append(path)
        return found

    def moved(value: str, may_be_id: bool) -> str:
        is_path = not may_be_id or is_path_like(value) or exists(value)
        return str(folder / value) if is_path and not value.startswith("~") else value

    def option(value: object, is_named: bool) -> object:
        """Return the value of an option of a provider. Only it knows them, but an existing file is unambiguous."""
        is_file = isinstance(value, str) and (is_named or (Path(value).suffix and exists(value, as_file=True)))
        return moved(str(value), False) if is_file else value

    whole: dict[str, Any] = with_paths(Recipe, recipe, moved)
    components = whole.get("components")
    for part in (whole, *(components.values() if isinstance(components, dict) else ())):
        compile_ = part.get("compile") if isinstance(part, dict) else None
        for section in (compile_, compile_.get("ep_config")) if isinstance(compile_, dict) else ():
            if isinstance(section, dict) and isinstance(options := section.get("provider_options"), Mapping):
                named = section.get("provider_option_file_keys")
                files = named if isinstance(named, list) else ()
                section["provider_options"] = {name: option(value, name in files) for name, value in options.items()}
    return whole, tuple(looked_at)


_PACKAGE = Path(__file__).resolve().parents[1]
_FOLDERS = (_PACKAGE / "shipped_recipes", _PACKAGE.parent / "recipes")


@frozen
class Shipped:
    """One recipe; ``name`` identifies it, ``summary`` is the first line of its file."""

    name: str
    path: Path
    summary: str
    recipe: Recipe

    @property
    def model_type(self) -> str:
        return self.recipe.loader.model_type or ""

    @property
    def task(self) -> str:
        return self.recipe.loader.task or ""


def shipped_recipes() -> tuple[Shipped, ...]:
    """Return all that name an architecture and a task, sorted by name.

    Raises:
        RecipeError: one cannot be read.
    """
    # Sweeps are recipes for many builds; each is requested by name, and none is for one architecture.
    found = (_shipped(name, path) for name, path in _files() if not is_sweep(path))
    return tuple(each for each in found if each.model_type and each.task)


def shipped_path(name: str) -> Path:
    """Return the file of the recipe called *name*.

    Raises:
        UsageError: there is none, with the nearest name.
    """
    files = dict(_files())
    if name not in files:
        raise UsageError(
            f"There is no recipe {name!r} in the catalog{did_you_mean(name, files)}",
            advice="`winml-dag catalog` lists all.",
        )
    return files[name]


def _files() -> Iterator[tuple[str, Path]]:
    folder = next((folder for folder in _FOLDERS if folder.is_dir()), _FOLDERS[0])
    for path in sorted(folder.rglob("*.yaml")):
        yield path.relative_to(folder).with_suffix("").as_posix(), path


def _shipped(name: str, path: Path) -> Shipped:
    with path.open(encoding="utf-8") as file:
        summary = file.readline().removeprefix("#").strip()
    return Shipped(name, path, summary, load_recipe(path).recipe)
