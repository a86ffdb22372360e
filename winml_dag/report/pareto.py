"""Which builds nobody has a reason to ship: another one of the same model and target is at least as good in size,
latency and quality, and better in one of them.

Values are compared as tables show them, so that noise in the fifth digit makes no winner. Only builds of which the same
things are known are compared: what was not measured might be better. One of whose size, latency and quality only one is
known is not judged, since small alone is no virtue. Latencies of emulated devices count as not measured, and those of
two machines are not compared. What misses a bound of a goal is no reason to do without what keeps it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from winml_dag.pipeline.sweep.result import GoalResult
from winml_dag.report.measures import digits
from winml_dag.report.row import Row

_FEWEST = 2


@dataclass(frozen=True)
class Point:
    """A build in the space of what counts; of each of *values*, less is better."""

    name: str
    values: tuple[float, ...]


def dominates(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether *one* is nowhere worse than *other*, and somewhere better; less is better."""
    return one != other and all(a <= b for a, b in zip(one, other, strict=True))


def dominated(points: Sequence[Point]) -> dict[str, str]:
    """By the name of each point that is dominated, the nearest one of the front that dominates it. Distances are in
    shares of the range of each value; of two that are as near, the first by name.
    """
    front = pareto_front(points)
    ranges = [max(axis) - min(axis) or 1.0 for axis in zip(*(point.values for point in points), strict=True)]
    found = {}
    for point in points:
        better = [
            (sum((a - b) ** 2 / size**2 for a, b, size in zip(one.values, point.values, ranges, strict=True)), one.name)
            for one in front
            if dominates(one.values, point.values)
        ]
        if better:
            found[point.name] = min(better)[1]
    return found


def pareto_front(points: Iterable[Point]) -> list[Point]:
    """The points that none dominates, in the order of their values."""
    front: list[Point] = []
    # In this order nothing that comes later dominates what came before.
    for point in sorted(points, key=lambda one: (one.values, one.name)):
        if not any(dominates(one.values, point.values) for one in front):
            front.append(point)
    return front


def judged(rows: Sequence[Row], goals: Iterable[GoalResult] = ()) -> tuple[Row, ...]:
    """*rows* with what dominates each of them, or why that cannot be said; those that have no result stay as they
    are. *goals* are those that the rows are candidates of.
    """
    missed = _missed(goals)
    there = [row for row in rows if row.size is not None]
    spaces: dict[tuple[object, ...], list[Row]] = defaultdict(list)
    for row in there:
        spaces[(*_subject(row), row.ep, row.device, _host(row), tuple(_values(row)))].append(row)
    verdicts: dict[str, tuple[str, str]] = {}
    for same in spaces.values():
        by_name = {row.name: _values(row) for row in same}
        if len(next(iter(by_name.values()))) < _FEWEST:
            continue
        bounds = sorted({bound for name in by_name for bound in missed[name]})
        points = [
            # Each bound is one more thing to be worse in.
            Point(name, (*(float(bound in missed[name]) for bound in bounds), *values.values()))
            for name, values in by_name.items()
        ]
        for name, by in dominated(points).items():
            verdicts[name] = by, _reason(by_name[by], by_name[name], keeps_more=missed[by] < missed[name])
    return tuple(_with_verdict(row, verdicts.get(row.name)) for row in rows)


def _missed(goals: Iterable[GoalResult]) -> Mapping[str, frozenset[str]]:
    """By the name of a row, the goals that rule it out; goals of several groups that ask for the same count as one."""
    missed: dict[str, frozenset[str]] = defaultdict(frozenset)
    for goal in goals:
        asked = f"{goal.minimize} {dict(goal.subject_to)}"
        for candidate in goal.candidates:
            if candidate.why:
                missed[candidate.cell] |= {asked}
    return missed


def _subject(row: Row) -> tuple[object, ...]:
    """The model; what is loaded or exported otherwise, such as for longer texts, is another one."""
    otherwise = tuple(label for label in row.values.items() if label[0].partition(".")[0] in ("loader", "export"))
    return row.model, row.task, otherwise


def _host(row: Row) -> tuple[tuple[str, str], ...]:
    """Where it was measured: what is fast on one machine says nothing of another."""
    return () if row.latency is None or row.latency.emulated else tuple(sorted(row.latency.host.items()))


def _with_verdict(row: Row, verdict: tuple[str, str] | None) -> Row:
    if verdict is not None:
        return replace(row, dominated_by=verdict[0], dominated_why=verdict[1])
    if row.size is None or len(_values(row)) >= _FEWEST:
        return row
    why = "only the size is known; it takes a latency or a quality to compare"
    return replace(row, missing={**row.missing, "dominated_by": why})


def _values(row: Row) -> dict[str, float]:
    """What is known of *row* by what it is called, as tables show it; less is better."""
    found: dict[str, float] = {} if row.size is None else {"size": float(f"{row.size.model:.3g}")}
    if row.latency is not None and not row.latency.emulated:
        found["latency"] = float(digits(row.latency.p50))
    if row.accuracy is not None:
        sign = -1 if row.accuracy.higher_is_better else 1
        found[row.accuracy.metric] = sign * round(row.accuracy.value, 4)
    elif row.quality is not None and row.quality.cosine is not None:
        found["cosine"] = -round(row.quality.cosine, 4)
    return found


_BETTER = {"size": "smaller", "latency": "faster", "cosine": "closer to the float model"}


def _reason(better: Mapping[str, float], worse: Mapping[str, float], *, keeps_more: bool) -> str:
    """``smaller and faster at equal cosine``, and what that goes by without."""
    words = [_BETTER.get(name, f"better in {name}") for name in better if better[name] < worse[name]]
    words += ["within the bounds"] if keeps_more else []
    equal = [name for name in better if better[name] == worse[name]]
    at_equal = f" at equal {_listed(equal)}" if equal else ""
    return f"{_listed(words)}{at_equal}{'' if 'latency' in better else '; no latency is known'}"


def _listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
