"""Precisions one after the other: the one chain that means something is taken, all others are refused with a reason."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from winml_dag.errors import UsageError
from winml_dag.recipe.precision import PRECISIONS, Chain, chained

_NAMES = st.sampled_from(sorted(PRECISIONS))


def test_four_bits_and_then_float16_is_what_w4a16_asks_for() -> None:
    assert chained(["int4", "fp16"]) == Chain("int4", {"rtn_float_type": "float16"})
    assert chained(["w4a32", "fp16"]) == Chain("w4a32", {"rtn_float_type": "float16"})


@given(name=_NAMES)
def test_a_single_precision_is_that_precision(name: str) -> None:
    assert chained([name]) == Chain(name, {})


def test_no_precision_leaves_the_choice_to_others() -> None:
    assert chained([]) == Chain(None, {})


@given(
    names=st.lists(_NAMES, min_size=2, max_size=4).filter(
        lambda names: names not in (["int4", "fp16"], ["w4a32", "fp16"])
    )
)
def test_every_other_chain_is_refused_in_words(names: list[str]) -> None:
    with pytest.raises(UsageError, match=r"^-p .*: .*\. The chain there is: -p int4 -p fp16, which is w4a16\.$"):
        chained(names)


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (["int8", "int4"], "a model in int8 is quantized already, so nothing can follow"),
        (["w4a16", "fp16"], "a model in w4a16 is quantized already"),
        (["fp16", "int4"], "what is in float16 has no float32 left to quantize"),
        (["int4", "int8"], "after int4 only fp16 can follow, once"),
        (["int4", "fp16", "fp16"], "after int4 only fp16 can follow, once"),
        (["fp32", "int8"], "fp32 is no quantization"),
    ],
)
def test_the_refusal_says_what_does_not_go_together(names: list[str], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        chained(names)


def test_a_misspelt_precision_in_a_chain_is_named() -> None:
    with pytest.raises(UsageError, match="'int5' is not a precision"):
        chained(["int5", "fp16"])
