"""Measured operator support, for execution providers that are not installed: cases, verdicts, and where tables are.

A case is one use of an operator. It has everything that a table distinguishes, but neither names nor weights nor the
surrounding graph.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from winml_dag.configuration import RULES_VARIABLE, SUPPORT_VARIABLE, config_file, expanded
from winml_dag.ep.registry import Target
from winml_dag.errors import UsageError

SUFFIX = ".support"
# The suffix of winml-cli's tables.
RULES_SUFFIX = ".parquet"
_FOLDER = "support"  # next to the user's configuration file
_SHIPPED = Path(__file__).parent / "shipped"

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


def table_name(target: Target) -> str:
    """Return the file name of the table of *target*, such as ``qnn_npu.support``."""
    return f"{target.ep.alias}_{target.device}{SUFFIX}"


def table_files(target: Target, *, asks: bool = False) -> tuple[Path, ...]:
    """Return the existing tables of *target*, the user's own first. Raises as :func:`table_paths` does."""
    return tuple(path for path in table_paths(target, asks=asks) if path.is_file())


def table_paths(target: Target, *, asks: bool = False) -> tuple[Path, ...]:
    """Return the possible paths of tables of *target*, the user's own first, those of winml-cli last.

    *asks*: whether the provider itself is asked. Then only the user's own table, which wins over its answer, counts.
    Raises UsageError if WINML_DAG_SUPPORT_DIR or WINMLCLI_RULES_DIR does not name a folder.
    """
    own = (_named_folder(SUPPORT_VARIABLE) or config_file().parent / _FOLDER) / table_name(target)
    if asks:
        return (own,)
    rules = rule_folder(target)
    files = () if rules is None else sorted(rules.glob(f"*{RULES_SUFFIX}"))
    return own, _SHIPPED / table_name(target), *files


def rule_folder(target: Target) -> Path | None:
    """Return the folder of the files for *target*, whether it exists or not, in the one of WINMLCLI_RULES_DIR.

    Raises UsageError if the variable does not name a folder.
    """
    folder = _named_folder(RULES_VARIABLE)
    return None if folder is None else folder / f"{target.ep.name}_{target.device.upper()}"


def _named_folder(variable: str) -> Path | None:
    named = os.environ.get(variable)
    if not named:
        return None
    folder = expanded(named)
    if not folder.is_dir():
        raise UsageError(f"{variable} names {folder}, which is not a folder.", advice="Correct the variable.")
    return folder
