"""A table of measured support on one execution provider and device, read without onnx and without numpy.

One line of JSON describes the measurement setup, and one line for each operator its outcomes; only the lines of
requested operators are parsed. A target may have several tables (shipped, the user's, winml-cli's), which are combined.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from winml_dag.canonical import JsonValue, canonical_json
from winml_dag.ep.support import RULES_SUFFIX, SUFFIX
from winml_dag.ep.support.case import AttributeValue, Case, Level, Outcome, Verdict
from winml_dag.ep.support.features import ABSENT, UNKNOWN, Feature, features, is_binding, of_types
from winml_dag.ep.support.questions import Leaf, Question, Tree, grow, walk
from winml_dag.ep.support.winmlcli import WinmlCliRules
from winml_dag.errors import InputError

FORMAT = 1
_MADE_AGAIN = "Make it again, or take the one that is part of this package."
# Outcomes in the file: whether the provider took it, whether it ran, whether the result was correct.
_NAMES = {(True, True, True): "taken", (True, True, False): "taken, wrong", (True, False, True): "taken, does not run",
          (False, True, True): "left", (False, True, False): "left, wrong", (False, False, True): "fails"}  # fmt: skip
_OUTCOMES = {name: Outcome(*key) for key, name in _NAMES.items()}
# Fraction of the measurements matching a case with unknown features that must agree.
_NEARLY_ALL = 0.95
_ENOUGH = 20  # measurements of other operators
# Minimum number of "unsupported" measurements before a build is refused. New cases of forms that QNN's table called
# unsupported ran after all in 7 of 14 with one such measurement, in 5 of 14 with two, in none of 14 with three, and in
# 4 of 40 with more.
_ENOUGH_TO_REFUSE = 3
# The measurements of all operators together, for types with which one of them was not measured.
ANY_OPERATOR = ("", "*")
_LONGEST_PATH = 5  # answers in a message


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


@dataclass(frozen=True, slots=True)
class OperatorEvidence:
    """The measurements of one operator.

    Attributes:
        defaults: of its attributes, so that explicit and omitted defaults are the same.
        measured: by feature, the texts that were measured; others are unknown.
        tree: the outcomes.
    """

    defaults: Mapping[str, AttributeValue]
    measured: Mapping[str, frozenset[str]]
    tree: Tree

    def verdict(self, case: Case) -> Verdict:
        """Return the verdict of the measurements on *case*."""
        seen = features(case, self.defaults)
        if (why := self._beyond(case, seen)) is not None:
            return Verdict(Level.UNKNOWN, why)
        leaves = list(walk(self.tree, seen))
        counts: Counter[str] = Counter()
        for leaf, _ in leaves:
            counts.update(dict(leaf.counts))
        name, count = max(counts.items(), key=lambda pair: (pair[1], pair[0]))
        if len(leaves) > 1 and count < _NEARLY_ALL * counts.total():
            asked = ", ".join(dict.fromkeys(_features_not_known(self.tree, seen)))
            return Verdict(Level.UNKNOWN, f"the model does not tell, and measured outcomes differ by it: {asked}")
        path = leaves[0][1] if len(leaves) == 1 else ()
        outcome = _OUTCOMES[name]
        if outcome.level is Level.UNSUPPORTED and _failed(counts) < _ENOUGH_TO_REFUSE:
            why = f"{_reason(case, name, counts, path)}, which is too few to tell"
            return Verdict(Level.UNKNOWN, why, outcome.compiled, outcome.ran)
        return Verdict(outcome.level, _reason(case, name, counts, path), outcome.compiled, outcome.ran)

    def _beyond(self, case: Case, seen: Mapping[str, Feature]) -> str | None:
        """Return why the measurements are no evidence for *case*; None if they are."""
        for name, value in seen.items():
            if value != UNKNOWN and is_binding(name):
                known = self.measured.get(name, frozenset({ABSENT}))
                if str(value) not in known:
                    return f"no {case} was measured whose {name} is {value or 'none'}"
        return None

    def verdict_by_types(self, case: Case) -> Verdict | None:
        """Return the verdict of all operators' measurements on the types of *case*; None unless nearly all agree."""
        leaves = [leaf for leaf, _ in walk(self.tree, of_types(features(case, self.defaults)))]
        counts: Counter[str] = Counter()
        for leaf in leaves:
            counts.update(dict(leaf.counts))
        levels: Counter[Level] = Counter()
        for name, count in counts.items():
            levels[_OUTCOMES[name].level] += count
        (level, count), *_ = levels.most_common(1)
        if counts.total() < _ENOUGH or count < _NEARLY_ALL * counts.total():
            return None
        name = max((name for name in counts if _OUTCOMES[name].level is level), key=lambda name: (counts[name], name))
        outcome = _OUTCOMES[name]
        reason = f"{case} was not measured with these types; of other operators, {count} of {counts.total()} measured"
        return Verdict(level, f"{reason} {_SAID[name]}", outcome.compiled, outcome.ran)


