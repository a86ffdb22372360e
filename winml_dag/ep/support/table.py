"""A table of measured support on one execution provider and device, for machines that do not have that provider.

A row is a form of an operator: its types, and as many further properties as outcomes were found to differ by. A case
has the verdict of the most specific row that it fits. Reading a table needs neither onnx nor numpy.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from winml_dag.canonical import canonical_json
from winml_dag.ep.support import RULES_SUFFIX, SUFFIX, Case, Level, Operand, Outcome, Verdict
from winml_dag.ep.support.winmlcli import WinmlCliRules
from winml_dag.errors import InputError

FORMAT = 2
_MADE_AGAIN = "Measure it again with winml_dag.stages.opsupport, or remove it."
_NAMES = {"taken": Outcome(True, True), "taken, wrong": Outcome(True, True, agrees=False),
          "taken, does not run": Outcome(True, False), "left": Outcome(False, True),
          "fails": Outcome(False, False)}  # fmt: skip
_SAID = {
    "taken": "it runs",
    "taken, wrong": "it runs with other numbers than the operator is defined to give",
    "taken, does not run": "it is accepted and then fails to run",
    "left": "it is left to the CPU",
    "fails": "no session can be made with it",
}
# Properties of a form that every row has: outcomes of one type say nothing about another.
_TYPES = 4
# From this share on, the other outcomes of a row are noise of the measurement.
_AGREE = 0.98
# Below this share, a row that no further property divides has no verdict.
_ENOUGH = 0.7
# Measurements before a build is refused: of forms that failed once or twice, half ran after all.
_ENOUGH_TO_REFUSE = 3
# Other properties are divided only into forms that were measured more than once.
_LEAST = 2
_LAST_AXIS_FROM = 13  # the opset in which the default axis of a softmax became the last one

Form = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class About:
    """The setup of a table's measurements.

    ``options`` are those of the provider; ``opset`` is the newest of the standard that this onnxruntime loads;
    ``cases`` is how many were measured.
    """

    ep: str
    device: str
    ep_version: str
    sdk_version: str
    onnxruntime: str
    onnx: str
    options: Mapping[str, str]
    emulated: bool
    opset: int
    cases: int = 0

    def __str__(self) -> str:
        version = f" {self.ep_version}" if self.ep_version else ""
        sdk = f" (SDK {self.sdk_version})" if self.sdk_version else ""
        return (
            f"{self.ep.removesuffix('ExecutionProvider')} {self.device}{version}{sdk}, onnxruntime {self.onnxruntime}"
        )


def form_of(case: Case) -> Form:
    """Return operator, types and then further properties of *case*, the most decisive ones first."""
    quantized = case.quantized
    integers = "float" if quantized is None else f"{quantized.activations}/{quantized.weights}"
    if quantized is not None and quantized.per_channel:
        integers += "/channels"
    types = [_dtype(operand) for operand in case.inputs]
    first = types[0] if types else ""
    given = [operand for operand in case.inputs if operand is not None]
    is_open = any(operand.dims is not None and None in operand.dims for operand in given)
    attributes = dict(case.attributes)
    words = [f"{name}={value}" for name, value in case.attributes if isinstance(value, str) and name != "equation"]
    if case.op_type == "Cast":
        words.append(f"to={attributes.get('to')}")
    ranks = [None if operand is None or operand.dims is None else len(operand.dims) for operand in case.inputs]
    return (
        case.domain,
        case.op_type,
        integers,
        first,
        "open sizes" if is_open else "fixed sizes",
        " ".join("=" if dtype == first else dtype for dtype in types[1:4]),
        " ".join(words),
        f"rank {_rank(case, ranks)}",
        f"axis {_axis(case, ranks)}",
        f"other ranks {' '.join(map(str, ranks[1:3]))}",
        " ".join("" if operand is None else "constant" if operand.constant else "input" for operand in case.inputs[:5]),
    )


def _dtype(operand: Operand | None) -> str:
    return "none" if operand is None else operand.dtype


def _rank(case: Case, ranks: Sequence[int | None]) -> int | None:
    """Return the largest rank of the first input and the result, which providers limit."""
    if not ranks or ranks[0] is None:
        return None
    result = ranks[0]
    second = case.inputs[1] if len(case.inputs) > 1 else None
    length = second.dims[0] if second is not None and second.dims is not None and len(second.dims) == 1 else None
    if case.op_type in ("Reshape", "Expand"):
        result = length or 0
    elif case.op_type == "Unsqueeze":
        result += length or len(axes) if isinstance(axes := dict(case.attributes).get("axes", ()), tuple) else 0
    elif case.op_type == "Gather" and ranks[1] is not None:
        result += ranks[1] - 1
    return max(ranks[0], result)


def _axis(case: Case, ranks: Sequence[int | None]) -> int | None:
    """Return the axis, counted from the end."""
    axis, rank = dict(case.attributes).get("axis"), ranks[0] if ranks else None
    if axis is None and case.op_type in ("Softmax", "LogSoftmax", "Hardmax"):
        axis = 1 if case.opset < _LAST_AXIS_FROM else -1
    if not isinstance(axis, int):
        return None
    return axis - rank if axis >= 0 and rank is not None else axis


class SupportTable:
    """A table of measurements by form."""

    def __init__(self, about: About, rows: Mapping[Form, Counter[str]]) -> None:
        self.about = about
        self.rows = rows

    def verdict(self, case: Case) -> Verdict:
        """Return what was measured of the form of *case*."""
        if not case.domain and case.opset > self.about.opset:
            newest = f"onnxruntime {self.about.onnxruntime} loads models up to opset {self.about.opset}"
            return Verdict(Level.UNSUPPORTED, f"{newest}, not {case.opset}")
        form = form_of(case)
        length = _TYPES
        if form[:length] not in self.rows:
            return Verdict(Level.UNKNOWN, f"{case} was not measured with {_types(form)}")
        while form[: length + 1] in self.rows and length < len(form):
            length += 1
        counts = self.rows[form[:length]]
        ((name, count),) = counts.most_common(1)
        measured = f"measured {'once' if count == 1 else f'{count} times'} on {self.about}"
        level = _NAMES[name].level
        if count < _ENOUGH * counts.total():
            return Verdict(Level.UNKNOWN, f"measurements of {case} with {_types(form)} differ, by its sizes or values")
        if level is Level.UNSUPPORTED and count < _ENOUGH_TO_REFUSE:
            return Verdict(Level.UNKNOWN, f"{_SAID[name]}, {measured}, which is too few to decide")
        return Verdict(level, f"{_SAID[name]}, {measured}")


def _types(form: Form) -> str:
    integers, first = form[2], form[3]
    return f"inputs of type {first or 'unknown'}" if integers == "float" else f"the integer types {integers}"


def rows_of(measured: Iterable[tuple[Case, Outcome]]) -> dict[Form, Counter[str]]:
    """Return the rows for the measurements: each form is divided only while its outcomes differ."""
    names = {outcome: name for name, outcome in _NAMES.items()}
    counts: dict[Form, Counter[str]] = defaultdict(Counter)
    divided: dict[Form, set[Form]] = defaultdict(set)
    for case, outcome in measured:
        form = form_of(case)
        known = Outcome(outcome.compiled, outcome.ran, outcome.agrees or not (outcome.compiled and outcome.ran))
        for length in range(_TYPES, len(form) + 1):
            counts[form[:length]][names[known]] += 1
            divided[form[: length - 1]].add(form[:length])
    rows: dict[Form, Counter[str]] = {}
    waiting = [form for form in counts if len(form) == _TYPES]
    while waiting:
        form = waiting.pop()
        rows[form] = counts[form]
        if max(counts[form].values()) < _AGREE * counts[form].total():
            waiting += [inner for inner in divided[form] if counts[inner].total() >= _LEAST]
    return rows


def table_bytes(about: About, rows: Mapping[Form, Counter[str]]) -> bytes:
    """Return the file content of a table: the same bytes for the same rows."""
    lines = [canonical_json({"format": FORMAT, **asdict(about)})]
    lines += [canonical_json([list(form), dict(counts)]) for form, counts in sorted(rows.items())]
    return gzip.compress("".join(f"{line}\n" for line in lines).encode(), 9, mtime=0)


def read_table(path: Path) -> SupportTable:
    """Read the table in the file *path*. Raises InputError if it is missing, damaged, or of another format."""
    try:
        header, *lines = gzip.decompress(path.read_bytes()).decode().splitlines()
        about = json.loads(header)
        number = about.pop("format")
        if number != FORMAT:
            raise InputError(f"{path} has format {number}; this version reads {FORMAT}.", advice=_MADE_AGAIN)
        rows = {tuple(form): Counter(counts) for form, counts in map(json.loads, lines)}
        if not all(counts and counts.keys() <= _NAMES.keys() for counts in rows.values()):
            raise ValueError("a row has no known outcome")
        return SupportTable(About(**about), rows)
    except FileNotFoundError:
        raise InputError(f"The table of support {path} does not exist.", advice="Check the path.") from None
    except (OSError, EOFError, zlib.error, ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(f"{path} is not a table of support, or is damaged: {error}.", advice=_MADE_AGAIN) from error


class Rules(Protocol):
    """The interface of a source of verdicts."""

    def verdict(self, case: Case) -> Verdict: ...


class Support:
    """Several tables: the first with a verdict on a case counts."""

    def __init__(self, tables: Sequence[Rules]) -> None:
        self._tables = tables

    def verdict(self, case: Case) -> Verdict:
        """Return the verdict on *case*; if there is none, the reason of the first table."""
        first: Verdict | None = None
        for table in self._tables:
            found = table.verdict(case)
            if found.level is not Level.UNKNOWN:
                return found
            first = first or found
        return first or Verdict(Level.UNKNOWN, "the target is not installed here, and there is no table of it")


def read_support(folder: Path) -> tuple[list[SupportTable], Support]:
    """Return the tables in *folder*, sorted by name, and their combination with winml-cli's.

    Raises InputError if a table is damaged or of another format.
    """
    tables = [read_table(path) for path in sorted(folder.rglob(f"*{SUFFIX}"))]
    files = list(folder.rglob(f"*{RULES_SUFFIX}"))
    return tables, Support([*tables, *([WinmlCliRules(files)] if files else [])])
