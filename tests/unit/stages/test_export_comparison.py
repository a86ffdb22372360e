from __future__ import annotations

import numpy as np
import pytest

from winml_dag.errors import StageError
from winml_dag.stages.export.conversion import agreement

RIGHT = np.linspace(-2, 3, 50, dtype=np.float32)


def test_rounding_agrees() -> None:
    agreed = agreement([{"logits": RIGHT}], [{"logits": RIGHT + np.float32(1e-5)}])
    assert agreed.max_abs_difference == pytest.approx(1e-5, rel=0.1)
    assert agreed.cosine > 0.9999


def test_rounding_in_a_few_places_agrees_and_the_same_everywhere_does_not() -> None:
    many = np.tile(RIGHT, 1000)
    few = many.copy()
    few[:3] += np.float32(8e-3)
    agreement([{"logits": many}], [{"logits": few}])
    with pytest.raises(StageError, match="differs from PyTorch"):
        agreement([{"logits": many}], [{"logits": many + np.float32(8e-3)}])


def test_tiny_outputs_are_held_against_their_own_scale() -> None:
    with pytest.raises(StageError, match="differs from PyTorch in 'logits'"):
        agreement([{"logits": RIGHT * 1e-6}], [{"logits": RIGHT * 1.1e-6}])


@pytest.mark.parametrize("wrong", [RIGHT[::-1], RIGHT + 0.1, np.zeros_like(RIGHT), np.full_like(RIGHT, np.nan)])
def test_a_wrong_output_is_refused(wrong: np.ndarray) -> None:
    with pytest.raises(StageError, match="differs from PyTorch"):
        agreement([{"logits": RIGHT}], [{"logits": wrong}])


def test_the_worst_of_all_runs_counts() -> None:
    with pytest.raises(StageError):
        agreement([{"logits": RIGHT}] * 2, [{"logits": RIGHT}, {"logits": -RIGHT}])


def test_nothing_can_be_said_when_pytorch_gives_nan() -> None:
    nan = np.full(3, np.nan, np.float32)
    with pytest.raises(StageError, match="itself gives NaN"):
        agreement([{"logits": nan}], [{"logits": nan}])
