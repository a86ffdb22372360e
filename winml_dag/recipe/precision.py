"""The names of precisions, what each requires of the quantize stage, and which may follow each other.

Two names for the same work (``int8`` and ``w8a8``) are one :class:`Precision`, so that a sweep over both is one build.
A name determines widths; the execution provider determines which integers have them (:mod:`winml_dag.ep.provider`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from winml_dag.errors import UsageError


@dataclass(frozen=True)
class Precision:
    """A precision by its canonical name.

    Attributes:
        mode: static, dynamic, rtn or fp16; None for a model that is not quantized, and for ``auto``. Weights of 4 bits
            are rtn here, blocks with float activations; a provider may use static for them instead.
        weight_bits: width of the weights, for static and rtn.
        activation_bits: width of the activations: integers for static, floats for rtn.
    """

    name: str
    mode: str | None = None
    weight_bits: int | None = None
    activation_bits: int | None = None


class QuantFields(Protocol):
    """The fields of a ``quant`` section with resolved types that :func:`precision_name` reads."""

    @property
    def mode(self) -> str: ...
    @property
    def weight_type(self) -> str | None: ...
    @property
    def activation_type(self) -> str | None: ...
    @property
    def rtn_bits(self) -> int: ...
    @property
    def rtn_float_type(self) -> str: ...


_W8A8 = Precision("w8a8", "static", 8, 8)
_W16A16 = Precision("w16a16", "static", 16, 16)
_W4A32 = Precision("w4a32", "rtn", 4, 32)

PRECISIONS: Mapping[str, Precision] = MappingProxyType(
    {
        "auto": Precision("auto"),
        "fp32": Precision("fp32"),
        "fp16": Precision("fp16", "fp16"),
        "int4": _W4A32,
        "int8": _W8A8,
        "uint8": _W8A8,
        "int16": _W16A16,
        "dynamic": Precision("dynamic", "dynamic"),
        "w8a8": _W8A8,
        "w8a16": Precision("w8a16", "static", 8, 16),
        "w16a8": Precision("w16a8", "static", 16, 8),
        "w16a16": _W16A16,
        "w4a32": _W4A32,
        "w4a16": Precision("w4a16", "rtn", 4, 16),
        "w4a8": Precision("w4a8", "static", 4, 8),
    }
)

# The 16-bit type that replaces an 8-bit one: of the same sign.
SIXTEEN_BITS: Mapping[str, str] = MappingProxyType({"uint8": "uint16", "int8": "int16"})


def parse_precision(name: str) -> Precision:
    """Return the precision called *name*. ``auto`` is a precision of its own, which the target resolves.

    Raises UsageError if the name is unknown, with the nearest known one.
    """
    found = PRECISIONS.get(name)
    if found is None:
        from winml_dag.errors import known_instead

        raise UsageError(f"{name!r} is not a precision{known_instead(name, PRECISIONS)}")
    return found


def precision_name(quant: QuantFields | None) -> str:
    """Return the name of the precision of a ``quant`` section, by the widths of its types: ``w8a16``, ``fp32``."""
    if quant is None:
        return "fp32"
    if quant.mode == "static":
        assert quant.weight_type is not None
        assert quant.activation_type is not None
        return f"w{type_bits(quant.weight_type)}a{type_bits(quant.activation_type)}"
    if quant.mode == "rtn":
        return f"w{quant.rtn_bits}a{quant.rtn_float_type.removeprefix('float')}"
    return quant.mode


def type_bits(integer_type: str) -> int:
    """Return the width of an integer type such as ``uint8``."""
    return int(integer_type.removeprefix("u").removeprefix("int"))


def chained(names: Sequence[str]) -> tuple[str | None, dict[str, str]]:
    """Return the result of applying the precisions *names* in this order, as in ``quantize -p int4 -p fp16``.

    Only float16 can follow, for what 4-bit or 8-bit weights leave in float32: every other quantization leaves nothing
    in float32. Raises UsageError if a name is unknown, or precisions cannot follow each other.
    """
    parsed = [parse_precision(name) for name in names]
    if len(names) < 2:
        return (names[0] if names else None), {}
    first = parsed[0]
    if [one.mode for one in parsed] == ["rtn", "fp16"] and first.activation_bits == 32:
        return names[0], {"rtn_float_type": "float16"}
    if first.mode is None:
        why = f"{names[0]} is not a quantization that another could follow"
    elif first.mode == "fp16":
        why = "what is in float16 has no float32 left to quantize"
    elif first.mode == "rtn" and first.activation_bits == 32:
        why = f"after {names[0]} only fp16 can follow, once"
    else:
        why = f"a model in {names[0]} is quantized already, so nothing can follow"
    raise UsageError(f"-p {' -p '.join(names)}: {why}.", advice="The chain there is: -p int4 -p fp16, which is w4a16.")
