"""Finds Pareto-dominated builds: another build of the same model and target is at least as good in size, latency and
quality, and better in one of them.

Values are compared as tables show them, so that noise in the fifth digit decides nothing. Only builds with the same
measures are compared: an unmeasured value might be better. A build with only one of size, latency and quality is not
judged, since being small is not enough. Latencies of emulated devices count as not measured, and latencies from
different machines are not compared. A build that misses a bound of a goal does not dominate one that meets it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from winml_dag.pipeline.sweep.result import GoalResult
from winml_dag.report.measures import digits
from winml_dag.report.row import Row

_FEWEST = 2


def dominates(one: Sequence[float], other: Sequence[float]) -> bool:
    """Return whether *one* is nowhere worse than *other*, and somewhere better; less is better."""
    return one != other and all(a <= b for a, b in zip(one, other, strict=True))


def dominated(points: Mapping[str, Sequence[float]]) -> dict[str, str]:
    """Return, by name of each Pareto-dominated point, the nearest point on the front that dominates it.

    Of each value of a point, less is better. Distances are relative to the range of each value. A tie is resolved by
    name.
    """
    ranges = [max(axis) - min(axis) or 1.0 for axis in zip(*points.values(), strict=True)]
    better = {name: [one for one in points if dominates(points[one], point)] for name, point in points.items()}

    def distance(one: str, other: str) -> float:
        return sum(((a - b) / size) ** 2 for a, b, size in zip(points[one], points[other], ranges, strict=True))

    return {
        name: min((distance(one, name), one) for one in above if not better[one])[1]
        for name, above in better.items()
        if above
    }


def judged(rows: Sequence[Row], goals: Iterable[GoalResult] = ()) -> tuple[Row, ...]:
    """Return *rows* with the row that dominates each, or why that is undecided. Rows without a result are unchanged.

    *goals* are those that the rows are candidates of.
    """
    missed = _missed(goals)
    spaces: dict[tuple[object, ...], list[Row]] = defaultdict(list)
    for row in rows:
        if row.size is not None:
            spaces[_space(row)].append(row)
    verdicts: dict[str, tuple[str, str]] = {}
    for same in spaces.values():
        by_name = {row.name: _values(row) for row in same}
        if len(next(iter(by_name.values()))) < _FEWEST:
            continue
        bounds = sorted({bound for name in by_name for bound in missed[name]})
        points = {
            # Each bound adds one more dimension.
            name: (*(float(bound in missed[name]) for bound in bounds), *values.values())
            for name, values in by_name.items()
        }
        for name, by in dominated(points).items():
            verdicts[name] = by, _reason(by_name[by], by_name[name], keeps_more=missed[by] < missed[name])
    return tuple(_with_verdict(row, verdicts.get(row.name)) for row in rows)


def _missed(goals: Iterable[GoalResult]) -> Mapping[str, frozenset[str]]:
    """Return, by row name, the goals that rule it out. Equal goals of several groups count as one."""
    missed: dict[str, frozenset[str]] = defaultdict(frozenset)
    for goal in goals:
        described = f"{goal.minimize} {dict(goal.subject_to)}"
        for candidate in goal.candidates:
            if candidate.why:
                missed[candidate.cell] |= {described}
    return missed


def _space(row: Row) -> tuple[object, ...]:
    """Return what is equal in builds that can be compared: model, target, machine, and what was measured.

    A model loaded or exported differently, e.g. for longer texts, is another.
    """
    otherwise = tuple(label for label in row.values.items() if label[0].partition(".")[0] in ("loader", "export"))
    host = () if row.latency is None or row.latency.emulated else tuple(sorted(row.latency.host.items()))
    return row.model, row.task, otherwise, row.ep, row.device, host, tuple(_values(row))


def _with_verdict(row: Row, verdict: tuple[str, str] | None) -> Row:
    if verdict is not None:
        return replace(row, dominated_by=verdict[0], dominated_why=verdict[1])
    if row.size is None or len(_values(row)) >= _FEWEST:
        return row
    why = "only the size is known; it takes a latency or a quality to compare"
    return replace(row, missing={**row.missing, "dominated_by": why})


def _values(row: Row) -> dict[str, float]:
    """Return the values of *row* by name, as tables show them; less is better."""
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
    """Format ``smaller and faster at equal cosine``, with a remark on missing values."""
    words = [_BETTER.get(name, f"better in {name}") for name in better if better[name] < worse[name]]
    words += ["within the bounds"] if keeps_more else []
    equal = [name for name in better if better[name] == worse[name]]
    at_equal = f" at equal {_listed(equal)}" if equal else ""
    return f"{_listed(words)}{at_equal}{'' if 'latency' in better else '; no latency is known'}"


def _listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
