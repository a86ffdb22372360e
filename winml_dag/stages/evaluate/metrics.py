"""Names and definitions of the quality metrics on labelled samples.

They are implemented here because each is a few lines of numpy; the tests compare them with scikit-learn, scipy and
seqeval. As dependencies, transformers would find these too, and its import would take half a second longer.

Outcomes are a matrix: a row for each sample, and columns that depend on the metric. So the metric of any subset of the
samples is that of its rows, which resampling needs.
"""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from winml_dag.canonical import JsonObject

# The reliability of a metric: 95 % intervals, and whether two models differ.
#
# A fraction of correct results has Wilson's interval, which is valid for few samples and near 0 and 1, too. Other
# metrics are resampled with a fixed seed: the metric of as many samples drawn with replacement, a thousand times; the
# interval excludes a fortieth of the results at each end. Two models are compared on the same samples, drawn together.

RESAMPLES = 1000
LEVEL = 0.05
_SEED = 0
_DEVIATIONS = 1.959963984540054  # of a normal distribution; 95 % lie between them
# Further digits would differ on other processors.
_DIGITS = 5


@dataclass(frozen=True)
class Estimate:
    """A metric's value and interval, each None if undefined; ``method``: wilson or bootstrap."""

    value: float | None
    low: float | None
    high: float | None
    method: str

    def to_json(self) -> JsonObject:
        return {"value": self.value, "low": self.low, "high": self.high, "interval": self.method}


@dataclass(frozen=True)
class Difference:
    """A candidate's value minus the reference's, with the interval of the difference by resampling.

    Attributes:
        significant: whether they differ by more than the choice of the samples explains; None if that is undefined.
        test: ``mcnemar`` for fractions of correct results. For other metrics (``bootstrap``) the interval decides: the
            difference is significant if it does not contain 0.
        p_value: of McNemar's test; None for other metrics.
    """

    value: float | None
    low: float | None
    high: float | None
    significant: bool | None
    test: str
    p_value: float | None


def estimate(metric: Metric, outcomes: Outcomes) -> Estimate:
    """Estimate *metric* from *outcomes*, of at least one sample."""
    value = metric.value(outcomes)
    if metric.column is not None:
        low, high = wilson(int(outcomes[:, metric.column].sum()), len(outcomes))
        return Estimate(_rounded(value), _rounded(low), _rounded(high), "wilson")
    low, high = _interval(np.array([metric.value(outcomes[drawn]) for drawn in _draws(len(outcomes))]))
    return Estimate(_rounded(value), _rounded(low), _rounded(high), "bootstrap")


def difference(metric: Metric, candidate: Outcomes, reference: Outcomes) -> Difference:
    """Return the difference between *candidate* and *reference*, whose rows are of the same samples."""
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
    test = "bootstrap" if p_value is None else "mcnemar"
    return Difference(_rounded(value), _rounded(low), _rounded(high), significant, test, p_value)


def wilson(right: int, of: int) -> tuple[float, float]:
    """Return the 95 % interval of a fraction after *right* of *of* samples were correct."""
    squared = _DEVIATIONS**2
    seen = right / of
    centre = (seen + squared / (2 * of)) / (1 + squared / of)
    half = _DEVIATIONS / (1 + squared / of) * math.sqrt(seen * (1 - seen) / of + squared / (4 * of * of))
    # Exact at the ends, where rounding would exclude the fraction itself.
    return (0.0 if right == 0 else centre - half), (1.0 if right == of else centre + half)


def mcnemar(one: int, other: int) -> float:
    """Return the exact p-value of McNemar's test.

    It is the probability that samples which only one of two equally good models gets right are divided at least as
    unevenly as *one* to *other*.
    """
    of = one + other
    fewer = ways = 1
    for number in range(min(one, other)):
        # From one binomial coefficient to the next: computing each separately would take seconds for thousands of
        # samples.
        ways = ways * (of - number) // (number + 1)
        fewer += ways
    probability: float = 2 * fewer / (1 << of)
    return min(1.0, probability)


def _draws(count: int) -> Iterator[NDArray[np.intp]]:
    generator = np.random.Generator(np.random.PCG64(_SEED))
    return (generator.integers(0, count, count) for _ in range(RESAMPLES))


def _interval(values: NDArray[np.float64]) -> tuple[float, float]:
    """Skip the draws for which the metric is undefined."""
    known = values[~np.isnan(values)]
    if not known.size:
        return math.nan, math.nan
    low, high = np.quantile(known, [LEVEL / 2, 1 - LEVEL / 2])
    return float(low), float(high)


def _rounded(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else round(value, _DIGITS)


Outcomes: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True)
class Metric:
    """One metric.

    Attributes:
        value: computes it from outcomes; NaN if undefined (a correlation of constant values).
        column: for a fraction of correct results, the column with 1 or 0 for each sample.
    """

    name: str
    value: Callable[[Outcomes], float]
    column: int | None = None


