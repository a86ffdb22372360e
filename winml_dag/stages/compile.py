"""compile: an execution provider turns the model into its own binary, wrapped in EPContext nodes.

QNN's bytes depend on the path of the model as given and on what its process compiled before; so the model is always
``model.onnx`` in the current folder, and a process compiles once: the engine gives every stage a folder and a process.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from winml_dag.canonical import JsonObject
from winml_dag.engine.stage import InputSlot, Stage, Workspace
from winml_dag.ep.registry import Target, resolve_target
from winml_dag.errors import StageError
from winml_dag.stages import kinds

if TYPE_CHECKING:
    from winml_dag.onnxmodel.inspect import ModelSummary

MODEL_NAME = "model.onnx"
COMPILED_NAME = "compiled.onnx"

# onnxruntime's compile API, and its older way: a session that is told to keep what its provider compiled.
COMPILERS = ("ort", "ort_session")

_used = False


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
        "model": kinds.model_slot(
            "compiled", kinds.FLOAT_MODEL, kinds.HALF_MODEL, kinds.QUANTIZED_MODEL, kinds.WEIGHT_ONLY_MODEL
        ),
        "option_files": InputSlot(frozenset({kinds.OPTION_FILES}), required=False),
    },
    outputs={"model": kinds.COMPILED_MODEL},
    packages=("onnxruntime",),
)


def run(config: CompileConfig, workspace: Workspace) -> JsonObject:
    """Compile ``model`` into ``compiled.onnx`` with its binary inside or in a file beside it.

    The metrics are those of :class:`~winml_dag.stages.compiled.CompiledModel`, and the time that compiling took.

    Raises:
        StageError: when the provider is not here, cannot compile the model, or left nothing that it would run.
    """
    from winml_dag.onnxmodel.inspect import inspect_model
    from winml_dag.stages.compiled import read_compiled

    global _used
    if _used:
        raise RuntimeError("This process has compiled before, and QNN's bytes would tell; use a fresh one.")
    _used = True
    fields = config.compile
    target = resolve_target(fields.execution_provider, fields.device)
    if fields.compiler not in COMPILERS:
        raise StageError(f"The compiler {fields.compiler!r} is not available.", advice=f"Use {' or '.join(COMPILERS)}.")
    if not target.ep.makes_ep_context:
        raise StageError(f"{target.ep.name} does not compile models ahead of time.", advice="Leave compile out.")
    source = workspace.input_file("model", ".onnx")
    summary = inspect_model(source)
    _require_fixed_shapes(summary, target)
    _place(source, summary.files)
    options = {**fields.provider_options, **_option_files(workspace)}
    output = workspace.outputs["model"] / COMPILED_NAME
    started = time.monotonic()
    _compile(fields.compiler, target, options, output, embed=fields.embed_context)
    seconds = round(time.monotonic() - started, 3)
    compiled = read_compiled(output, target.ep, embedded=fields.embed_context)
    return {**compiled.metrics(), "compile_time_seconds": seconds}


def _require_fixed_shapes(summary: ModelSummary, target: Target) -> None:
    """A compiler skips nearly all of a graph whose shapes it does not know, and calls that a success."""
    for spec in summary.inputs:
        if dynamic := [str(dim) for dim in spec.shape if not isinstance(dim, int)]:
            raise StageError(
                f"{target.ep.name} compiles fixed shapes only, but input {spec.name!r} has the dynamic dimension"
                f" {', '.join(dynamic)}.",
                advice="Export the model with fixed shapes (no dynamic_axes), or build for the CPU.",
            )


def _place(source: Path, files: tuple[str, ...]) -> None:
    """Put the model and its external data into the current folder, the model under its one name."""
    for name in files:
        target = Path(MODEL_NAME if name == source.name else name)
        if target.exists():
            raise StageError(
                f"The model's data file {name!r} has a name that is taken.", advice="Save the model with another one."
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            # A link, because weights may be gigabytes; nothing writes to them here.
            os.link(source.parent / name, target)
        except OSError:
            shutil.copyfile(source.parent / name, target)


def _option_files(workspace: Workspace) -> dict[str, str]:
    """Each option whose value is a file, with the path of our copy; the input has them as ``<option>/<file>``."""
    if not workspace.has("option_files"):
        return {}
    folder = workspace.inputs["option_files"]
    return {path.parent.name: path.as_posix() for path in sorted(folder.glob("*/*")) if path.is_file()}


def _compile(compiler: str, target: Target, options: Mapping[str, str], output: Path, *, embed: bool) -> None:
    import onnxruntime

    from winml_dag.ep.session import SEE_LOG, reason, session_options

    settings = session_options(target, options)
    try:
        if compiler == "ort":
            # By default the model compiler optimizes nothing, and a single shape computed from constants then splits
            # the graph: a BERT came out in 5 parts with 60 operators on the CPU, in 1 part with none at this level.
            # Higher levels make operators for the CPU that no other provider takes.
            onnxruntime.ModelCompiler(
                settings,
                MODEL_NAME,
                embed_compiled_data_into_model=embed,
                flags=onnxruntime.OrtCompileApiFlags.ERROR_IF_NO_NODES_COMPILED,
                graph_optimization_level=onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
            ).compile_to_file(str(output))
        else:
            settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
            settings.add_session_config_entry("ep.context_enable", "1")
            settings.add_session_config_entry("ep.context_file_path", str(output))
            settings.add_session_config_entry("ep.context_embed_mode", str(int(embed)))
            onnxruntime.InferenceSession(MODEL_NAME, settings, enable_fallback=0)
    except Exception as error:
        raise StageError(
            f"{target.ep.name} cannot compile this model: {reason(error)}",
            advice=f"{SEE_LOG} It may be able to take another precision, such as w8a16.",
        ) from error