def evidence_of(rows: Iterable[tuple[Case, Outcome]], defaults: Mapping[str, AttributeValue]) -> OperatorEvidence:
    """Build the evidence from *rows*, all of one operator."""
    return _grown([(features(case, defaults), outcome_name(outcome)) for case, outcome in rows], defaults)


def evidence_by_types(rows: Iterable[tuple[Case, Outcome]]) -> OperatorEvidence:
    """Build the evidence from *rows*, of all operators, by types alone."""
    return _grown([(of_types(features(case, {})), outcome_name(outcome)) for case, outcome in rows], {})


def _grown(seen: list[tuple[dict[str, Feature], str]], defaults: Mapping[str, AttributeValue]) -> OperatorEvidence:
    texts = sorted({name for row, _ in seen for name in row if is_binding(name)})
    measured = {name: frozenset(str(row.get(name, ABSENT)) for row, _ in seen) for name in texts}
    return OperatorEvidence(defaults, measured, grow(seen))


def outcome_name(outcome: Outcome) -> str:
    """Return the name of *outcome* in tables. What did not run has no result that could be wrong."""
    return _NAMES[outcome.compiled, outcome.ran, outcome.agrees or not outcome.ran] if outcome.compiled or (
        outcome.ran
    ) else "fails"  # fmt: skip


class SupportTable:
    """A table that parses the evidence of an operator on request."""

    def __init__(self, about: About, lines: Mapping[tuple[str, str], str]) -> None:
        self.about = about
        self._lines = lines
        self._parsed: dict[tuple[str, str], OperatorEvidence] = {}

    @property
    def operators(self) -> tuple[tuple[str, str], ...]:
        """Domain and type of each measured operator, sorted."""
        return tuple(key for key in sorted(self._lines) if key != ANY_OPERATOR)

    def verdict(self, case: Case) -> Verdict:
        """Return what was measured of *case*, or what follows for it."""
        key = (case.domain, case.op_type)
        if not case.domain and case.opset > self.about.opset:
            why = f"onnxruntime {self.about.onnxruntime} loads no model of opset {case.opset}"
            return Verdict(Level.UNSUPPORTED, f"{why}: {self.about.opset} is the newest", False, False)
        if key not in self._lines:
            return Verdict(Level.UNKNOWN, f"{case} was not measured on {self.about}")
        found = self._of(key).verdict(case)
        if found.level is Level.UNKNOWN and ANY_OPERATOR in self._lines and not case.domain:
            others = self._of(ANY_OPERATOR).verdict_by_types(case)
            # Support of other operators is no evidence for one that failed itself.
            if others is not None and (found.ran is None or others.level is Level.UNSUPPORTED):
                found = others
        if found.level is Level.UNKNOWN:
            return found
        return Verdict(found.level, f"{found.reason} ({self.about})", found.compiled, found.ran)

    def _of(self, key: tuple[str, str]) -> OperatorEvidence:
        if key not in self._parsed:
            self._parsed[key] = _evidence(json.loads(self._lines[key]))
        return self._parsed[key]


