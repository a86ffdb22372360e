"""The metrics of an evaluation, compared with scikit-learn, scipy and seqeval (``tests/make_metric_cases.py``)."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from winml_dag.stages.evaluate.metrics import (
    Metric,
    answer_f1,
    difference,
    entities,
    estimate,
    exact_match,
    macro_f1,
    macro_f1_of_counts,
    mcnemar,
    pearson,
    ratio,
    share,
    spearman,
    wilson,
)

CASES: dict[str, Any] = json.loads(Path(__file__).with_name("metric_cases.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", CASES["classes"])
def test_classification_is_counted_as_scikit_learn_does(case: dict[str, Any]) -> None:
    truth, scores = np.array(case["truth"]), np.array(case["scores"])
    found = scores.argmax(1)
    among = (scores > scores[np.arange(len(truth)), truth][:, None]).sum(1) < 5
    outcomes = np.column_stack([truth, found, truth == found, among]).astype(np.float64)
    accuracy = estimate(share("accuracy", 2), outcomes)
    assert accuracy.value == pytest.approx(case["accuracy"], abs=1e-5)
    assert [accuracy.low, accuracy.high] == pytest.approx(case["wilson"], abs=1e-5)
    assert macro_f1("macro_f1", 0, 1).value(outcomes) == pytest.approx(case["macro_f1"])
    if case["top5_accuracy"] is not None:
        assert share("top5_accuracy", 3).value(outcomes) == pytest.approx(case["top5_accuracy"])
    counts = [
        [value for one in range(scores.shape[1]) for value in (true == one == chosen, chosen == one, true == one)]
        for true, chosen in zip(truth, found, strict=True)
    ]
    of_counts = macro_f1_of_counts("f1", 0, scores.shape[1]).value(np.array(counts, np.float64))
    assert of_counts == pytest.approx(case["macro_f1"])


@pytest.mark.parametrize("case", CASES["correlations"])
def test_correlations_are_those_of_scipy(case: dict[str, Any]) -> None:
    outcomes = np.column_stack([case["first"], case["second"]])
    assert pearson("pearson", 0, 1).value(outcomes) == pytest.approx(case["pearson"])
    assert spearman("spearman", 0, 1).value(outcomes) == pytest.approx(case["spearman"])


@pytest.mark.parametrize("case", CASES["tags"])
def test_entities_are_those_of_seqeval(case: dict[str, Any]) -> None:
    pairs = [(entities(true), entities(found)) for true, found in zip(case["true"], case["found"], strict=True)]
    outcomes = np.array([[len(true & found), len(found), len(true)] for true, found in pairs], np.float64)
    assert ratio("precision", [0], [1]).value(outcomes) == pytest.approx(case["precision"])
    assert ratio("recall", [0], [2]).value(outcomes) == pytest.approx(case["recall"])
    assert ratio("f1", [0, 0], [1, 2]).value(outcomes) == pytest.approx(case["f1"])


@pytest.mark.parametrize("case", CASES["mcnemar"])
def test_the_test_of_mcnemar_is_the_binomial_test_of_scipy(case: dict[str, Any]) -> None:
    assert mcnemar(case["one"], case["other"]) == pytest.approx(case["p_value"])


@pytest.mark.parametrize(
    ("answer", "truths", "exact", "f1"),
    [
        ("the Eiffel Tower", ["Eiffel Tower!"], 1.0, 1.0),
        ("Eiffel", ["the Eiffel Tower"], 0.0, 2 / 3),
        ("in 1889", ["1889", "the year 1889"], 0.0, 2 / 3),
        ("", [""], 1.0, 1.0),
        ("Paris", [""], 0.0, 0.0),
        ("a", ["an"], 1.0, 1.0),
        ("Paris Paris", ["Paris"], 0.0, 2 / 3),
    ],
)
def test_answers_are_compared_as_squad_does(answer: str, truths: list[str], exact: float, f1: float) -> None:
    assert exact_match(answer, truths) == exact
    assert answer_f1(answer, truths) == pytest.approx(f1)


@given(st.integers(1, 400).flatmap(lambda of: st.tuples(st.integers(0, of), st.just(of))))
def test_the_interval_of_a_share_has_it_inside(counts: tuple[int, int]) -> None:
    low, high = wilson(*counts)
    assert 0 <= low <= counts[0] / counts[1] <= high <= 1


@pytest.mark.parametrize("metric", [share("accuracy", 0), Metric("mean", lambda outcomes: float(outcomes.mean()))])
def test_a_model_that_is_mostly_wrong_differs_from_one_that_is_mostly_right(metric: Metric) -> None:
    good, bad = (np.array([[float(at % 10 != digit)] for at in range(60)]) for digit in (0, 1))
    bad[:40] = 0
    found = difference(metric, bad, good)
    assert found.value is not None
    assert found.value < -0.5
    assert found.significant is True
    assert difference(metric, good, bad).value == -found.value
    assert (found.p_value is None) == (metric.column is None)
    same = difference(metric, good, good)
    assert (same.value, same.low, same.high, same.significant) == (0.0, 0.0, 0.0, False)


def test_an_interval_narrows_with_more_samples_and_is_the_same_every_time() -> None:
    rng = np.random.default_rng(0)
    rows = np.column_stack([np.arange(400) % 7, np.arange(400) % 7 + rng.normal(size=400)]).astype(np.float64)
    few, many = (estimate(spearman("spearman", 0, 1), rows[:count]) for count in (40, 400))
    assert few == estimate(spearman("spearman", 0, 1), rows[:40])
    assert None not in (few.low, few.high, many.low, many.high)
    assert (few.high or 0) - (few.low or 0) > (many.high or 0) - (many.low or 0) > 0


def test_what_is_always_the_same_correlates_with_nothing() -> None:
    """Even where the mean of equal values of 0.1 is not 0.1."""
    for count in (3, 7, 10, 77):
        rising, same, other = np.arange(count) ** 2.0, np.full(count, 0.1), np.full(count, 0.3)
        for columns in ((rising, same), (same, rising), (other, same)):
            assert math.isnan(pearson("pearson", 0, 1).value(np.column_stack(columns)))


def test_what_is_not_defined_is_null_and_not_a_number() -> None:
    same = np.ones((5, 2))
    found = estimate(pearson("pearson", 0, 1), same)
    assert (found.value, found.low, found.high) == (None, None, None)
    assert difference(pearson("pearson", 0, 1), same, same).significant is None
    some = np.array([[1, 0.1], [2, 0.2], [3, math.nan], [4, math.nan]])
    for metric, outcomes in ((spearman, same), (spearman, some), (pearson, some)):
        assert math.isnan(metric("it", 0, 1).value(outcomes))
