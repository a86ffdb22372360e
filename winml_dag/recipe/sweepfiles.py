"""Several files as one sweep: each recipe a cell, each sweep its cells. A folder of winml-cli's configurations is one.

Light: recipes of their own are not read here, so that a build which finds all up to date reads none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from winml_dag.errors import RecipeError
from winml_dag.recipe.reading import is_sweep, labels_of, module_items, recipe_files
from winml_dag.recipe.sweep import Cell, Sweep


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
