"""probe: whether an execution provider takes one use of an operator, found out by letting it try.

A stage like any other, so what was found out is a record: the same case on the same provider is not tried again. A case
that ends the process of its provider does not affect others, since each is a node of its own.

This is the declaration; the work is in :mod:`winml_dag.stages.probe.attempt`. Tables are made with
:mod:`~winml_dag.stages.probe.generate`, out of what :mod:`~winml_dag.stages.probe.measure` measures.
"""

from __future__ import annotations

from dataclasses import dataclass

from winml_dag.engine.stage import Memory, Stage
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
    work="winml_dag.stages.probe.attempt:run",
    config="winml_dag.stages.probe:ProbeConfig",
    inputs={},
    outputs={"result": kinds.PROBE},
    packages=("onnx", "onnxruntime"),
    timeout_seconds=120.0,
    memory=Memory(200 << 20),
)
