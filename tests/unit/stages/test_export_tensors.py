"""Sizes of named dimensions, for tensors given in a recipe and for generated ones, and which outputs are exported."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from winml_dag.errors import StageError
from winml_dag.stages.export.inputs import sized
from winml_dag.stages.export.subject import choose_outputs

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
