"""How often two outputs choose the same class."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from winml_dag.onnxmodel.compare import Agreement, class_scores, top1, top5

FLOATS = st.floats(width=32, allow_nan=False)
SHAPES = arrays.array_shapes(min_dims=1, max_dims=3, max_side=6).filter(lambda shape: shape[-1] > 1)
SCORES = arrays.arrays(np.float32, SHAPES, elements=FLOATS)
PAIRS = SHAPES.flatmap(
    lambda shape: st.tuples(*(arrays.arrays(np.float32, shape, elements=st.integers(0, 9)) for _ in "ab"))
)


@given(SCORES)
def test_an_output_agrees_with_itself_in_every_decision(scores: np.ndarray) -> None:
    decisions = scores.size // scores.shape[-1]
    assert top1(scores, scores) == Agreement(decisions, decisions)


@given(PAIRS)
def test_agreements_are_those_that_counting_finds(pair: tuple[np.ndarray, np.ndarray]) -> None:
    """One decision at a time; where the reference has several best classes, any of them is right."""
    found = top1(*pair)
    rows = [values.reshape(-1, values.shape[-1]).tolist() for values in pair]
    agreed = sum(
        expected[max(range(len(got)), key=got.__getitem__)] == max(expected)
        for expected, got in zip(*rows, strict=True)
    )
    assert found == Agreement(agreed, len(rows[0]))


@given(SCORES, st.floats(1, 100, width=32), st.floats(-100, 100, width=32))
def test_what_keeps_the_order_of_the_classes_keeps_the_decisions(
    scores: np.ndarray, factor: float, shift: float
) -> None:
    ranks = np.argsort(np.argsort(scores, axis=-1, kind="stable"), axis=-1).astype(np.float32)
    decisions = scores.size // scores.shape[-1]
    assert top1(ranks, ranks * factor + shift) == Agreement(decisions, decisions)


@given(PAIRS, st.data())
def test_decisions_come_in_no_order(pair: tuple[np.ndarray, np.ndarray], data: st.DataObject) -> None:
    rows = [values.reshape(-1, values.shape[-1]) for values in pair]
    order = data.draw(st.permutations(range(len(rows[0]))))
    assert top1(rows[0][order], rows[1][order]) == top1(*rows)


def test_scores_of_pixels_have_their_classes_in_the_second_axis() -> None:
    reference = np.zeros((1, 3, 2, 2), np.float32)
    reference[:, 1] = 1
    candidate = reference.copy()
    candidate[0, 2, 0, 0] = 5
    assert top1(reference, candidate) == Agreement(3, 4)


def test_decisions_that_the_reference_does_not_make_are_left_out() -> None:
    reference = np.array([[0.0, np.nan], [0.0, 1.0], [-np.inf, 1.0]], np.float32)
    assert top1(reference, np.array([[1, 0], [0, 1], [0, 1]], np.float32)) == Agreement(2, 2)


def test_a_candidate_that_gives_no_numbers_decides_nothing_rightly() -> None:
    reference = np.array([[9.0, 1, 2, 3, 4, 5, 6], [9, 1, 2, 3, 4, 5, 6]], np.float32)
    candidate = reference.copy()
    candidate[0, 0] = np.nan
    assert (top1(reference, candidate), top5(reference, candidate)) == (Agreement(1, 2), Agreement(1, 2))
    candidate[0] = [9, np.nan, 2, 3, 4, 5, 6]
    assert (top1(reference, candidate), top5(reference, candidate)) == (Agreement(1, 2), Agreement(1, 2))


@pytest.mark.parametrize("shape", [(), (1,), (3, 1), (2, 1, 4, 4)])
def test_one_class_is_no_choice(shape: tuple[int, ...]) -> None:
    assert top1(np.zeros(shape, np.float32), np.zeros(shape, np.float32)) is None


def test_numbers_of_classes_are_no_scores() -> None:
    assert top1(np.zeros((2, 3), np.int64), np.zeros((2, 3), np.int64)) is None


@pytest.mark.parametrize(
    ("names", "classifies", "expected"),
    [
        (["logits"], False, {"logits"}),
        (["hidden", "logits"], True, {"logits"}),
        (["start_logits", "end_logits"], False, {"start_logits", "end_logits"}),
        (["output", "features"], True, {"output"}),
        (["last_hidden_state", "logitsish"], False, set()),
    ],
)
def test_which_outputs_are_scores_of_classes(names: list[str], classifies: bool, expected: set[str]) -> None:
    assert class_scores(names, classifies=classifies) == expected


def test_the_best_class_may_be_among_five() -> None:
    scores = np.array([[9.0, 1, 2, 3, 4, 5, 6]], np.float32)
    fifth = np.array([[2.0, 0, 1, 3, 4, 5, 6]], np.float32)
    sixth = np.array([[1.0, 2, 0, 3, 4, 5, 6]], np.float32)
    assert (top5(scores, fifth), top5(scores, sixth)) == (Agreement(1, 1), Agreement(0, 1))
    assert (top1(scores, fifth), top5(scores[:, :5], fifth[:, :5])) == (Agreement(0, 1), None)
