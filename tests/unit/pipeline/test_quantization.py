"""The meaning of each precision on each execution provider, from the one table."""

from __future__ import annotations

import pytest

from winml_dag.ep.registry import EXECUTION_PROVIDERS, Target, find_ep
from winml_dag.errors import UsageError
from winml_dag.pipeline.quantization import precision_for, with_precision, with_types
from winml_dag.recipe.precision import PRECISIONS, precision_name
from winml_dag.recipe.schema import Quant

_NO_BLOCKS = {(ep, name) for ep in ("nvtensorrtrtx", "tensorrt") for name in ("int4", "w4a32", "w4a16")}
_NO_16_BITS = {(ep, name) for ep in ("nvtensorrtrtx", "tensorrt") for name in ("int16", "w8a16", "w16a8", "w16a16")}
_NO_4_BITS_IN_QDQ = {(ep.alias, "w4a8") for ep in EXECUTION_PROVIDERS if ep.alias != "qnn"}
REFUSED = {("qnn", "int4"), ("qnn", "w4a32"), ("qnn", "w16a8"), *_NO_BLOCKS, *_NO_16_BITS, *_NO_4_BITS_IN_QDQ}


def target(ep: str, device: str | None = None) -> Target:
    found = find_ep(ep)
    return Target(found, device or found.devices[0])


def quant_for(name: str, ep: str, quant: Quant | None = None) -> Quant:
    return with_types(with_precision(quant or Quant(), precision_for(name, target(ep)), target(ep)), target(ep))


def types(quant: Quant) -> tuple[str | None, str | None]:
    return quant.weight_type, quant.activation_type


def test_every_provider_cites_source_of_integer_support() -> None:
    assert all(ep.integers.source.startswith("https://") and ep.integers.reason for ep in EXECUTION_PROVIDERS)


@pytest.mark.parametrize("ep", sorted(ep.alias for ep in EXECUTION_PROVIDERS))
@pytest.mark.parametrize("name", sorted(set(PRECISIONS) - {"auto", "fp32", "fp16", "dynamic"}))
def test_precision_is_refused_or_has_the_widths_of_its_name(ep: str, name: str) -> None:
    if (ep, name) in REFUSED:
        with pytest.raises(UsageError, match=find_ep(ep).name):
            quant_for(name, ep)
    else:
        assert precision_name(quant_for(name, ep)) == PRECISIONS[name].name


@pytest.mark.parametrize(
    ("ep", "name", "expected"),
    [
        ("cpu", "int8", ("uint8", "uint8")),
        ("cpu", "uint8", ("uint8", "uint8")),
        ("cpu", "w16a16", ("int16", "uint16")),
        ("qnn", "uint8", ("uint8", "uint8")),
        ("qnn", "w8a16", ("uint8", "uint16")),
        ("qnn", "w4a16", ("int4", "uint16")),
        ("qnn", "w4a8", ("int4", "uint8")),
        ("openvino", "int8", ("int8", "uint8")),
        ("tensorrt", "uint8", ("int8", "int8")),
        ("vitisai", "w8a16", ("int8", "int16")),
    ],
)
def test_signedness_depends_on_provider(ep: str, name: str, expected: tuple[str, str]) -> None:
    quant = quant_for(name, ep)
    assert quant.mode == "static"
    assert types(quant) == expected


def test_four_bit_weights_are_rtn_blocks_where_supported() -> None:
    for ep in ("cpu", "dml", "cuda", "openvino"):
        quant = quant_for("w4a16", ep)
        assert (quant.mode, quant.rtn_bits, quant.rtn_float_type) == ("rtn", 4, "float16")
        assert quant_for("int4", ep).rtn_float_type == "float32"


@pytest.mark.parametrize(
    ("ep", "name", "message", "advice"),
    [
        ("qnn", "w4a32", "does not run MatMulNBits", "w4a16"),
        ("qnn", "w16a8", "16-bit activations only", ""),
        ("qnn", "dynamic", "dynamic", "w8a8"),
        ("tensorrt", "w8a16", "no 16-bit integers", ""),
        ("tensorrt", "int4", "MatMulNBits", "fp16"),
        ("cpu", "w4a8", "no 4-bit weights beside 8-bit activations", "w4a16"),
        ("cpu", "w9a9", "not a precision", ""),
    ],
)
def test_unsupported_precision_is_refused_with_alternative(ep: str, name: str, message: str, advice: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        precision_for(name, target(ep))
    assert advice in (caught.value.advice or "")


def test_section_types_of_matching_width_are_kept() -> None:
    section = Quant(weight_type="int8", activation_type="uint8")
    assert types(quant_for("w8a8", "cpu", section)) == ("int8", "uint8")
    assert types(quant_for("w8a16", "cpu", section)) == ("int8", "uint16")
    assert types(with_types(section, target("qnn"))) == ("int8", "uint8")


def test_unset_quant_fields_come_from_provider_table() -> None:
    trt = with_types(Quant(), target("tensorrt"))
    assert (trt.per_channel, trt.weight_symmetric, trt.activation_symmetric) == (True, True, True)
    assert with_types(Quant(), target("vitisai")).per_channel is False
    cpu = with_types(Quant(), target("cpu"))
    assert (cpu.per_channel, cpu.weight_symmetric, cpu.activation_symmetric) == (True, None, False)
    said = with_types(Quant(per_channel=False, symmetric=False, weight_symmetric=True), target("tensorrt"))
    assert (said.per_channel, said.weight_symmetric, said.activation_symmetric) == (False, True, False)
    dynamic = with_types(Quant(mode="dynamic", symmetric=True), target("tensorrt"))
    assert (dynamic.weight_type, dynamic.per_channel, dynamic.weight_symmetric) == ("uint8", False, True)


@pytest.mark.parametrize(
    "quant",
    [
        Quant(weight_type="int16", activation_type="uint8"),
        Quant(weight_type="uint4", activation_type="uint16"),
        Quant(weight_type="int4", activation_type="uint16", per_channel=False),
    ],
)
def test_types_unsupported_by_qnn_are_refused_in_section(quant: Quant) -> None:
    with pytest.raises(UsageError, match="QNNExecutionProvider takes"):
        with_types(quant, target("qnn"))


@pytest.mark.parametrize(
    ("ep", "device", "name"),
    [
        ("qnn", "npu", "w8a16"),
        ("qnn", "gpu", "fp32"),
        ("openvino", "npu", "w8a16"),
        ("openvino", "gpu", "fp32"),
        ("cpu", "cpu", "fp32"),
        ("dml", "gpu", "fp32"),
        ("vitisai", "npu", "fp32"),
    ],
)
def test_auto_precision_depends_on_provider_and_device(ep: str, device: str, name: str) -> None:
    assert precision_for("auto", target(ep, device)).name == name
