"""One use of an operator in a table of support, and the verdict whether the provider supports it.

A case has everything that a table tells apart, but neither names nor weights nor the surrounding graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

Number = int | float
AttributeValue = Number | str | tuple[Number, ...] | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Operand:
    """An input or an output.

    Attributes:
        dtype: name as in ``dtype_name``; empty if the file does not have it.
        dims: None for an unknown rank, and within it for an open size.
        constant: whether it is known before the model runs.
    """

    dtype: str = ""
    dims: tuple[int | None, ...] | None = None
    constant: bool = False


@dataclass(frozen=True, slots=True)
class Quantized:
    """The integer types of QuantizeLinear and DequantizeLinear around an operator."""

    activations: str
    weights: str
    per_channel: bool = False


@dataclass(frozen=True, slots=True)
class Case:
    """One use of an operator.

    Attributes:
        domain: empty for the ONNX standard.
        opset: of that domain, as in the model; 0 if missing.
        inputs: None for an omitted optional one before one that is not omitted.
        outputs: None likewise.
        attributes: by name, sorted; for a graph, ``"graph"``; for a tensor, its dtype.
        quantized: None if inputs and outputs are floats. Dtypes are those without the conversions around it.
    """

    op_type: str
    domain: str
    opset: int
    inputs: tuple[Operand | None, ...]
    outputs: tuple[Operand | None, ...]
    attributes: tuple[tuple[str, AttributeValue], ...] = ()
    quantized: Quantized | None = None

    def __str__(self) -> str:
        return f"{self.domain}/{self.op_type}" if self.domain else self.op_type


class Level(StrEnum):
    """``PARTIAL``: it runs, but not, or not correctly, on the target: on the CPU, or with other numbers."""

    SUPPORTED = "supported"
    PARTIAL = "partial"
    UNSUPPORTED = "unsupported"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one measurement.

    Attributes:
        compiled: whether the provider took the operator.
        ran: whether the model had a result, wherever it was computed.
        agrees: whether the result is correct.
    """

    compiled: bool
    ran: bool
    agrees: bool = True

    @property
    def level(self) -> Level:
        if not self.ran:
            return Level.UNSUPPORTED
        return Level.SUPPORTED if self.compiled and self.agrees else Level.PARTIAL


@dataclass(frozen=True, slots=True)
class Verdict:
    """``reason``: one sentence without its full stop that says what the target does, and why if that is known."""

    level: Level
    reason: str
