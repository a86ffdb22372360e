"""From a recipe's file to a :class:`Recipe`, or to one error that lists everything that is wrong with it.

Also the recipes that are shipped with winml_dag, one for each task of an architecture: the files of ``recipes/`` in the
repository, of which an installed package has a copy next to its code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from winml_dag.errors import RecipeError, UsageError
from winml_dag.recipe.document import Document, Positions, did_you_mean, invalid
from winml_dag.recipe.paths import resolve_path
from winml_dag.recipe.reading import MATRIX, RecipeFormat, is_sweep, read_recipe, read_text
from winml_dag.recipe.schema import Recipe


@dataclass(frozen=True)
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
    return LoadedRecipe(path, _recipe(document, str(path)), kind, document.positions)


def parse_recipe(text: str, name: str, format: RecipeFormat) -> Recipe:  # noqa: A002 - the word that users know
    """Parse *text*; *name* is for messages.

    Raises:
        RecipeError: with one line in ``problems`` for each error.
    """
    return _recipe(read_text(text.removeprefix("\ufeff"), name, format), name)


def _recipe(document: Document, name: str) -> Recipe:
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
        from winml_dag.recipe.problems import problems

        raise invalid(name, problems(error, Recipe, document.positions(), name)) from None


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


def shipped_name(path: Path) -> str | None:
    """Return the name of the recipe at *path* in the catalog; None for any other file."""
    return next((name for name, file in _files() if file == path), None)


def _files() -> Iterator[tuple[str, Path]]:
    folder = next((folder for folder in _FOLDERS if folder.is_dir()), _FOLDERS[0])
    for path in sorted(folder.rglob("*.yaml")):
        yield path.relative_to(folder).with_suffix("").as_posix(), path


def _shipped(name: str, path: Path) -> Shipped:
    with path.open(encoding="utf-8") as file:
        summary = file.readline().removeprefix("#").strip()
    return Shipped(name, path, summary, load_recipe(path).recipe)
