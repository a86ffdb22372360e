"""validate: load the result as its user will, run it, and hold it against the float reference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from winml_dag.engine.stage import InputSlot, Stage
from winml_dag.stages import kinds


@dataclass(frozen=True)
class ValidateFields:
    """``min_cosine``: the bound below which every output's cosine to the reference fails."""

    min_cosine: float
    samples: int = 3
    seed: int = 0


@dataclass(frozen=True)
class ValidateTarget:
    execution_provider: str
    device: str
    provider_options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ValidateConfig:
    validate: ValidateFields
    target: ValidateTarget


VALIDATE = Stage(
    name="validate",
    version=1,
    work="winml_dag.stages.validate:run",
    config="winml_dag.stages.validate:ValidateConfig",
    inputs={"model": InputSlot(kinds.ANY_MODEL), "reference": InputSlot(kinds.ANY_MODEL - {kinds.COMPILED_MODEL})},
    outputs={"report": kinds.VALIDATION},
    packages=("onnxruntime", "onnx", "numpy"),
)
