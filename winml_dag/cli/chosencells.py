"""The options that choose some cells of a sweep, and the cells that they choose."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from winml_dag.cli.parameters import TEXT

if TYPE_CHECKING:
    from winml_dag.recipe.sweep import Cell, Sweep

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


def chosen_cells(sweep: Sweep, filters: Sequence[str], shard: str | None) -> tuple[Cell, ...]:
    """The cells of *sweep* that are meant, those that it leaves out among them; none in a shard that has none.

    Raises:
        UsageError: for a filter that means nothing, and for no shard.
    """
    from winml_dag.recipe.filters import filtered

    taken = filtered(sweep, filters)
    if shard is None:
        return taken
    from winml_dag.recipe.sharding import in_shard, parse_shard

    return in_shard(taken, parse_shard(shard))
