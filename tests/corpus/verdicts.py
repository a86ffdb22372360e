"""Verdicts on cells, the promises they are checked against, and changes since another run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from cells import Cell
from judge import wrong
from ours import Built, Subject

# Text that no message to a user may contain: names of Python's classes, onnxruntime's codes, files and signatures, and
# truncated text.
RAW = re.compile(
    r"\[ONNXRuntimeError\]|onnxruntime_src|onnxruntime::|\bstd::|Traceback|<class |\b0x[0-9a-f]{6,}"
    r"|\b[A-Z]\w*(?:Error|Exception|Warning)\b|\bNoneType\b|has no attribute|Unable to handle object|not subscriptable"
    r"|list index out of range|truth value of an array|\w::\w+\(|\.(?:cc|cpp|h):\d+|\.\.\.(?:\W*$|\s+[A-Z])|\.\.\."
)
# How far below plain onnxruntime's a result may be, in dB.
MAY_LOSE_DB = 1.0
# A hostile graph has a few dozen weights, and rounding may favour either result: single graphs are compared with a
# wider bound where it matters, and the families with the narrow one.
_MAY_LOSE_ONE_DB, _FINE_DB = 6.0, 40.0
# Values that a provider computes wrongly have less than this.
_POOR_DB = 12.0


@dataclass
class Judged:
    """One judged cell.

    Attributes:
        verdict: ``built``, ``refused`` (in a plain sentence) or ``failed``.
        told: the message to the user if it is not built.
        wrong: if built, why its values are wrong.
        changed: if built, which parts of interface and metadata changed.
        sqnr_db, granularity: of winml_dag's result.
        plain: by granularity (empty where there is none), the SQNR of plain onnxruntime's best correct result.
        plain_runs: whether any of plain onnxruntime's results loads and runs.
        reference: why the original itself does not run, if it does not.
        may_refuse: why a rejection is correct here, if it is.
    """

    model: str
    family: str
    ep: str
    precision: str
    verdict: str
    told: str = ""
    wrong: str = ""
    changed: list[str] = field(default_factory=list)
    sqnr_db: float | None = None
    granularity: str = ""
    plain: dict[str, float] = field(default_factory=dict)
    plain_runs: bool = False
    plain_wrong: str = ""
    reference: str = ""
    may_refuse: str = ""
    seconds: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.model} {self.ep}/{self.precision}"

    @property
    def beside(self) -> float | None:
        """Return the SQNR of plain onnxruntime's result of the same granularity, or of any without one."""
        if self.granularity in self.plain:
            return self.plain[self.granularity]
        return max(self.plain.values(), default=None)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def judged(
    subject: Subject,
    cell: Cell,
    ours: Built,
    figures: Mapping[str, Any],
    others: Mapping[str, Mapping[str, Any]],
    reference: str,
) -> Judged:
    found = Judged(subject.name, subject.family, cell.ep, cell.precision, "built", seconds=ours.seconds)
    found.reference = reference
    found.may_refuse = subject.may_refuse.get(cell.name) or subject.may_refuse.get(cell.ep, "")
    if ours.model is None:
        found.told = ours.told
        found.verdict = "failed" if RAW.search(ours.told) or not ours.told else "refused"
    elif "error" in figures:
        found.wrong = f"it was built and does not run: {figures['error']}"
    elif figures:
        found.wrong, found.changed = wrong(figures, cell.precision), figures["changed"]
        found.sqnr_db, found.granularity = figures["sqnr_db"], figures["granularity"] if cell.is_static else ""
    if any(other.get("error", "").startswith("LookupError") for other in others.values()):
        others = {}  # nothing in the model can be quantized this way
    for way, other in others.items():
        if "error" in other:
            continue
        found.plain_runs = True
        fault = wrong(other, cell.precision)
        found.plain_wrong = found.plain_wrong or fault
        # For some models plain onnxruntime leaves more in float than winml_dag: nodes in weight-only modes, in others
        # weights that are no initializers.
        counted = "stored" if cell.is_static else "integers"
        as_much = other[counted] >= (0.9 if cell.is_static else 1) * figures.get(counted, 0)
        if not fault and other["sqnr_db"] is not None and as_much:
            grain = way.split()[-1] if cell.is_static else ""
            found.plain[grain] = max(found.plain.get(grain, 0.0), other["sqnr_db"])
    if any("error" not in other and not wrong(other, cell.precision) for other in others.values()):
        found.plain_wrong = ""
    if found.told.startswith("The provider computes output") and max(found.plain.values(), default=0.0) < _POOR_DB:
        found.may_refuse = "the provider computes it wrongly, and plain onnxruntime's model as well"
    return found


