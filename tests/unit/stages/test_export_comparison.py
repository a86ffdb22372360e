"""The sizes at which an export is compared with PyTorch, the shapes that follow, and which outputs are exported."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from winml_dag.errors import StageError
from winml_dag.stages.export.comparison import agreement, output_shape, sizes_by_run
from winml_dag.stages.export.inputs import ModelInput, sized
from winml_dag.stages.export.subject import choose_outputs


def _input(*shape: int | str, sizes: tuple[int, ...]) -> ModelInput:
    return ModelInput("pixel_values", "float32", shape, sizes, None)


TEXT = _input("batch", "sequence", sizes=(1, 128))


@given(st.lists(st.sampled_from(["batch", "a", "b", "c", 3]), min_size=1, max_size=4), st.integers(1, 300))
def test_every_axis_is_tried_at_more_than_one_size(shape: list[int | str], size: int) -> None:
    runs = sizes_by_run([_input(*shape, sizes=(size,) * len(shape))])
    for axis in {each for each in shape if isinstance(each, str)}:
        assert len({run[axis] for run in runs}) > 1
        assert all(run[axis] >= 1 for run in runs)


def test_sizes_are_chosen_for_the_named_axes_only_and_the_first_is_not_one_which_exporters_take_for_a_constant() -> (
    None
):
    assert sizes_by_run([_input(1, 3, sizes=(1, 3))]) == ({}, {}, {})
    assert sizes_by_run([TEXT])[0] == {"batch": 2, "sequence": 128}


def test_axes_of_outputs_are_named_after_those_that_they_follow_or_have_a_name_of_their_own() -> None:
    sizes = sizes_by_run([TEXT])
    states = [(run["batch"], run["sequence"], 32) for run in sizes]
    assert output_shape("last_hidden_state", states, sizes, {}) == ("batch", "sequence", 32)
    quarters = [(run["sequence"] // 4,) for run in sizes]
    assert output_shape("pooled", quarters, sizes, {}) == ("pooled_axis_0",)
    assert output_shape("pooled", quarters, sizes, {"pooled": {"0": "quarter"}}) == ("quarter",)


def test_a_fixed_axis_cannot_be_called_dynamic() -> None:
    with pytest.raises(StageError, match="always has the size 32"):
        output_shape("logits", [(32,)] * 3, sizes_by_run([]), {"logits": {"0": "batch"}})


RIGHT = np.linspace(-2, 3, 50, dtype=np.float32)


def test_rounding_agrees_everywhere_if_it_is_small_and_in_a_few_places_if_it_is_larger() -> None:
    difference, cosine = agreement([{"logits": RIGHT}], [{"logits": RIGHT + np.float32(1e-5)}])
    assert difference == pytest.approx(1e-5, rel=0.1)
    assert cosine > 0.9999
    many = np.tile(RIGHT, 1000)
    few = many.copy()
    few[:3] += np.float32(8e-3)
    agreement([{"logits": many}], [{"logits": few}])
    with pytest.raises(StageError, match="differs from PyTorch"):
        agreement([{"logits": many}], [{"logits": many + np.float32(8e-3)}])


NAN = np.full_like(RIGHT, np.nan)


@pytest.mark.parametrize(
    ("expected", "found", "words"),
    [
        *((RIGHT, wrong, "differs from PyTorch") for wrong in (RIGHT[::-1], RIGHT + 0.1, np.zeros_like(RIGHT), NAN)),
        # Tiny outputs are held against their own scale.
        (RIGHT * 1e-6, RIGHT * 1.1e-6, "differs from PyTorch in 'logits'"),
        (NAN, NAN, "itself gives NaN"),
    ],
)
def test_a_wrong_output_in_any_run_is_refused(expected: np.ndarray, found: np.ndarray, words: str) -> None:
    with pytest.raises(StageError, match=words):
        agreement([{"logits": RIGHT}, {"logits": expected}], [{"logits": RIGHT}, {"logits": found}])


SIZES = st.integers(1, 5000)


@given(SIZES, SIZES, SIZES)
def test_the_named_axes_have_the_sizes_and_the_others_stay(tokens: int, height: int, width: int) -> None:
    sizes = {"sequence_length": tokens, "height": height, "width": width}
    assert sized("input_ids", (1, 512), sizes, 1) == (1, tokens)
    assert sized("bbox", (1, 512, 4), sizes, 1) == (1, tokens, 4)
    assert sized("input_ids", (1, 4, 32), sizes, 1) == (1, 4, tokens)
    assert sized("pixel_values", (1, 3, 224, 224), sizes, 1) == (1, 3, height, width)
    assert sized("pixel_values", (1, 8, 3, 224, 224), sizes, 1) == (1, 8, 3, height, width)
    assert sized("something_else", (1, 512), sizes, 1) == (1, 512)


@given(st.lists(st.one_of(SIZES, st.sampled_from(["batch", "tokens"])), max_size=6).map(tuple), SIZES, SIZES)
def test_axes_that_vary_go_on_doing_so_and_the_rank_stays(
    shape: tuple[int | str, ...], tokens: int, batch: int
) -> None:
    found = sized("attention_mask", shape, {"sequence_length": tokens}, batch)
    assert len(found) == len(shape)
    assert [size for size in found if isinstance(size, str)] == [size for size in shape if isinstance(size, str)]


@given(st.integers(2, 64))
def test_a_batch_of_one_that_is_spelled_out_becomes_the_batch_asked_for(batch: int) -> None:
    assert sized("pixel_values", (1, 3, 8, 8), {}, batch) == (batch, 3, 8, 8)
    assert sized("pixel_values", (4, 3, 8, 8), {}, batch) == (4, 3, 8, 8)
    assert sized("cache_position", (1,), {}, batch) == (1,)


PRODUCED = ("last_hidden_state", "pooler_output")


@pytest.mark.parametrize(
    ("asked", "usual", "chosen"),
    [
        ((), ("text_embeds", "last_hidden_state"), {"last_hidden_state": "last_hidden_state"}),
        (PRODUCED[::-1], (), dict(zip(PRODUCED[::-1], PRODUCED[::-1], strict=True))),
        (("embedding",), (), {"embedding": "last_hidden_state"}),
    ],
    ids=["the usual ones that the model has", "by name in the recipe's order", "names of the recipe's own in order"],
)
def test_outputs_are_chosen(asked: tuple[str, ...], usual: tuple[str, ...], chosen: dict[str, str]) -> None:
    found = choose_outputs(PRODUCED, asked, usual)
    assert list(found.items()) == list(chosen.items())


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (("a", "b", "c"), "3 outputs, but the model has 2"),
        (("pooler_output", "embedding"), "names embedding"),
        (("a", "a"), "twice"),
        ((), "none of the outputs"),
    ],
)
def test_what_cannot_be_told_is_refused(asked: tuple[str, ...], words: str) -> None:
    with pytest.raises(StageError, match=words):
        choose_outputs(PRODUCED, asked, ("logits",))
