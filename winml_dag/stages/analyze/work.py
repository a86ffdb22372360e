"""The work of the analyze stage: read the graph, judge its nodes, and write down what was found and what would help."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from winml_dag.canonical import JsonObject
from winml_dag.engine.stage import Workspace
from winml_dag.onnxmodel.graphfile import read_model
from winml_dag.stages.analyze import NOTHING_DISCOVERED, OPTIMIZATIONS_FILE, RESULT_FILE, AnalyzeConfig
from winml_dag.stages.analyze.result import VERDICTS, Judged, metadata, target_result


def run(config: AnalyzeConfig, workspace: Workspace) -> JsonObject:
    """Write the analysis and the optimizations discovered so far.

    The metrics are ``nodes`` and ``operators`` (their number by verdict), ``unsupported`` (operators that the target
    cannot run, with the number of their nodes), ``patterns``, ``proposed`` (capabilities that this round adds),
    ``discovered`` (all of them) and ``lint``.
    """
    path = workspace.input_file("model", ".onnx")
    model = read_model(path, values=True)
    judged = [Judged(node, "unknown", "no table was read") for node in model.graph.nodes]
    result = target_result(config.target, None, judged, [])
    _write(
        workspace.outputs["result"] / RESULT_FILE,
        {
            "analysis_timestamp": None,
            "metadata": metadata(path.name, model, {}, config.target.execution_provider),
            "results": [result],
        },
    )
    before = _read_discovered(workspace)
    (workspace.outputs["flags"] / OPTIMIZATIONS_FILE).write_text(before, encoding="utf-8", newline="\n")
    nodes = Counter(each.verdict for each in judged)
    classes = result["classification"]
    assert isinstance(classes, dict)
    return {
        "nodes": {verdict: nodes[verdict] for verdict in VERDICTS},
        "operators": {verdict: len(classes[verdict]) for verdict in VERDICTS},
        "unsupported": {},
        "patterns": {},
        "proposed": [],
        "discovered": json.loads(before),
        "lint": {},
    }


def _read_discovered(workspace: Workspace) -> str:
    if not workspace.has("flags"):
        return NOTHING_DISCOVERED
    return workspace.input_file("flags", ".json").read_text(encoding="utf-8")


def _write(path: Path, value: JsonObject) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8", newline="\n")
