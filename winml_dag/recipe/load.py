"""From a recipe's file to a :class:`Recipe`, or to one error that lists everything that is wrong with it.

Paths in a recipe are relative to its own folder, so that it is independent of the current folder. If a recipe is read
as part of one in another folder, :func:`relocated` makes them absolute. It changes nothing else, because two spellings
of one setting would be two keys.

Also the recipes that are shipped with winml_dag, one for each task of an architecture: the files of ``recipes/`` in the
repository, of which an installed package has a copy next to its code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from winml_dag.errors import RecipeError, UsageError, did_you_mean
from winml_dag.file_reading import before_reading
from winml_dag.recipe.document import Document, Findings, Positions
from winml_dag.recipe.fields import is_path_like, resolve_path, with_paths
from winml_dag.recipe.reading import MATRIX, is_sweep, read_recipe
from winml_dag.recipe.schema import Recipe
from winml_dag.recipe.text import RecipeFormat, read_text


@dataclass(frozen=True)
class LoadedRecipe:
    """A recipe, and the file that it was read from. ``positions`` is called only for error messages."""

    path: Path
    recipe: Recipe
    format: RecipeFormat
    positions: Callable[[], Positions] = Positions

    def resolve_path(self, text: str) -> Path:
        """Return the path that *text* means in this recipe.

        Raises InputError if it begins with ``~`` and there is no home folder.
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
    """Parse *text*; *name* is for messages. Raises RecipeError, with one line in ``problems`` for each error."""
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


@dataclass(frozen=True)
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
    """Return all that name an architecture and a task, sorted by name. Raises RecipeError if one cannot be read."""
    # Sweeps are recipes for many builds; each is requested by name, and none is for one architecture.
    found = (_shipped(name, path) for name, path in _files() if not is_sweep(path))
    return tuple(each for each in found if each.model_type and each.task)


def shipped_path(name: str) -> Path:
    """Return the file of the recipe called *name*. Raises UsageError if there is none, with the nearest name."""
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
