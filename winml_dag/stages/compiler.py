"""The compilers of onnxruntime, and what they need around them: the model in its place, option files, fixed shapes.

QNN's bytes depend on the path of the model as given and on what its process compiled before; so a model always has the
same path, relative to the current folder, and a process compiles once: the engine gives every stage a folder and a
process.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from winml_dag.engine.stage import Workspace
from winml_dag.ep.registry import ExecutionProvider, Target, resolve_target
from winml_dag.errors import StageError

if TYPE_CHECKING:
    import onnxruntime

    from winml_dag.onnxmodel.inspect import ModelSummary

MODEL_NAME = "model.onnx"

# onnxruntime's compile API, and its older way: a session that is told to keep what its provider compiled.
COMPILERS = ("ort", "ort_session")

_used = False


def use_process() -> None:
    """Raise RuntimeError when this process has compiled before."""
    global _used
    if _used:
        raise RuntimeError("This process has compiled before, and QNN's bytes would tell; use a fresh one.")
    _used = True


def target_of(execution_provider: str, device: str) -> Target:
    """The target to compile for. Raises StageError when it is none that models are compiled for."""
    target = resolve_target(execution_provider, device)
    if not target.ep.makes_ep_context:
        raise StageError(f"{target.ep.name} does not compile models ahead of time.", advice="Leave compile out.")
    return target


def place_model(source: Path, ep: ExecutionProvider, folder: Path = Path()) -> Path:
    """Put the model *source* and its external data into *folder*, the model under its one name.

    Raises:
        StageError: when *ep* cannot compile it, or one of its files has that name.
    """
    from winml_dag.onnxmodel.inspect import inspect_model

    summary = inspect_model(source)
    _require_fixed_shapes(summary, ep)
    for name in summary.files:
        target = folder / (MODEL_NAME if name == source.name else name)
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
    return folder / MODEL_NAME


def _require_fixed_shapes(summary: ModelSummary, ep: ExecutionProvider) -> None:
    """A compiler skips nearly all of a graph whose shapes it does not know, and calls that a success."""
    for spec in summary.inputs:
        if dynamic := [str(dim) for dim in spec.shape if not isinstance(dim, int)]:
            raise StageError(
                f"{ep.name} compiles fixed shapes only, but input {spec.name!r} has the dynamic dimension"
                f" {', '.join(dynamic)}.",
                advice="Export the model with fixed shapes (no dynamic_axes), or build for the CPU.",
            )


def option_files(workspace: Workspace) -> dict[str, str]:
    """Each option whose value is a file, with the path of our copy; the input has them as ``<option>/<file>``."""
    if not workspace.has("option_files"):
        return {}
    folder = workspace.inputs["option_files"]
    return {path.parent.name: path.as_posix() for path in sorted(folder.glob("*/*")) if path.is_file()}


def compile_with(
    compiler: str,
    settings: onnxruntime.SessionOptions,
    model: Path,
    output: Path,
    ep: ExecutionProvider,
    *,
    embed: bool,
) -> None:
    """Let *ep*, which is in *settings*, compile *model* to *output*, its binary inside (*embed*) or beside.

    Raises:
        StageError: with the provider's own sentence, when it cannot.
    """
    import onnxruntime

    from winml_dag.ep.session import SEE_LOG, reason

    try:
        if compiler == "ort":
            # By default the model compiler optimizes nothing, and a single shape computed from constants then splits
            # the graph: a BERT came out in 5 parts with 60 operators on the CPU, in 1 part with none at this level.
            # Higher levels make operators for the CPU that no other provider takes.
            onnxruntime.ModelCompiler(
                settings,
                model.as_posix(),
                embed_compiled_data_into_model=embed,
                flags=onnxruntime.OrtCompileApiFlags.ERROR_IF_NO_NODES_COMPILED,
                graph_optimization_level=onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
            ).compile_to_file(str(output))
        else:
            settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
            settings.add_session_config_entry("ep.context_enable", "1")
            settings.add_session_config_entry("ep.context_file_path", str(output))
            settings.add_session_config_entry("ep.context_embed_mode", str(int(embed)))
            onnxruntime.InferenceSession(model.as_posix(), settings, enable_fallback=0)
    except Exception as error:
        raise StageError(
            f"{ep.name} cannot compile this model: {reason(error)}",
            advice=f"{SEE_LOG} It may be able to take another precision, such as w8a16.",
        ) from error
