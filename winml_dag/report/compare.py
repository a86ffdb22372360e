"""Two reports beside each other: which builds have become worse or better, beyond what bounds allow."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """What is said of one measure of a build that is in both reports."""

    REGRESSION = "regression"
    IMPROVEMENT = "improvement"
    WITHIN = "within bound"
    NOT_COMPARED = "not compared"


class Fate(StrEnum):
    """What became of a build between two reports. ``now failing``: it was there, and is not; that is a regression."""

    SAME = "in both"
    NEW = "new"
    GONE = "gone"
    NOW_FAILING = "now failing"
    NOW_THERE = "now there"
    MISSING = "in neither"


@dataclass(frozen=True)
class Bound:
    """How much worse *measure* may become. ``allowed`` is positive: a share of the former value where ``relative``,
    else in the units of the measure.
    """

    measure: str
    allowed: float
    relative: bool
    text: str


@dataclass(frozen=True)
class Change:
    """One measure then and now.

    Attributes:
        measure: its name, as in ``--bound``; ``label`` and ``unit`` are for people.
        worse: by how much it is worse, in the units of the measure, negative when it is better; None where it is not
            compared. ``share``: the same as a share of the former value; None where that is 0.
        bound: as it was given, such as ``+10%``.
        why: why it is not compared, or what to know of the verdict; may be empty.
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
    """One build. ``name`` is that of its row in the new report, or in the old one where it is gone; ``then`` is the
    name in the old one, None for a new build. ``why``: a sentence on what is not there.
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
        """Something is better, and nothing worse."""
        better = any(one.verdict is Verdict.IMPROVEMENT for one in self.changes)
        return (better or self.fate is Fate.NOW_THERE) and not self.is_regression


@dataclass(frozen=True)
class Comparison:
    """A new report against an old one; ``then`` and ``now`` are what was compared, as the user named it. Rows with
    regressions come first.
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
