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
from winml_dag.ep.availability import resolve_target
from winml_dag.ep.registry import QNN, ExecutionProvider, Target
from winml_dag.errors import StageError
from winml_dag.explanation import explanation
from winml_dag.onnxmodel.facts import QDQ

if TYPE_CHECKING:
    from collections.abc import Callable

    import onnxruntime
    from onnx import ModelProto

    from winml_dag.onnxmodel.inspect import ModelSummary

# Of the model that was given, plans have seen to it: this one comes from somewhere else.
GIVE_SIZES = (
    "Give its sizes with --batch-size, --shape-config or --input-specs. A model from a stage of your own goes through"
    " `normalize` for that: stages.normalize.inputs.model."
)

MODEL_NAME = "model.onnx"

# onnxruntime's compile API, and its older way: a session that is told to keep what its provider compiled.
COMPILERS = ("ort", "ort_session")
# How its sentence for a model begins of which the provider took no part.
_TOOK_NOTHING = "Unable to compile any nodes"

# And its sentence for one in which it replaced an operator that is defined by others, such as Softsign in opset 18.
_REPLACED = "Encountered an invalid node while compiling"


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
                advice=GIVE_SIZES,
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
    """Let *ep*, which is in *settings*, compile *model* to *output*, its binary inside (*embed*) or beside. What the
    model says of itself stays.

    Raises:
        StageError: with the provider's own sentence, when it cannot.
    """
    import onnxruntime

    from winml_dag.ep.session import ASK_ANALYZE, SEE_LOG
    from winml_dag.onnxmodel.epcontext import put_out_inner_weights
    from winml_dag.onnxmodel.graphfile import read_model
    from winml_dag.onnxmodel.metadata import restore_metadata
    from winml_dag.stages.averages import count_padding
    from winml_dag.stages.compiled import COMPATIBILITY

    graph = read_model(model).graph
    outputs = [value.name for value in graph.outputs]
    if ep == QNN and any(node.op_type == "AveragePool" for node in graph.nodes):
        _changed(model, count_padding)
    # QNN gives its part of a model an output for each time that one is listed, and all of them the same name.
    changed = len(set(outputs)) < len(outputs) and _changed(model, _list_outputs_once)
    try:
        try:
            _compile(compiler, settings, model, output, embed=embed)
        except Exception:
            # Not before: where the provider takes an If as a part of its own, weights that are outputs prevent that.
            if not _changed(model, put_out_inner_weights):
                raise
            changed = True
            _compile(compiler, settings, model, output, embed=embed)
    except Exception as error:
        said, advice = explanation(error), f"{ASK_ANALYZE} {SEE_LOG}"
        if said.startswith(_TOOK_NOTHING):
            said = f"it took none of its operators ({_operators(model)})"
        elif said.startswith(_REPLACED):
            said = (
                f"onnxruntime {onnxruntime.__version__} cannot write a compiled model in which an operator has to be"
                f" replaced by others, since neither {ep.name} nor the CPU has it for its types ({_operators(model)})"
            )
            advice = f"What is in float16 can stay in float32 (quant.fp16_op_block_list). {ASK_ANALYZE}"
        raise StageError(f"{ep.name} cannot compile this model: {said}.", advice=advice) from error
    if output.is_file():
        if changed:
            _list_outputs(output, outputs)
        restore_metadata(model, output, kept=COMPATIBILITY)


def _compile(compiler: str, settings: onnxruntime.SessionOptions, model: Path, output: Path, *, embed: bool) -> None:
    import onnxruntime

    if compiler == "ort":
        # By default the model compiler optimizes nothing, and a single shape computed from constants then splits the
        # graph: a BERT came out in 5 parts with 60 operators on the CPU, in 1 part with none at this level. Higher
        # levels make operators for the CPU that no other provider takes.
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


def _changed(path: Path, change: Callable[[ModelProto], bool]) -> bool:
    """Whether *change* had something to do in the model *path*, which then has it. External data stays as it is."""
    import onnx

    model = onnx.load(path, load_external_data=False)
    if not change(model):
        return False
    path.unlink(missing_ok=True)  # it may be a link to the model that was given
    path.write_bytes(model.SerializeToString(deterministic=True))
    return True


def _list_outputs_once(model: ModelProto) -> bool:
    return _set_outputs(model, list(dict.fromkeys(value.name for value in model.graph.output)))


def _list_outputs(path: Path, names: list[str]) -> None:
    _changed(path, lambda model: _set_outputs(model, names))


def _set_outputs(model: ModelProto, names: list[str]) -> bool:
    """Let *model* have the outputs *names*, which it has among others, in this order."""
    outputs = {value.name: value for value in model.graph.output}
    wanted = [outputs[name] for name in names]
    del model.graph.output[:]
    model.graph.output.extend(wanted)
    return True


def _operators(model: Path, most: int = 5) -> str:
    from winml_dag.onnxmodel.graphfile import read_model

    names = sorted({node.op_type for node in read_model(model).graph.nodes} - {*QDQ})
    return ", ".join([*names[:most], *([f"{len(names) - most} more"] if len(names) > most else [])])
