"""probe: whether an execution provider takes one use of an operator, found out by letting it try.

A stage like any other, so what was found out is a record: the same case on the same provider is not tried again. What
one case does to the process of its provider is no matter for others, since each is a node of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from winml_dag.canonical import JsonObject
from winml_dag.engine.stage import Memory, Stage, Workspace
from winml_dag.stages import kinds
from winml_dag.stages.target import RunTarget

RESULT_FILE = "probe.json"


@dataclass(frozen=True)
class ProbeFields:
    """``case``: the canonical JSON of a case, from which its one-node model is made."""

    case: str


@dataclass(frozen=True)
class ProbeConfig:
    probe: ProbeFields
    target: RunTarget


PROBE = Stage(
    name="probe",
    version=3,
    work="winml_dag.stages.probe:run",
    config="winml_dag.stages.probe:ProbeConfig",
    inputs={},
    outputs={"result": kinds.PROBE},
    packages=("onnx", "onnxruntime"),
    timeout_seconds=120.0,
    memory=Memory(200 << 20),
)


def run(config: ProbeConfig, workspace: Workspace) -> JsonObject:
    """Try the case. The metrics are the verdict, and are the file too.

    Raises:
        StageError: when no model can be made of the case, or its provider is not here.
    """
    from winml_dag.canonical import canonical_json
    from winml_dag.stages.probe.work import tried

    verdict = tried(config)
    (workspace.outputs["result"] / RESULT_FILE).write_text(canonical_json(verdict) + "\n", encoding="utf-8")
    return verdict
