"""A sweep as it was asked for: cells with all that they were made from, and what is wanted of all of them together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

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
