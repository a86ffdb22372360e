"""A sweep as requested: its cells, the names of cells and folders, and the files that it comes from.

A sweep is one file with a matrix, or several files: each recipe is a cell, each sweep its cells (a folder of
winml-cli's configurations is one). Standalone recipes are not parsed here, so a build that finds everything up to date
reads none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from winml_dag.errors import RecipeError
from winml_dag.names import is_safe_part
from winml_dag.recipe.document import known_instead
from winml_dag.recipe.reading import is_sweep, labels_of, module_items, recipe_files

if TYPE_CHECKING:
    from winml_dag.recipe.goal import Goal, Search
    from winml_dag.recipe.load import LoadedRecipe


@dataclass(frozen=True)
class Cell:
    """One build of a sweep, or one that the sweep excludes.

    Attributes:
        name: unique in the sweep.
        values: by axis, the label of the value; empty for a standalone recipe.
        folder: its output folder below that of the sweep, with ``/``.
        recipe: assembled from the sweep; None for an excluded cell, and for a standalone recipe.
        left_out: why the sweep excludes it; empty for one that is built.
        file: the file that contains it; for a standalone recipe, ``item`` is its index in a list.
    """

    name: str
    values: Mapping[str, str]
    folder: str
    file: Path
    recipe: LoadedRecipe | None = None
    left_out: str = ""
    item: int | None = None


@dataclass(frozen=True)
class Sweep:
    """Several builds that are requested together.

    Attributes:
        path: the file that contains it; the first of several.
        axes: by name, the labels of its values, in file order; empty for several recipes.
        cells: in file order, including excluded ones.
        output_dir: the parent folder of the cells' folders, if the file sets one.
        measure: what is measured of each cell: ``perf``, ``eval``.
        files: all files that it was read from, and paths whose existence was checked: a change of one may change the
            sweep.
    """

    name: str
    path: Path
    axes: Mapping[str, tuple[str, ...]]
    cells: tuple[Cell, ...]
    output_dir: Path | None = None
    measure: tuple[str, ...] = ()
    goals: tuple[Goal, ...] = ()
    search: Search | None = None
    files: tuple[Path, ...] = field(default=())


T = TypeVar("T")

_FIELD = re.compile(r"\{([^{}]*)\}")
_MEANT_BY_FILTERS = re.compile(r"[,=!\[\]]")
# With a cache folder and the names of files in an output folder, Windows allows 260 letters in all.
_LONGEST = 160
# The files in the folder of the sweep itself.
RESERVED = ("sweep.json", "report.html", "report.json", "report.csv")


def standard_template(axes: Sequence[str]) -> str:
    return "/".join(f"{{{axis}}}" for axis in axes)


def template_problem(template: str, axes: Sequence[str]) -> str:
    """Return why *template* cannot name a folder for cells with *axes*; empty if it can."""
    for name in _FIELD.findall(template):
        if name not in axes:
            return f"there is no axis {name!r}{known_instead(name, axes)}"
    rest = _FIELD.sub("x", template)
    if "{" in rest or "}" in rest:
        return "a brace has no other; an axis is named as in {model}"
    if wrong := _MEANT_BY_FILTERS.search(rest):
        return f"{wrong[0]} means something in --filter, so it cannot be in a name"
    return folder_problem(rest)


def filled(template: str, values: Mapping[str, str]) -> str:
    """Return *template* with each axis name replaced with its label."""
    return _FIELD.sub(lambda match: values[match[1]], template)


def folder_problem(folder: str) -> str:
    """Return why a folder below that of the sweep cannot have this name; empty if it can."""
    parts = folder.split("/")
    for part in parts:
        if not is_safe_part(part):
            return f"{part!r} cannot be a folder on every system" if part else "a part of the path is empty"
    if parts[0].casefold() in RESERVED:
        return f"{parts[0]} is what the sweep itself is told of in"
    return f"longer than {_LONGEST} letters" if len(folder) > _LONGEST else ""


def clashes(folders: Mapping[T, str]) -> Iterator[tuple[T, T]]:
    """Yield pairs of owners that have the same folder, or one inside the other's. *folders*: by owner.

    Case is ignored, as on some systems.
    """
    owners: dict[str, T] = {}
    for owner, folder in folders.items():
        if (known := folder.casefold()) in owners:
            yield owners[known], owner
        else:
            owners[known] = owner
    for known, owner in owners.items():
        inside = "/".join(known.split("/")[:-1])
        while inside:
            if inside in owners:
                yield owners[inside], owner
            inside = inside.rpartition("/")[0]


def sweep_of_files(named: Sequence[Path]) -> Sweep:
    """Return the sweep of the *named* files, folders and patterns: that of the only file, if it is one, else of all.

    Raises:
        InputError: a folder or pattern has no recipe, or a file cannot be read as text.
        RecipeError: a sweep is invalid, or has a goal that would not apply to all cells.
    """
    files = recipe_files(named)
    sweeps = {file: _sweep(file) for file in files if is_sweep(file)}
    if len(files) == 1 and files[0] in sweeps:
        return sweeps[files[0]]
    aimed = [sweep.path for sweep in sweeps.values() if sweep.goals]
    if aimed:
        raise RecipeError(
            f"{aimed[0]} has a goal, and it is one of {len(files)} recipes, which are one sweep without it.",
            advice="Build it alone.",
        )
    labels = labels_of(files)
    cells = tuple(
        cell
        for file, label in zip(files, labels, strict=True)
        for cell in (_of_sweep(sweeps[file], label) if file in sweeps else _of_file(file, label, alone=len(files) == 1))
    )
    axes: dict[str, tuple[str, ...]] = {}
    for sweep in sweeps.values():
        for axis, values in sweep.axes.items():
            axes[axis] = tuple(dict.fromkeys((*axes.get(axis, ()), *values)))
    return Sweep(
        name=_name(named),
        path=files[0],
        axes=axes,
        cells=cells,
        measure=tuple(dict.fromkeys(each for sweep in sweeps.values() for each in sweep.measure)),
        files=tuple(dict.fromkeys(path for file in files for path in (file, *_read_for(sweeps.get(file))))),
    )


def _sweep(file: Path) -> Sweep:
    # Imported here: it needs the schema of a recipe.
    from winml_dag.recipe.matrix import load_sweep

    return load_sweep(file)


def _of_sweep(sweep: Sweep, label: str) -> Iterator[Cell]:
    yield from (replace(cell, name=f"{label}/{cell.name}", folder=f"{label}/{cell.folder}") for cell in sweep.cells)


def _of_file(file: Path, label: str, *, alone: bool) -> Iterator[Cell]:
    items = module_items(file)
    if items is None:
        yield Cell(label, {}, label, file)
        return
    for place, item in enumerate(items):
        name = item.label(place) if alone else f"{label}/{item.label(place)}"
        yield Cell(name, {}, name, file, item=place)


def _read_for(sweep: Sweep | None) -> tuple[Path, ...]:
    return () if sweep is None else sweep.files


def _name(named: Sequence[Path]) -> str:
    """Return a name for users: the folder, or the only file."""
    only = named[0].resolve() if len(named) == 1 else named[0].resolve().parent
    return (only.stem if only.is_file() else only.name) or "sweep"
