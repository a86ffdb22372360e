"""finalize: the last model of the line gets its final name, ``model.onnx``, once validation has passed it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from winml_dag.canonical import JsonObject
from winml_dag.engine.stage import InputSlot, Stage, Workspace
from winml_dag.errors import StageError
from winml_dag.onnxmodel.inspect import EXTERNAL_DATA_THRESHOLD, ModelSummary, inspect_model
from winml_dag.stages import kinds

MODEL_FILE = "model.onnx"


@dataclass(frozen=True)
class OffloadFields:
    """``require_full_offload``: no operator of a compiled model may be left to the CPU."""

    require_full_offload: bool = False


@dataclass(frozen=True)
class FinalizeConfig:
    """``file``: what the model is called. The external-data rule is the same for every model."""

    file: str = MODEL_FILE
    compile: OffloadFields = OffloadFields()


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


def run(config: FinalizeConfig, workspace: Workspace) -> JsonObject:
    """Put the model under its final name, its weights beside it as ``<name>.data`` where they are large."""
    source = workspace.input_file("model", ".onnx")
    destination = workspace.outputs["model"] / config.file
    before = inspect_model(source)
    if before.is_compiled:
        # Its nodes refer to the binaries by name and its provider may check them: nothing inside may change.
        _move(source, before, destination)
    elif not before.external_data and before.weight_size < EXTERNAL_DATA_THRESHOLD:
        # The input is this run's own copy: it is moved, and so not written once more.
        source.replace(destination)
    else:
        from winml_dag.onnxmodel.files import resave

        resave(source, destination)
    after = inspect_model(destination)
    if after.op_counts != before.op_counts or after.tensor_bytes != before.tensor_bytes:
        raise StageError(f"The final model is not the one it was made from, {source.name}.")
    size = sum((destination.parent / name).stat().st_size for name in after.files)
    return {"size_bytes": size, "external_data": bool(after.external_data)}


def _move(source: Path, summary: ModelSummary, destination: Path) -> None:
    source.replace(destination)
    for name in summary.files[1:]:
        target = destination.parent / name
        if target == destination:
            raise StageError(f"{source.name} refers to a file {name!r}, the name that the model itself must get.")
        target.parent.mkdir(parents=True, exist_ok=True)
        (source.parent / name).replace(target)
