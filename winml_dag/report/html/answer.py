"""The sentences at the top of the page: what to ship, or what is best where nobody said what is wanted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from winml_dag.pipeline.sweep.result import Candidate, CellStatus, GoalResult
from winml_dag.report.compare import Comparison
from winml_dag.report.measures import MEASURES
from winml_dag.report.row import Report, Row
from winml_dag.store.quantities import size_text

_MOST = 4
# Two digits of it are 1e+02.
_WHOLE_PERCENT = 99.5
_THERE = (CellStatus.BUILT, CellStatus.UP_TO_DATE)


def answers(report: Report, comparison: Comparison | None = None) -> tuple[str, ...]:
    """A few sentences, the most wanted first; never none."""
    rows = {row.name: row for row in report.rows}
    told = [_best_by(goal, rows) for goal in report.goals] or list(_best_without_goal(report.rows))
    few = told[:_MOST]
    if len(told) > _MOST:
        few.append(f"{len(told) - _MOST} more are below.")
    return (*_change(comparison), *few) or (_count(report.rows),)


def _change(comparison: Comparison | None) -> Iterator[str]:
    if comparison is None:
        return
    worse = comparison.regressions
    if worse:
        names = ", ".join(row.name for row in worse[:3]) + (f" and {len(worse) - 3} more" if len(worse) > 3 else "")
        yield f"{len(worse)} of {len(comparison.rows)} builds are worse than in {comparison.then}: {names}."
    else:
        yield f"No build is worse than in {comparison.then} by more than is allowed."


def _best_by(goal: GoalResult, rows: Mapping[str, Row]) -> str:
    group = _group(goal.group.values())
    if goal.winner is None and goal.pending:
        return f"Not settled yet{group}: {_sentence(goal.why or 'some builds have no result')}"
    if goal.winner is None:
        return f"Nothing to ship{group}: {_sentence(goal.why or 'no build meets the bounds')}"
    row = rows.get(goal.winner)
    if row is None:
        return f"Best{group}: {goal.winner}."
    labels = [label for axis, label in row.values.items() if axis not in goal.group]
    chosen = next((one for one in goal.candidates if one.cell == goal.winner), None)
    told = [" / ".join(labels) + _trial(row) or row.name, *_figures(row, goal.minimize, chosen)]
    return f"Best{group}: {', '.join(told)}."


def _trial(row: Row) -> str:
    """What the name of a trial has beside that of the build that it is for."""
    if row.trial_of is None or not row.name.startswith(row.trial_of):
        return ""
    return row.name.removeprefix(row.trial_of).replace("/", " ", 1)


def _figures(row: Row, minimized: str, chosen: Candidate | None) -> Iterator[str]:
    if minimized == "size" and row.size:
        yield size_text(row.size.model)
    elif row.latency:
        yield _ms(row.latency.p50) + (" on an emulator" if row.latency.emulated else "")
    elif chosen is not None and (value := chosen.values.get(minimized)) is not None and minimized in MEASURES:
        yield f"{MEASURES[minimized].label} {MEASURES[minimized].text(value)}"
    yield from _worse(row)


def _worse(row: Row) -> Iterator[str]:
    """How much is lost, in the most telling words that there are figures for."""
    told = row.accuracy
    if told is not None and told.drop is not None and told.reference:
        share = 100 * told.drop / abs(told.reference)
        percent = f"{abs(share):.2g}" if abs(share) < _WHOLE_PERCENT else f"{abs(share):.0f}"
        difference = f"{percent} % {'worse' if share > 0 else 'better'}" if abs(share) >= 0.005 else "no worse"
        yield f"{difference} in {told.metric}"
    elif row.quality is not None and row.quality.cosine is not None:
        yield f"cosine {row.quality.cosine:.4f}"


def _best_without_goal(rows: Sequence[Row]) -> Iterator[str]:
    """For each model, the fastest and the smallest among what is there and passes what it was held to."""
    models = dict.fromkeys(row.model for row in rows)
    for model in models:
        good = [row for row in rows if row.model == model and _is_good(row)]
        timed = {row.name: row.latency.p50 for row in good if row.latency is not None and not row.latency.emulated}
        sized = {row.name: row.size.model for row in good if row.size is not None}
        fastest = min((row for row in good if row.name in timed), key=lambda row: timed[row.name], default=None)
        smallest = min((row for row in good if row.name in sized), key=lambda row: sized[row.name], default=None)
        if len(good) < 2 or smallest is None:
            continue
        if fastest is None:
            yield f"{model}: smallest is {_choice(smallest, size_text(sized[smallest.name]))}."
        elif fastest is smallest:
            figures = f"{_ms(timed[fastest.name])}, {size_text(sized[fastest.name])}"
            yield f"{model}: fastest and smallest is {_choice(fastest, figures)}."
        else:
            first = _choice(fastest, _ms(timed[fastest.name]))
            yield f"{model}: fastest is {first}; smallest is {_choice(smallest, size_text(sized[smallest.name]))}."


def _is_good(row: Row) -> bool:
    held = (row.quality, row.accuracy)
    return row.status in _THERE and all(part is None or part.passed is not False for part in held)


def _choice(row: Row, figure: str) -> str:
    return f"{row.precision} on {row.ep} ({', '.join([figure, *_worse(row)])})"


def _count(rows: Sequence[Row]) -> str:
    there = sum(row.status in _THERE for row in rows)
    return f"{there} of {len(rows)} builds are there." if rows else "There are no builds here."


def _group(labels: Iterable[str]) -> str:
    first, *others = [*labels] or [""]
    return (f" for {first}" if first else "") + (f" on {', '.join(others)}" if others else "")


def _ms(value: float) -> str:
    return MEASURES["latency"].text(value)


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."
