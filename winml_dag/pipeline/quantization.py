"""What ``quantize`` asks for: the build of an ONNX model in which it is calibrated, quantized, validated, and put into
one file.

Its stages are those of every build, so it finds what a build has made, and the other way round.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from winml_dag.errors import UsageError
from winml_dag.names import is_safe_part
from winml_dag.pipeline.request import Request
from winml_dag.pipeline.resolve import resolve
from winml_dag.pipeline.sections import sensitivity_config
from winml_dag.pipeline.sources import OnnxFile
from winml_dag.pipeline.variant import Build, SavePath, Skip
from winml_dag.recipe.load import load_recipe
from winml_dag.stages import kinds

_HALF_TYPES = ("float16", "bfloat16")


def quantization_of(request: Request, output: Path, *, download: bool) -> Build:
    """The build that *request* means, whose result is the file *output*. Of a recipe, ``quant``, ``validate`` and the
    target count; *download* allows fetching data from the hub.

    Raises:
        UsageError: for a model that cannot be quantized, or when nothing is to be quantized; also as ``resolve``.
        InputError: for a model or data that is missing or damaged.
    """
    loaded = load_recipe(request.recipe) if isinstance(request.recipe, Path) else request.recipe
    model = request.overrides.onnx
    assert model is not None
    _refuse_name(output)
    _refuse_folder(model)
    _refuse_unless_float(OnnxFile.at(model))
    only = replace(request.overrides, quant=True, optimize=False, compile=False, analyze=False)
    build = resolve(loaded, only, output.parent, download=download)
    if isinstance(build.quantize, Skip):
        raise UsageError(
            f"There is nothing to quantize: {build.quantize.reason}.", advice="Name a precision, such as -p w8a16."
        )
    if request.overrides.sensitivity:
        if isinstance(build.validate, Skip):
            raise UsageError(
                f"--sensitivity runs the samples that are kept back for validation, but {build.validate.reason}.",
                advice="Leave out one of the two.",
            )
        build = replace(build, sensitivity=sensitivity_config(build.quantize[0], build.validate))
    summary = replace(build.summary, output_file=output.name, declared=0)
    saved = build.save_ranges if request.save_ranges is None else _save_path(build, request.save_ranges)
    finalize = replace(build.finalize, file=output.name)
    return replace(build, summary=summary, finalize=finalize, save_ranges=saved, declared=None)


def _save_path(build: Build, path: Path) -> SavePath:
    if isinstance(build.calibrate, Skip):
        raise UsageError(f"--save-calibration: there are no ranges to save: {build.calibrate.reason}.")
    if not is_safe_part(path.name):
        raise UsageError(f"{path.name!r} is no name of a file on every system.", advice="Save the ranges elsewhere.")
    return SavePath(path.parent.resolve(), path.name)


def _refuse_name(output: Path) -> None:
    if output.suffix.casefold() != ".onnx":
        raise UsageError(f"{output} does not end with .onnx.", advice="Give -o a file such as quantized.onnx.")
    if not is_safe_part(output.name):
        raise UsageError(f"{output.name!r} is no name of a file on every system.", advice="Give -o another name.")


def _refuse_folder(model: Path) -> None:
    if model.is_dir():
        raise UsageError(
            f"{model} is a folder, and `quantize` takes an ONNX model.",
            advice="For a PyTorch model there is `winml-dag build`, which exports it first.",
        )


def _refuse_unless_float(model: OnnxFile) -> None:
    """What the stages themselves would refuse, before anything runs."""
    summary = model.summary
    if model.kind == kinds.COMPILED_MODEL:
        makers = ", ".join(sorted({context.source or "an execution provider" for context in summary.ep_context}))
        raise UsageError(
            f"{model.path} is a compiled model: its EPContext nodes hold the binary of {makers}, which cannot be"
            " quantized.",
            advice="Use the ONNX model that it was compiled from.",
        )
    if model.kind == kinds.QUANTIZED_MODEL:
        form = "QDQ" if "DequantizeLinear" in summary.op_counts else "QOperator"
        raise UsageError(f"{model.path} is quantized already ({form}).", advice="Use the float32 model.")
    dtypes = {*summary.tensor_bytes, *(spec.dtype for spec in (*summary.inputs, *summary.outputs))}
    if half := next((dtype for dtype in _HALF_TYPES if dtype in dtypes), None):
        raise UsageError(
            f"{model.path} has tensors in {half}, and only float32 can be quantized.",
            advice="Use the model in float32.",
        )