def broken(found: Iterable[Judged], *, quality: bool = True) -> Iterator[str]:
    """Yield a line per broken promise; *quality*: include those on the distance to plain onnxruntime."""
    all_of_them = list(found)
    for one in all_of_them:
        if one.verdict == "failed":
            yield f"raw: {one.name}: {one.told[:600]}"
        if one.verdict == "refused" and one.plain_runs and not one.plain_wrong and not one.may_refuse:
            yield f"refused, plain onnxruntime runs: {one.name}: {one.told[:400]}"
        if one.wrong:
            yield f"wrong{' (plain too)' if one.plain_wrong else ''}: {one.name}: {one.wrong}"
        for change in one.changed:
            yield f"changed: {one.name}: {change}"
    if quality:
        yield from _below_plain(all_of_them)


def _below_plain(found: Sequence[Judged]) -> Iterator[str]:
    groups: dict[str, list[Judged]] = {}
    for one in found:
        if one.sqnr_db is None or one.beside is None or one.wrong:
            continue
        groups.setdefault(f"all {one.ep}/{one.precision}", []).append(one)
        if one.family.startswith("real"):
            groups[one.name] = [one]
            continue
        groups.setdefault(f"{one.family} {one.ep}/{one.precision}", []).append(one)
        if one.sqnr_db < min(_FINE_DB, one.beside - _MAY_LOSE_ONE_DB):
            groups[one.name] = [one]
    for name, those in groups.items():
        ours, plain = mean([one.sqnr_db for one in those]), mean([one.beside for one in those])
        if ours < plain - (0 if name.startswith("all ") else MAY_LOSE_DB):
            grain = f", {those[0].granularity}" if those[0].granularity and len(those) == 1 else ""
            yield f"worse: {name}: {ours:.2f} dB, plain onnxruntime {plain:.2f} dB{grain}"


def mean(values: Sequence[float | None]) -> float:
    """Return the mean of the available values; NaN without any."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else float("nan")


def differences(before: Sequence[Judged], after: Sequence[Judged]) -> Iterator[str]:
    """Yield a line for each improvement or deterioration since *before*."""
    old = {one.name: one for one in before}
    for one in after:
        then = old.get(one.name)
        if then is None:
            continue
        if (rank := _rank(one)) != (earlier := _rank(then)):
            yield f"{'better' if rank > earlier else 'worse'}: {one.name}: {_said(then)} -> {_said(one)}"
        elif one.sqnr_db is not None and then.sqnr_db is not None and abs(one.sqnr_db - then.sqnr_db) > MAY_LOSE_DB:
            word = "better" if one.sqnr_db > then.sqnr_db else "worse"
            yield f"{word}: {one.name}: {then.sqnr_db:.2f} dB -> {one.sqnr_db:.2f} dB"


def _rank(one: Judged) -> int:
    if one.verdict == "built":
        return 0 if one.wrong else 4 if not one.changed else 3
    return {"failed": 1, "refused": 2}[one.verdict]


def _said(one: Judged) -> str:
    words = one.wrong or "; ".join(one.changed) if one.verdict == "built" else one.told
    return f"{one.verdict} ({words[:160]})" if words else one.verdict
