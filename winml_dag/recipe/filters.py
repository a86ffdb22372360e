"""``--filter``: some cells of a sweep, by the labels of their values or by their names.

``model=bert,res*`` takes those labels and patterns of an axis, ``precision!=fp32`` all others, and anything else is the
name of a cell, or a pattern of names. Of several filters all have to hold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from winml_dag.errors import UsageError
from winml_dag.recipe.choice import matches
from winml_dag.recipe.spelling import did_you_mean, known_instead
from winml_dag.recipe.sweep import Cell, Sweep


def filtered(sweep: Sweep, filters: Sequence[str]) -> tuple[Cell, ...]:
    """The cells of *sweep* that all *filters* take, in its order, those that it leaves out among them.

    Raises:
        UsageError: for an axis, label or name that there is not, and when nothing is taken.
    """
    taken = sweep.cells
    for text in filters:
        holds = _filter(text, sweep)
        taken = tuple(cell for cell in taken if holds(cell))
    if filters and not taken:
        raise UsageError(
            f"--filter {' --filter '.join(filters)} leaves none of the {len(sweep.cells)} cells.",
            advice="All filters have to hold; labels of one axis are joined with commas: model=bert,resnet.",
        )
    return taken


def _filter(text: str, sweep: Sweep) -> Callable[[Cell], bool]:
    axis, equals, labels = text.partition("=")
    refuses = axis.endswith("!")
    axis = axis.removesuffix("!")
    if not equals or (axis not in sweep.axes and not sweep.axes):
        return _by_name(text, sweep)
    if axis not in sweep.axes:
        raise UsageError(f"--filter {text}: there is no axis {axis!r}{known_instead(axis, sweep.axes)}")
    patterns = _each(labels)
    for pattern in patterns:
        if not any(matches(label, (pattern,)) for label in sweep.axes[axis]):
            hint = known_instead(pattern, sweep.axes[axis])
            raise UsageError(f"--filter {text}: {pattern!r} is no value of {axis}{hint}")
    return lambda cell: (axis in cell.values and matches(cell.values[axis], patterns)) is not refuses


def _by_name(text: str, sweep: Sweep) -> Callable[[Cell], bool]:
    names = [cell.name for cell in sweep.cells]
    # A comma is no part of any label, but may well be of the name of a file.
    patterns = (text,) if text in names else _each(text)
    for pattern in patterns:
        if pattern not in names and not any(matches(name, (pattern,)) for name in names):
            raise UsageError(
                f"--filter {text}: there is no cell {pattern!r}{did_you_mean(pattern, names)}",
                advice="`plan` lists all.",
            )
    return lambda cell: cell.name in patterns or matches(cell.name, patterns)


def _each(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(","))
