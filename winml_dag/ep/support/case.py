"""One use of an operator in a table of support, and the verdict whether the provider supports it.

A case has everything that decides that, but neither names nor weights nor the surrounding graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from winml_dag.canonical import JsonObject, JsonValue

Number = int | float
AttributeValue = Number | str | tuple[Number, ...] | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Operand:
    """An input or an output.

    Attributes:
        dtype: name as in ``dtype_name``; empty if the file does not have it.
        dims: None for an unknown rank, and within it for an open size.
        constant: whether it is known before the model runs.
        values: those of a small constant; otherwise None.
    """

    dtype: str = ""
    dims: tuple[int | None, ...] | None = None
    constant: bool = False
    values: tuple[Number, ...] | None = None


@dataclass(frozen=True, slots=True)
class Quantized:
    """The integer types of QuantizeLinear and DequantizeLinear around an operator."""

    activations: str
    weights: str
    per_channel: bool = False

    def __str__(self) -> str:
        return f"{self.activations} activations, {self.weights} weights{' per channel' if self.per_channel else ''}"


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


def case_json(case: Case) -> JsonObject:
    """Convert *case* to JSON; written canonically, one case always has the same text."""
    quantized = case.quantized
    return {
        "op": case.op_type,
        "domain": case.domain,
        "opset": case.opset,
        "inputs": [_operand_json(operand) for operand in case.inputs],
        "outputs": [_operand_json(operand) for operand in case.outputs],
        "attributes": {name: list(value) if isinstance(value, tuple) else value for name, value in case.attributes},
        "quantized": None if quantized is None else [quantized.activations, quantized.weights, quantized.per_channel],
    }


def case_of_json(value: JsonObject) -> Case:
    """Parse the JSON of ``case_json``.

    Raises:
        ValueError: it is malformed.
    """
    try:
        quantized = value["quantized"]
        attributes = value["attributes"]
        return Case(
            str(value["op"]),
            str(value["domain"]),
            int(value["opset"]),  # type: ignore[arg-type]
            tuple(_operand(each) for each in value["inputs"]),  # type: ignore[union-attr]
            tuple(_operand(each) for each in value["outputs"]),  # type: ignore[union-attr]
            tuple((name, _attribute(each)) for name, each in sorted(attributes.items())),  # type: ignore[union-attr]
            None if quantized is None else Quantized(str(quantized[0]), str(quantized[1]), bool(quantized[2])),  # type: ignore[index]
        )
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"This is no case: {error}.") from error


def _operand_json(operand: Operand | None) -> JsonValue:
    """Convert to a compact form: thousands of them are written."""
    if operand is None:
        return None
    dims = None if operand.dims is None else list(operand.dims)
    if not operand.constant:
        return [operand.dtype, dims]
    return [operand.dtype, dims, None if operand.values is None else list(operand.values)]


def _operand(value: JsonValue) -> Operand | None:
    if value is None:
        return None
    dtype, dims, *rest = value  # type: ignore[misc]
    values = rest[0] if rest else None
    return Operand(
        dtype,  # type: ignore[arg-type]
        None if dims is None else tuple(dims),  # type: ignore[arg-type]
        bool(rest),
        None if values is None else tuple(values),  # type: ignore[arg-type]
    )


def _attribute(value: JsonValue) -> AttributeValue:
    return tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else value  # type: ignore[return-value]


class Level(StrEnum):
    """``PARTIAL``: it runs, but not, or not correctly, on the target: on the CPU, or with other numbers."""

    SUPPORTED = "supported"
    PARTIAL = "partial"
    UNSUPPORTED = "unsupported"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one attempt.

    Attributes:
        compiled: whether the provider took the operator.
        ran: whether the model had a result, wherever it was computed.
        agrees: whether the result is correct.
        words: the provider's message about a failure; empty otherwise.
    """

    compiled: bool
    ran: bool
    agrees: bool = True
    words: str = ""

    @property
    def level(self) -> Level:
        if not self.ran:
            return Level.UNSUPPORTED
        return Level.SUPPORTED if self.compiled and self.agrees else Level.PARTIAL


@dataclass(frozen=True, slots=True)
class Verdict:
    """``reason``: one sentence on how it was determined.

    ``compiled`` and ``ran`` are None if nothing was measured; a level is also UNKNOWN if too little was.
    """

    level: Level
    reason: str
    compiled: bool | None = None
    ran: bool | None = None
