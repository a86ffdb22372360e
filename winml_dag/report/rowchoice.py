"""Selects and sorts the rows of a report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from winml_dag.errors import UsageError
from winml_dag.pipeline.sweep.result import SharedGraph
from winml_dag.recipe.sweep import matches
from winml_dag.report.measures import MEASURES
from winml_dag.report.row import Report, Row
from winml_dag.report.table import printable

# Text fields of a row, in addition to its measures.
_WORDS: Mapping[str, Callable[[Row], str]] = {
    "name": lambda row: row.name,
    "model": lambda row: row.model,
    "precision": lambda row: row.precision,
    "ep": lambda row: row.ep,
    "device": lambda row: row.device,
    "status": lambda row: str(row.status),
    "task": lambda row: row.task or "",
}
# Names listed in an error message as examples.
_MOST_NAMES = 5
SORTED_BY = (*_WORDS, *MEASURES)


def chosen(report: Report, filters: Sequence[str], *, of_another: bool = False) -> Report:
    """Return *report* with the rows that match all of *filters*: ``model=bert,res*``, ``precision!=fp32``, ``bert/*``.

    Raises:
        UsageError: for an unknown axis, and when no row matches. With *of_another*, the filters were written for
            another report that this one is compared with, and neither is an error.
    """
    if not filters:
        return report
    axes = {axis for row in report.rows for axis in row.values} | set(_WORDS)
    tests = [_test(text, None if of_another else axes) for text in filters]
    rows = tuple(row for row in report.rows if all(test(row) for test in tests))
    if not rows and not of_another:
        raise UsageError(
            f"No build is left by --filter {' --filter '.join(filters)}.",
            advice=printable(f"There are: {_some_names(report.rows)}."),
        )
    names = {row.name for row in rows}
    goals = tuple(goal for goal in report.goals if any(each.cell in names for each in goal.candidates))
    # The totals of the merged graph do not apply to a subset of the builds.
    return replace(report, rows=rows, goals=goals, graph=SharedGraph(builds=len(rows)))


def _some_names(rows: Sequence[Row]) -> str:
    names = ", ".join(row.name for row in rows[:_MOST_NAMES])
    return f"{names} and {len(rows) - _MOST_NAMES} more" if len(rows) > _MOST_NAMES else names


def sorted_by(report: Report, name: str | None) -> Report:
    """Return *report* with its rows sorted by the measure or field *name*, the best first, missing values last."""
    if name is None:
        return report
    return replace(report, rows=tuple(sorted(report.rows, key=lambda row: _place(row, name))))


def _place(row: Row, name: str) -> tuple[Any, ...]:
    if name in _WORDS:
        return (_WORDS[name](row), row.name)
    measure = MEASURES[name]
    value = measure.of(row)
    if value is None:
        return (True, 0.0, row.name)
    return (False, -value if measure.higher_is_better else value, row.name)


def _test(text: str, axes: set[str] | None) -> Callable[[Row], bool]:
    axis, equals, labels = text.partition("=")
    if not equals:
        names = (text, *_each(text))  # a comma may be part of a name
        return lambda row: row.name in names or matches(row.name, names)
    is_not = axis.endswith("!")
    axis = axis.removesuffix("!").strip()
    if axes is not None and axis not in axes:
        advice = printable(f"There are: {', '.join(sorted(axes))}.")
        raise UsageError(f"--filter: there is no axis {axis!r}.", advice=advice)
    patterns = _each(labels)
    return lambda row: matches(_label(row, axis), patterns) is not is_not


def _label(row: Row, axis: str) -> str:
    found = row.values.get(axis)
    return found if found is not None else _WORDS[axis](row) if axis in _WORDS else ""


def _each(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(","))
