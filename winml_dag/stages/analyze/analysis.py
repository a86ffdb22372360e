"""The work of the analyze stage: write what the target does with the nodes of a model, and what would help.

A capability of optimize that may turn a pattern into something better is tried: optimize applies it, and the result is
judged. It is proposed if that improves at least one occurrence of the pattern and harms none.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from winml_dag.canonical import JsonObject, json_hash
from winml_dag.engine.stage import Workspace
from winml_dag.ep.availability import package_of
from winml_dag.ep.registry import Target, find_ep
from winml_dag.ep.support import Case, Level
from winml_dag.ep.support.table import Rules, Support, SupportTable, read_support
from winml_dag.errors import StageError
from winml_dag.installed import installed_distributions, normalised
from winml_dag.onnxmodel.dataflow import Dataflow
from winml_dag.onnxmodel.graph import Model, Node
from winml_dag.onnxmodel.graphfile import read_model
from winml_dag.stages import optimize
from winml_dag.stages.analyze import RESULT_FILE, AnalyzeConfig, AnalyzeTarget
from winml_dag.stages.analyze.judging import Judged, by_operator, judge, with_inferred, worst
from winml_dag.stages.analyze.lint import findings, lint_counts, lint_json, name_of, opset
from winml_dag.stages.analyze.patterns import PATTERNS, Match, find_all
from winml_dag.stages.optimize import Discovered, OptimizeConfig, OptimizeTarget
from winml_dag.store.quantities import counted

# The order in which results list them.
LEVELS = (Level.SUPPORTED, Level.PARTIAL, Level.UNSUPPORTED, Level.UNKNOWN)
_MOST_NAMES = 5
_MOST_REASONS = 5
_BETTER = {Level.UNSUPPORTED: 0, Level.PARTIAL: 1, Level.SUPPORTED: 2}


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


def run(config: AnalyzeConfig, workspace: Workspace) -> JsonObject:
    """Write the analysis and the optimizations discovered so far.

    Returns the metrics:

    - ``nodes`` and ``operators``: counts by verdict.
    - ``partial``, ``unsupported`` and ``unknown``: operators, each with the number of its nodes, the reason, and its
      first nodes.
    - ``patterns``: how often each pattern occurs.
    - ``proposed``: the capabilities that this round adds, each with its reason.
    - ``discovered``: all capabilities discovered so far.
    - ``lint``: counts and names of findings.
    - ``table``: what the first table was measured with; empty without a table.
    - ``cases``: uses of operators that the target does not fully support; only if ``lists_cases`` is set.
    """
    path = workspace.input_file("model", ".onnx")
    as_read = read_model(path, values=True)
    model = with_inferred(path, as_read)
    tables, support = read_support(workspace.inputs["support"]) if workspace.has("support") else ([], Support([]))
    judged = judge(path, model, config, support)
    matches = find_all(Dataflow(model))
    before = Discovered.read(workspace.input_file("flags", ".json")) if workspace.has("flags") else Discovered()
    information, new = _information(_Situation(path, model, config, judged, before, support), matches)
    lint = findings(path, Dataflow(as_read), config)
    counts = Counter(match.pattern for match in matches)
    patterns = {pattern.id: counts[pattern.name] for pattern in PATTERNS if counts[pattern.name]}
    result = _target_result(config.target, _version(config.target, tables), judged)
    written: JsonObject = {
        "analysis_timestamp": None,
        "metadata": _metadata(path.name, model, patterns),
        "results": [{**result, "information": information}],
        "lint": lint_json(lint),
    }
    text = json.dumps(written, indent=2, ensure_ascii=False) + "\n"
    (workspace.outputs["result"] / RESULT_FILE).write_text(text, encoding="utf-8", newline="\n")
    after = Discovered.of(
        {*before.capabilities, *new}, standard_domain_only=config.target.standard_domain_only
    ) if new else before  # fmt: skip
    after.write(workspace.outputs["flags"] / optimize.FILE)
    nodes = Counter(each.verdict for each in judged)
    classes = _classification(judged)
    return {
        "nodes": {level.value: nodes[level] for level in LEVELS},
        "operators": {name: len(operators) for name, operators in classes.items()},
        **{level.value: _operators(judged, level) for level in LEVELS[1:]},
        "patterns": patterns,
        "proposed": new,
        "discovered": sorted(after.capabilities),
        "lint": lint_counts(lint),
        "table": str(tables[0].about) if tables else "",
        **({"cases": _cases(judged)} if config.analyze.lists_cases else {}),
    }


@dataclass(frozen=True)
class _Situation:
    """What proposals are made from: the model in the file *path*, how it was judged, and earlier discoveries."""

    path: Path
    model: Model
    config: AnalyzeConfig
    judged: Sequence[Judged]
    before: Discovered
    support: Rules


def _identifier(*content: str) -> str:
    """An identifier in the form of a UUID, derived from *content*: the same for the same model and target."""
    text = json_hash(list(content))[:32]
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def _action_json(
    pattern: str, becomes: str, level: str, status: Level, enabled: bool, details: str, capability: str = ""
) -> JsonObject:
    """Return a possible action on a pattern; *enabled* if it is proposed.

    *level*: ``required`` if the pattern does not run as it is, ``optional`` if it does, ``warning`` if only the user
    can act. *status*: the target's verdict on the pattern after the action. *capability*: of optimize, if there is one.
    """
    item: JsonObject = {"type": "optimize", "optimization_options": {capability: True}}
    return {
        "action_id": _identifier("action", pattern, becomes, capability, details),
        "pattern_from_id": pattern,
        "pattern_to_id": becomes,
        "level": level,
        "action_items": [item] if capability else [],
        "status": status.value,
        "enabled": enabled,
        "details": details,
    }


def _information(situation: _Situation, matches: Sequence[Match]) -> tuple[list[JsonObject], dict[str, str]]:
    """Return what is known about every pattern found and every operator that the target does not fully support, and
    the proposed capabilities, each with its reason.
    """
    by_node = {id(each.node): each for each in situation.judged}
    fusions = {each.pattern: each for each in FUSIONS}
    found: list[JsonObject] = []
    new: dict[str, str] = {}
    for pattern in PATTERNS:
        occurrences = [match for match in matches if match.pattern == pattern.name]
        if not occurrences:
            continue
        levels = [worst(by_node[id(node)].verdict for node in match.nodes) for match in occurrences]
        action = None
        if (fusion := fusions.get(pattern.name)) is not None:
            action = _action(situation, pattern.id, fusion, occurrences, levels)
            if action is not None and action["enabled"]:
                new[fusion.capability] = str(action["details"])
        status = worst(levels)
        nodes = [by_node[id(node)] for match in occurrences for node in match.nodes]
        times = "once" if len(occurrences) == 1 else f"{len(occurrences)} times"
        summary = _summary([each for each in nodes if each.verdict is status])
        names = [[name_of(node) for node in match.nodes] for match in occurrences]
        found.append(_about(pattern.id, status, f"{pattern.title}, {times}: {status}; {summary}", names, action))
    partial = [each for each in situation.judged if each.verdict is not Level.SUPPORTED]
    for operator, judged in by_operator(partial).items():
        status = worst(each.verdict for each in judged)
        found.append(_about(operator, status, _summary(judged), [[name_of(each.node)] for each in judged]))
    return found, new


def _about(
    about: str, status: Level, explanation: str, nodes: list[list[str]], action: JsonObject | None = None
) -> JsonObject:
    return {
        "Information_id": _identifier("information", about, explanation),
        "actions": [] if action is None else [action],
        "explanation": explanation,
        "pattern_id": about,
        "enabled": True,
        "status": status.value,
        "pattern_node_list": list(nodes),
    }


def _summary(judged: Sequence[Judged]) -> str:
    reasons = Counter(each.reason for each in judged)
    found = [f"{count} nodes: {text}" if count > 1 else text for text, count in reasons.most_common(_MOST_REASONS)]
    more = len(reasons) - _MOST_REASONS
    return "; ".join([*found, *([f"and {more} other reasons"] if more > 0 else [])])


def _action(
    situation: _Situation, pattern: str, fusion: Fusion, matches: Sequence[Match], levels: Sequence[Level]
) -> JsonObject | None:
    """Return what could be done about *matches*, which have these *levels*; None if they cannot get better."""
    now = worst(level for level in levels if level in _BETTER) if _BETTER.keys() & {*levels} else Level.UNKNOWN
    name = fusion.capability
    is_set = situation.config.optim.get(name)
    is_on = is_set or name in situation.before.capabilities
    if now not in (Level.PARTIAL, Level.UNSUPPORTED) or is_on or not situation.config.analyze.propose:
        return None
    if is_set is False:
        off = f"{name} makes one operator of it; the recipe switches it off."
        return _action_json(pattern, fusion.becomes, "optional", Level.UNKNOWN, False, off, name)
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
        return _action_json(pattern, fusion.becomes, level, then, not harmed, details, name)
    if not has_form:
        advice = f"With export.opset_version {fusion.since} or later, {name} makes one operator of it."
        return _action_json(pattern, fusion.becomes, "warning", Level.UNKNOWN, False, advice)
    return None


def _is_better(then: Level, now: Level) -> bool:
    """Whether both levels are known and *then* is better than *now*."""
    return then in _BETTER and now in _BETTER and _BETTER[then] > _BETTER[now]


def _tried(situation: _Situation, fusion: Fusion, matches: Sequence[Match]) -> list[Level | None]:
    """Return the verdict on each of *matches* after optimize with the capability; None where it changed nothing."""
    # Imported here: it takes longer to import than an analysis without anything to improve.
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


def _metadata(name: str, model: Model, patterns: Mapping[str, int]) -> JsonObject:
    """Metadata of the model. *name* is its file name; *patterns* has the number of occurrences of each pattern."""
    counts = Counter(node.op_type for node in model.graph.nodes)
    return {
        "model_path": name,
        "opset_version": opset(model),
        "producer_name": model.producer_name,
        "producer_version": model.producer_version,
        "total_operators": len(model.graph.nodes),
        "operator_counts": dict(counts),
        "unique_operator_types": len(counts),
        "detected_pattern_count": dict(patterns),
    }


def _version(target: AnalyzeTarget, tables: Sequence[SupportTable]) -> str | None:
    """The version of the execution provider that a table was measured with, or that was asked; None if unknown."""
    if tables or not target.asks:
        return tables[0].about.ep_version if tables else None
    return provider_version(target.resolve())


def provider_version(target: Target) -> str:
    """Return the version of the package that provides *target*, which is onnxruntime for its own providers."""
    package = package_of(target.ep, None)
    name = "onnxruntime" if package is None else package.distribution
    return installed_distributions(None).get(normalised(name), "")


def _target_result(target: AnalyzeTarget, version: str | None, judged: Sequence[Judged]) -> JsonObject:
    classes = _classification(judged)
    return {
        "ihv_type": find_ep(target.execution_provider).ihv_type,
        "ep_type": target.execution_provider,
        "device_type": target.device,
        "ep_version": version,
        "driver_version": None,
        "runtime_support": not any(classes[level] for level in LEVELS[1:]),
        "has_errors": bool(classes["unsupported"]),
        "has_warnings": bool(classes["partial"]),
        "classification": classes,
    }


def _classification(judged: Sequence[Judged]) -> dict[str, list[str]]:
    """The operators by verdict, each list in order of first use in the model."""
    levels = {name: worst(each.verdict for each in nodes) for name, nodes in by_operator(judged).items()}
    return {level.value: [name for name, found in levels.items() if found is level] for level in LEVELS}


def _operators(judged: Sequence[Judged], level: Level) -> list[JsonObject]:
    return [
        {
            "operator": operator,
            "count": len(nodes),
            "reason": Counter(each.reason for each in nodes).most_common(1)[0][0],
            "nodes": [name_of(each.node) for each in nodes[:_MOST_NAMES]],
        }
        for operator, nodes in by_operator(each for each in judged if each.verdict is level).items()
    ]


def _cases(judged: Sequence[Judged]) -> list[JsonObject]:
    """Uses of operators that the target does not fully support, each once with the nodes that have it."""
    by_case: dict[tuple[Case, Level], list[Judged]] = {}
    for each in judged:
        if each.verdict is not Level.SUPPORTED:
            by_case.setdefault((each.case, each.verdict), []).append(each)
    return [
        {"operator": case.op_type, "verdict": verdict.value, "nodes": [name_of(each.node) for each in nodes]}
        for (case, verdict), nodes in by_case.items()
    ]
