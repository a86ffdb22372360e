"""Which capabilities of optimize would help on this target, and why.

Only improvements that a table confirms are proposed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from winml_dag.canonical import JsonObject
from winml_dag.ep.support.case import AttributeValue, Case, Level, Verdict
from winml_dag.ep.support.table import PATTERN
from winml_dag.onnxmodel.graph import Node, integers_of
from winml_dag.recipe.capabilities import CATALOG
from winml_dag.stages.analyze.fusions import FUSIONS, Fusion, Situation
from winml_dag.stages.analyze.judging import Judge, Judged, identifier, worst
from winml_dag.stages.analyze.lint import name_of
from winml_dag.stages.analyze.patterns import PATTERNS, Match
from winml_dag.stages.optimize import Discovered
from winml_dag.stages.probe.cases import turned_attributes
from winml_dag.store.quantities import counted

Attributes = tuple[tuple[str, AttributeValue], ...]


def _gelu_form(match: Match, _situation: Situation) -> Attributes | None:
    return (("form", "Erf" if any(node.op_type == "Erf" for node in match.nodes) else "Tanh"),)


def _turned_form(match: Match, situation: Situation) -> Attributes | None:
    turned = match.nodes[1]
    split, order = situation.operand(turned.inputs[0]).dims, integers_of(turned, "perm")
    if split is None or None in split or sorted(order) != [*range(len(split))]:
        return None
    return turned_attributes(tuple(size or 0 for size in split), order)


# Attributes that distinguish the forms of a pattern, for patterns measured as a whole
# (:mod:`winml_dag.stages.probe.wholes`). None if the model does not determine the form.
_MEASURED: Mapping[str, Callable[[Match, Situation], Attributes | None]] = {
    "GeluPattern": _gelu_form,
    "ReshapeTransposeReshapeOverlyHighDim": _turned_form,
}


def as_wholes(judge: Judge, judged: Sequence[Judged], matches: Sequence[Match], situation: Situation) -> list[Judged]:
    """Return *judged*, with nodes marked supported if the target supports their pattern as a whole."""
    taken: dict[int, str] = {}
    for match in matches:
        if (case := _case_of_whole(match, situation)) is not None:
            verdict = judge.verdict(judge.as_it_will_be(case, match.nodes[0].name))
            if verdict.level is Level.SUPPORTED:
                taken.update((id(node), f"in a whole that is taken: {verdict.reason}") for node in match.nodes)
    return [
        replace(each, verdict=Level.SUPPORTED, reason=taken[id(each.node)]) if id(each.node) in taken else each
        for each in judged
    ]


def _case_of_whole(match: Match, situation: Situation) -> Case | None:
    form = _MEASURED[match.pattern](match, situation) if match.pattern in _MEASURED else None
    if form is None:
        return None
    inputs = (situation.operand(match.values["x"]),)
    return Case(match.pattern, PATTERN, situation.opset, inputs, (situation.result(match),), tuple(sorted(form)))


_BETTER = {Level.UNSUPPORTED: 0, Level.PARTIAL: 1, Level.SUPPORTED: 2}
_MOST_REASONS = 5


@dataclass(frozen=True)
class Action:
    """A possible action on a pattern.

    Attributes:
        level: ``required`` if the pattern does not run as it is, ``optional`` if it does, ``warning`` if only the user
            can act.
        status: the target's verdict on the pattern after the action.
        enabled: whether the action is proposed.
        capability: the capability of optimize; empty if there is none.
    """

    pattern: str
    becomes: str
    level: str
    status: Level
    enabled: bool
    details: str
    capability: str = ""

    def json(self) -> JsonObject:
        item: JsonObject = {"type": "optimize", "optimization_options": {self.capability: True}}
        return {
            "action_id": identifier("action", self.pattern, self.becomes, self.capability, self.details),
            "pattern_from_id": self.pattern,
            "pattern_to_id": self.becomes,
            "level": self.level,
            "action_items": [item] if self.capability else [],
            "status": self.status.value,
            "enabled": self.enabled,
            "details": self.details,
        }


@dataclass(frozen=True)
class Information:
    """What is known about a pattern or an operator: its verdict, its occurrences, and possible actions."""

    about: str
    status: Level
    explanation: str
    places: tuple[tuple[str, ...], ...]
    actions: tuple[Action, ...] = ()

    def json(self) -> JsonObject:
        return {
            "Information_id": identifier("information", self.about, self.explanation),
            "actions": [action.json() for action in self.actions],
            "explanation": self.explanation,
            "pattern_id": self.about,
            "enabled": True,
            "status": self.status.value,
            "pattern_node_list": [list(place) for place in self.places],
        }


class Adviser:
    """Compares patterns with what they could become. ``open`` collects resulting cases that are not measured."""

    def __init__(self, judge: Judge, judged: Sequence[Judged], situation: Situation, before: Discovered) -> None:
        self._judge = judge
        self._by_node = {id(each.node): each for each in judged}
        self._judged = judged
        self._situation = situation
        self._before = before
        self.open: dict[Case, None] = {}

    def information(self, matches: Sequence[Match]) -> list[Information]:
        """Information on every pattern found, then on every operator that the target does not fully support."""
        by_pattern: dict[str, list[Match]] = {}
        for match in matches:
            by_pattern.setdefault(match.pattern, []).append(match)
        about_patterns = [self._about(name, found) for name, found in by_pattern.items()]
        return [*about_patterns, *self._about_operators()]

    def _about(self, name: str, matches: Sequence[Match]) -> Information:
        pattern = next(each for each in PATTERNS if each.name == name)
        status = worst(self._level(match.nodes) for match in matches)
        actions = tuple(
            action
            for fusion in FUSIONS
            if fusion.pattern == name
            for action in self._actions(pattern.id, fusion, matches)
        )
        count = "once" if len(matches) == 1 else f"{len(matches)} times"
        return Information(
            pattern.id,
            status,
            f"{pattern.title}, {count}: {self._why(status, matches)}",
            tuple(tuple(name_of(node) for node in match.nodes) for match in matches),
            actions,
        )

    def _why(self, status: Level, matches: Sequence[Match]) -> str:
        reasons = Counter(
            self._by_node[id(node)].reason
            for match in matches
            for node in match.nodes
            if self._by_node[id(node)].verdict is status
        )
        return f"{status}; {_few(reasons)}"

    def _actions(self, pattern: str, fusion: Fusion, matches: Sequence[Match]) -> Iterator[Action]:
        if fusion.capability not in CATALOG:
            return
        compared = [(self._level(match.nodes), self._fused(fusion, match, self._situation)) for match in matches]
        helped = [(now, then) for now, then in compared if then is not None and _is_better(then.level, now)]
        if helped:
            now, then = (
                worst(now for now, _ in helped),
                min((then for _, then in helped), key=lambda v: _BETTER[v.level]),
            )
            harmed = sum(then is not None and _is_better(now, then.level) for now, then in compared)
            yield self._action(pattern, fusion, now, then, harmed)
        elif fusion.since > self._situation.opset and (later := self._later(fusion, matches)) is not None:
            now = worst(now for now, _ in compared)
            if _is_better(later.level, now):
                advice = (
                    f"With export.opset_version {fusion.since} or later, {fusion.capability} makes one operator of it:"
                    f" {later.reason}."
                )
                yield Action(pattern, fusion.becomes, "warning", later.level, False, advice)

    def _action(self, pattern: str, fusion: Fusion, now: Level, then: Verdict, harmed: int) -> Action:
        """Build the action; *harmed* counts the matches that get worse, since a capability applies to all."""
        level = "required" if now is Level.UNSUPPORTED else "optional"
        said = self._judge.config.optim.get(fusion.capability)
        details = f"{now} becomes {then.level}: {then.reason}."
        if said is False:
            details += f" The recipe switches {fusion.capability} off."
        elif said or fusion.capability in self._before.capabilities:
            details += f" {fusion.capability} is on already and has left these places."
        elif harmed:
            details += f" It is not proposed: {counted(harmed, 'other place')} would be worse off with it."
        elif not self._judge.config.analyze.propose:
            details += f" Nothing is proposed here; optim.{fusion.capability} switches it on."
        proposed = said is None and not harmed and self._judge.config.analyze.propose
        enabled = proposed and fusion.capability not in self._before.capabilities
        return Action(pattern, fusion.becomes, level, then.level, enabled, details, fusion.capability)

    def _later(self, fusion: Fusion, matches: Sequence[Match]) -> Verdict | None:
        """The verdict on the pattern in the opset that introduces its operator."""
        return self._fused(fusion, matches[0], replace(self._situation, opset=fusion.since))

    def _level(self, nodes: Sequence[Node]) -> Level:
        return worst(self._by_node[id(node)].verdict for node in nodes)

    def _fused(self, fusion: Fusion, match: Match, situation: Situation) -> Verdict | None:
        """The target's verdict on what *match* would become; None if the fusion does not apply."""
        cases = fusion.cases(match, situation)
        verdicts = []
        for case in map(self._judge.as_it_will_be, cases):
            verdicts.append(self._judge.verdict(case))
            if verdicts[-1].level is Level.UNKNOWN:
                self.open[case] = None
        if not verdicts:
            return None
        level = worst(verdict.level for verdict in verdicts)
        return next(verdict for verdict in verdicts if verdict.level is level)

    def _about_operators(self) -> Iterator[Information]:
        by_operator: dict[str, list[Judged]] = {}
        for each in self._judged:
            if each.verdict is not Level.SUPPORTED:
                by_operator.setdefault(each.operator, []).append(each)
        for operator, nodes in by_operator.items():
            reasons = Counter(each.reason for each in nodes)
            yield Information(
                operator,
                worst(each.verdict for each in nodes),
                _few(reasons),
                tuple((name_of(each.node),) for each in nodes),
            )


def proposed(information: Sequence[Information]) -> Mapping[str, str]:
    """The proposed capabilities, each with its reason."""
    return {
        action.capability: action.details
        for each in information
        for action in each.actions
        if action.enabled and action.capability
    }


def _is_better(then: Level, now: Level) -> bool:
    """Whether both levels are known and *then* is better than *now*."""
    return then in _BETTER and now in _BETTER and _BETTER[then] > _BETTER[now]


def _few(reasons: Counter[str]) -> str:
    told = [f"{count} nodes: {text}" if count > 1 else text for text, count in reasons.most_common(_MOST_REASONS)]
    more = len(reasons) - _MOST_REASONS
    return "; ".join([*told, *([f"and {more} other reasons"] if more > 0 else [])])
