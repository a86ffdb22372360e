"""compile and finalize for several models that share weights in one binary, such as one model in two lengths.

A provider shares weights only if one process compiles the models one after the other, so they are one stage.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from winml_dag.canonical import JsonObject
from winml_dag.engine.stage import InputSlot, Stage, Workspace
from winml_dag.errors import StageError, stage_errors_of
from winml_dag.onnxmodel.sidecar import SHARED
from winml_dag.stages import artifact_types
from winml_dag.stages.compile import COMPILE, OPTION_FILES, SINGLE_MODEL, CompileConfig
from winml_dag.stages.finalize import FINALIZE, OffloadFields, final_names, require_full_offload, write_final

MOST_MODELS = 16


def shared_compile_stage(count: int) -> Stage:
    """Return a compile stage for *count* models: slots ``model_0``, ``model_1``, ..., and output files named so."""
    return Stage(
        name="compile",
        version=2,
        work="winml_dag.stages.shared:run",
        config="winml_dag.stages.compile:CompileConfig",
        inputs={**{f"model_{number}": SINGLE_MODEL for number in range(count)}, "option_files": OPTION_FILES},
        outputs={"model": artifact_types.COMPILED_MODELS},
        published=COMPILE.published,
        packages=("onnxruntime", "onnx"),
        memory=COMPILE.memory,
    )


def run(config: CompileConfig, workspace: Workspace) -> JsonObject:
    """Compile all models to files with one binary next to them.

    The metrics are those of compile, over all models; ``models`` has them for each.

    Raises:
        StageError: as for one model, and if the provider wrote the weights to more than one binary.
    """
    from winml_dag.ep.session import session_options
    from winml_dag.onnxmodel.inspect import inspect_model
    from winml_dag.stages.compiled import read_compiled
    from winml_dag.stages.compiler import compile_with, option_files, place_model, target_of, use_process

    use_process()
    fields = config.compile
    target = target_of(fields.execution_provider, fields.device)
    names = sorted((name for name in workspace.inputs if name.startswith("model_")), key=lambda name: int(name[6:]))
    # Their names are not known here.
    places = {name: f"Model {number} of {len(names)}" for number, name in enumerate(names, start=1)}
    # Each in its own folder, because names of data files may be the same.
    models = []
    for name in names:
        with stage_errors_of(places[name]):
            models.append(place_model(workspace.input_file(name, ".onnx"), target.ep, Path(name)))
    outputs = [workspace.outputs["model"] / f"{name}.onnx" for name in names]
    # One object for all: with one object each, every model got its own binary.
    settings = session_options(target, {**fields.provider_options, **option_files(workspace)})
    settings.add_session_config_entry("ep.share_ep_contexts", "1")
    started = time.monotonic()
    for name, model, output in zip(names, models, outputs, strict=True):
        if output is outputs[-1]:
            # Only now is the binary written, which the previous models already refer to.
            settings.add_session_config_entry("ep.stop_share_ep_contexts", "1")
        with stage_errors_of(places[name]):
            compile_with(fields.compiler, settings, model, output, target.ep, embed=False)
    seconds = round(time.monotonic() - started, 3)
    binaries = {context.sidecar for output in outputs for context in inspect_model(output).ep_context}
    if len(binaries) != 1:
        raise StageError(
            f"{target.ep.name} shared nothing: the models refer to {len(binaries)} binaries.",
            advice="Compile each model by itself.",
        )
    compiled: list[dict[str, Any]] = [{**read_compiled(output, target.ep, embedded=False)} for output in outputs]
    left = [node for model in compiled for node in model["cpu_nodes"]]
    return {
        **compiled[0],
        "ep_context_partitions": sum(model["ep_context_partitions"] for model in compiled),
        "nodes_on_cpu": dict(sorted(Counter(node["op_type"] for node in left).items())),
        "cpu_nodes": left,
        "edge_quantization_nodes": sum(model["edge_quantization_nodes"] for model in compiled),
        "models": compiled,
        "compile_time_seconds": seconds,
    }


@dataclass(frozen=True)
class FinalizeSharedConfig:
    """``files``: the names of the models, in the order of compile; their binary starts with the first one's name."""

    files: tuple[str, ...]
    compile: OffloadFields = field(default_factory=OffloadFields)


FINALIZE_SHARED = Stage(
    name="finalize",
    version=1,
    work="winml_dag.stages.shared:finalize",
    config="winml_dag.stages.shared:FinalizeSharedConfig",
    inputs={"model": InputSlot(frozenset({artifact_types.COMPILED_MODELS}))},
    outputs={"model": artifact_types.COMPILED_MODELS},
    published=FINALIZE.published,
)


def finalize(config: FinalizeSharedConfig, workspace: Workspace) -> JsonObject:
    """Give the models their final names, and their shared binary ``<first>_shared<rest of its name>``.

    Raises:
        StageError: as finalize of one model.
    """
    from winml_dag.onnxmodel.inspect import inspect_model

    folder, output = workspace.inputs["model"], workspace.outputs["model"]
    sources = [folder / f"model_{number}.onnx" for number in range(len(config.files))]
    summaries = [inspect_model(source) for source in sources]
    if config.compile.require_full_offload:
        require_full_offload(sources)
    beside = dict.fromkeys(name for summary in summaries for name in summary.files[1:])
    names = final_names(beside, sources[0], config.files, f"{Path(config.files[0]).stem}{SHARED}")
    expected = [
        write_final(source, summary, output / file, names)
        for source, summary, file in zip(sources, summaries, config.files, strict=True)
    ]
    for name, final in names.items():
        (folder / name).replace(output / final)
    for source, summary, file in zip(sources, expected, config.files, strict=True):
        if inspect_model(output / file) != summary:
            raise StageError(f"The final model is not the one it was made from, {source.name}.")
    return {"size_bytes": sum(path.stat().st_size for path in output.iterdir()), "external_data": False}
