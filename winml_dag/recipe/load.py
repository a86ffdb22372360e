"""From a recipe's file to a :class:`Recipe`, or to one error that says all that is wrong with it, line by line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from pydantic import ValidationError

from winml_dag.errors import InputError, RecipeError
from winml_dag.recipe.document import Document, Position, Positions, unreadable
from winml_dag.recipe.paths import resolve_path
from winml_dag.recipe.schema import Recipe

RecipeFormat: TypeAlias = Literal["json", "yaml"]

_FORMATS: dict[str, RecipeFormat] = {".json": "json", ".yaml": "yaml", ".yml": "yaml"}
# 200 bytes for each of 100,000 stages, three times over: whatever is larger is another file by mistake.
_MAX_BYTES = 64 * 1024 * 1024


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


def load_recipe(path: Path) -> LoadedRecipe:
    """The recipe in the file *path*, whose ending says whether it is JSON or YAML.

    Raises:
        InputError: when there is no such file, or it cannot be read as text.
        RecipeError: for everything that is wrong with what it says.
    """
    kind = _FORMATS.get(path.suffix.casefold())
    if kind is None:
        raise RecipeError(f"{path} is not a recipe.", advice="The name of a recipe ends with .json, .yaml or .yml.")
    document = _read_document(_read(path), str(path), kind)
    return LoadedRecipe(path, _recipe(document, str(path)), kind, document.positions)


def parse_recipe(text: str, name: str, format: RecipeFormat) -> Recipe:  # noqa: A002 - the word that users know
    """The recipe that *text* says; *name* is what errors call it.

    Raises:
        RecipeError: with one line in ``problems`` for everything that is wrong.
    """
    return _recipe(_read_document(text.removeprefix("\ufeff"), name, format), name)


def _recipe(document: Document, name: str) -> Recipe:
    if isinstance(document.value, list):
        raise RecipeError(
            f"{name} is a list of recipes for single modules of a model; this module mode is not available yet.",
            advice="Write one recipe, an object with keys such as loader and quant.",
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


def _read(path: Path) -> str:
    if path.is_dir():
        raise InputError(f"{path} is a folder, not a recipe.", advice="Name the file in it.")
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise InputError(f"{path} is too large for a recipe: more than {_MAX_BYTES // 1024**2} MiB.")
        data = path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"There is no recipe {path}.") from None
    except (OSError, ValueError) as error:
        raise InputError(f"The recipe {path} cannot be read: {error}.") from None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"{path}:{line}: the recipe is not UTF-8 text.", advice="Save it with the encoding UTF-8."
        ) from None


def _read_document(text: str, name: str, format: RecipeFormat) -> Document:  # noqa: A002
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
