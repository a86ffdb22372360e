"""Choose the winner among cells, as a pure function of their metrics: the same numbers always give the same winner."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from winml_dag.pipeline.sweep.facts import Facts
from winml_dag.pipeline.sweep.result import Candidate, CellResult, CellStatus
from winml_dag.recipe.goal import MEASURES, Bound, Goal

# Tie-breakers among cells with equal minimized values; after these, the order of cells decides.
_TIES = ("cosine", "size", "latency")


@dataclass(frozen=True)
class Evaluation:
    """A cell evaluated for a goal.

    Attributes:
        facts: None for a cell without a result.
        broken: the bounds that it does not meet.
        unknown: required measures without a value, with the reason.
    """

    result: CellResult
    facts: Facts | None
    broken: tuple[Bound, ...]
    unknown: Mapping[str, str]

    @property
    def meets(self) -> bool:
        return self.facts is not None and not self.broken and not self.unknown

    @property
    def misses_quality_only(self) -> bool:
        """Whether only a higher precision is missing: it breaks only bounds on quality, and has all values."""
        return bool(self.broken) and not self.unknown and all(MEASURES[one.measure].of_quality for one in self.broken)

    @property
    def keeps_quality(self) -> bool:
        """Whether it meets all bounds on quality, regardless of other bounds."""
        unknown = any(MEASURES[name].of_quality for name in self.unknown)
        return (
            self.facts is not None and not unknown and not any(MEASURES[one.measure].of_quality for one in self.broken)
        )

    def value(self, measure: str) -> float | None:
        return None if self.facts is None else self.facts.values.get(measure)

    def candidate(self, goal: Goal) -> Candidate:
        return Candidate(
            self.result.name, {name: self.value(name) for name in goal.measures}, "; ".join(self._against())
        )

    def _against(self) -> Iterator[str]:
        """Yield the reasons that rule it out, as sentences without a full stop."""
        if self.facts is None:
            yield absence(self.result)
            return
        for name, why in self.unknown.items():
            yield f"{name} is not known: {why.rstrip('.')}"
        for bound in self.broken:
            side = "below" if bound.at_least else "above"
            found = figure(bound.measure, self.facts.values[bound.measure])
            yield f"{bound.measure} is {found}, {side} {bound.text[2:].strip()}"


def evaluate(goal: Goal, result: CellResult, facts: Facts | None) -> Evaluation:
    """Evaluate *result* against the bounds of *goal*."""
    if facts is None:
        return Evaluation(result, None, (), {})
    unknown = {name: facts.missing.get(name, "") for name in goal.measures if name not in facts.values}
    broken = tuple(
        bound for bound in goal.bounds if bound.measure in facts.values and not bound.holds(facts.values[bound.measure])
    )
    return Evaluation(result, facts, broken, unknown)


def winner(goal: Goal, evaluations: Sequence[Evaluation]) -> Evaluation | None:
    """Return the best cell that meets the bounds of *goal*; ties go to quality, then size, then speed, then order."""
    order = {id(one): place for place, one in enumerate(evaluations)}
    meeting = [one for one in evaluations if one.meets]
    return min(meeting, key=lambda one: (*_rank(goal, one), order[id(one)]), default=None)


def nearest(goal: Goal, evaluations: Sequence[Evaluation]) -> Evaluation | None:
    """Return the cell nearest to the bounds of *goal* when none meets them.

    It is the one whose largest shortfall, relative to the bound, is smallest.
    """
    missing = [one for one in evaluations if one.broken and not one.unknown]
    order = {id(one): place for place, one in enumerate(missing)}
    return min(missing, key=lambda one: (_shortfall(one), *_rank(goal, one), order[id(one)]), default=None)


def absence(result: CellResult) -> str:
    """Return why *result* has no build."""
    if result.failure is not None:
        at = "" if result.failure.stage is None else f" at {result.failure.stage}"
        return f"failed{at}: {result.failure.error.rstrip('.')}"
    why = f": {result.why.rstrip('.')}" if result.why else ""
    return f"{result.status.value}{why}"


def is_pending(results: Sequence[CellResult]) -> bool:
    """Whether some of *results* are not available yet: then the best one is undetermined."""
    return any(result.status is CellStatus.NOT_REACHED for result in results)


def figure(measure: str, value: float) -> str:
    """Return *value* with its unit, precise enough to differ from a bound that it just misses."""
    unit = MEASURES[measure].unit
    return f"{value:.8g} {unit}".rstrip()


def _rank(goal: Goal, one: Evaluation) -> tuple[float, ...]:
    ties = (one.value(name) for name in _TIES)
    signed = (
        float("inf") if value is None else -value if MEASURES[name].more_is_better else value
        for name, value in zip(_TIES, ties, strict=True)
    )
    minimized = one.value(goal.minimize)
    return (float("inf") if minimized is None else minimized, *signed)


def _shortfall(one: Evaluation) -> float:
    assert one.facts is not None
    return max(
        abs(one.facts.values[bound.measure] - bound.value) / max(abs(bound.value), 1e-12) for bound in one.broken
    )
