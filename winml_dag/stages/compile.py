"""compile: an execution provider turns the model into its own binary, wrapped in EPContext nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from winml_dag.engine.stage import InputSlot, Stage
from winml_dag.stages import kinds


@dataclass(frozen=True)
class CompileFields:
    """``execution_provider`` is the full name, ``provider_options`` are complete: the target's defaults are in them."""

    execution_provider: str
    device: str
    provider_options: Mapping[str, str] = field(default_factory=dict)
    embed_context: bool = False
    compiler: str = "ort"


@dataclass(frozen=True)
class CompileConfig:
    compile: CompileFields


COMPILE = Stage(
    name="compile",
    version=1,
    work="winml_dag.stages.compile:run",
    config="winml_dag.stages.compile:CompileConfig",
    inputs={
        "model": kinds.model_slot("compiled", kinds.FLOAT_MODEL, kinds.HALF_MODEL, kinds.QUANTIZED_MODEL),
        "option_files": InputSlot(frozenset({kinds.OPTION_FILES}), required=False),
    },
    outputs={"model": kinds.COMPILED_MODEL},
    packages=("onnxruntime",),
)
