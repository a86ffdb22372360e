"""Which cells of a sweep a run is for, and where they go."""

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
    """What was asked for. ``retry_failed``: of the others' choice, only what failed the last time."""

    filters: tuple[str, ...] = ()
    shard: str | None = None
    retry_failed: bool = False


def folder_of(sweep: Sweep, request: Request) -> Path:
    """Where the cells of *sweep* go.

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
    """The cells that a run is for, those among them that the sweep leaves out. *folder*: where they go; only what
    failed there takes knowing it.

    Raises:
        UsageError: for a filter or shard that means nothing, and when nothing was run that could have failed.
    """
    # Imported here: most runs are for all cells.
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
    """The names of cells that failed, or were refused, the last time that they were tried."""
    from winml_dag.pipeline.sweep.state import read_sweep

    try:
        last = read_sweep(folder)
    except InputError as error:
        raise UsageError(error.message, advice=error.advice) from None
    if last is None:
        raise UsageError(f"No sweep was run in {folder} yet.", advice="Leave out --retry-failed.")
    return frozenset(cell.name for cell in last.cells if cell.status in FAILED)


# By the field of a recipe, the options that say it for every cell.
_OPTIONS = {"model": "--model", "ep": "--ep", "device": "--device", "precision": "--precision"}


def refuse_overruled(sweep: Sweep, overrides: Overrides) -> None:
    """Refuse *overrides* of a field in which cells of the matrix differ.

    Of several recipes without a matrix nothing is compared by name, so there an option may be for all of them.

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
