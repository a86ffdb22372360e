"""Several models compiled into one binary: what ``compile`` asks for when it is given more than one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from winml_dag.errors import UsageError
from winml_dag.pipeline.request import beside
from winml_dag.pipeline.sources import OnnxFile
from winml_dag.pipeline.variant import Build, Skip
from winml_dag.stages import kinds
from winml_dag.stages.finalize import FinalizeConfig
from winml_dag.stages.shared import MOST_MODELS, FinalizeSharedConfig


def sharing(build: Build, first: Path, also: Sequence[Path]) -> Build:
    """*build*, which compiles the model *first*, with the models *also* compiled into one binary with it.

    Raises:
        UsageError: for models that cannot share, or whose results would have one name.
        InputError: for a model that is missing or damaged.
    """
    output = build.summary.output_file
    assert output is not None
    assert isinstance(build.finalize, FinalizeConfig)
    if len(also) >= MOST_MODELS:
        raise UsageError(f"{len(also) + 1} models are given, and at most {MOST_MODELS} share a binary.")
    _refuse_settings(build)
    models = [OnnxFile.at(path) for path in also]
    files = (output, *(beside(path, "compile").name for path in also))
    _refuse_twice([first, *also], files)
    for model in models:
        if model.kind == kinds.COMPILED_MODEL:
            raise UsageError(
                f"{model.path} is a compiled model, which cannot be compiled again.",
                advice="Use the ONNX model that it was compiled from.",
            )
        if any(isinstance(dim, str) for spec in model.summary.inputs for dim in spec.shape):
            raise UsageError(
                f"{model.path} has open dimensions, and only those of the first model are fixed here.",
                advice=f"Fix them first: `winml-dag optimize -m {model.path} --ep {build.target.ep.alias}`.",
            )
    note = (
        "Not run: QNN's emulator loads no binary that several models share. Run the models on the device."
        if build.target.ep.alias == "qnn"
        else "Not run: models that share a binary are not validated. Run them on the device."
    )
    return replace(
        build,
        summary=replace(build.summary, also=files[1:], notices=(*build.summary.notices, note)),
        validate=Skip("models that share a binary are not validated"),
        finalize=FinalizeSharedConfig(files, build.finalize.compile),
        also=tuple(model.source() for model in models),
    )


def _refuse_settings(build: Build) -> None:
    assert not isinstance(build.compile, Skip)
    fields = build.compile.compile
    if not isinstance(build.quantize, Skip):
        raise UsageError("compile.quant_config is for one model at a time.", advice="Quantize each by itself first.")
    if fields.embed_context:
        raise UsageError(
            "Models that share a binary cannot have it inside (embed_context).", advice="Leave --embed out."
        )
    if fields.compiler == "qairt":
        raise UsageError("The compiler qairt compiles one model at a time.", advice="Leave it to ort.")


def _refuse_twice(paths: Sequence[Path], files: Sequence[str]) -> None:
    seen: dict[Path, Path] = {}
    for path in paths:
        if (known := path.resolve()) in seen:
            raise UsageError(f"{path} is given twice.")
        seen[known] = path
    names: dict[str, Path] = {}
    for path, file in zip(paths, files, strict=True):
        if other := names.get(file.casefold()):
            raise UsageError(f"{other} and {path} would both become {file}.", advice="Give one of them another name.")
        names[file.casefold()] = path
