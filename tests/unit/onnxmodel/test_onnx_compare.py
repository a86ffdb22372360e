from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from winml_dag.errors import StageError
from winml_dag.onnxmodel.compare import Agreement, OutputComparison, Sums, class_scores, sums_of, top

LOWEST = float(np.finfo(np.float32).min)


def _one(reference: object, candidate: object, dtype: str = "float32") -> OutputComparison:
    expected = np.asarray(reference, dtype)
    return sums_of(expected, np.asarray(candidate, dtype), "y").comparison("y", expected.shape)


@pytest.mark.parametrize(
    ("reference", "candidate", "cosine", "sqnr_db", "max_abs_error"),
    [
        ([3.0, 4.0], [4.0, 3.0], 24 / 25, 10 * math.log10(25 / 2), 1),
        ([1.0, 0.0], [0.0, 1.0], 0, 10 * math.log10(1 / 2), 1),
        ([1.0, 2.0], [-1.0, -2.0], -1, 10 * math.log10(1 / 4), 4),
        ([0.0, 0.0], [0.0, 0.0], 1, math.inf, 0),
        ([0.0, 0.0], [1.0, 0.0], 0, -math.inf, 1),
        ([1.0, 0.0], [0.0, 0.0], 0, 0, 1),
        # A mask may be weaker but not missing, and all mask has nothing to differ in.
        *(([mask, -5.0, 2.0, mask], [-50.0, -5.0, 2.0, -math.inf], 1, math.inf, 0) for mask in (-math.inf, LOWEST)),
        *(([mask, -5.0, 2.0, mask], [LOWEST, -5.0, 2.0, -8.0], 1, math.inf, 0) for mask in (-math.inf, LOWEST)),
        ([-math.inf, LOWEST], [-50.0, -50.0], 1, math.inf, 0),
        # New NaNs and infinities are failures.
        ([1.0, 2.0, math.nan, -math.inf], [math.nan, math.inf, 5.0, -math.inf], 0, -math.inf, math.inf),
    ],
)
def test_comparison_gives_known_figures(
    reference: list[float], candidate: list[float], cosine: float, sqnr_db: float, max_abs_error: float
) -> None:
    found = _one(reference, candidate)
    assert (found.cosine, found.sqnr_db, found.max_abs_error) == pytest.approx((cosine, sqnr_db, max_abs_error))


@pytest.mark.parametrize("mask", [-math.inf, LOWEST])
def test_missing_mask_counts_as_error_and_new_nans_are_counted(mask: float) -> None:
    unmasked = _one([mask, -5.0, 2.0, mask], [1.5, -5.0, 2.0, mask])
    assert unmasked.max_abs_error == 6.5
    assert unmasked.cosine < 0.9
    found = _one([1.0, 2.0, math.nan, mask], [math.nan, math.inf, 5.0, math.nan])
    assert (found.nan_count, found.inf_count) == (2, 1)


@given(arrays.arrays(np.float32, st.integers(0, 20), elements=st.floats(width=32, allow_nan=False)))
def test_equal_outputs_compare_equal(values: np.ndarray) -> None:
    found = _one(values, values)
    assert (found.cosine, found.sqnr_db, found.max_abs_error) == (1.0, math.inf, 0.0)
    assert (found.nan_count, found.inf_count) == (0, 0)


any_pair = st.integers(1, 20).flatmap(
    lambda size: st.tuples(arrays.arrays(np.float32, size), arrays.arrays(np.float32, size))
)


@settings(max_examples=50)
@given(any_pair)
def test_figures_are_within_their_bounds(pair: tuple[np.ndarray, np.ndarray]) -> None:
    found = _one(*pair)
    assert -1 <= found.cosine <= 1
    assert not math.isnan(found.sqnr_db)
    assert found.max_abs_error >= 0


@pytest.mark.parametrize("scale", [1e-200, 1e-22, 1e20])
def test_cosine_and_sqnr_are_scale_invariant(scale: float) -> None:
    reference, candidate = np.asarray([1.0, 2.0, 3.0]), np.asarray([1.1, 2.0, 2.9])
    expected, found = _one(reference, candidate, "float64"), _one(reference * scale, candidate * scale, "float64")
    assert found.cosine == pytest.approx(expected.cosine)
    assert found.sqnr_db == pytest.approx(expected.sqnr_db)


