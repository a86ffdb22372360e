"""A sweep as it was asked for: its cells, how they and their folders are named, and the files that it comes from.

A sweep is one file with a matrix, or several files: each recipe is a cell, each sweep its cells (a folder of
winml-cli's configurations is one). Recipes of their own are not parsed here, so a build that finds everything up to
date reads none.
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
    """One build of a sweep, or one that the sweep leaves out.

    Attributes:
        name: unique in the sweep.
        values: by axis, the label of the value; empty for a recipe of its own.
        folder: its output folder below that of the sweep, with ``/``.
        recipe: made from what the sweep says; None for one that is left out, and for a recipe of its own.
        left_out: why the sweep leaves it out; empty for one that is built.
        file: the file that it is written in: of a recipe of its own, that, with ``item`` its place in a list.
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
    """Several builds that are asked for together.

    Attributes:
        path: the file that it is written in; the first of several.
        axes: by name, the labels of its values, in the order of the file; empty for several recipes.
        cells: in the order of the file, those that are left out among them.
        output_dir: the folder that the cells' folders lie in, if the file names one.
        measure: what is measured of each cell: ``perf``, ``eval``.
        files: all that it was read from, and what may be there or not: a change of one may make it another sweep.
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
# Beside a cache folder and the names of what lies in an output folder, Windows takes 260 letters in all.
_LONGEST = 160
# What lies in the folder of the sweep itself.
RESERVED = ("sweep.json", "report.html", "report.json", "report.csv")


def standard_template(axes: Sequence[str]) -> str:
    return "/".join(f"{{{axis}}}" for axis in axes)


def template_problem(template: str, axes: Sequence[str]) -> str:
    """Why *template* cannot name a folder for cells with *axes*; empty when it can."""
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
    """*template* with the label of each axis for its name."""
    return _FIELD.sub(lambda match: values[match[1]], template)


def folder_problem(folder: str) -> str:
    """Why there can be no folder of this name below that of the sweep; empty when there can."""
    parts = folder.split("/")
    for part in parts:
        if not is_safe_part(part):
            return f"{part!r} cannot be a folder on every system" if part else "a part of the path is empty"
    if parts[0].casefold() in RESERVED:
        return f"{parts[0]} is what the sweep itself is told of in"
    return f"longer than {_LONGEST} letters" if len(folder) > _LONGEST else ""


def clashes(folders: Mapping[T, str]) -> Iterator[tuple[T, T]]:
    """Pairs of those who have one folder, or one in that of the other. *folders*: by its owner.

    Upper and lower case are one: there are systems to which they are.
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
    """The sweep that *named* files, folders and patterns are: that of the only file, if it is one, else of all.

    Raises:
        InputError: for a folder or pattern without any recipe, and for a file that cannot be read as text.
        RecipeError: for everything that is wrong with a sweep, and for a goal that not all cells would be held to.
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
    """What people would call it: the folder, or the only file."""
    only = named[0].resolve() if len(named) == 1 else named[0].resolve().parent
    return (only.stem if only.is_file() else only.name) or "sweep"
