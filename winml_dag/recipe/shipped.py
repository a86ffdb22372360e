"""The recipes that come with winml_dag, one for each task that an architecture is used for.

They are the files of ``recipes/`` in the repository; an installed package has a copy of them beside its code.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from winml_dag.errors import UsageError
from winml_dag.recipe.load import load_recipe
from winml_dag.recipe.reading import is_sweep
from winml_dag.recipe.schema import Recipe
from winml_dag.recipe.spelling import did_you_mean

_PACKAGE = Path(__file__).resolve().parents[1]
_FOLDERS = (_PACKAGE / "shipped_recipes", _PACKAGE.parent / "recipes")


@dataclass(frozen=True)
class Shipped:
    """One recipe; ``name`` is what it is asked for by, ``summary`` the first line of its file."""

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
    """All that name an architecture and a task, by name.

    Raises:
        RecipeError: for one that cannot be read.
    """
    # Sweeps are recipes for many builds; each is asked for by its name, and none is for one architecture.
    found = (_shipped(name, path) for name, path in _files() if not is_sweep(path))
    return tuple(each for each in found if each.model_type and each.task)


def shipped_path(name: str) -> Path:
    """The file of the recipe called *name*.

    Raises:
        UsageError: when there is none, with the nearest name.
    """
    files = dict(_files())
    if name not in files:
        raise UsageError(
            f"There is no recipe {name!r} in the catalog{did_you_mean(name, files)}",
            advice="`winml-dag catalog` lists all.",
        )
    return files[name]


def shipped_name(path: Path) -> str | None:
    """What the recipe at *path* is called in the catalog; None for any other file."""
    return next((name for name, file in _files() if file == path), None)


def _files() -> Iterator[tuple[str, Path]]:
    folder = next((folder for folder in _FOLDERS if folder.is_dir()), _FOLDERS[0])
    for path in sorted(folder.rglob("*.yaml")):
        yield path.relative_to(folder).with_suffix("").as_posix(), path


def _shipped(name: str, path: Path) -> Shipped:
    with path.open(encoding="utf-8") as file:
        summary = file.readline().removeprefix("#").strip()
    return Shipped(name, path, summary, load_recipe(path).recipe)
