"""From a recipe's file to a :class:`Recipe`, or to one error that says all that is wrong with it, line by line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from winml_dag.errors import RecipeError
from winml_dag.recipe.document import Document, Positions
from winml_dag.recipe.paths import resolve_path
from winml_dag.recipe.reading import MATRIX, RecipeFormat, read_recipe, read_text
from winml_dag.recipe.schema import Recipe


@dataclass(frozen=True)
class LoadedRecipe:
    """A recipe, and the file that it was read from. ``positions`` is called only when there is something to complain
    about.
    """

    path: Path
    recipe: Recipe
    format: RecipeFormat
    positions: Callable[[], Positions] = Positions

    def resolve_path(self, text: str) -> Path:
        """The path that *text* names in this recipe.

        Raises:
            InputError: when it begins with ``~`` and there is no home folder.
        """
        return resolve_path(self.path.parent, text)


def load_recipe(path: Path, item: int | None = None) -> LoadedRecipe:
    """The recipe in the file *path*, whose ending says whether it is JSON or YAML; of a list, the one at place *item*.

    Raises:
        InputError: when there is no such file, or it cannot be read as text.
        RecipeError: for everything that is wrong with what it says.
    """
    document, kind = read_recipe(path)
    if item is not None:
        document = document.item(item)
    return LoadedRecipe(path, _recipe(document, str(path)), kind, document.positions)


def parse_recipe(text: str, name: str, format: RecipeFormat) -> Recipe:  # noqa: A002 - the word that users know
    """The recipe that *text* says; *name* is what errors call it.

    Raises:
        RecipeError: with one line in ``problems`` for everything that is wrong.
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

        found = problems(error, Recipe, document.positions(), name)
        count = "one problem" if len(found) == 1 else f"{len(found)} problems"
        raise RecipeError(f"The recipe {name} has {count}:", problems=found) from None
