"""probe: whether an execution provider supports one use of an operator, determined by a trial.

It is an ordinary stage, so its result is cached: the same case on the same provider is not tried again. A case that
crashes its provider's process does not affect others, since each case is a separate node.

This is the declaration; the work is in :mod:`winml_dag.stages.probe.attempt`. :mod:`~winml_dag.stages.probe.generate`
makes tables from the measurements of :mod:`~winml_dag.stages.probe.measure`.
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
