"""Made-up sweeps for tests: cells without files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

from winml_dag.recipe.load import LoadedRecipe
from winml_dag.recipe.schema import Loader, Recipe
from winml_dag.recipe.sweep import Cell, Sweep


def made_up(axes: Mapping[str, Sequence[str]], left_out: Sequence[str] = ()) -> Sweep:
    """Return every combination of the labels of *axes*; each label of ``model`` is a separate model."""
    path = Path("sweep.yaml")
    cells = []
    for labels in product(*axes.values()):
        values = dict(zip(axes, labels, strict=True))
        name = "/".join(labels)
        recipe = Recipe(loader=Loader(model_type=values.get("model")))
        loaded = None if name in left_out else LoadedRecipe(path, recipe, "yaml")
        cells.append(Cell(name, values, name, path, loaded, "not wanted" if name in left_out else ""))
    return Sweep("sweep", path, {axis: tuple(labels) for axis, labels in axes.items()}, tuple(cells))
