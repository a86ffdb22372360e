"""What a build reports on a compilation: lines for people, and fields for programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tiny_builds import build_tiny, save_model

from winml_dag.canonical import JsonObject
from winml_dag.cli.buildreport import builds_json
from winml_dag.cli.stage_lines import compiled_lines
from winml_dag.ep.registry import QNN
from winml_dag.pipeline.buildresult import BuildResult
from winml_dag.pipeline.manifest import read_manifest
from winml_dag.pipeline.request import Overrides, Request

pytest.importorskip("onnxruntime_qnn", reason="a plan for QNN needs onnxruntime-qnn")

COMPILED: JsonObject = {
    "ep_context_partitions": 1,
    "nodes_on_cpu": {},
    "cpu_nodes": [],
    "edge_quantization_nodes": 2,
    "ep_sdk_version": "v2.51.0.260929181845",
    "ep_compatibility_info": "v2:6:2.51.0:5.51.0:73:60:0:0",
    "binary_size_bytes": 24_956_108,
    "compile_time_seconds": 1.07,
}
LEFT = [
    {"name": "q", "op_type": "QuantizeLinear"},
    {"name": "/a", "op_type": "Gather"},
    {"name": "/b", "op_type": "Cast"},
    {"name": "/c", "op_type": "Gather"},
]
PARTED: JsonObject = {
    **COMPILED,
    "ep_context_partitions": 3,
    "nodes_on_cpu": {"Cast": 1, "Gather": 2, "QuantizeLinear": 1},
    "cpu_nodes": LEFT,
}


def built(compiled: JsonObject) -> BuildResult:
    model = save_model(Path("tiny.onnx"))
    request = Request(None, Overrides(onnx=model, ep="qnn", precision="fp32"), Path("out"))
    return build_tiny(request, metrics={"compile": compiled})


def test_one_line_tells_of_a_model_that_was_compiled_whole() -> None:
    assert list(compiled_lines(built(COMPILED))) == [
        f"compiled for {QNN.name} npu: 1 partition, nothing on the CPU, 23.8 MiB binary, SDK 2.51.0, 1.1 s"
    ]


def test_what_stays_on_the_cpu_is_counted_and_named_what_computes_first() -> None:
    first, second = compiled_lines(built(PARTED))
    assert "3 partitions, 4 nodes on the CPU, " in first
    assert second == "on the CPU: 2 Gather, 1 Cast, 1 QuantizeLinear (/a, /b, /c, ...)"


def test_programs_get_all_of_it_from_json_and_from_the_manifest() -> None:
    result = built(PARTED)
    told: dict[str, Any] = json.loads(json.dumps(builds_json([result], 0.0)))["builds"][0]["compilation"]
    assert {name: told[name] for name in PARTED} == PARTED
    assert (told["execution_provider"], told["device"], told["cached"]) == (QNN.name, "npu", False)
    manifest = read_manifest(Path("out"))
    assert manifest is not None
    stage = next(stage for stage in manifest.value["stages"] if stage["name"] == "compile")
    assert {name: stage[name] for name in PARTED} == PARTED
