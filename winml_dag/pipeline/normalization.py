"""Whether and how an ONNX file has to be normalized before anything else, decided from its graph alone.

A file that needs nothing has no such stage, so the keys of its builds are not affected.

The sizes of open dimensions are the requested ones, checked against the model. A named dimension has the same size
wherever the name occurs; one without a name is identified by its input and axis.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from winml_dag.ep.registry import Target
from winml_dag.errors import UsageError, known_instead
from winml_dag.onnxmodel.inspect import NO_TENSOR, UNKNOWN_DIMENSION, UNKNOWN_RANK, TensorSpec
from winml_dag.pipeline.model import OnnxFile
from winml_dag.recipe.schema import Export, InputTensor, Recipe
from winml_dag.stages import artifact_types
from winml_dag.stages.normalize import FIRST_OPSET, GivenInput, GivenInputs, NormalizeConfig

if TYPE_CHECKING:
    from winml_dag.pipeline.decisions import ResolveContext

# The batch size by this name is that of export.batch_size.
_BATCH = "batch_size"
# Example sizes in advice: for a picture's side, and for anything else.
_PICTURE, _ANYTHING = 224, 128

_Place = tuple[str, int]


@dataclass(frozen=True)
class RequestedShapes:
    """The sizes in a recipe and options: of the first dimension, of dimensions by name, and of whole inputs.

    ``tensors_yield``: on a conflict the other two take precedence, because an option overrode the recipe.
    """

    batch_size: int | None = None
    sizes: Mapping[str, int] | None = None
    tensors: Sequence[InputTensor] = ()
    tensors_yield: bool = False

    @property
    def is_empty(self) -> bool:
        return self.batch_size is None and not self.sizes and not self.tensors


@dataclass(frozen=True)
class ResolvedShapes:
    """``shapes``: those that change, by input; ``notice``: a size that was chosen without a request, if any."""

    shapes: Mapping[str, tuple[int | str, ...]]
    notice: str = ""


def shapes_for(specs: Sequence[TensorSpec], requested: RequestedShapes, fixed_for: str = "") -> ResolvedShapes:
    """Return the shapes of the inputs *specs* with the sizes that *requested* gives.

    *fixed_for*: the provider, if it takes fixed shapes only; an open batch is then 1 unless requested otherwise.

    Raises:
        UsageError: for a size that contradicts the model or another size, an unknown name, and, with *fixed_for*, when
            a dimension is left open.
    """
    sizes = _Sizes(specs)
    batch_size = sizes.take_names(requested.sizes or {}, requested.batch_size)
    if batch_size is not None:
        sizes.take_batch(batch_size)
    sizes.take_tensors(requested.tensors, batch_size, yielding=requested.tensors_yield)
    notice = sizes.fix_batch(fixed_for) if fixed_for else ""
    if fixed_for:
        sizes.refuse_open(fixed_for)
    return ResolvedShapes({name: shape for name, shape in sizes.shapes() if shape != sizes.specs[name].shape}, notice)


class _Sizes:
    """The sizes found so far, each with a description of its origin."""

    def __init__(self, specs: Sequence[TensorSpec]) -> None:
        self.specs = {spec.name: spec for spec in specs}
        # Requested shapes of inputs whose rank the model leaves open.
        self._whole: dict[str, tuple[int | str, ...]] = {}
        self._named: dict[str, tuple[int, str]] = {}
        self._placed: dict[_Place, tuple[int, str]] = {}
        self._yielding = False
        # A name that also occurs after the first axis is not a batch, unless its name says so: the states of an LSTM
        # have their batch in the middle.
        inner = {dim for spec in specs for dim in spec.shape[1:] if isinstance(dim, str)} - {UNKNOWN_DIMENSION}
        self._inner = {name for name in inner if "batch" not in name.casefold()}

    def shapes(self) -> Iterator[tuple[str, tuple[int | str, ...]]]:
        for name, spec in self.specs.items():
            shape = self._whole.get(name, spec.shape)
            yield name, tuple(self._size(name, axis, dim) for axis, dim in enumerate(shape))

    def take_tensors(self, tensors: Sequence[InputTensor], batch_size: int | None, *, yielding: bool) -> None:
        self._yielding = yielding
        for tensor in tensors:
            where = f"export.input_tensors ({tensor.name})"
            if tensor.name not in self.specs:
                hint = known_instead(tensor.name, self.specs)
                raise UsageError(f"{where}: the model has no input {tensor.name!r}{hint}")
            spec = self.specs[tensor.name]
            if tensor.dtype not in (None, spec.dtype):
                raise UsageError(
                    f"{where}: the model takes {spec.dtype}, not {tensor.dtype}, and types are as the file has them.",
                    advice="Leave dtype out.",
                )
            if tensor.shape is not None:
                self._take_shape(spec, self._with_batch(tensor.shape, batch_size), where)
        self._yielding = False

    def take_names(self, sizes: Mapping[str, int], batch_size: int | None) -> int | None:
        """Take sizes of dimensions by name; returns the batch size, which can also be given under a built-in name."""
        known = {dim for spec in self.specs.values() for dim in spec.shape if isinstance(dim, str)}
        known -= {UNKNOWN_DIMENSION, UNKNOWN_RANK}
        for name, size in sizes.items():
            where = f"export.shape_config.{name}"
            if name in known:
                self._name(name, size, where)
            elif name != _BATCH:
                raise UsageError(
                    f"{where}: no dimension of the model's inputs is called {name!r}{known_instead(name, known)}"
                    if known
                    else f"{where}: no dimension of the model's inputs has a name.",
                    advice="" if known else self._how_to_shape(),
                )
            elif batch_size not in (None, size):
                raise UsageError(f"{where} is {size}, and export.batch_size is {batch_size}.", advice="Keep one.")
            else:
                batch_size = size
        return batch_size

    def take_batch(self, size: int) -> None:
        first = [spec for spec in self.specs.values() if spec.shape and spec.shape[0] != UNKNOWN_RANK]
        taken = [spec for spec in first if self._is_batch(spec)]
        for spec in taken:
            self._take(spec, 0, size, "export.batch_size")
        if not taken and all(spec.shape[0] != size for spec in first):
            stated = "; ".join(f"{spec.name} {_listed(spec.shape)}" for spec in self.specs.values())
            raise UsageError(
                f"export.batch_size is {size}, but no input of the model has an open first dimension: {stated}.",
                advice="Remove it, or export the model with a dynamic batch.",
            )

    def fix_batch(self, fixed_for: str) -> str:
        """Give every open batch the size of the other batches, else 1; returns a notice about it."""
        batches = [spec for spec in self.specs.values() if self._is_batch(spec)]
        is_open = [spec for spec in batches if isinstance(self._size(spec.name, 0, spec.shape[0]), str)]
        sizes = {self._size(spec.name, 0, spec.shape[0]) for spec in batches if spec not in is_open}
        (size,) = sizes if len(sizes) == 1 else (1,)
        assert isinstance(size, int)
        for spec in is_open:
            self._take(spec, 0, size, "the batch")
        if not is_open:
            return ""
        named = " and ".join(f"{spec.name} {_listed(spec.shape)}" for spec in is_open[:2])
        more = f" and {len(is_open) - 2} more" if len(is_open) > 2 else ""
        return (
            f"{fixed_for} takes fixed shapes only, so the open batch of {named}{more} is {size}. Give --batch-size"
            " (export.batch_size) for another."
        )

    def refuse_open(self, fixed_for: str) -> None:
        """Raise UsageError for the first dimension that is 0 or still open, with advice on what to give."""
        if empty := next(((name, shape) for name, shape in self.shapes() if 0 in shape), None):
            raise UsageError(
                f"{fixed_for} takes no tensor without elements, and input {empty[0]!r} has the shape"
                f" {_listed(empty[1])}.",
                advice="Export the model with other sizes.",
            )
        left = [(name, axis, dim) for name, shape in self.shapes() for axis, dim in enumerate(shape) if _is_open(dim)]
        if not left:
            return
        name, axis, dim = left[0]
        spec = self.specs[name]
        if dim == UNKNOWN_RANK:
            what = "is not a tensor" if spec.dtype == NO_TENSOR else "has no shape, not even a number of dimensions"
            advice = "" if spec.dtype == NO_TENSOR else self._how_to_shape(name)
            raise UsageError(f"{fixed_for} takes fixed shapes only, and input {name!r} {what}.", advice=advice)
        names = list(dict.fromkeys(str(dim) for _, _, dim in left if dim not in (UNKNOWN_DIMENSION, UNKNOWN_RANK)))
        called = f"{dim!r} of input {name!r}" if dim != UNKNOWN_DIMENSION else f"without a name of input {name!r}"
        advice = self._how_to_shape(name)
        if dim != UNKNOWN_DIMENSION:
            example = json.dumps({each: self._example(each) for each in names})
            advice = f"Give its size, for example --shape-config '{example}' (export.shape_config in a recipe)."
        others = len({dim if dim != UNKNOWN_DIMENSION else (name, axis) for name, axis, dim in left}) - 1
        raise UsageError(
            f"{fixed_for} takes fixed shapes only, and the dimension {called} (axis {axis} of {_listed(spec.shape)}) is"
            f" open{f', and {others} more' if others else ''}.",
            advice=advice,
        )

    def _with_batch(self, shape: Sequence[int | str], batch_size: int | None) -> tuple[int | str, ...]:
        """Recipes write a batch of one; as for exports, another ``batch_size`` replaces it."""
        if batch_size is None or not shape or shape[0] != 1:
            return tuple(shape)
        return (batch_size, *shape[1:])

    def _take_shape(self, spec: TensorSpec, shape: tuple[int | str, ...], where: str) -> None:
        if spec.shape == (UNKNOWN_RANK,):
            if spec.dtype == NO_TENSOR:
                raise UsageError(f"{where}: it is not a tensor, so it has no shape.", advice="Remove it.")
            self._whole[spec.name] = tuple(dim if isinstance(dim, int) else UNKNOWN_DIMENSION for dim in shape)
            return
        if len(shape) != len(spec.shape):
            raise UsageError(
                f"{where}: the shape {_listed(shape)} has {len(shape)} dimensions, and the model's"
                f" {_listed(spec.shape)} has {len(spec.shape)}."
            )
        for axis, dim in enumerate(shape):
            # A string leaves the dimension as it is.
            if isinstance(dim, int):
                self._take(spec, axis, dim, where)

    def _take(self, spec: TensorSpec, axis: int, size: int, where: str) -> None:
        """Record that axis *axis* of the input *spec* has *size*."""
        dim = spec.shape[axis]
        if isinstance(dim, int):
            if dim != size:
                raise UsageError(
                    f"{where} says {size} for axis {axis} of {spec.name!r}, which the model fixes at {dim}:"
                    f" {_listed(spec.shape)}.",
                    advice="Remove it, or export the model with this dimension open.",
                )
        elif dim != UNKNOWN_DIMENSION:
            self._name(dim, size, where)
        else:
            known, source = self._placed.setdefault((spec.name, axis), (size, where))
            if known != size and not self._yielding:
                raise UsageError(f"Axis {axis} of {spec.name!r} is {known} by {source}, and {size} by {where}.")

    def _name(self, name: str, size: int, where: str) -> None:
        known, source = self._named.setdefault(name, (size, where))
        if known != size and not self._yielding:
            raise UsageError(
                f"The dimension {name!r} is {known} by {source}, and {size} by {where}.",
                advice="Equal names mean equal sizes.",
            )

    def _size(self, name: str, axis: int, dim: int | str) -> int | str:
        if isinstance(dim, int):
            return dim
        found = self._placed.get((name, axis)) if dim == UNKNOWN_DIMENSION else self._named.get(dim)
        return dim if found is None else found[0]

    def _is_batch(self, spec: TensorSpec) -> bool:
        """Whether the model leaves the first dimension of *spec* open, and no other dimension has its name."""
        return bool(spec.shape) and _is_open(spec.shape[0]) and spec.shape[0] not in {UNKNOWN_RANK, *self._inner}

    def _how_to_shape(self, name: str = "") -> str:
        """Return advice with the full shape of an input, which also covers dimensions without a name."""
        spec = self.specs.get(name) or next(iter(self.specs.values()))
        shape = dict(self.shapes())[spec.name]
        if UNKNOWN_RANK in shape:
            shape = (1, 3, _PICTURE, _PICTURE)
        example = [dim if isinstance(dim, int) else self._of_place(shape, axis) for axis, dim in enumerate(shape)]
        text = json.dumps({spec.name: {"shape": example}})
        return f"Give its shape, for example --input-specs '{text}' (export.input_tensors in a recipe)."

    def _example(self, name: str) -> int:
        places = ((spec.shape, spec.shape.index(name)) for spec in self.specs.values() if name in spec.shape)
        return next(self._of_place(shape, axis) for shape, axis in places)

    def _of_place(self, shape: Sequence[int | str], axis: int) -> int:
        if axis == 0:
            return 1
        return _PICTURE if len(shape) == 4 and axis >= 2 else _ANYTHING


def _is_open(dim: int | str) -> bool:
    return isinstance(dim, str)


def _listed(shape: Sequence[int | str]) -> str:
    return f"[{', '.join(map(str, shape))}]"


@dataclass(frozen=True)
class Normalization:
    """``config`` None: there is nothing to do. ``notices``: decisions that were not requested."""

    config: NormalizeConfig | None = None
    notices: tuple[str, ...] = ()


def normalization_for(
    onnx: OnnxFile, requested: RequestedShapes, target: Target, *, compiles: bool, quantizes: bool
) -> Normalization:
    """Return what *onnx* needs for *target*.

    *compiles*: whether it is compiled ahead of time, which needs fixed shapes with any provider; *quantizes*: whether
    its activations become integers.

    Raises:
        UsageError: for sizes that the model cannot have, or that the target needs and are not given.
    """
    if onnx.kind == artifact_types.COMPILED_MODEL:
        if not requested.is_empty:
            raise UsageError(
                f"{onnx.path} is a compiled model, and its shapes are part of its binary.",
                advice="Leave the sizes out, or give the ONNX model that it was compiled from.",
            )
        return Normalization()
    summary = onnx.summary
    fixed_for = target.ep.name if target.ep.fixed_shapes or compiles else ""
    found = shapes_for(summary.inputs, requested, fixed_for)
    ranges = {tensor.name: tensor.value_range for tensor in requested.tensors if tensor.value_range is not None}
    tensors = {
        spec.name: GivenInput(found.shapes.get(spec.name), ranges.get(spec.name))
        for spec in summary.inputs
        if spec.name in found.shapes or spec.name in ranges
    }
    opset = summary.opsets.get("", 0)
    # For integers only: the older opset works equally well in float16 and float32, whose keys stay the same.
    raises = quantizes and onnx.kind == artifact_types.FLOAT_MODEL and 0 < opset < FIRST_OPSET
    if not (tensors or raises or summary.listed_initializers):
        return Normalization()
    notices = (found.notice,) if found.notice else ()
    return Normalization(NormalizeConfig(GivenInputs(tensors), raises), notices)


def requested_shapes(context: ResolveContext, onnx: OnnxFile) -> RequestedShapes:
    """Return the sizes for the inputs of *onnx* in recipe and options.

    A command for one stage may get a model that a build of the recipe made, without some of its dimensions. The
    recipe's section only applies if the recipe is for an ONNX model; otherwise it describes the export of another one.
    """
    now = context.overrides.section("export")
    section = context.recipe.export
    if section is None or not (now or _is_for_onnx(context.recipe)):
        return RequestedShapes()
    counts = section.model_fields_set if _is_for_onnx(context.recipe) else set(now)
    sizes = section.shape_config if "shape_config" in counts else None
    if sizes and context.only is not None and "shape_config" not in now:
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
