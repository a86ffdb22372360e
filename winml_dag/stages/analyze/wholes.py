"""Patterns that a target takes as a whole, although not each of their operators by itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from winml_dag.ep.support.case import AttributeValue, Case, Level
from winml_dag.ep.support.table import PATTERN
from winml_dag.onnxmodel.graph import integers_of
from winml_dag.stages.analyze.fusions import Situation
from winml_dag.stages.analyze.judging import Judge
from winml_dag.stages.analyze.patterns import Match
from winml_dag.stages.analyze.result import Judged
from winml_dag.stages.probe.cases import turned_attributes

Attributes = tuple[tuple[str, AttributeValue], ...]


def _gelu(match: Match, _situation: Situation) -> Attributes | None:
    return (("form", "Erf" if any(node.op_type == "Erf" for node in match.nodes) else "Tanh"),)


def _turned(match: Match, situation: Situation) -> Attributes | None:
    turned = match.nodes[1]
    split, order = situation.operand(turned.inputs[0]).dims, integers_of(turned, "perm")
    if split is None or None in split or sorted(order) != [*range(len(split))]:
        return None
    return turned_attributes(tuple(size or 0 for size in split), order)


# What tells forms of a pattern apart, for those that are measured as wholes (:mod:`winml_dag.stages.probe.patterns`).
# None where the model leaves it open.
_MEASURED: Mapping[str, Callable[[Match, Situation], Attributes | None]] = {
    "GeluPattern": _gelu,
    "ReshapeTransposeReshapeOverlyHighDim": _turned,
}


def as_wholes(judge: Judge, judged: Sequence[Judged], matches: Sequence[Match], situation: Situation) -> list[Judged]:
    """*judged*, where nodes of a pattern that the target takes as a whole are supported with it."""
    taken: dict[int, str] = {}
    for match in matches:
        if (case := _case(match, situation)) is not None:
            verdict = judge.verdict(judge.as_it_will_be(case, match.nodes[0].name))
            if verdict.level is Level.SUPPORTED:
                taken.update((id(node), f"in a whole that is taken: {verdict.reason}") for node in match.nodes)
    return [
        replace(each, verdict=Level.SUPPORTED, reason=taken[id(each.node)]) if id(each.node) in taken else each
        for each in judged
    ]


def _case(match: Match, situation: Situation) -> Case | None:
    form = _MEASURED[match.pattern](match, situation) if match.pattern in _MEASURED else None
    if form is None:
        return None
    inputs = (situation.operand(match.values["x"]),)
    return Case(match.pattern, PATTERN, situation.opset, inputs, (situation.result(match),), tuple(sorted(form)))