@settings(max_examples=50)
@given(
    arrays.arrays(np.float64, 12, elements=st.floats(-1e25, 1e25)),
    arrays.arrays(np.float64, 12, elements=st.floats(-1e25, 1e25)),
    st.lists(st.integers(0, 12), max_size=4),
)
def test_partial_sums_add_up_to_the_whole(reference: np.ndarray, candidate: np.ndarray, cuts: list[int]) -> None:
    bounds = sorted({0, 12, *cuts})
    whole = Sums()
    for begin, end in itertools.pairwise(bounds):
        whole += sums_of(reference[begin:end], candidate[begin:end], "y")
    found, expected = whole.comparison("y", (12,)), _one(reference, candidate, "float64")
    assert whole.count == 12
    assert found.cosine == pytest.approx(expected.cosine, abs=1e-9)
    assert found.sqnr_db == pytest.approx(expected.sqnr_db, abs=1e-6)
    assert found.max_abs_error == expected.max_abs_error


def test_nan_in_one_part_counts_for_the_whole() -> None:
    good = sums_of(np.ones(3), np.ones(3), "y")
    bad = sums_of(np.ones(2), np.array([1.0, math.nan]), "y")
    for whole in (good + bad, bad + good):
        found = whole.comparison("y", (5,))
        assert (found.cosine, found.nan_count) == (0.0, 1)


def test_integers_booleans_and_scalars_are_compared_and_strings_refused() -> None:
    assert _one([1, 2], [1, 2], "int64").cosine == 1.0
    assert _one([True, False], [False, False], "bool").max_abs_error == 1.0
    assert _one(3, 3, "int64").shape == ()
    with pytest.raises(StageError, match=r"'y' has shape \[3\].*\[2\]"):
        _one([1, 2], [1, 2, 3])
    with pytest.raises(StageError, match="'y'"):
        _one(["a"], ["a"], "str")


SHAPES = arrays.array_shapes(min_dims=1, max_dims=3, max_side=6).filter(lambda shape: shape[-1] > 1)
PAIRS = SHAPES.flatmap(
    lambda shape: st.tuples(*(arrays.arrays(np.float32, shape, elements=st.integers(0, 9)) for _ in "ab"))
)


@given(PAIRS)
def test_top1_agreement_matches_direct_count(pair: tuple[np.ndarray, np.ndarray]) -> None:
    """One decision at a time; if the reference has several best classes, any of them is correct."""
    found = top(1, *pair)
    rows = [values.reshape(-1, values.shape[-1]).tolist() for values in pair]
    agreed = sum(
        expected[max(range(len(got)), key=got.__getitem__)] == max(expected)
        for expected, got in zip(*rows, strict=True)
    )
    assert found == Agreement(agreed, len(rows[0]))


def test_pixel_scores_have_classes_in_second_axis() -> None:
    reference = np.zeros((1, 3, 2, 2), np.float32)
    reference[:, 1] = 1
    candidate = reference.copy()
    candidate[0, 2, 0, 0] = 5
    assert top(1, reference, candidate) == Agreement(3, 4)


def test_undecided_reference_rows_are_skipped() -> None:
    reference = np.array([[0.0, np.nan], [0.0, 1.0], [-np.inf, 1.0]], np.float32)
    assert top(1, reference, np.array([[1, 0], [0, 1], [0, 1]], np.float32)) == Agreement(2, 2)


def test_nan_candidate_never_agrees() -> None:
    reference = np.array([[9.0, 1, 2, 3, 4, 5, 6], [9, 1, 2, 3, 4, 5, 6]], np.float32)
    candidate = reference.copy()
    candidate[0, 0] = np.nan
    assert (top(1, reference, candidate), top(5, reference, candidate)) == (Agreement(1, 2), Agreement(1, 2))
    candidate[0] = [9, np.nan, 2, 3, 4, 5, 6]
    assert (top(1, reference, candidate), top(5, reference, candidate)) == (Agreement(1, 2), Agreement(1, 2))


@pytest.mark.parametrize(
    ("shape", "dtype"), [*((shape, "float32") for shape in ((), (1,), (3, 1), (2, 1, 4, 4))), ((2, 3), "int64")]
)
def test_single_class_and_integer_outputs_have_no_agreement(shape: tuple[int, ...], dtype: str) -> None:
    assert top(1, np.zeros(shape, dtype), np.zeros(shape, dtype)) is None


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
def test_class_score_outputs_are_recognized(names: list[str], classifies: bool, expected: set[str]) -> None:
    assert class_scores(names, classifies=classifies) == expected


def test_top5_agreement_accepts_best_class_among_five() -> None:
    scores = np.array([[9.0, 1, 2, 3, 4, 5, 6]], np.float32)
    fifth = np.array([[2.0, 0, 1, 3, 4, 5, 6]], np.float32)
    sixth = np.array([[1.0, 2, 0, 3, 4, 5, 6]], np.float32)
    assert (top(5, scores, fifth), top(5, scores, sixth)) == (Agreement(1, 1), Agreement(0, 1))
    assert (top(1, scores, fifth), top(5, scores[:, :5], fifth[:, :5])) == (Agreement(0, 1), None)
