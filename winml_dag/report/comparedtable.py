"""A comparison as lines for a terminal: what is worse comes first, then what is better, then what else has changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from winml_dag.report.compare import Change, Compared, Comparison, Fate, Verdict
from winml_dag.report.measures import MEASURES
from winml_dag.report.table import Line, Style, printable, wrapped
from winml_dag.store.quantities import counted

# Of builds that only one of the reports has.
_MOST_NAMED = 10
_MARKS = {Verdict.REGRESSION: "worse", Verdict.IMPROVEMENT: "better", Verdict.WITHIN: "", Verdict.NOT_COMPARED: ""}


def comparison_lines(comparison: Comparison, width: int) -> Iterator[Line]:
    """Every build that is not as it was, and what was held against what."""
    for line in _lines(comparison):
        for part in wrapped(line.text, width) if line.style is not Style.HEADING else [line.text]:
            yield Line(printable(part), line.style)


def _lines(comparison: Comparison) -> Iterator[Line]:
    was, now = (f" ({when})" if when else "" for when in (comparison.then_made_at, comparison.now_made_at))
    yield Line(f"Against {comparison.then}{was}: {comparison.now}{now}")
    for row in comparison.rows:
        yield from _row_lines(row)
    for fate in (Fate.NEW, Fate.GONE):
        if names := [row.name for row in comparison.rows if row.fate is fate]:
            more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
            yield Line(f"{fate}: {', '.join(names[:_MOST_NAMED])}{more}")
    for notice in comparison.notices:
        yield Line(f"note: {notice}")
    yield from map(Line, _not_compared(comparison))
    yield Line(f"bounds: {', '.join(f'{bound.measure} {bound.text}' for bound in comparison.bounds) or 'none'}")
    style = Style.BAD if comparison.regressions else Style.PLAIN
    yield Line(_summary(comparison), style)


def _row_lines(row: Compared) -> Iterator[Line]:
    name = row.name if row.then in (None, row.name) else f"{row.name} (was {row.then})"
    if row.fate is not Fate.SAME:
        if row.fate in (Fate.NOW_FAILING, Fate.NOW_THERE):
            style = Style.BAD if row.is_regression else Style.WINNER
            yield Line(f"{row.fate}: {name}{f': {row.why}' if row.why else ''}", style)
        return
    for change in row.changes:
        if change.verdict in (Verdict.REGRESSION, Verdict.IMPROVEMENT):
            style = Style.BAD if change.verdict is Verdict.REGRESSION else Style.WINNER
            yield Line(f"{_MARKS[change.verdict]}: {name}: {_change(change)}", style)
        elif change.why and change.worse and change.verdict is Verdict.WITHIN:
            yield Line(f"unsure: {name}: {_change(change)}; {change.why}")


def _change(change: Change) -> str:
    """``size 73.7 KiB -> 80.1 KiB (+8.7 %, bound +1%)``."""
    text = MEASURES[change.measure].text
    assert change.then is not None
    assert change.now is not None
    difference = change.now - change.then
    by = f"{difference / abs(change.then):+.1%}" if change.then else f"{difference:+.4g}"
    shown = text(change.then), text(change.now)
    if shown[0] == shown[1]:  # too little for the digits that are shown
        shown = f"{change.then:.6g}", f"{change.now:.6g}"
    by = by if abs(difference) >= 0.001 * abs(change.then) else f"{difference:+.4g}"
    return f"{change.label} {shown[0]} -> {shown[1]} ({by}, bound {change.bound})"


def _not_compared(comparison: Comparison) -> Iterator[str]:
    """What is known and cannot be compared, each reason once."""
    found = Counter(
        (change.label, change.why)
        for row in comparison.rows
        for change in row.changes
        if change.verdict is Verdict.NOT_COMPARED
    )
    for (label, why), count in found.items():
        yield f"not compared: {label} of {counted(count, 'build')}: {why}"


def _summary(comparison: Comparison) -> str:
    fates = Counter(row.fate for row in comparison.rows)
    parts = [
        f"{counted(len(comparison.regressions), 'build')} worse",
        f"{len(comparison.improvements)} better",
        f"{sum(_is_alike(row) for row in comparison.rows)} as before",
        *(f"{fates[fate]} {fate}" for fate in (Fate.NEW, Fate.GONE, Fate.NOW_FAILING, Fate.MISSING) if fates[fate]),
    ]
    return f"{', '.join(parts)}."


def _is_alike(row: Compared) -> bool:
    return row.fate is Fate.SAME and not row.is_regression and not row.is_improvement
