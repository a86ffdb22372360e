"""Sizes of named dimensions, for tensors given in a recipe and for generated ones."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from winml_dag.stages.export.detect import sized

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
