"""What the quality of a model on labelled samples is called, and how it is counted.

Written out, since each is a few lines of numpy; the tests hold them against scikit-learn, scipy and seqeval. As
dependencies, these would also be found by transformers, whose import takes half a second longer then.

Outcomes are a matrix: a row for each sample, and columns as the metric says. So a metric of any choice of the samples
is that of these rows, which is what resampling needs.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Outcomes: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True)
class Metric:
    """One figure.

    Attributes:
        value: of outcomes; NaN where it is not defined (a correlation of values that are all the same).
        column: of a metric that is how often something is right, the column with 1 or 0 for each sample.
    """

    name: str
    value: Callable[[Outcomes], float]
    column: int | None = None


def share(name: str, column: int) -> Metric:
    """How many of the samples are right, as *column* tells with 1 and 0."""
    return Metric(name, lambda outcomes: _mean(outcomes[:, column]), column)


def mean(name: str, column: int) -> Metric:
    return Metric(name, lambda outcomes: _mean(outcomes[:, column]))


def ratio(name: str, numerator: Sequence[int], denominator: Sequence[int]) -> Metric:
    """The sum of some columns over the sum of others: precision, recall and F1 from counts; 0 for none of none."""

    def value(outcomes: Outcomes) -> float:
        below = outcomes[:, list(denominator)].sum()
        return float(outcomes[:, list(numerator)].sum() / below) if below else 0.0

    return Metric(name, value)


def macro_f1(name: str, truth: int, found: int) -> Metric:
    """The mean of F1 over the classes that are true or found; *truth* and *found* are columns of classes."""

    def value(outcomes: Outcomes) -> float:
        # A model that gives no numbers has chosen -1.
        true, chosen = (outcomes[:, column].astype(np.int64) + 1 for column in (truth, found))
        classes = int(max(true.max(), chosen.max())) + 1
        right = np.bincount(true[true == chosen], minlength=classes)
        every = np.bincount(true, minlength=classes) + np.bincount(chosen, minlength=classes)
        return _mean(2 * right[every > 0] / every[every > 0])

    return Metric(name, value)


def macro_f1_of_counts(name: str, first: int, classes: int) -> Metric:
    """As :func:`macro_f1`, from three counts for each class, column by column from *first* on: how often it is found
    rightly, how often it is found, how often it is true.
    """

    def value(outcomes: Outcomes) -> float:
        counts = outcomes[:, first : first + 3 * classes].sum(axis=0).reshape(classes, 3)
        every = counts[:, 1] + counts[:, 2]
        return _mean(2 * counts[every > 0, 0] / every[every > 0])

    return Metric(name, value)


def pearson(name: str, first: int, second: int) -> Metric:
    """The linear correlation of two columns."""
    return Metric(name, lambda outcomes: _correlation(outcomes[:, first], outcomes[:, second]))


def spearman(name: str, first: int, second: int) -> Metric:
    """The correlation of the ranks of two columns; equal values share the mean of their ranks."""
    return Metric(name, lambda outcomes: _correlation(_ranks(outcomes[:, first]), _ranks(outcomes[:, second])))


def entities(tags: Sequence[str]) -> set[tuple[str, int, int]]:
    """Type, first and last position of each entity in *tags* like ``B-PER``, ``I-PER`` and ``O``; by the rules of the
    CoNLL evaluation, where an ``I`` that continues nothing begins an entity.
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
    """1 when *answer* is one of *truths* but for case, punctuation, articles and white space, as SQuAD has it."""
    return float(any(_normalized(answer) == _normalized(truth) for truth in truths))


def answer_f1(answer: str, truths: Sequence[str]) -> float:
    """How far the words of *answer* are those of the best of *truths*, normalized likewise."""
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
        return float("nan")  # their mean may be rounded, and what is left of them then correlates with anything
    first, second = first - first.mean(), second - second.mean()
    scale = float(np.linalg.norm(first) * np.linalg.norm(second))
    return float(np.clip(first @ second / scale, -1.0, 1.0)) if scale else float("nan")


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    if np.isnan(values).any():
        return np.full(len(values), np.nan)  # what is no number has no rank, and would be the highest
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    means: NDArray[np.float64] = ends - (counts - 1) / 2
    return means[inverse]
