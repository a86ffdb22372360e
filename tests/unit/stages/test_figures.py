"""Metrics of an output: padding does not count, every sample does, every decision once; and their thresholds."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from winml_dag.onnxmodel.compare import Agreement
from winml_dag.recipe.fields import IntegerType, WeightType
from winml_dag.recipe.precision import PRECISIONS, precision_name
from winml_dag.recipe.schema import Quant
from winml_dag.stages.figures import OutputFigures, measure, quality
from winml_dag.stages.quality import MINIMUM_COSINE, USUAL_COSINE, what_to_try


@dataclass(frozen=True)
class Texts:
    """Texts as model inputs, and the outputs of two models."""

    masks: list[np.ndarray]
    reference: list[np.ndarray]
    candidate: list[np.ndarray]

    def figures(self, *, noise: float = 0.0) -> OutputFigures:
        feeds = [{"attention_mask": mask} for mask in self.masks]
        found = [
            [values + noise * (mask == 0)[..., None]] for values, mask in zip(self.candidate, self.masks, strict=True)
        ]
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


@given(texts(), st.floats(-1e6, 1e6))
def test_what_stands_at_padding_changes_no_figure(given_texts: Texts, noise: float) -> None:
    assert given_texts.figures(noise=noise).to_json() == given_texts.figures().to_json()


@given(texts())
def test_padding_that_is_no_number_is_counted(given_texts: Texts) -> None:
    spoilt = Texts(
        given_texts.masks,
        given_texts.reference,
        [
            np.where((mask == 0)[..., None], np.float32(np.nan), values)
            for values, mask in zip(given_texts.candidate, given_texts.masks, strict=True)
        ],
    )
    padding = sum(int((mask == 0).sum()) for mask in given_texts.masks)
    figures = spoilt.figures()
    assert figures.whole.nan_count == padding * given_texts.reference[0].shape[-1]
    assert figures.to_json() == given_texts.figures().to_json()


@given(texts())
def test_every_word_is_one_decision(given_texts: Texts) -> None:
    decisions = given_texts.figures().top1
    assert decisions is not None
    assert decisions.of == sum(int(mask.sum()) for mask in given_texts.masks)
    agreed = sum(
        int((wanted.argmax(-1) == got.argmax(-1))[mask == 1].sum())
        for wanted, got, mask in zip(given_texts.reference, given_texts.candidate, given_texts.masks, strict=True)
    )
    assert decisions.agreed == agreed


@given(texts(), st.data())
def test_the_order_of_samples_does_not_matter(given_texts: Texts, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(given_texts.masks))))
    shuffled = Texts(
        *([values[i] for i in order] for values in (given_texts.masks, given_texts.reference, given_texts.candidate))
    )
    one, other = given_texts.figures(), shuffled.figures()
    assert (one.cosine_min, one.top1) == (other.cosine_min, other.top1)
    assert one.read.cosine == pytest.approx(other.read.cosine)


def test_an_output_of_one_number_has_no_cosine_of_a_sample() -> None:
    values = [[np.array([[number]], np.float32)] for number in (1.0, -2.0)]
    (figures,) = measure(["score"], [{}, {}], values, values, ())
    assert (figures.cosine, figures.lowest_cosine) == (1.0, None)


def test_two_axes_of_equal_lengths_by_chance_are_no_padding() -> None:
    """The embedding of a text has as many features as the text has tokens."""
    feed = {"attention_mask": np.array([[1, 0, 0]])}
    reference, candidate = np.array([[1, 2, 3]], np.float32), np.array([[1, 2, 4]], np.float32)
    (figures,) = measure(["embedding"], [feed], [[reference]], [[candidate]], ())
    assert figures.max_abs_error == 1.0


def test_the_quality_of_a_model_is_that_of_its_worst_output_and_all_decisions() -> None:
    good, bad = np.array([[1, 2, 3]], np.float32), np.array([[3, 2, 1]], np.float32)
    names = ["a_logits", "b_logits"]
    figures = measure(names, [{}], [[good, good]], [[good, bad]], names)
    found = quality(figures, samples=1, data="npz", held_out=True)
    assert (found.output, found.top1_agreed, found.top1_of) == ("b_logits", 1, 2)
    assert found.cosine == pytest.approx(10 / 14, abs=1e-5)


def test_integers_are_counted_that_are_the_same() -> None:
    (figures,) = measure(["ids"], [{}], [[np.array([1, 2, 3, 4])]], [[np.array([1, 2, 0, 4])]], ())
    assert figures.exact == Agreement(3, 4)
    (floats,) = measure(["y"], [{}], [[np.ones(2)]], [[np.ones(2)]], ())
    assert floats.exact is None


STATIC: list[dict[str, Any]] = [
    {"weight_type": weight, "activation_type": activation}
    for weight, activation in product(get_args(WeightType), get_args(IntegerType))
]
OTHERS: list[dict[str, Any]] = [
    {"mode": "fp16"},
    {"mode": "dynamic"},
    *(
        {"mode": "rtn", "rtn_bits": bits, "rtn_float_type": floats}
        for bits in (4, 8)
        for floats in ("float32", "float16")
    ),
]


def test_every_precision_has_its_bounds_and_no_other_has() -> None:
    names = {precision_name(Quant(**fields)) for fields in (*STATIC, *OTHERS)}
    assert MINIMUM_COSINE.keys() == names | {"fp32"}
    assert USUAL_COSINE.keys() == names


def test_what_is_usual_is_not_below_what_is_broken() -> None:
    for name, usual in USUAL_COSINE.items():
        assert MINIMUM_COSINE[name] < usual < 1 or (name == "fp16" and MINIMUM_COSINE[name] == usual)


def test_what_to_try_instead_is_a_precision_with_a_higher_bound() -> None:
    for name in USUAL_COSINE:
        advice = what_to_try(name, calibrated_on=None, measured_on="npz")
        if advice:
            higher = advice.removeprefix("To try: use the precision ").removesuffix(".")
            assert higher in PRECISIONS
            assert USUAL_COSINE[higher] >= USUAL_COSINE[name]