def share(name: str, column: int) -> Metric:
    """Return the fraction of correct samples; *column* has 1 and 0."""
    return Metric(name, lambda outcomes: _mean(outcomes[:, column]), column)


def mean(name: str, column: int) -> Metric:
    return Metric(name, lambda outcomes: _mean(outcomes[:, column]))


def ratio(name: str, numerator: Sequence[int], denominator: Sequence[int]) -> Metric:
    """Return a sum of columns over a sum of others: precision, recall and F1 from counts; 0 if both are 0."""

    def value(outcomes: Outcomes) -> float:
        below = outcomes[:, list(denominator)].sum()
        return float(outcomes[:, list(numerator)].sum() / below) if below else 0.0

    return Metric(name, value)


def macro_f1(name: str, truth: int, found: int) -> Metric:
    """Return the mean of F1 over the true or predicted classes; *truth* and *found* are columns of classes."""

    def value(outcomes: Outcomes) -> float:
        # -1 if the model's scores were NaN.
        true, chosen = (outcomes[:, column].astype(np.int64) + 1 for column in (truth, found))
        classes = int(max(true.max(), chosen.max())) + 1
        right = np.bincount(true[true == chosen], minlength=classes)
        every = np.bincount(true, minlength=classes) + np.bincount(chosen, minlength=classes)
        return _mean(2 * right[every > 0] / every[every > 0])

    return Metric(name, value)


def macro_f1_of_counts(name: str, first: int, classes: int) -> Metric:
    """Return :func:`macro_f1` from three counts for each class, in columns from *first* on.

    The counts are: correctly predicted, predicted, true.
    """

    def value(outcomes: Outcomes) -> float:
        counts = outcomes[:, first : first + 3 * classes].sum(axis=0).reshape(classes, 3)
        every = counts[:, 1] + counts[:, 2]
        return _mean(2 * counts[every > 0, 0] / every[every > 0])

    return Metric(name, value)


def pearson(name: str, first: int, second: int) -> Metric:
    """Return the linear correlation of two columns."""
    return Metric(name, lambda outcomes: _correlation(outcomes[:, first], outcomes[:, second]))


def spearman(name: str, first: int, second: int) -> Metric:
    """Return the correlation of the ranks of two columns; equal values share the mean of their ranks."""
    return Metric(name, lambda outcomes: _correlation(_ranks(outcomes[:, first]), _ranks(outcomes[:, second])))


def entities(tags: Sequence[str]) -> set[tuple[str, int, int]]:
    """Return type, first and last position of each entity in *tags* like ``B-PER``, ``I-PER`` and ``O``.

    The rules are those of the CoNLL evaluation: an ``I`` that continues nothing starts an entity.
    """
    found = set()
    open_at, open_type, last = 0, "", "O"
    for at, tag in enumerate([*tags, "O"]):
        prefix, _, named = tag.partition("-")
        kind = named or "_"
        begins = prefix != "O" and (prefix in "BS" or last in "OES" or kind != open_type)
        if open_type and (begins or prefix == "O"):
            found.add((open_type, open_at, at - 1))
            open_type = ""
        if begins:
            open_at, open_type = at, kind
        last = prefix
    return found


_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def exact_match(answer: str, truths: Sequence[str]) -> float:
    """Return 1 if *answer* is one of *truths*, ignoring case, punctuation, articles and white space, as in SQuAD."""
    return float(any(_normalized(answer) == _normalized(truth) for truth in truths))


def answer_f1(answer: str, truths: Sequence[str]) -> float:
    """Return the F1 of the words of *answer* and of the best of *truths*, normalized in the same way."""
    return max(_words_f1(_normalized(answer).split(), _normalized(truth).split()) for truth in truths)


def _normalized(text: str) -> str:
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def _words_f1(found: Sequence[str], true: Sequence[str]) -> float:
    if not found or not true:
        return float(found == true)
    common = (Counter(found) & Counter(true)).total()
    return 2 * common / (len(found) + len(true))


def _mean(values: NDArray[np.float64]) -> float:
    return float(values.mean()) if values.size else float("nan")


def _correlation(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    if any(values.min() == values.max() for values in (first, second)):
        return float("nan")  # their mean may be rounded, and the remainder would correlate with anything
    first, second = first - first.mean(), second - second.mean()
    scale = float(np.linalg.norm(first) * np.linalg.norm(second))
    return float(np.clip(first @ second / scale, -1.0, 1.0)) if scale else float("nan")


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    if np.isnan(values).any():
        return np.full(len(values), np.nan)  # NaN has no rank, and would be the highest
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    means: NDArray[np.float64] = ends - (counts - 1) / 2
    return means[inverse]
