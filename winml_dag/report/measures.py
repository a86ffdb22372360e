"""The named measures of a row, used for bounds and table columns, and the choice and order of rows by them.

Names are the same as in goals, where goals have them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from winml_dag.errors import UsageError, few
from winml_dag.pipeline.sweep.result import SharedGraph
from winml_dag.recipe.sweep import matches
from winml_dag.report.row import Report, Row
from winml_dag.store.quantities import size_text


@dataclass(frozen=True)
class Measure:
    """A number that a row may have, in its field ``path``.

    ``label`` and ``unit`` are for people; ``text`` formats a value with its unit.
    """

    name: str
    label: str
    unit: str
    higher_is_better: bool
    path: str
    text: Callable[[float], str]

    def of(self, row: Row) -> float | None:
        value: float | None = row.value(self.path)
        # Without a stage that took time, nothing is known of it.
        return None if self.unit == "s" and value == 0 else value


def printable(text: str) -> str:
    """Replace characters in *text* that a terminal would interpret."""
    return "".join(each if each.isprintable() else "?" for each in text)


def digits(value: float) -> str:
    """Format three significant digits without an exponent. Tables show them, so Pareto fronts compare them."""
    return f"{value:.0f}" if abs(value) >= _ROUNDED_TO_1000 else f"{value:.3g}"


# With three digits it would become 1e+03.
_ROUNDED_TO_1000 = 999.5
# Smaller values in milliseconds would start with zeros.
_MICRO = 0.1


def _milliseconds(value: float) -> str:
    return f"{digits(value)} ms" if abs(value) >= _MICRO else f"{digits(1000 * value)} µs"


def _cosine(value: float) -> str:
    return f"{value:.4f}"


def _bytes(value: float) -> str:
    return size_text(round(value)) if value >= 0 else f"-{size_text(round(-value))}"


def _count(value: float) -> str:
    return f"{value:.0f}"


def _seconds(value: float) -> str:
    return f"{digits(value)} s"


_ALL = (
    Measure("latency", "latency p50", "ms", False, "latency.p50", _milliseconds),
    Measure("latency_p90", "latency p90", "ms", False, "latency.p90", _milliseconds),
    Measure("latency_p99", "latency p99", "ms", False, "latency.p99", _milliseconds),
    Measure("load", "time to load", "s", False, "latency.load_seconds", _seconds),
    Measure("size", "size", "bytes", False, "size.model", _bytes),
    Measure("peak_memory", "memory", "bytes", False, "latency.peak_memory_bytes", _bytes),
    Measure("cosine", "cosine", "", True, "quality.cosine", _cosine),
    Measure("cosine_min", "lowest cosine", "", True, "quality.cosine_min", _cosine),
    Measure("sqnr_db", "SQNR", "dB", True, "quality.sqnr_db", lambda x: f"{x:.1f} dB"),
    Measure("max_abs_error", "largest error", "", False, "quality.max_abs_error", digits),
    Measure("accuracy", "accuracy", "", True, "accuracy.value", _cosine),
    Measure("accuracy_drop", "accuracy drop", "", False, "accuracy.drop", _cosine),
    Measure("partitions", "partitions", "", False, "placement.partitions", _count),
    Measure("cpu_nodes", "nodes on the CPU", "", False, "placement.on_cpu", _count),
    Measure("nodes_skipped", "nodes not quantized", "", False, "nodes_skipped", _count),
    Measure("time", "time to make", "s", False, "made_in_seconds", _seconds),
    Measure("saved", "time saved", "s", True, "saved_seconds", _seconds),
)
MEASURES: Mapping[str, Measure] = {measure.name: measure for measure in _ALL}

# Text fields of a row, in addition to its measures.
_WORDS = ("name", "model", "precision", "ep", "device", "status", "task")
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
        there = few([row.name for row in report.rows], _MOST_NAMES)
        raise UsageError(
            f"No build is left by --filter {' --filter '.join(filters)}.", advice=printable(f"There are: {there}.")
        )
    names = {row.name for row in rows}
    goals = tuple(goal for goal in report.goals if any(each.cell in names for each in goal.candidates))
    # The totals of the merged graph do not apply to a subset of the builds.
    return replace(report, rows=rows, goals=goals, graph=SharedGraph(builds=len(rows)))


def sorted_by(report: Report, name: str | None) -> Report:
    """Return *report* with its rows sorted by the measure or field *name*, the best first, missing values last."""
    if name is None:
        return report
    return replace(report, rows=tuple(sorted(report.rows, key=lambda row: _place(row, name))))


def _place(row: Row, name: str) -> tuple[Any, ...]:
    if name in _WORDS:
        return (row.value(name) or "", row.name)
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
    found = row.value(axis) if axis in _WORDS and axis not in row.values else row.values.get(axis)
    return str(found or "")


def _each(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(","))
