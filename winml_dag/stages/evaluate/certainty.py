"""How far a figure of some samples can be relied on: 95 % intervals, and whether two models differ.

How often something is right has Wilson's interval, which holds for few samples and near 0 and 1 as well. Everything
else is resampled: the figure of as many samples drawn anew, with repetition, a thousand times, from a fixed seed; the
interval leaves out a fortieth of them at each end. Two models are compared on the same samples, drawn together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from winml_dag.canonical import JsonObject
from winml_dag.stages.evaluate.metrics import Metric, Outcomes

RESAMPLES = 1000
LEVEL = 0.05
_SEED = 0
_DEVIATIONS = 1.959963984540054  # of a normal distribution, between which 95 % lie
# More than another processor would give as well is not told.
_DIGITS = 5


@dataclass(frozen=True)
class Estimate:
    """A figure and its interval, each None where it is not defined; ``method``: wilson or bootstrap."""

    value: float | None
    low: float | None
    high: float | None
    method: str

    def to_json(self) -> JsonObject:
        return {"value": self.value, "low": self.low, "high": self.high, "interval": self.method}


@dataclass(frozen=True)
class Difference:
    """A candidate's figure less the reference's, with the interval of that by resampling.

    Attributes:
        significant: whether the two differ by more than the choice of the samples explains. None where that cannot be
            told.
        p_value: of McNemar's test, by which that is decided when the figure is how often something is right; None for
            the others, where it is decided by whether the interval has 0 in it.
    """

    value: float | None
    low: float | None
    high: float | None
    significant: bool | None
    p_value: float | None

    def to_json(self) -> JsonObject:
        return {
            "value": self.value,
            "low": self.low,
            "high": self.high,
            "significant": self.significant,
            "test": "bootstrap" if self.p_value is None else "mcnemar",
            "p_value": self.p_value,
        }


def estimate(metric: Metric, outcomes: Outcomes) -> Estimate:
    """*metric* of *outcomes*, of one sample at least."""
    value = metric.value(outcomes)
    if metric.column is not None:
        low, high = wilson(int(outcomes[:, metric.column].sum()), len(outcomes))
        return Estimate(_rounded(value), _rounded(low), _rounded(high), "wilson")
    low, high = _interval(np.array([metric.value(outcomes[drawn]) for drawn in _draws(len(outcomes))]))
    return Estimate(_rounded(value), _rounded(low), _rounded(high), "bootstrap")


def difference(metric: Metric, candidate: Outcomes, reference: Outcomes) -> Difference:
    """How *candidate* differs from *reference*, whose rows are of the same samples."""
    value = metric.value(candidate) - metric.value(reference)
    drawn = (metric.value(candidate[rows]) - metric.value(reference[rows]) for rows in _draws(len(candidate)))
    low, high = _interval(np.fromiter(drawn, np.float64, RESAMPLES))
    p_value = None
    if metric.column is not None:
        mine, theirs = candidate[:, metric.column] > 0, reference[:, metric.column] > 0
        exact = mcnemar(int((mine & ~theirs).sum()), int((theirs & ~mine).sum()))
        significant: bool | None = exact < LEVEL
        p_value = float(f"{exact:.2g}")
    else:
        significant = None if math.isnan(low) else not low <= 0 <= high
    return Difference(_rounded(value), _rounded(low), _rounded(high), significant, p_value)


def wilson(right: int, of: int) -> tuple[float, float]:
    """The 95 % interval of a share of which *right* of *of* were seen."""
    squared = _DEVIATIONS**2
    seen = right / of
    centre = (seen + squared / (2 * of)) / (1 + squared / of)
    half = _DEVIATIONS / (1 + squared / of) * math.sqrt(seen * (1 - seen) / of + squared / (4 * of * of))
    # Exact at the ends, where rounding would leave the share itself outside.
    return (0.0 if right == 0 else centre - half), (1.0 if right == of else centre + half)


def mcnemar(one: int, other: int) -> float:
    """How probable it is that samples which only one of two models gets right are divided as unevenly as *one* to
    *other*, when both models are equally good; exact.
    """
    of = one + other
    fewer = ways = 1
    for number in range(min(one, other)):
        # From one binomial coefficient to the next: each from nothing would take seconds for thousands of samples.
        ways = ways * (of - number) // (number + 1)
        fewer += ways
    probability: float = 2 * fewer / (1 << of)
    return min(1.0, probability)


def _draws(count: int) -> Iterator[NDArray[np.intp]]:
    generator = np.random.Generator(np.random.PCG64(_SEED))
    return (generator.integers(0, count, count) for _ in range(RESAMPLES))


def _interval(values: NDArray[np.float64]) -> tuple[float, float]:
    """Without those in which the figure is not defined."""
    known = values[~np.isnan(values)]
    if not known.size:
        return math.nan, math.nan
    low, high = np.quantile(known, [LEVEL / 2, 1 - LEVEL / 2])
    return float(low), float(high)


def _rounded(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else round(value, _DIGITS)
