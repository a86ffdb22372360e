"""The work of the analyze stage: read the graph, judge its nodes, and write the findings and proposals."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from winml_dag.canonical import JsonObject
from winml_dag.engine.stage import Workspace
from winml_dag.ep.support.case import Case, Level, Verdict, case_json
from winml_dag.ep.support.table import Support, read_support
from winml_dag.onnxmodel.dataflow import Dataflow
from winml_dag.onnxmodel.graph import Model
from winml_dag.onnxmodel.graphfile import read_model
from winml_dag.stages import optimize
from winml_dag.stages.analyze import RESULT_FILE, AnalyzeConfig, Learned
from winml_dag.stages.analyze.fusions import Situation
from winml_dag.stages.analyze.judging import (
    LEVELS,
    Judge,
    Judged,
    assumed,
    case_key,
    classification,
    inferred,
    metadata,
    target_result,
)
from winml_dag.stages.analyze.lint import findings, lint_counts, lint_json, name_of
from winml_dag.stages.analyze.patterns import PATTERNS, find_all
from winml_dag.stages.analyze.proposals import Adviser, as_wholes, proposed
from winml_dag.stages.optimize import Discovered

_MOST_NAMES = 5


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
    - ``cases``: only if ``lists_cases`` is set.
    """
    path = workspace.input_file("model", ".onnx")
    as_read = read_model(path, values=True)
    model = _with_values(path, as_read)
    flow = Dataflow(model)
    tables, support = read_support(workspace.inputs["support"]) if workspace.has("support") else ([], Support([]))
    judge = Judge(assumed(config, model), support, _learned(config.analyze.learned))
    matches = find_all(flow)
    situation = Situation.of(flow, standard_domain_only=config.target.standard_domain_only)
    judged = as_wholes(judge, judge.nodes(model), matches, situation)
    before = Discovered.read(workspace.input_file("flags", ".json")) if workspace.has("flags") else Discovered()
    adviser = Adviser(judge, judged, situation, before)
    information = adviser.information(matches)
    lint = findings(path, Dataflow(as_read), config)
    counts = Counter(match.pattern for match in matches)
    patterns = {pattern.id: counts[pattern.name] for pattern in PATTERNS if counts[pattern.name]}
    version = tables[0].about.ep_version if tables else None
    _write(
        workspace.outputs["result"] / RESULT_FILE,
        {
            "analysis_timestamp": None,
            "metadata": metadata(path.name, model, patterns),
            "results": [target_result(config.target, version, judged, [each.json() for each in information])],
            "lint": lint_json(lint),
        },
    )
    new = proposed(information)
    after = Discovered.of(
        {*before.capabilities, *new}, standard_domain_only=config.target.standard_domain_only
    ) if new else before  # fmt: skip
    after.write(workspace.outputs["flags"] / optimize.FILE)
    nodes = Counter(each.verdict for each in judged)
    classes = classification(judged)
    return {
        "nodes": {level.value: nodes[level] for level in LEVELS},
        "operators": {name: len(operators) for name, operators in classes.items()},
        **{level.value: _told(judged, level) for level in LEVELS[1:]},
        "patterns": patterns,
        "proposed": dict(new),
        "discovered": sorted(after.capabilities),
        "lint": lint_counts(lint),
        "table": str(tables[0].about) if tables else "",
        **({"cases": _cases(judged, adviser.open)} if config.analyze.lists_cases else {}),
    }


def _with_values(path: Path, model: Model) -> Model:
    """Return *model* with inferred types and shapes for the values that its file does not describe."""
    values = inferred(path, model)
    return replace(model, graph=replace(model.graph, values=values)) if values else model


def _learned(told: Sequence[Learned]) -> dict[str, Verdict]:
    return {each.key: Verdict(Level(each.verdict), each.reason) for each in told}


def _told(judged: Sequence[Judged], level: Level) -> list[JsonObject]:
    by_operator: dict[str, list[Judged]] = {}
    for each in judged:
        if each.verdict is level:
            by_operator.setdefault(each.operator, []).append(each)
    return [
        {
            "operator": operator,
            "count": len(nodes),
            "reason": Counter(each.reason for each in nodes).most_common(1)[0][0],
            "nodes": [name_of(each.node) for each in nodes[:_MOST_NAMES]],
        }
        for operator, nodes in by_operator.items()
    ]


def _cases(judged: Sequence[Judged], could_be: Iterable[Case]) -> list[JsonObject]:
    """Cases that the target does not fully support, each once with the nodes that have it.

    Adds, without nodes, the cases in *could_be*: what patterns could become, where support is unknown.
    """
    by_case: dict[Case, list[Judged]] = {}
    for each in judged:
        if each.case is not None and each.verdict is not Level.SUPPORTED:
            by_case.setdefault(each.case, []).append(each)
    for case in could_be:
        by_case.setdefault(case, [])
    return [
        {
            "key": case_key(case),
            "verdict": (nodes[0].verdict if nodes else Level.UNKNOWN).value,
            "nodes": [name_of(each.node) for each in nodes],
            "case": case_json(case),
        }
        for case, nodes in by_case.items()
    ]


def _write(path: Path, value: JsonObject) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8", newline="\n")
