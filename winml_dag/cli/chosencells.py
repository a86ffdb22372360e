"""Whether cells are meant at all, and the options that choose some of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from winml_dag.cli.parameters import TEXT

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = (
    click.option(
        "--filter",
        "filters",
        type=TEXT,
        multiple=True,
        help="Of a sweep, these cells: model=bert,res*, precision!=fp32, or names; of several, all hold.",
    ),
    click.option("--shard", type=TEXT, help="Of a sweep, a part for one of several machines: 3/8 is the third of 8."),
)


def cell_options(function: F) -> F:
    """Add the options; the command gets them as ``filters`` and ``shard``."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def are_a_sweep(recipes: Sequence[Path]) -> bool:
    """Whether *recipes* are several, or one with a matrix. A folder or pattern is a sweep, however many are in it."""
    from winml_dag.recipe.reading import is_sweep, recipe_files

    if len(recipes) != 1 or not recipes[0].is_file():
        return len(recipes) > 1 or recipe_files(recipes) != tuple(recipes)
    return is_sweep(recipes[0])
