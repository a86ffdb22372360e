"""Which capabilities of optimize would help on this target, and why.

A capability that may turn a pattern into something better is tried: optimize applies it, and the result is judged. It
is proposed if that improves at least one occurrence of the pattern and harms none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from winml_dag.canonical import JsonObject, json_hash
from winml_dag.engine.stage import Workspace
from winml_dag.ep.support import Level
from winml_dag.ep.support.table import Rules
from winml_dag.errors import StageError
from winml_dag.onnxmodel.dataflow import Dataflow
from winml_dag.onnxmodel.graph import Model, Node
from winml_dag.onnxmodel.graphfile import read_model
from winml_dag.stages.analyze import AnalyzeConfig, Judged, by_operator, worst
from winml_dag.stages.analyze.lint import name_of, opset
from winml_dag.stages.analyze.patterns import PATTERNS, Match
from winml_dag.stages.optimize import Discovered, OptimizeConfig, OptimizeTarget
from winml_dag.store.quantities import counted


@dataclass(frozen=True)
class Fusion:
    """``capability`` turns ``pattern`` into ``becomes``, which the ONNX standard has from opset ``since`` on."""

    pattern: str
    capability: str
    becomes: str
    since: int = 0


FUSIONS = (
    Fusion("GeluPattern", "gelu_fusion", "OP/ai.onnx/Gelu", since=20),
    Fusion("LayerNormPattern", "layer_norm_fusion", "OP/ai.onnx/LayerNormalization", since=17),
    Fusion("MatMulAddPattern", "matmul_add_fusion", "OP/ai.onnx/Gemm"),
    Fusion("ReshapeTransposeReshapeOverlyHighDim", "highdimRTR_lowdimRTR", "SUBGRAPH/ReshapeTransposeReshapeLowDim"),
    Fusion("ReshapeChainPattern", "reshape_mergedreshape", "OP/ai.onnx/Reshape"),
)
_BETTER = {Level.UNSUPPORTED: 0, Level.PARTIAL: 1, Level.SUPPORTED: 2}
_MOST_REASONS = 5


@dataclass(frozen=True)
class Situation:
    """What proposals are made from: the model in the file *path*, how it was judged, and earlier discoveries."""

    path: Path
    model: Model
    config: AnalyzeConfig
    judged: Sequence[Judged]
    before: Discovered
    support: Rules


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
            "action_id": _identifier("action", self.pattern, self.becomes, self.capability, self.details),
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
    nodes: tuple[tuple[str, ...], ...]
    actions: tuple[Action, ...] = ()

    def json(self) -> JsonObject:
        return {
            "Information_id": _identifier("information", self.about, self.explanation),
            "actions": [action.json() for action in self.actions],
            "explanation": self.explanation,
            "pattern_id": self.about,
            "enabled": True,
            "status": self.status.value,
            "pattern_node_list": [list(names) for names in self.nodes],
        }


def _identifier(*content: str) -> str:
    """An identifier in the form of a UUID, derived from *content*: the same for the same model and target."""
    text = json_hash(list(content))[:32]
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def information(situation: Situation, matches: Sequence[Match]) -> list[Information]:
    """Information on every pattern found, then on every operator that the target does not fully support."""
    by_node = {id(each.node): each for each in situation.judged}
    by_pattern: dict[str, list[Match]] = {}
    for match in matches:
        by_pattern.setdefault(match.pattern, []).append(match)
    about = [_about_pattern(situation, by_node, found) for found in by_pattern.values()]
    return [*about, *_about_operators(situation.judged)]


def proposed(found: Sequence[Information]) -> Mapping[str, str]:
    """The proposed capabilities, each with its reason."""
    return {
        action.capability: action.details
        for each in found
        for action in each.actions
        if action.enabled and action.capability
    }


def _about_pattern(situation: Situation, by_node: Mapping[int, Judged], matches: Sequence[Match]) -> Information:
    pattern = next(each for each in PATTERNS if each.name == matches[0].pattern)
    levels = [worst(by_node[id(node)].verdict for node in match.nodes) for match in matches]
    status = worst(levels)
    fusion = next((each for each in FUSIONS if each.pattern == pattern.name), None)
    reasons = Counter(
        by_node[id(node)].reason for match in matches for node in match.nodes if by_node[id(node)].verdict is status
    )
    return Information(
        pattern.id,
        status,
        f"{pattern.title}, {'once' if len(matches) == 1 else f'{len(matches)} times'}: {status}; {_summary(reasons)}",
        tuple(tuple(name_of(node) for node in match.nodes) for match in matches),
        () if fusion is None else tuple(_actions(situation, pattern.id, fusion, matches, levels)),
    )


def _actions(
    situation: Situation, pattern: str, fusion: Fusion, matches: Sequence[Match], levels: Sequence[Level]
) -> Iterator[Action]:
    """Yield what could be done about *matches*, which have these *levels*; nothing if they cannot get better."""
    now = worst(level for level in levels if level in _BETTER) if _BETTER.keys() & {*levels} else Level.UNKNOWN
    name = fusion.capability
    is_set = situation.config.optim.get(name)
    is_on = is_set or name in situation.before.capabilities
    if now not in (Level.PARTIAL, Level.UNSUPPORTED) or is_on or not situation.config.analyze.propose:
        return
    if is_set is False:
        off = f"{name} makes one operator of it; the recipe switches it off."
        yield Action(pattern, fusion.becomes, "optional", Level.UNKNOWN, False, off, name)
        return
    has_form = opset(situation.model) >= fusion.since or not situation.config.target.standard_domain_only
    tried = _tried(situation, fusion, matches) if has_form else [None] * len(matches)
    pairs = [(before, after) for before, after in zip(levels, tried, strict=True) if after is not None]
    helped = [(before, after) for before, after in pairs if _is_better(after, before)]
    if helped:
        now, then = worst(before for before, _ in helped), worst(after for _, after in helped)
        harmed = sum(_is_better(before, after) for before, after in pairs)
        details = f"With {name}, {now} becomes {then}."
        if harmed:
            details += f" It is not proposed: {counted(harmed, 'other place')} would be worse off with it."
        level = "required" if now is Level.UNSUPPORTED else "optional"
        yield Action(pattern, fusion.becomes, level, then, not harmed, details, name)
    elif not has_form:
        advice = f"With export.opset_version {fusion.since} or later, {name} makes one operator of it."
        yield Action(pattern, fusion.becomes, "warning", Level.UNKNOWN, False, advice)


def _is_better(then: Level, now: Level) -> bool:
    """Whether both levels are known and *then* is better than *now*."""
    return then in _BETTER and now in _BETTER and _BETTER[then] > _BETTER[now]


def _tried(situation: Situation, fusion: Fusion, matches: Sequence[Match]) -> list[Level | None]:
    """Return the verdict on each of *matches* after optimize with the capability; None where it changed nothing."""
    # Imported here: it takes longer to import than an analysis without anything to improve.
    from winml_dag.stages.analyze.analysis import judge, with_inferred
    from winml_dag.stages.optimize.apply import OPTIMIZED_FILE, run

    folder = Path(f"tried_{fusion.capability}")
    folder.mkdir()
    wanted = OptimizeConfig({fusion.capability: True}, OptimizeTarget(situation.config.target.standard_domain_only))
    try:
        run(wanted, Workspace({"model": situation.path.parent}, {"model": folder}))
    except (StageError, ImportError):
        # optimize does not take this model, which may be quantized, or runs in another environment than this provider.
        return [None] * len(matches)
    path = folder / OPTIMIZED_FILE
    model = with_inferred(path, read_model(path, values=True))
    levels = {id(each.node): each.verdict for each in judge(path, model, situation.config, situation.support)}
    flow = Dataflow(model)
    known = {(node.op_type, node.outputs) for node in situation.model.graph.nodes}
    tried: list[Level | None] = []
    for match in matches:
        fused = _new_nodes(match.nodes[-1].outputs[0], flow, known)
        tried.append(worst(levels[id(node)] for node in fused) if fused else None)
    return tried


def _new_nodes(output: str, flow: Dataflow, known: set[tuple[str, tuple[str, ...]]]) -> list[Node]:
    """Return the nodes that compute *output*, up to those that were there before."""
    found: list[Node] = []
    waiting = [output]
    while waiting:
        node = flow.makers.get(waiting.pop())
        is_new = node is not None and (node.op_type, node.outputs) not in known
        if node is not None and is_new and not any(node is each for each in found):
            found.append(node)
            waiting += node.inputs
    return found


def _about_operators(judged: Sequence[Judged]) -> Iterator[Information]:
    for operator, nodes in by_operator(each for each in judged if each.verdict is not Level.SUPPORTED).items():
        yield Information(
            operator,
            worst(each.verdict for each in nodes),
            _summary(Counter(each.reason for each in nodes)),
            tuple((name_of(each.node),) for each in nodes),
        )


def _summary(reasons: Counter[str]) -> str:
    found = [f"{count} nodes: {text}" if count > 1 else text for text, count in reasons.most_common(_MOST_REASONS)]
    more = len(reasons) - _MOST_REASONS
    return "; ".join([*found, *([f"and {more} other reasons"] if more > 0 else [])])
