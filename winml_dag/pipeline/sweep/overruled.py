"""Options that would take the place of what a matrix varies: its cells would be one build under many names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from winml_dag.errors import UsageError

if TYPE_CHECKING:
    from winml_dag.pipeline.request import Overrides
    from winml_dag.recipe.load import LoadedRecipe
    from winml_dag.recipe.sweep import Sweep

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
