"""``build_manifest.json``: the provenance of one build, and the list of files in its folder that are ours.

The fields are those that winml-cli's Python API writes, plus, for every stage, its key, its inputs and outputs by
digest, and why it ran. A manifest is only written anew when something about the build or its files has changed: times
are no change.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from winml_dag.canonical import JsonObject, JsonValue
from winml_dag.engine.events import StageResult
from winml_dag.engine.keys import config_hash
from winml_dag.errors import StoreError
from winml_dag.pipeline.buildgraph import BuildGraph
from winml_dag.pipeline.layout import MANIFEST, MODEL, STAGE_FILE
from winml_dag.store.artifact import Artifact, FileEntry

SCHEMA_VERSION = 1

# What tells how a run went rather than what was built: two manifests that differ in these only say the same.
_OF_THE_RUN = frozenset({"timestamp", "elapsed_seconds"})
_OF_THE_STAGE_RUN = frozenset({"cached", "reason", "elapsed_seconds", "made_at", "made_by"})

# Metrics that winml-cli's manifests have beside a stage's name; all others are under ``metrics``.
_PROMOTED = (
    "nodes_quantized",
    "nodes_skipped",
    "calibration_time_seconds",
    "qdq_insertion_time_seconds",
)


@dataclass(frozen=True)
class Manifest:
    """A manifest as read from a folder: the files that it says are ours, and its whole text as JSON."""

    files: tuple[FileEntry, ...]
    value: JsonObject

    def says_the_same_as(self, other: JsonObject) -> bool:
        return _lasting(self.value) == _lasting(other)


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest in *folder*; None when there is none or it is not ours: then no file in the folder is ours."""
    try:
        value = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if not isinstance(value, dict) or value.get("schema_version") != SCHEMA_VERSION:
            return None
        return Manifest(Artifact.from_json(value["files"]).files, value)
    except (OSError, ValueError, KeyError, StoreError):
        return None


def make_manifest(
    planned: BuildGraph, results: Mapping[str, StageResult], files: Sequence[FileEntry], elapsed_seconds: float
) -> JsonObject:
    """The manifest of a finished build; *files* are what lies in its folder, itself left out."""
    build = planned.summary
    stages = list(_stages(planned, results))
    final = results[planned.final]
    return {
        "schema_version": SCHEMA_VERSION,
        "source": build.origin,
        "model_id": build.model_id,
        "task": build.task,
        "precision": build.precision,
        "execution_provider": build.execution_provider,
        "device": build.device,
        "cache_key": final.cache_key,
        "config_hash": config_hash(build.settings),
        "timestamp": datetime.datetime.now(datetime.UTC).isoformat(),
        "elapsed_seconds": round(elapsed_seconds, 3),
        "final_artifact": MODEL,
        "analyze_iterations": 0,
        "analyze_unsupported_node_count": 0,
        "analyze_details": {"lint": {}, "autoconf": {}},
        "notices": list(build.notices),
        "sources": {name: artifact.to_json() for name, artifact in sorted(planned.sources.items())},
        "stages": stages,
        "files": [entry.to_json() for entry in sorted(files)],
    }


def manifest_text(value: JsonObject) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _stages(planned: BuildGraph, results: Mapping[str, StageResult]) -> Iterator[JsonObject]:
    for step in planned.steps:
        if step.skipped is not None:
            yield {"name": step.stage, "status": "skipped", "reason": step.skipped, "elapsed_seconds": 0.0}
        else:
            yield _stage(planned, results[step.id], results)


def _stage(planned: BuildGraph, result: StageResult, results: Mapping[str, StageResult]) -> JsonObject:
    record = result.record
    assert record is not None
    node = result.node
    metrics = dict(record.metrics)
    promoted = {name: metrics.pop(name) for name in _PROMOTED if name in metrics}
    return {
        "name": node.stage.name,
        "id": node.id,
        "status": "completed",
        "filename": _filename(node.stage.name, record.outputs),
        # How long the work took when it was done; a reuse took nothing, and `cached` says that it was one.
        "elapsed_seconds": record.elapsed_seconds,
        **promoted,
        "cached": result.status != "ran",
        "reason": str(result.reason),
        "cache_key": record.cache_key,
        "config_hash": record.config_hash,
        "config": record.ingredients.config,
        "inputs": {slot: _input(planned, name, results) for slot, name in sorted(node.inputs.items())},
        "outputs": {
            slot: {"digest": artifact.digest, "size": artifact.size, "files": artifact.to_json()}
            for slot, artifact in sorted(record.outputs.items())
        },
        "toolchain": record.ingredients.toolchain,
        "metrics": metrics,
        "made_at": record.made_at,
        "made_by": record.made_by,
    }


def _filename(stage: str, outputs: Mapping[str, Artifact]) -> str | None:
    name = STAGE_FILE.get(stage)
    if name is not None:
        return name
    return next((file.name for artifact in outputs.values() for file in artifact.files), None)


def _input(planned: BuildGraph, name: str, results: Mapping[str, StageResult]) -> JsonObject:
    artifact = planned.sources.get(name)
    if artifact is not None:
        return {"from": "source", "name": name, "digest": artifact.digest, "size": artifact.size}
    maker = planned.graph.makers[name]
    record = results[maker.id].record
    assert record is not None
    slot = next(slot for slot in maker.stage.outputs if maker.output(slot) == name)
    made = record.outputs[slot]
    return {"from": maker.id, "name": slot, "digest": made.digest, "size": made.size}


def _lasting(value: JsonObject) -> JsonValue:
    stages = value.get("stages")
    if not isinstance(stages, list | tuple):
        return None
    return {
        **{name: inner for name, inner in value.items() if name not in _OF_THE_RUN},
        "stages": [
            {name: inner for name, inner in stage.items() if name not in _OF_THE_STAGE_RUN}
            for stage in stages
            if isinstance(stage, Mapping)
        ],
    }
