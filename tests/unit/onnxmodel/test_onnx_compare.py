from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from winml_dag.canonical import canonical_json
from winml_dag.errors import StageError
from winml_dag.onnxmodel.compare import OutputComparison, Sums, compare, sums_of

LOWEST = float(np.finfo(np.float32).min)


def _one(reference: object, candidate: object, dtype: str = "float32") -> OutputComparison:
    return compare([np.asarray(reference, dtype)], [np.asarray(candidate, dtype)], ["y"])[0]


def test_known_figures() -> None:
    found = _one([3.0, 4.0], [4.0, 3.0])
    assert found.cosine == pytest.approx(24 / 25)
    assert found.sqnr_db == pytest.approx(10 * math.log10(25 / 2))
    assert found.max_abs_error == 1.0
    assert _one([1.0, 0.0], [0.0, 1.0]).cosine == 0.0
    assert _one([1.0, 2.0], [-1.0, -2.0]).cosine == pytest.approx(-1)


@given(arrays.arrays(np.float32, st.integers(0, 20), elements=st.floats(width=32, allow_nan=False)))
def test_equal_outputs_are_equal_whatever_is_in_them(values: np.ndarray) -> None:
    found = _one(values, values)
    assert (found.cosine, found.sqnr_db, found.max_abs_error) == (1.0, math.inf, 0.0)
    assert (found.nan_count, found.inf_count) == (0, 0)


any_pair = st.integers(1, 20).flatmap(
    lambda size: st.tuples(arrays.arrays(np.float32, size), arrays.arrays(np.float32, size))
)


@given(any_pair)
def test_any_outputs_have_figures_in_their_bounds(pair: tuple[np.ndarray, np.ndarray]) -> None:
    found = _one(*pair)
    assert -1 <= found.cosine <= 1
    assert not math.isnan(found.sqnr_db)
    assert found.max_abs_error >= 0
    canonical_json(found.to_json())


@pytest.mark.parametrize("scale", [1e-200, 1e-22, 1e20])
def test_scale_does_not_matter_to_cosine_and_noise(scale: float) -> None:
    reference, candidate = np.asarray([1.0, 2.0, 3.0]), np.asarray([1.1, 2.0, 2.9])
    expected, found = _one(reference, candidate, "float64"), _one(reference * scale, candidate * scale, "float64")
    assert found.cosine == pytest.approx(expected.cosine)
    assert found.sqnr_db == pytest.approx(expected.sqnr_db)


@given(
    arrays.arrays(np.float64, 12, elements=st.floats(-1e25, 1e25)),
    arrays.arrays(np.float64, 12, elements=st.floats(-1e25, 1e25)),
    st.lists(st.integers(0, 12), max_size=4),
)
def test_parts_add_up_to_the_whole(reference: np.ndarray, candidate: np.ndarray, cuts: list[int]) -> None:
    bounds = sorted({0, 12, *cuts})
    whole = Sums()
    for begin, end in itertools.pairwise(bounds):
        whole += sums_of(reference[begin:end], candidate[begin:end], "y")
    found, expected = whole.comparison("y", (12,)), _one(reference, candidate, "float64")
    assert whole.count == 12
    assert found.cosine == pytest.approx(expected.cosine, abs=1e-9)
    assert found.sqnr_db == pytest.approx(expected.sqnr_db, abs=1e-6)
    assert found.max_abs_error == expected.max_abs_error


def test_a_nan_in_one_part_is_one_of_the_whole() -> None:
    good = sums_of(np.ones(3), np.ones(3), "y")
    bad = sums_of(np.ones(2), np.array([1.0, math.nan]), "y")
    for whole in (good + bad, bad + good):
        found = whole.comparison("y", (5,))
        assert (found.cosine, found.nan_count) == (0.0, 1)


def test_zeros() -> None:
    assert _one([0.0, 0.0], [0.0, 0.0]).cosine == 1.0
    assert (_one([0.0, 0.0], [1.0, 0.0]).cosine, _one([0.0, 0.0], [1.0, 0.0]).sqnr_db) == (0.0, -math.inf)
    assert (_one([1.0, 0.0], [0.0, 0.0]).cosine, _one([1.0, 0.0], [0.0, 0.0]).sqnr_db) == (0.0, 0.0)


@pytest.mark.parametrize("mask", [-math.inf, LOWEST])
def test_a_mask_may_be_weaker_but_not_missing(mask: float) -> None:
    reference = [mask, -5.0, 2.0, mask]
    assert _one(reference, [-50.0, -5.0, 2.0, -math.inf]).cosine == 1.0
    assert _one(reference, [LOWEST, -5.0, 2.0, -8.0]).max_abs_error == 0.0
    unmasked = _one(reference, [1.5, -5.0, 2.0, mask])
    assert unmasked.max_abs_error == 6.5
    assert unmasked.cosine < 0.9


def test_an_output_that_is_all_mask_has_nothing_to_differ_in() -> None:
    assert _one([-math.inf, LOWEST], [-50.0, -50.0]).cosine == 1.0


def test_new_nans_and_infinities_are_failures_and_counted() -> None:
    found = _one([1.0, 2.0, math.nan, -math.inf], [math.nan, math.inf, 5.0, -math.inf])
    assert (found.nan_count, found.inf_count) == (1, 1)
    assert (found.cosine, found.sqnr_db, found.max_abs_error) == (0.0, -math.inf, math.inf)
    assert _one([-math.inf, 1.0], [math.nan, 1.0]).nan_count == 1


def test_json_has_null_where_there_is_no_number() -> None:
    value = _one([1.0], [1.0]).to_json()
    assert value == {
        "name": "y",
        "shape": [1],
        "cosine": 1.0,
        "sqnr_db": None,
        "max_abs_error": 0.0,
        "nan_count": 0,
        "inf_count": 0,
    }


def test_integers_booleans_and_scalars_compare() -> None:
    assert _one([1, 2], [1, 2], "int64").cosine == 1.0
    assert _one([True, False], [False, False], "bool").max_abs_error == 1.0
    assert _one(3, 3, "int64").shape == ()


def test_outputs_that_cannot_be_compared_are_named() -> None:
    with pytest.raises(StageError, match=r"'y' has shape \[3\].*\[2\]"):
        _one([1, 2], [1, 2, 3])
    with pytest.raises(StageError, match="'y'"):
        compare([np.asarray(["a"])], [np.asarray(["a"])], ["y"])
    with pytest.raises(StageError, match="2 outputs"):
        compare([np.zeros(1), np.zeros(1)], [np.zeros(1)], ["a", "b"])
