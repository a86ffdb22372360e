"""Compares two reports: which builds have become worse or better by more than the bounds allow."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from winml_dag.errors import UsageError, known_instead
from winml_dag.pipeline.sweep.result import CellStatus
from winml_dag.report.measures import MEASURES, Measure
from winml_dag.report.row import Latency, Report, Row
from winml_dag.store.quantities import counted

# For measured latencies, the bound includes the variation between runs of the same model.
_LATENCIES = ("latency", "latency_p90", "latency_p99", "load", "peak_memory")
# The 90th percentile of a normal distribution, in standard deviations.
_P90_OF_NORMAL = 1.2816
_ROUNDING = 1e-12
# With fewer inferences, a single disturbed one decides the 90th percentile, and so the spread. With three each, a model
# that was only recalibrated was reported to be 67 % slower.
_FEWEST = 20
# Nobody requested these cells, so a missing result is no problem.
_NOT_WANTED = (CellStatus.SKIPPED, CellStatus.NOT_REACHED)

# Model, precision, provider and device.
_Kind: TypeAlias = tuple[str, str, str, str]


class Verdict(StrEnum):
    """The verdict on one measure of a build that is in both reports."""

    REGRESSION = "regression"
    IMPROVEMENT = "improvement"
    WITHIN = "within bound"
    NOT_COMPARED = "not compared"


class Fate(StrEnum):
    """What happened to a build between two reports.

    ``now failing``: it existed or was measured before and no longer is; that is a regression.
    """

    SAME = "in both"
    NEW = "new"
    GONE = "gone"
    NOW_FAILING = "now failing"
    NOW_THERE = "now there"
    MISSING = "in neither"


@dataclass(frozen=True)
class Bound:
    """How much worse *measure* may become.

    ``allowed`` is positive: a share of the previous value if ``relative``, otherwise in the units of the measure.
    """

    measure: str
    allowed: float
    relative: bool
    text: str


@dataclass(frozen=True)
class Change:
    """One measure, before and now.

    Attributes:
        measure: its name, as in ``--bound``; ``label`` and ``unit`` are for people.
        worse: by how much it is worse, in the units of the measure, negative if better; None if it is not compared.
            ``share``: the same as a share of the previous value; None if that is 0.
        bound: as given, such as ``+10%``.
        why: why it is not compared, or a remark on the verdict; may be empty.
    """

    measure: str
    label: str
    unit: str
    then: float | None
    now: float | None
    worse: float | None
    share: float | None
    bound: str
    verdict: Verdict
    why: str = ""


@dataclass(frozen=True)
class Compared:
    """One build.

    ``name`` is that of its row in the new report, or in the old one if it is gone. ``then`` is the name in the old one,
    None for a new build. ``why``: a sentence on what is missing.
    """

    name: str
    then: str | None
    fate: Fate
    model: str
    precision: str
    ep: str
    device: str
    changes: tuple[Change, ...] = ()
    why: str = ""

    @property
    def is_regression(self) -> bool:
        return self.fate is Fate.NOW_FAILING or any(one.verdict is Verdict.REGRESSION for one in self.changes)

    @property
    def is_improvement(self) -> bool:
        """Return whether something is better and nothing worse."""
        better = any(one.verdict is Verdict.IMPROVEMENT for one in self.changes)
        return (better or self.fate is Fate.NOW_THERE) and not self.is_regression


@dataclass(frozen=True)
class Comparison:
    """A new report compared with an old one.

    ``then`` and ``now`` are their names as the user gave them. Rows with regressions come first.
    """

    then: str
    now: str
    then_made_at: str
    now_made_at: str
    bounds: tuple[Bound, ...]
    rows: tuple[Compared, ...]
    notices: tuple[str, ...] = ()

    @property
    def regressions(self) -> tuple[Compared, ...]:
        return tuple(row for row in self.rows if row.is_regression)

    @property
    def improvements(self) -> tuple[Compared, ...]:
        return tuple(row for row in self.rows if row.is_improvement)


def compare(now: Report, then: Report, bounds: Sequence[Bound]) -> Comparison:
    """Compare *now* with *then*.

    Rows are matched by name, then by model, precision, provider and device where these are unique in both reports.
    """
    pairs = _pairs(now.rows, then.rows)
    rows = [_compared(row, old, bounds) for row, old in pairs]
    matched = {old.name for _, old in pairs if old is not None}
    rows += [Compared(old.name, old.name, Fate.GONE, *_kind(old)) for old in then.rows if old.name not in matched]
    return Comparison(
        then=", ".join(then.subjects),
        now=", ".join(now.subjects),
        then_made_at=then.made_at,
        now_made_at=now.made_at,
        bounds=tuple(bounds),
        rows=tuple(sorted(rows, key=_urgency)),
        notices=tuple(_notices(pairs)),
    )


def _pairs(rows: Sequence[Row], old_rows: Sequence[Row]) -> list[tuple[Row, Row | None]]:
    by_name = {row.name: row for row in old_rows}
    matched = {row.name for row in rows} & set(by_name)
    left = _only_ones([row for row in old_rows if row.name not in matched])
    ours = _only_ones([row for row in rows if row.name not in matched])
    return [
        (row, by_name.get(row.name) or (left.get(_kind(row)) if ours.get(_kind(row)) is row else None)) for row in rows
    ]


def _only_ones(rows: Sequence[Row]) -> dict[_Kind, Row]:
    """Return the rows that are unique in model, precision, provider and device."""
    alike: dict[_Kind, list[Row]] = defaultdict(list)
    for row in rows:
        alike[_kind(row)].append(row)
    return {kind: same[0] for kind, same in alike.items() if len(same) == 1}


def _kind(row: Row) -> _Kind:
    return row.model, row.precision, row.ep, row.device


def _compared(now: Row, then: Row | None, bounds: Sequence[Bound]) -> Compared:
    fate = _fate(now, then)
    changes = tuple(_changes(now, then, bounds)) if fate is Fate.SAME and then is not None else ()
    why = _why(now) if fate in (Fate.NOW_FAILING, Fate.MISSING) else ""
    return Compared(now.name, None if then is None else then.name, fate, *_kind(now), changes, why)


def _fate(now: Row, then: Row | None) -> Fate:
    if then is None:
        return Fate.NEW
    if now.is_there:
        if then.is_there:
            # A bound on what was measured then and could not be measured now must report that.
            lost = any(getattr(then, part) is not None for part in now.unmeasured)
            return Fate.NOW_FAILING if lost else Fate.SAME
        return Fate.NOW_THERE
    if not then.is_there:
        return Fate.MISSING
    # Cells that the recipe skips or this run did not reach allow no conclusion.
    return Fate.GONE if now.status in _NOT_WANTED else Fate.NOW_FAILING


def _why(row: Row) -> str:
    if row.is_there:
        return "; ".join(f"no {part}: {row.missing.get(part, 'not measured')}" for part in row.unmeasured)
    return row.without_result


def _changes(now: Row, then: Row, bounds: Sequence[Bound]) -> Iterator[Change]:
    """Yield a change per bound whose measure has a value in either report."""
    for bound in bounds:
        measure = MEASURES[bound.measure]
        values = measure.of(then), measure.of(now)
        if values != (None, None):
            obstacle = _obstacle(bound.measure, now, then)
            yield _change(measure, bound, *values, obstacle, (then.latency, now.latency))


def _change(
    measure: Measure,
    bound: Bound,
    then: float | None,
    now: float | None,
    obstacle: str,
    latencies: tuple[Latency | None, Latency | None],
) -> Change:
    def change(worse: float | None, verdict: Verdict, why: str = "") -> Change:
        share = None if worse is None or not then else worse / abs(then)
        return Change(measure.name, measure.label, measure.unit, then, now, worse, share, bound.text, verdict, why)

    if then is None or now is None:
        return change(None, Verdict.NOT_COMPARED, f"not known {'before' if then is None else 'now'}")
    worse = then - now if measure.higher_is_better else now - then
    if obstacle:
        return change(worse, Verdict.NOT_COMPARED, obstacle)
    allowed = bound.allowed * abs(then) if bound.relative else bound.allowed
    # Rounded values have few digits, their difference has many.
    allowed += _ROUNDING * max(1.0, abs(then))
    if abs(worse) <= allowed:
        return change(worse, Verdict.WITHIN)
    verdict = Verdict.REGRESSION if worse > 0 else Verdict.IMPROVEMENT
    doubt = _doubt(measure.name, *((latencies[1], latencies[0]) if worse > 0 else latencies), abs(worse), allowed)
    return change(worse, Verdict.WITHIN, doubt) if doubt else change(worse, verdict)


def _doubt(measure: str, slower: Latency | None, faster: Latency | None, difference: float, allowed: float) -> str:
    """Return why a *difference* of two medians above *allowed* may not be caused by the models; empty if it is."""
    if measure != "latency" or slower is None or faster is None:
        return ""
    # A thread waiting for a processor does nothing: without the wait, an inference would take at most this much less.
    waited = slower.waited_share or 0.0
    if difference <= allowed + waited * slower.p50:
        return f"a thread waited for a processor for {waited:.0%} of the time, so it may be no slower"
    inferences = min(slower.inferences, faster.inferences)
    if inferences < _FEWEST:
        return f"{counted(inferences, 'inference')}: too few to compare latencies by, it takes {_FEWEST}"
    # Sampling error: in 95 % of cases, two medians of one model differ by less.
    by_chance = 1.96 * math.hypot(_error_of_median(slower), _error_of_median(faster))
    return f"medians of so few inferences differ by {by_chance:.2g} ms" if difference <= by_chance else ""


def _error_of_median(latency: Latency) -> float:
    """Return the standard error of the median, with the spread of the upper half, where latencies vary most."""
    spread = (latency.p90 - latency.p50) / _P90_OF_NORMAL
    return math.sqrt(math.pi / 2) * spread / math.sqrt(max(latency.inferences, 1))


def _obstacle(measure: str, now: Row, then: Row) -> str:
    """Return why two existing values cannot be compared; empty if they can."""
    if measure in _LATENCIES and now.latency is not None and then.latency is not None:
        return _of_latencies(measure, now.latency, then.latency)
    if measure.startswith("accuracy") and now.accuracy is not None and then.accuracy is not None:
        if now.accuracy.metric != then.accuracy.metric:
            return f"{then.accuracy.metric} before, {now.accuracy.metric} now"
        if now.accuracy.samples != then.accuracy.samples:
            return f"{then.accuracy.samples} samples before, {now.accuracy.samples} now"
    if now.quality is not None and then.quality is not None and measure in _QUALITIES:
        was, its = (then.quality.samples, then.quality.data), (now.quality.samples, now.quality.data)
        if was != its:
            return f"on {was[0]} {was[1]} samples before, on {its[0]} {its[1]} now"
    return ""


_QUALITIES = ("cosine", "cosine_min", "sqnr_db", "max_abs_error")


def _of_latencies(measure: str, now: Latency, then: Latency) -> str:
    if measure.startswith("latency") and (now.emulated or then.emulated):
        return "of an emulated device"
    if now.host != then.host:
        differs = sorted(name for name in {*now.host, *then.host} if now.host.get(name) != then.host.get(name))
        return f"measured on different hosts ({', '.join(differs)})"
    return ""


def _notices(pairs: Sequence[tuple[Row, Row | None]]) -> Iterator[str]:
    both = [(row, old) for row, old in pairs if old is not None]
    latencies = [(row.latency, old.latency) for row, old in both if row.latency is not None and old.latency is not None]
    if any(now.host != then.host for now, then in latencies):
        yield "Latencies and memory of different hosts are shown, but not compared."
    if any(now.emulated or then.emulated for now, then in latencies):
        yield "Latencies of an emulated device are shown, but not compared."
    if not any(row.name == old.name for row, old in both) and both:
        yield "No build has its former name: they are matched by model, precision, provider and device."


_ORDER: Mapping[Fate, int] = {
    Fate.NOW_FAILING: 0,
    Fate.SAME: 3,
    Fate.NOW_THERE: 2,
    Fate.NEW: 4,
    Fate.GONE: 5,
    Fate.MISSING: 6,
}


def _urgency(row: Compared) -> tuple[int, float]:
    """Return the sort key: regressions first, the worst of them at the top, then improvements, then the rest."""
    if row.fate is Fate.SAME and row.is_regression:
        shares = [abs(one.share or 1.0) for one in row.changes if one.verdict is Verdict.REGRESSION]
        return 1, -max(shares)
    return (2 if row.is_improvement else _ORDER[row.fate]), 0.0


# Bytes hardly change by themselves, cosines and accuracies not at all. A node that moves to the CPU always matters.
# Median latencies do vary: repeated measurements of a model on one machine stay within this bound.
DEFAULTS = (
    "latency=+10%",
    "size=+1%",
    "peak_memory=+10%",
    "cosine=-0.001",
    "accuracy=-0.005",
    "partitions=+0",
    "cpu_nodes=+0",
)
_NUMBER = re.compile(r"(?P<sign>[+-]?)(?P<number>[0-9]+(\.[0-9]+)?)(?P<percent>%?)")


def bounds_of(texts: Sequence[str]) -> tuple[Bound, ...]:
    """Return the default bounds, overridden by those in *texts*; ``latency=off`` removes one.

    Raises:
        UsageError: for an unknown measure, and for an invalid bound.
    """
    found = {(bound := _bound(text)).measure: bound for text in DEFAULTS}
    for text in texts:
        measure, _, value = (part.strip() for part in text.partition("="))
        if value == "off" and measure in MEASURES:
            found.pop(measure, None)
        else:
            found[measure] = _bound(text)
    return tuple(found.values())


def _bound(text: str) -> Bound:
    name, equals, value = (part.strip() for part in text.partition("="))
    if name not in MEASURES:
        raise UsageError(f"--bound {text}: there is no measure {name!r}{known_instead(name, MEASURES)}")
    measure = MEASURES[name]
    worse = "-" if measure.higher_is_better else "+"
    read = _NUMBER.fullmatch(value)
    if not equals or read is None:
        raise UsageError(
            f"--bound {text}: that is not a bound.",
            advice=f"Write how much worse it may become: {name}={worse}5%, {name}={worse}0.01, or {name}=off.",
        )
    if read["sign"] not in ("", worse):
        better = "higher" if measure.higher_is_better else "lower"
        raise UsageError(
            f"--bound {text}: {name} is better when it is {better}, so {value} would be an improvement.",
            advice=f"Write {name}={worse}{value.lstrip('+-')}.",
        )
    is_relative = read["percent"] == "%"
    allowed = float(read["number"]) / (100 if is_relative else 1)
    return Bound(name, allowed, is_relative, f"{worse}{read['number']}{read['percent']}")
