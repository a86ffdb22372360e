"""compile: an execution provider turns the model into its own binary, wrapped in EPContext nodes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from winml_dag.canonical import JsonObject
from winml_dag.engine.stage import InputSlot, Memory, Stage, Workspace
from winml_dag.errors import StageError
from winml_dag.stages import artifact_types

COMPILED_NAME = "compiled.onnx"


@dataclass(frozen=True)
class CompileFields:
    """``execution_provider`` is the full name; ``provider_options`` include the target's defaults."""

    execution_provider: str
    device: str
    provider_options: Mapping[str, str] = field(default_factory=dict)
    embed_context: bool = False
    compiler: str = "ort"


@dataclass(frozen=True)
class CompileConfig:
    compile: CompileFields


SINGLE_MODEL = artifact_types.model_slot(
    "compiled",
    artifact_types.FLOAT_MODEL,
    artifact_types.HALF_MODEL,
    artifact_types.QUANTIZED_MODEL,
    artifact_types.WEIGHT_ONLY_MODEL,
)
OPTION_FILES = InputSlot(frozenset({artifact_types.OPTION_FILES}), required=False)

COMPILE = Stage(
    name="compile",
    version=3,
    work="winml_dag.stages.compile:run",
    config="winml_dag.stages.compile:CompileConfig",
    inputs={"model": SINGLE_MODEL, "option_files": OPTION_FILES},
    outputs={"model": artifact_types.COMPILED_MODEL},
    published={"model": COMPILED_NAME},
    packages=("onnxruntime", "onnx"),
    memory=Memory(150 << 20, 7.0),
)


def run(config: CompileConfig, workspace: Workspace) -> JsonObject:
    """Compile ``model`` to ``compiled.onnx`` with its binary embedded or in a file next to it.

    The metrics are those of :func:`~winml_dag.stages.compiled.read_compiled` and the compile time. Raises StageError if
    the provider is not available, cannot compile the model, or compiled no part of it.
    """
    from winml_dag.ep.session import session_options
    from winml_dag.stages.compiled import read_compiled
    from winml_dag.stages.compiler import COMPILERS, compile_with, option_files, place_model, target_of, use_process

    use_process()
    fields = config.compile
    target = target_of(fields.execution_provider, fields.device)
    if fields.compiler not in COMPILERS:
        raise StageError(f"The compiler {fields.compiler!r} is not available.", advice=f"Use {' or '.join(COMPILERS)}.")
    model = place_model(workspace.input_file("model", ".onnx"), target.ep)
    settings = session_options(target, {**fields.provider_options, **option_files(workspace)})
    output = workspace.outputs["model"] / COMPILED_NAME
    started = time.monotonic()
    compile_with(fields.compiler, settings, model, output, target.ep, embed=fields.embed_context)
    seconds = round(time.monotonic() - started, 3)
    compiled = read_compiled(output, target.ep, embedded=fields.embed_context)
    return {**compiled, "compile_time_seconds": seconds}
