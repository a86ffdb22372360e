"""finalize: the last model of the line gets its final name, ``model.onnx``, once validation has passed it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from winml_dag.canonical import JsonObject
from winml_dag.engine.stage import InputSlot, Memory, Stage, Workspace
from winml_dag.errors import StageError
from winml_dag.onnxmodel.inspect import EXTERNAL_DATA_THRESHOLD, ModelSummary, inspect_model
from winml_dag.stages import artifact_types

MODEL_FILE = "model.onnx"


@dataclass(frozen=True)
class OffloadFields:
    """``require_full_offload``: no operator of a compiled model may be left to the CPU."""

    require_full_offload: bool = False


@dataclass(frozen=True)
class FinalizeConfig:
    """``file``: the file name of the model. The rule for external data is the same for every model."""

    file: str = MODEL_FILE
    compile: OffloadFields = OffloadFields()


FINALIZE = Stage(
    name="finalize",
    version=2,
    work="winml_dag.stages.finalize:run",
    config="winml_dag.stages.finalize:FinalizeConfig",
    inputs={
        "model": InputSlot(artifact_types.ANY_MODEL),
        "validation": InputSlot(frozenset({artifact_types.VALIDATION}), required=False),
    },
    outputs={"model": artifact_types.FLOAT_MODEL},
    published={"model": MODEL_FILE},
    packages=("onnx",),
    memory=Memory(60 << 20),
)


def run(config: FinalizeConfig, workspace: Workspace) -> JsonObject:
    """Give the model its final name, and its other files names that start with it.

    Large weights become ``<name>.data``, binaries of a compiled model ``<stem>_<rest of their name>``.

    Raises:
        StageError: the result differs from the source model, or *config* requires full offload and an operator is left
            to the CPU.
    """
    source = workspace.input_file("model", ".onnx")
    destination = workspace.outputs["model"] / config.file
    before = inspect_model(source)
    expected = None
    if before.is_compiled:
        if config.compile.require_full_offload:
            require_full_offload([source])
        names = final_names(before.files[1:], source, [config.file], destination.stem)
        expected = write_final(source, before, destination, names)
        for name, final in names.items():
            (source.parent / name).replace(destination.parent / final)
    elif not before.external_data and before.weight_size < EXTERNAL_DATA_THRESHOLD:
        # The input is this run's own copy, so it is moved instead of written again.
        source.replace(destination)
        expected = replace(before, files=(destination.name,))
    else:
        from winml_dag.onnxmodel.files import resave

        resave(source, destination)
    after = inspect_model(destination)
    same_graph = after.op_counts == before.op_counts and after.tensor_bytes == before.tensor_bytes
    if not same_graph or (expected is not None and after != expected):
        raise StageError(f"The final model is not the one it was made from, {source.name}.")
    size = sum((destination.parent / name).stat().st_size for name in after.files)
    return {"size_bytes": size, "external_data": bool(after.external_data)}


def require_full_offload(models: Iterable[Path]) -> None:
    """Raise StageError if an operator of the compiled *models* is left to the CPU."""
    from winml_dag.onnxmodel.graphfile import read_model
    from winml_dag.stages.compiled import cpu_nodes, first_names

    left = tuple(node for model in models for node in cpu_nodes(read_model(model)))
    if left:
        # No provider takes these in any precision.
        other = "" if {node.operator for node in left} <= {"If", "Loop", "Scan"} else " try another precision,"
        raise StageError(
            f"compile.require_full_offload is set, but {len(left)} of the operators stay on the CPU:"
            f" {first_names(left)}.",
            advice=f"Change or remove these operators,{other} or do without full offload.",
        )


def final_names(files: Iterable[str], source: Path, models: Iterable[str], stem: str) -> dict[str, str]:
    """Return the final names of the *files* next to the compiled model *source*.

    Each name starts with *stem*, so that two models in one folder do not use one name for two binaries.
    """
    taken = {model.casefold() for model in models}
    names = {}
    for name in files:
        base = PurePosixPath(name).name
        rest = base.removeprefix(source.stem) if base.startswith(source.stem) else f"_{base}"
        final, number = stem + rest, 1
        while final.casefold() in taken:
            number += 1
            final = f"{stem}_{number}{rest}"
        taken.add(final.casefold())
        names[name] = final
    return names


def write_final(source: Path, summary: ModelSummary, destination: Path, names: Mapping[str, str]) -> ModelSummary:
    """Write the compiled model *source* to *destination* with references to its files under their new *names*.

    Returns the expected summary of the result, derived from *summary*. Nothing else in the model may change, because
    its provider may check that.
    """
    if names:
        from winml_dag.onnxmodel.sidecar import write_renamed

        write_renamed(source, destination, names)
    else:
        source.replace(destination)
    return replace(
        summary,
        external_data=tuple(sorted({names[name] for name in summary.external_data})),
        ep_context=tuple(
            context if context.sidecar is None else replace(context, sidecar=names[context.sidecar])
            for context in summary.ep_context
        ),
        files=(destination.name, *sorted(names[name] for name in summary.files[1:])),
    )
