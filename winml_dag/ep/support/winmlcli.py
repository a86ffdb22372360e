"""Tables of an installed winml-cli, as a further source: parquet files, one for each operator, opset and form.

A row has conditions and the outcome of compiling and running. A condition unknown to this program is ignored: if the
rows that match all others agree, they count; otherwise the result is unknown.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from winml_dag.configuration import RULES_VARIABLE
from winml_dag.ep.support import AttributeValue, Case, Level, Operand, Outcome, Verdict
from winml_dag.errors import StageError

_STANDARD = "ai.onnx"
# A copy among the inputs of a stage has its index as a prefix.
_NAME = re.compile(r"(?:\d+_)?(\w+?)_\w+Provider_[A-Z]+_([\w.]*?)_opset(\d+)(_qdq)?")
# The columns that are not conditions.
_RESULT = "compile_run_success"
_NO_CONDITIONS = frozenset({_RESULT, "compile_reason", "run_reason", "rule_row_count", "case_indices", "case_index",
                            "rule_index", "has_not_run_placeholder_reason"})  # fmt: skip
# ONNX's names for types in these files.
_TYPES = {"float32": "FLOAT", "float64": "DOUBLE"}
_NOT_KNOWN = object()


class WinmlCliRules:
    """The rules in the files of one target. Those of an operator are read on request."""

    def __init__(self, files: Iterable[Path]) -> None:
        self._files: dict[tuple[str, str, bool], dict[int, Path]] = {}
        self._rows: dict[Path, tuple[Mapping[str, object], ...]] = {}
        for path in files:
            if (key := _key(path)) is not None:
                domain, op_type, is_quantized, opset = key
                self._files.setdefault((domain, op_type, is_quantized), {})[opset] = path

    def verdict(self, case: Case) -> Verdict:
        """Return their verdict on *case*. Raises StageError if pyarrow is not installed, or it cannot read a file."""
        found = self._files.get((case.domain or _STANDARD, case.op_type, case.quantized is not None), {})
        opsets = [opset for opset in found if opset <= (case.opset or opset)]
        if not opsets:
            return Verdict(Level.UNKNOWN, f"the tables of winml-cli have nothing on {case}")
        path, names = found[max(opsets)], _names(case)
        outcomes = {_outcome(row) for row in self._read(path) if _fits(row, case, names)}
        if len(outcomes) != 1:
            said = "different things" if outcomes else "nothing"
            return Verdict(Level.UNKNOWN, f"{path.name} says {said} of {case} as it is here")
        (outcome,) = outcomes
        return Verdict(outcome.level, f"by winml-cli's {path.name}")

    def _read(self, path: Path) -> tuple[Mapping[str, object], ...]:
        if path not in self._rows:
            self._rows[path] = tuple(_rows(path))
        return self._rows[path]


def _key(path: Path) -> tuple[str, str, bool, int] | None:
    """Parse domain, operator, whether quantized, and opset from ``<Op>_<EP>_<DEV>_<domain>_opset<N>[_qdq].parquet``."""
    found = _NAME.fullmatch(path.stem)
    return None if found is None else (found[2] or _STANDARD, found[1], bool(found[4]), int(found[3]))


def _rows(path: Path) -> Iterator[Mapping[str, object]]:
    try:
        from pyarrow import ArrowInvalid, parquet
    except ImportError:
        raise StageError(
            f"{RULES_VARIABLE} names tables of winml-cli, which take pyarrow to read.",
            advice="Install it with: pip install winml_dag[datasets], or unset the variable.",
        ) from None
    try:
        rows = parquet.read_table(path).to_pylist()
    except (OSError, ArrowInvalid) as error:
        raise StageError(f"{path.name} is not a table of winml-cli that can be read: {error}.") from error
    for row in rows:
        if row.get(_RESULT) is not None:
            yield {name: value if name in _NO_CONDITIONS else _decoded(value) for name, value in row.items()}


def _decoded(cell: object) -> object:
    """Decode a cell: JSON with the type of its value; ``_NOT_KNOWN`` if it has another form."""
    if cell is None or isinstance(cell, bool | int):
        return cell
    try:
        return _plain(json.loads(str(cell)))
    except (ValueError, KeyError, TypeError):
        return _NOT_KNOWN


def _plain(tagged: Mapping[str, Any]) -> object:
    kind, value = tagged["t"], tagged.get("v")
    if kind in ("tuple", "list"):
        return tuple(_plain(each) for each in value or ())
    if kind in ("bool", "int", "str"):
        return value
    # These tables omit floats: all have the same placeholder.
    return None if value is None and kind.lower().startswith("n") else _NOT_KNOWN


def _outcome(row: Mapping[str, object]) -> Outcome:
    result = row[_RESULT]
    pair = _decoded(result) if isinstance(result, str) else result
    if not isinstance(pair, Sequence) or len(pair) != 2:
        raise StageError(f"A table of winml-cli has {result!r} where it should say what came of a trial.")
    return Outcome(bool(pair[0]), bool(pair[1]))


def _names(case: Case) -> dict[str, str]:
    """Return ONNX's names of the inputs of an operator, each with the letter of its type."""
    import onnx

    try:
        schema = onnx.defs.get_schema(case.op_type, case.opset or onnx.defs.onnx_opset_version(), case.domain)
    except onnx.defs.SchemaError:
        return {}
    return {each.name: each.type_str for each in schema.inputs}


def _fits(row: Mapping[str, object], case: Case, names: Mapping[str, str]) -> bool:
    """Return whether nothing in *case* contradicts *row*."""
    conditions = {name: wanted for name, wanted in row.items() if name not in _NO_CONDITIONS}
    return all(
        wanted is _NOT_KNOWN or (has := _condition(column, case, names)) is _NOT_KNOWN or has == wanted
        for column, wanted in conditions.items()
    )


def _condition(column: str, case: Case, names: Mapping[str, str]) -> object:
    """Return the value of *case* for *column*."""
    if column.startswith("attr_"):
        return _attribute(column.removeprefix("attr_"), dict(case.attributes))
    operands = (*case.inputs, *[None] * len(names))
    for name, operand in zip(names, operands, strict=False):
        if column.startswith(f"{name}_"):
            return _of_input(column.removeprefix(f"{name}_"), operand)
    letter = column.removesuffix(f"_{case.op_type}")
    typed = next((operand for type_, operand in zip(names.values(), operands, strict=False) if type_ == letter), None)
    return _TYPES.get(typed.dtype, typed.dtype.upper()) if typed is not None and typed.dtype else _NOT_KNOWN


def _of_input(what: str, operand: Operand | None) -> object:
    if what == "is_none":
        return operand is None
    if operand is None:
        return {"is_constant": True, "is_fixed_shape": True, "dynamic_axes": (), "dim": None}.get(what, _NOT_KNOWN)
    if what == "is_constant":
        return operand.constant
    if operand.dims is None:
        return _NOT_KNOWN
    axes = tuple(axis for axis, size in enumerate(operand.dims) if size is None)
    return {"is_fixed_shape": not axes, "dynamic_axes": axes, "dim": len(operand.dims)}.get(what, _NOT_KNOWN)


def _attribute(name: str, attributes: Mapping[str, AttributeValue]) -> object:
    if name.endswith("_is_none"):
        return name.removesuffix("_is_none") not in attributes
    value: object = attributes.get(name)
    if isinstance(value, float) or (isinstance(value, Sequence) and any(isinstance(each, float) for each in value)):
        return _NOT_KNOWN
    return value
