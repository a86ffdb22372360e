"""The names of precisions, and what each asks of the quantize stage.

Two names for the same work (``int8`` and ``w8a8``) are one :class:`Precision`, so that a sweep over both is one build.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from winml_dag.errors import UsageError


@dataclass(frozen=True)
class Precision:
    """A precision by its one name, and the fields of a ``quant`` section that make it.

    Attributes:
        mode: static, dynamic, rtn or fp16; None for a model that is not quantized, and for ``auto``.
        weight_type: integer type of the weights, for static.
        activation_type: integer type of the activations, for static.
        rtn_bits: width of the weights, for rtn.
        rtn_float_type: what rtn makes of all that has no integer weights: float16 for w4a16.
    """

    name: str
    mode: str | None = None
    weight_type: str | None = None
    activation_type: str | None = None
    rtn_bits: int | None = None
    rtn_float_type: str | None = None

    @property
    def is_auto(self) -> bool:
        return self.name == "auto"

    def quant_fields(self) -> dict[str, str | int]:
        """The fields to set in a ``quant`` section; empty for a model that is not quantized."""
        fields = {
            "mode": self.mode,
            "weight_type": self.weight_type,
            "activation_type": self.activation_type,
            "rtn_bits": self.rtn_bits,
            "rtn_float_type": self.rtn_float_type,
        }
        return {name: value for name, value in fields.items() if value is not None}


class QuantFields(Protocol):
    """What :func:`precision_name` reads of a ``quant`` section."""

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


_W8A8 = Precision("w8a8", "static", "uint8", "uint8")
_W16A16 = Precision("w16a16", "static", "int16", "uint16")
_W4A32 = Precision("w4a32", "rtn", rtn_bits=4, rtn_float_type="float32")

PRECISIONS: Mapping[str, Precision] = MappingProxyType(
    {
        "auto": Precision("auto"),
        "fp32": Precision("fp32"),
        "fp16": Precision("fp16", "fp16"),
        "int4": _W4A32,
        "int8": _W8A8,
        "uint8": _W8A8,
        "int16": _W16A16,
        "w8a8": _W8A8,
        "w8a16": Precision("w8a16", "static", "uint8", "uint16"),
        "w16a8": Precision("w16a8", "static", "int16", "uint8"),
        "w16a16": _W16A16,
        "w4a32": _W4A32,
        "w4a16": Precision("w4a16", "rtn", rtn_bits=4, rtn_float_type="float16"),
    }
)

# What auto means, by device. Only NPUs need integers; on the others the float model is the one that cannot be wrong.
DEFAULT_PRECISION: Mapping[str, str] = MappingProxyType({"npu": "w8a16", "gpu": "fp32", "cpu": "fp32"})


def parse_precision(name: str) -> Precision:
    """The precision called *name*. ``auto`` is a precision of its own, which :func:`default_precision` settles.

    Raises:
        UsageError: for a name that is not known, with the nearest one that is.
    """
    found = PRECISIONS.get(name)
    if found is None:
        from winml_dag.recipe.spelling import known_instead

        raise UsageError(f"{name!r} is not a precision{known_instead(name, PRECISIONS)}")
    return found


def default_precision(device: str, execution_provider: str | None = None) -> Precision:
    """What ``auto`` means on *device* (npu, gpu, cpu).

    VitisAI gets the float model on any device, because it quantizes by itself.

    Raises:
        UsageError: for a device that is not one of the three, ``auto`` included: it has to be settled first.
    """
    name = DEFAULT_PRECISION.get(device)
    if name is None:
        raise UsageError(f"There is no default precision for the device {device!r}.", advice="Name the precision.")
    if (execution_provider or "").casefold().startswith("vitisai"):
        return PRECISIONS["fp32"]
    return PRECISIONS[name]


def precision_name(quant: QuantFields | None) -> str:
    """What to call the precision that a ``quant`` section asks for, by the widths of its types: ``w8a16``, ``fp32``.

    ``dynamic`` is called that: it has no name among the precisions.
    """
    if quant is None:
        return "fp32"
    if quant.mode == "static":
        return f"w{_bits(quant.weight_type)}a{_bits(quant.activation_type)}"
    if quant.mode == "rtn":
        return f"w{quant.rtn_bits}a{quant.rtn_float_type.removeprefix('float')}"
    return quant.mode


def _bits(integer_type: str | None) -> str:
    return (integer_type or "uint8").removeprefix("u").removeprefix("int")