def table_bytes(about: About, operators: Mapping[tuple[str, str], OperatorEvidence]) -> bytes:
    """Return the file content of a table: the same bytes for the same evidence."""
    lines = [canonical_json({"format": FORMAT, **asdict(about)})]
    for (domain, op_type), evidence in sorted(operators.items()):
        row: dict[str, JsonValue] = {
            "defaults": {name: list(value) if isinstance(value, tuple) else value
                         for name, value in evidence.defaults.items()},
            "measured": {name: sorted(values) for name, values in evidence.measured.items()},
            "tree": _written(evidence.tree),
        }  # fmt: skip
        lines.append(f"{domain}\t{op_type}\t{canonical_json(row)}")
    return gzip.compress("".join(f"{line}\n" for line in lines).encode(), 9, mtime=0)


def read_table(path: Path) -> SupportTable:
    """Read the table in the file *path*.

    Raises:
        InputError: it is missing, damaged, or of another format.
    """
    try:
        header, *lines = gzip.decompress(path.read_bytes()).decode().splitlines()
        about = json.loads(header)
        number = about.pop("format")
        if number != FORMAT:
            raise InputError(
                f"{path} is a table of support in format {number}, and this version reads {FORMAT}.", advice=_MADE_AGAIN
            )
        keyed = (line.split("\t", 2) for line in lines)
        return SupportTable(About(**about), {(domain, op_type): text for domain, op_type, text in keyed})
    except FileNotFoundError:
        raise InputError(f"The table of support {path} does not exist.", advice="Check the path.") from None
    except (OSError, EOFError, zlib.error, ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(f"{path} is no table of support, or is damaged: {error}.", advice=_MADE_AGAIN) from error


def _written(tree: Tree) -> list[Any]:
    if isinstance(tree, Leaf):
        return [part for pair in tree.counts for part in pair]
    return [tree.feature, tree.value, _written(tree.yes), _written(tree.no)]


def _tree(value: list[Any]) -> Tree:
    if len(value) == 4 and isinstance(value[2], list):
        return Question(value[0], value[1], _tree(value[2]), _tree(value[3]))
    return Leaf(tuple(zip(value[::2], value[1::2], strict=True)))


def _evidence(row: Any) -> OperatorEvidence:
    return OperatorEvidence(
        {name: tuple(value) if isinstance(value, list) else value for name, value in row["defaults"].items()},
        {name: frozenset(values) for name, values in row["measured"].items()},
        _tree(row["tree"]),
    )


def _features_not_known(tree: Tree, seen: Mapping[str, Feature]) -> list[str]:
    if isinstance(tree, Leaf):
        return []
    below = _features_not_known(tree.yes, seen) + _features_not_known(tree.no, seen)
    return [tree.feature, *below] if seen.get(tree.feature, ABSENT) == UNKNOWN else below


_SAID = {
    "taken": "taken and run",
    "taken, wrong": "taken, and gave other numbers than the operator is defined to give",
    "taken, does not run": "taken, and failed to run",
    "left": "left to the CPU",
    "left, wrong": "left to the CPU, with other numbers than the operator is defined to give",
    "fails": "refused: no session can be made",
}


def _failed(counts: Counter[str]) -> int:
    return sum(count for name, count in counts.items() if _OUTCOMES[name].level is Level.UNSUPPORTED)


def _reason(case: Case, name: str, counts: Counter[str], path: tuple[str, ...]) -> str:
    like = "with " + ", ".join(path[-_LONGEST_PATH:]) if path else "measured"
    share = f"all {counts[name]}" if counts[name] == counts.total() else f"{counts[name]} of {counts.total()}"
    return f"{case} {like}: {share} {_SAID[name]}" if path else f"{case}: {share} measured {_SAID[name]}"


# The domain of patterns of several operators.
PATTERN = "SUBGRAPH"


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
        return first or Verdict(Level.UNKNOWN, "there is no table of support for this execution provider and device")


def read_support(folder: Path) -> tuple[list[SupportTable], Support]:
    """Return the tables in *folder*, sorted by name, and their combination with winml-cli's.

    Raises:
        InputError: a table is damaged or of another format.
    """
    tables = [read_table(path) for path in sorted(folder.rglob(f"*{SUFFIX}"))]
    files = list(folder.rglob(f"*{RULES_SUFFIX}"))
    return tables, Support([*tables, *([WinmlCliRules(files)] if files else [])])
