"""The input tensors of the exported model: those of the recipe, completed by what is usual for the model."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from winml_dag.errors import StageError
from winml_dag.stages.export import ExportFields, InputTensor
from winml_dag.stages.export.architectures import did_you_mean
from winml_dag.stages.export.dimensions import sized
from winml_dag.stages.export.makers import ModelInput, Shape, usual_inputs
from winml_dag.stages.export.subject import Subject

# For a dynamic axis of which nothing is known. Not 1: torch.export takes a size of 0 or 1 for a constant.
_UNKNOWN_SIZE = 2

_TOKEN_TENSORS = ("input_ids", "attention_mask", "token_type_ids")


def model_inputs(subject: Subject, fields: ExportFields) -> tuple[ModelInput, ...]:
    """The inputs in the order in which the model is called with them.

    Raises:
        StageError: for a name that the model does not take, a tensor of which too little is known, or an axis that does
            not exist or has two names.
    """
    usual = {name: _sized(each, fields) for name, each in usual_inputs(subject, fields.batch_size).items()}
    takes = subject.takes
    inputs = _asked_inputs(fields.input_tensors, usual, takes) if fields.input_tensors else tuple(usual.values())
    if not inputs:
        raise StageError(
            f"No inputs are known for {type(subject.module).__name__}.",
            advice=f"Name them in export.input_tensors; the model takes: {', '.join(takes)}.",
        )
    axes = fields.dynamic_axes or {}
    return tuple(dataclasses.replace(each, shape=named_axes(each.name, each.shape, axes)) for each in inputs)


def _plain(value_range: tuple[float, float] | None) -> tuple[float, float] | None:
    """Whole numbers as such, as makers of inputs have them: spelled out in a recipe, they give the same file."""
    if value_range is None or not all(float(bound).is_integer() for bound in value_range):
        return value_range
    low, high = value_range
    return (int(low), int(high))


def _sized(each: ModelInput, fields: ExportFields) -> ModelInput:
    sizes = fields.shape_config or {}
    shape = sized(each.name, each.shape, sizes, fields.batch_size)
    usual = sized(each.name, each.sizes, sizes, fields.batch_size)
    return dataclasses.replace(each, shape=shape, sizes=tuple(size for size in usual if isinstance(size, int)))


def named_axes(tensor: str, shape: Shape, dynamic_axes: Mapping[str, Mapping[str, str]]) -> Shape:
    """*shape* with the names that ``export.dynamic_axes`` has for axes of *tensor*.

    Raises:
        StageError: when an axis does not exist or already has another name.
    """
    named = list(shape)
    for axis, name in dynamic_axes.get(tensor, {}).items():
        where = f"export.dynamic_axes.{tensor}.{axis}"
        if not axis.isdecimal() or int(axis) >= len(shape):
            raise StageError(f"{where} is not an axis of {tensor!r}, which has the shape {list(shape)}.")
        present = named[int(axis)]
        if isinstance(present, str) and present != name:
            raise StageError(f"{where} is {name!r}, but the shape of {tensor!r} calls this axis {present!r}.")
        named[int(axis)] = name
    return tuple(named)


def _asked_inputs(
    asked: tuple[InputTensor, ...], usual: Mapping[str, ModelInput], takes: tuple[str, ...]
) -> tuple[ModelInput, ...]:
    """The recipe's tensors; what it leaves out of one is taken from the usual input of that name."""
    # All tensors of tokens have one shape: where the recipe gives it once, it holds for the others too.
    text_shape = next((each.shape for each in asked if each.shape and each.name in _TOKEN_TENSORS), None)
    completed = []
    for tensor in asked:
        if tensor.name not in takes:
            raise StageError(
                f"export.input_tensors names {tensor.name!r}, which the model does not take."
                f"{did_you_mean(tensor.name, takes)}",
                advice=f"It takes: {', '.join(takes)}.",
            )
        known = usual.get(tensor.name)
        like_others = text_shape if tensor.name in _TOKEN_TENSORS else None
        shape = tensor.shape or like_others or (known.shape if known else None)
        dtype = tensor.dtype or (known.dtype if known else None)
        if shape is None or dtype is None:
            raise StageError(
                f"export.input_tensors must give dtype and shape of {tensor.name!r}: there is no default for it."
            )
        sizes = known.sizes if known and len(known.sizes) == len(shape) else (_UNKNOWN_SIZE,) * len(shape)
        sizes = tuple(size if isinstance(size, int) else usually for size, usually in zip(shape, sizes, strict=True))
        value_range = _plain(tensor.value_range) or (known.value_range if known else None)
        completed.append(ModelInput(tensor.name, dtype, shape, sizes, value_range))
    return tuple(completed)
