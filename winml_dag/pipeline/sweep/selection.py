"""The cells of a sweep that a run builds, and their folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from winml_dag.errors import InputError, UsageError
from winml_dag.pipeline.sweep.result import CellStatus

if TYPE_CHECKING:
    from winml_dag.pipeline.request import Overrides, Request
    from winml_dag.recipe.load import LoadedRecipe
    from winml_dag.recipe.sweep import Cell, Sweep

FAILED = (CellStatus.FAILED, CellStatus.REFUSED)


@dataclass(frozen=True)
class Selection:
    """The selection of cells. ``retry_failed``: of the cells that the other fields select, only those that failed."""

    filters: tuple[str, ...] = ()
    shard: str | None = None
    retry_failed: bool = False


def folder_of(sweep: Sweep, request: Request) -> Path:
    """Return the folder for the cells of *sweep*.

    Raises:
        UsageError: when no folder is named.
    """
    folder = request.output_dir or sweep.output_dir
    if request.use_cache or folder is None:
        raise UsageError(
            "Several builds need a folder to put theirs into.",
            advice="Give -o/--output-dir, or output_dir in the recipe of the sweep.",
        )
    return folder


def selected(sweep: Sweep, selection: Selection, folder: Path | None = None) -> tuple[Cell, ...]:
    """Return the selected cells, including those that the sweep excludes.

    *folder*: the folder of the cells, only required to select those that failed.

    Raises:
        UsageError: for an invalid filter or shard, and when nothing was run that could have failed.
    """
    # Imported here: most runs build all cells.
    from winml_dag.recipe.selection import filtered, in_shard, parse_shard

    cells = filtered(sweep, selection.filters)
    if selection.shard is not None:
        cells = in_shard(cells, parse_shard(selection.shard))
    if not selection.retry_failed:
        return cells
    assert folder is not None
    failed = _failed(folder)
    return tuple(cell for cell in cells if cell.name in failed)


def _failed(folder: Path) -> frozenset[str]:
    """Return the names of cells that failed, or were rejected, when they were last tried."""
    from winml_dag.pipeline.sweep.state import read_sweep

    try:
        last = read_sweep(folder)
    except InputError as error:
        raise UsageError(error.message, advice=error.advice) from None
    if last is None:
        raise UsageError(f"No sweep was run in {folder} yet.", advice="Leave out --retry-failed.")
    return frozenset(cell.name for cell in last.cells if cell.status in FAILED)


# The options that set a field of a recipe for every cell.
_OPTIONS = {"model": "--model", "ep": "--ep", "device": "--device", "precision": "--precision"}


def refuse_overruled(sweep: Sweep, overrides: Overrides) -> None:
    """Reject *overrides* of a field in which cells of the matrix differ.

    Several recipes without a matrix are not compared by field, so an option may apply to all of them.

    Raises:
        UsageError: naming the option.
    """
    recipes = [cell.recipe for cell in sweep.cells if cell.recipe is not None and sweep.axes]
    for field, option in _OPTIONS.items():
        asked = getattr(overrides, field) or (field == "model" and overrides.onnx)
        said = {_said(recipe, field) for recipe in recipes}
        if asked and len(said) > 1:
            raise UsageError(
                f"{option} would be one {field} for all cells, and the matrix has several: {', '.join(sorted(said))}.",
                advice=f"Leave {option} out; --filter chooses cells.",
            )


def _said(recipe: LoadedRecipe, field: str) -> str:
    value = getattr(recipe.recipe, field)
    return "none" if value is None else str(value)
