from __future__ import annotations

import pytest

from winml_dag.errors import UsageError
from winml_dag.recipe.precision import PRECISIONS, default_precision, parse_precision, precision_name
from winml_dag.recipe.schema import Quant


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("fp32", {}),
        ("fp16", {"mode": "fp16"}),
        ("int8", {"mode": "static", "weight_type": "uint8", "activation_type": "uint8"}),
        ("uint8", {"mode": "static", "weight_type": "uint8", "activation_type": "uint8"}),
        ("w8a8", {"mode": "static", "weight_type": "uint8", "activation_type": "uint8"}),
        ("w8a16", {"mode": "static", "weight_type": "uint8", "activation_type": "uint16"}),
        ("w16a8", {"mode": "static", "weight_type": "int16", "activation_type": "uint8"}),
        ("int16", {"mode": "static", "weight_type": "int16", "activation_type": "uint16"}),
        ("w16a16", {"mode": "static", "weight_type": "int16", "activation_type": "uint16"}),
        ("int4", {"mode": "rtn", "rtn_bits": 4, "rtn_float_type": "float32"}),
        ("w4a32", {"mode": "rtn", "rtn_bits": 4, "rtn_float_type": "float32"}),
        ("w4a16", {"mode": "rtn", "rtn_bits": 4, "rtn_float_type": "float16"}),
    ],
)
def test_a_precision_says_what_the_quant_section_must_hold(name: str, fields: dict[str, object]) -> None:
    assert parse_precision(name).quant_fields() == fields


def test_two_names_of_the_same_work_are_one_precision() -> None:
    assert parse_precision("int8") == parse_precision("uint8") == parse_precision("w8a8")
    assert parse_precision("int16") == parse_precision("w16a16")
    assert parse_precision("int4") == parse_precision("w4a32")


@pytest.mark.parametrize("name", sorted(set(PRECISIONS) - {"auto"}))
def test_a_quant_section_is_called_by_its_precision(name: str) -> None:
    precision = parse_precision(name)
    quant = Quant.model_validate(precision.quant_fields()) if precision.mode else None
    assert precision_name(quant) == precision.name


def test_quant_sections_without_a_precision_of_their_own_have_a_name() -> None:
    assert precision_name(Quant(weight_type="int8", activation_type="int16")) == "w8a16"
    assert precision_name(Quant(mode="rtn", rtn_bits=8)) == "w8a32"
    assert precision_name(Quant(mode="dynamic")) == "dynamic"


def test_a_misspelt_precision_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="'w8a1' is not a precision; did you mean 'w8a16'"):
        parse_precision("w8a1")
    with pytest.raises(UsageError, match="known are auto, fp32"):
        parse_precision("banana")


@pytest.mark.parametrize(
    ("device", "execution_provider", "name"),
    [
        ("npu", None, "w8a16"),
        ("npu", "QNNExecutionProvider", "w8a16"),
        ("gpu", "openvino", "fp32"),
        ("cpu", None, "fp32"),
        ("npu", "vitisai", "fp32"),
        ("npu", "VitisAIExecutionProvider", "fp32"),
    ],
)
def test_auto_depends_on_the_target(device: str, execution_provider: str | None, name: str) -> None:
    assert parse_precision("auto").is_auto
    assert default_precision(device, execution_provider).name == name


def test_auto_needs_a_device() -> None:
    with pytest.raises(UsageError, match="'auto'"):
        default_precision("auto")
