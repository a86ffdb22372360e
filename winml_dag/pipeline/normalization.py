"""Whether and how an ONNX file has to be normalized before anything else, decided from its graph alone.

A file that needs nothing has no such stage, so the keys of its builds are not affected.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, replace

from winml_dag.ep.registry import Target
from winml_dag.errors import UsageError
from winml_dag.pipeline.context import ResolveContext
from winml_dag.pipeline.inputshapes import RequestedShapes, shapes_for
from winml_dag.pipeline.sources import OnnxFile
from winml_dag.recipe.schema import Export, Recipe
from winml_dag.stages import kinds
from winml_dag.stages.normalize import FIRST_OPSET, GivenInput, GivenInputs, NormalizeConfig


@dataclass(frozen=True)
class Normalization:
    """``config`` None: there is nothing to do. ``notices``: decisions that were not requested."""

    config: NormalizeConfig | None = None
    notices: tuple[str, ...] = ()


def normalization_for(
    onnx: OnnxFile, asked: RequestedShapes, target: Target, *, compiles: bool, quantizes: bool
) -> Normalization:
    """Return what *onnx* needs for *target*.

    *compiles*: whether it is compiled ahead of time, which needs fixed shapes with any provider; *quantizes*: whether
    its activations become integers.

    Raises:
        UsageError: for sizes that the model cannot have, or that the target needs and are not given.
    """
    if onnx.kind == kinds.COMPILED_MODEL:
        if not asked.is_empty:
            raise UsageError(
                f"{onnx.path} is a compiled model, and its shapes are part of its binary.",
                advice="Leave the sizes out, or give the ONNX model that it was compiled from.",
            )
        return Normalization()
    summary = onnx.summary
    fixed_for = target.ep.name if target.ep.fixed_shapes or compiles else ""
    found = shapes_for(summary.inputs, asked, fixed_for)
    ranges = {tensor.name: tensor.value_range for tensor in asked.tensors if tensor.value_range is not None}
    tensors = {
        spec.name: GivenInput(found.shapes.get(spec.name), ranges.get(spec.name))
        for spec in summary.inputs
        if spec.name in found.shapes or spec.name in ranges
    }
    opset = summary.opsets.get("", 0)
    # For integers only: the older opset works equally well in float16 and float32, whose keys stay the same.
    raises = quantizes and onnx.kind == kinds.FLOAT_MODEL and 0 < opset < FIRST_OPSET
    if not (tensors or raises or summary.listed_initializers):
        return Normalization()
    notices = (found.notice,) if found.notice else ()
    return Normalization(NormalizeConfig(GivenInputs(tensors), raises), notices)


def requested_shapes(context: ResolveContext, onnx: OnnxFile, *, whole: bool) -> RequestedShapes:
    """Return the sizes for the inputs of *onnx* in recipe and options.

    *whole*: the build starts from this model; a command for one stage may instead get a model that a build of the
    recipe made. The recipe's section only applies if the recipe is for an ONNX model; otherwise it describes the export
    of another model.
    """
    now = context.overrides.section("export")
    section = context.recipe.export
    if section is None or not (now or _is_for_onnx(context.recipe)):
        return RequestedShapes()
    counts = section.model_fields_set if _is_for_onnx(context.recipe) else set(now)
    sizes = section.shape_config if "shape_config" in counts else None
    if sizes and not whole and "shape_config" not in now:
        there = {dim for spec in onnx.summary.inputs for dim in spec.shape}
        sizes = {name: size for name, size in sizes.items() if name in there}
    yields = "input_tensors" not in now and not now.keys().isdisjoint(("batch_size", "shape_config"))
    return replace(shapes_of(section, counts), sizes=sizes, tensors_yield=yields)


def shapes_of(section: Export, counts: Set[str] | None = None) -> RequestedShapes:
    """Return the input sizes in *section*, limited to the fields in *counts*; by default those that are set."""
    counts = section.model_fields_set if counts is None else counts
    return RequestedShapes(
        section.batch_size if "batch_size" in counts else None,
        section.shape_config if "shape_config" in counts else None,
        section.input_tensors or () if "input_tensors" in counts else (),
    )


def _is_for_onnx(recipe: Recipe) -> bool:
    name = recipe.loader.path or recipe.model
    return name is None or name.casefold().endswith(".onnx")
