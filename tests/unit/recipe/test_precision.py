from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from winml_dag.errors import UsageError
from winml_dag.recipe.precision import PRECISIONS, Chain, chained, parse_precision, precision_name
from winml_dag.recipe.schema import Quant


@pytest.mark.parametrize(
    ("name", "mode", "weight_bits", "activation_bits"),
    [
        ("fp32", None, None, None),
        ("fp16", "fp16", None, None),
        ("dynamic", "dynamic", None, None),
        ("int8", "static", 8, 8),
        ("uint8", "static", 8, 8),
        ("w8a8", "static", 8, 8),
        ("w8a16", "static", 8, 16),
        ("w16a8", "static", 16, 8),
        ("int16", "static", 16, 16),
        ("w16a16", "static", 16, 16),
        ("int4", "rtn", 4, 32),
        ("w4a32", "rtn", 4, 32),
        ("w4a16", "rtn", 4, 16),
        ("w4a8", "static", 4, 8),
    ],
)
def test_a_precision_says_widths_and_no_signs(
    name: str, mode: str | None, weight_bits: int | None, activation_bits: int | None
) -> None:
    found = parse_precision(name)
    assert (found.mode, found.weight_bits, found.activation_bits) == (mode, weight_bits, activation_bits)


def test_two_names_of_the_same_work_are_one_precision() -> None:
    assert {found.name for found in PRECISIONS.values()} <= PRECISIONS.keys()
    for names in (("int8", "uint8", "w8a8"), ("int16", "w16a16"), ("int4", "w4a32")):
        assert len({parse_precision(name) for name in names}) == 1


@pytest.mark.parametrize(
    ("quant", "name"),
    [
        (None, "fp32"),
        (Quant(weight_type="int8", activation_type="int16"), "w8a16"),
        (Quant(weight_type="int4", activation_type="uint16"), "w4a16"),
        (Quant(mode="rtn", rtn_bits=8), "w8a32"),
        (Quant(mode="rtn", rtn_float_type="float16"), "w4a16"),
        (Quant(mode="dynamic"), "dynamic"),
    ],
)
def test_quant_sections_have_a_name_by_the_widths_of_their_types(quant: Quant | None, name: str) -> None:
    assert precision_name(quant) == name


def test_a_misspelt_precision_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="'w8a1' is not a precision; did you mean 'w8a16'"):
        parse_precision("w8a1")
    with pytest.raises(UsageError, match="known are auto, fp32"):
        parse_precision("banana")
    with pytest.raises(UsageError, match="'int5' is not a precision"):
        chained(["int5", "fp16"])


_NAMES = st.sampled_from(sorted(PRECISIONS))


def test_a_chain_is_one_precision_or_four_bits_and_then_float16() -> None:
    assert chained([]) == Chain(None, {}), "the choice is left to others"
    for name in PRECISIONS:
        assert chained([name]) == Chain(name, {})
    for four_bits in ("int4", "w4a32"):
        assert chained([four_bits, "fp16"]) == Chain(four_bits, {"rtn_float_type": "float16"})


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
        (["fp32", "int8"], "fp32 is not a quantization"),
    ],
)
def test_the_refusal_says_what_does_not_go_together(names: list[str], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        chained(names)
