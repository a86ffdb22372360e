"""Metrics, of outputs and of evaluations: those of scikit-learn, scipy and seqeval (``tests/make_metric_cases.py``)."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from winml_dag.onnxmodel.compare import Agreement
from winml_dag.recipe.fields import IntegerType, WeightType
from winml_dag.recipe.precision import PRECISIONS, precision_name
from winml_dag.recipe.schema import Quant
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
from winml_dag.stages.figures import OutputFigures, measure, quality
from winml_dag.stages.quality import MINIMUM_COSINE, USUAL_COSINE, what_to_try

CASES: dict[str, Any] = json.loads(Path(__file__).with_name("metric_cases.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", CASES["classes"])
def test_classification_metrics_match_scikit_learn(case: dict[str, Any]) -> None:
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
def test_correlations_match_scipy(case: dict[str, Any]) -> None:
    outcomes = np.column_stack([case["first"], case["second"]])
    assert pearson("pearson", 0, 1).value(outcomes) == pytest.approx(case["pearson"])
    assert spearman("spearman", 0, 1).value(outcomes) == pytest.approx(case["spearman"])


@pytest.mark.parametrize("case", CASES["tags"])
def test_entity_metrics_match_seqeval(case: dict[str, Any]) -> None:
    pairs = [(entities(true), entities(found)) for true, found in zip(case["true"], case["found"], strict=True)]
    outcomes = np.array([[len(true & found), len(found), len(true)] for true, found in pairs], np.float64)
    assert ratio("precision", [0], [1]).value(outcomes) == pytest.approx(case["precision"])
    assert ratio("recall", [0], [2]).value(outcomes) == pytest.approx(case["recall"])
    assert ratio("f1", [0, 0], [1, 2]).value(outcomes) == pytest.approx(case["f1"])


@pytest.mark.parametrize("case", CASES["mcnemar"])
def test_mcnemar_matches_scipy_binomial_test(case: dict[str, Any]) -> None:
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
def test_answer_metrics_match_squad(answer: str, truths: list[str], exact: float, f1: float) -> None:
    assert exact_match(answer, truths) == exact
    assert answer_f1(answer, truths) == pytest.approx(f1)


@given(st.integers(1, 400).flatmap(lambda of: st.tuples(st.integers(0, of), st.just(of))))
def test_wilson_interval_contains_the_share(counts: tuple[int, int]) -> None:
    low, high = wilson(*counts)
    assert 0 <= low <= counts[0] / counts[1] <= high <= 1


@pytest.mark.parametrize("metric", [share("accuracy", 0), Metric("mean", lambda outcomes: float(outcomes.mean()))])
def test_difference_of_poor_and_good_model_is_significant(metric: Metric) -> None:
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


def test_interval_narrows_with_samples_and_is_reproducible() -> None:
    rng = np.random.default_rng(0)
    rows = np.column_stack([np.arange(400) % 7, np.arange(400) % 7 + rng.normal(size=400)]).astype(np.float64)
    few, many = (estimate(spearman("spearman", 0, 1), rows[:count]) for count in (40, 400))
    assert few == estimate(spearman("spearman", 0, 1), rows[:40])
    assert None not in (few.low, few.high, many.low, many.high)
    assert (few.high or 0) - (few.low or 0) > (many.high or 0) - (many.low or 0) > 0


def test_constant_values_have_no_correlation() -> None:
    """Even where the mean of equal values of 0.1 is not 0.1."""
    for count in (3, 7, 10, 77):
        rising, same, other = np.arange(count) ** 2.0, np.full(count, 0.1), np.full(count, 0.3)
        for columns in ((rising, same), (same, rising), (other, same)):
            assert math.isnan(pearson("pearson", 0, 1).value(np.column_stack(columns)))


def test_undefined_metrics_are_null() -> None:
    same = np.ones((5, 2))
    found = estimate(pearson("pearson", 0, 1), same)
    assert (found.value, found.low, found.high) == (None, None, None)
    assert difference(pearson("pearson", 0, 1), same, same).significant is None
    some = np.array([[1, 0.1], [2, 0.2], [3, math.nan], [4, math.nan]])
    for metric, outcomes in ((spearman, same), (spearman, some), (pearson, some)):
        assert math.isnan(metric("it", 0, 1).value(outcomes))


@dataclass(frozen=True)
class Texts:
    """Texts as model inputs, and the outputs of two models."""

    masks: list[np.ndarray]
    reference: list[np.ndarray]
    candidate: list[np.ndarray]

    def figures(self, *, noise: float = 0.0) -> OutputFigures:
        feeds = [{"attention_mask": mask} for mask in self.masks]
        added = [np.where(mask == 0, np.float32(noise), 0)[..., None] for mask in self.masks]
        found = [[values + each] for values, each in zip(self.candidate, added, strict=True)]
        (only,) = measure(["logits"], feeds, [[values] for values in self.reference], found, {"logits"})
        return only


@st.composite
def texts(draw: st.DrawFn) -> Texts:
    """Draw texts padded to one length, each with at least one word."""
    count, length, classes = (draw(st.integers(*bounds)) for bounds in ((1, 4), (1, 6), (2, 4)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    words = [draw(st.integers(1, length)) for _ in range(count)]
    masks = [(np.arange(length) < number).astype(np.int64)[None] for number in words]
    reference = [rng.standard_normal((1, length, classes)).astype(np.float32) for _ in words]
    candidate = [values + rng.standard_normal(values.shape).astype(np.float32) / 4 for values in reference]
    return Texts(masks, reference, candidate)


@given(texts(), st.floats(-1e6, 1e6) | st.just(np.nan))
@settings(max_examples=50)
def test_padding_is_ignored_and_each_token_is_one_decision(given_texts: Texts, at: float) -> None:
    masks, figures = given_texts.masks, given_texts.figures()
    padded = given_texts.figures(noise=at)
    assert padded.to_json() == figures.to_json()
    padding = sum(int((mask == 0).sum()) for mask in masks)
    assert padded.whole.nan_count == (padding * given_texts.reference[0].shape[-1] if np.isnan(at) else 0)
    assert figures.top1 is not None
    assert figures.top1.of == sum(int(mask.sum()) for mask in masks)
    assert figures.top1.agreed == sum(
        int((wanted.argmax(-1) == got.argmax(-1))[mask == 1].sum())
        for wanted, got, mask in zip(given_texts.reference, given_texts.candidate, masks, strict=True)
    )


@given(texts(), st.data())
@settings(max_examples=50)
def test_sample_order_does_not_matter(given_texts: Texts, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(given_texts.masks))))
    shuffled = Texts(
        *([values[i] for i in order] for values in (given_texts.masks, given_texts.reference, given_texts.candidate))
    )
    one, other = given_texts.figures(), shuffled.figures()
    assert (one.cosine_min, one.top1) == (other.cosine_min, other.top1)
    assert one.read.cosine == pytest.approx(other.read.cosine)


def test_single_number_output_has_no_sample_cosine_and_integers_are_counted() -> None:
    values = [[np.array([[number]], np.float32)] for number in (1.0, -2.0)]
    (figures,) = measure(["score"], [{}, {}], values, values, ())
    assert (figures.cosine, figures.lowest_cosine, figures.exact) == (1.0, None, None)
    (integers,) = measure(["ids"], [{}], [[np.array([1, 2, 3, 4])]], [[np.array([1, 2, 0, 4])]], ())
    assert integers.exact == Agreement(3, 4)


def test_equal_axis_lengths_are_not_mistaken_for_padding() -> None:
    """The embedding of a text has as many features as the text has tokens."""
    feed = {"attention_mask": np.array([[1, 0, 0]])}
    reference, candidate = np.array([[1, 2, 3]], np.float32), np.array([[1, 2, 4]], np.float32)
    (figures,) = measure(["embedding"], [feed], [[reference]], [[candidate]], ())
    assert figures.max_abs_error == 1.0


def test_quality_is_that_of_worst_output_and_all_decisions() -> None:
    good, bad = np.array([[1, 2, 3]], np.float32), np.array([[3, 2, 1]], np.float32)
    names = ["a_logits", "b_logits"]
    figures = measure(names, [{}], [[good, good]], [[good, bad]], names)
    found = quality(figures, samples=1, data="npz", held_out=True)
    assert (found.output, found.top1_agreed, found.top1_of) == ("b_logits", 1, 2)
    assert found.cosine == pytest.approx(10 / 14, abs=1e-5)


def test_every_precision_has_cosine_bounds() -> None:
    pairs = product(get_args(WeightType), get_args(IntegerType))
    quants = [Quant(weight_type=weight, activation_type=activation) for weight, activation in pairs]
    quants += [
        Quant(rtn_bits=bits, rtn_float_type=kind, mode="rtn") for bits in (4, 8) for kind in ("float32", "float16")
    ]
    names = {precision_name(quant) for quant in (*quants, Quant(mode="fp16"), Quant(mode="dynamic"))}
    assert MINIMUM_COSINE.keys() == names | {"fp32"}
    assert USUAL_COSINE.keys() == names
    for name, usual in USUAL_COSINE.items():
        assert MINIMUM_COSINE[name] < usual < 1 or (name == "fp16" and MINIMUM_COSINE[name] == usual)


def test_suggested_precision_has_a_higher_bound() -> None:
    for name in USUAL_COSINE:
        advice = what_to_try(name, calibrated_on=None, measured_on="npz")
        if advice:
            higher = advice.removeprefix("To try: use the precision ").removesuffix(".")
            assert higher in PRECISIONS
            assert USUAL_COSINE[higher] >= USUAL_COSINE[name]
