"""finalize: the last model of the line becomes ``model.onnx``, once validation has passed it."""

from __future__ import annotations

from dataclasses import dataclass

from winml_dag.engine.stage import InputSlot, Stage
from winml_dag.stages import kinds


@dataclass(frozen=True)
class FinalizeConfig:
    """Nothing to set: the external-data rule is the same for every model."""


FINALIZE = Stage(
    name="finalize",
    version=1,
    work="winml_dag.stages.finalize:run",
    config="winml_dag.stages.finalize:FinalizeConfig",
    inputs={
        "model": InputSlot(kinds.ANY_MODEL),
        "validation": InputSlot(frozenset({kinds.VALIDATION}), required=False),
    },
    outputs={"model": kinds.FLOAT_MODEL},
    packages=("onnx",),
)
