"""Adapts the recipe's tensors to a model with random weights whose configuration the user changed.

A recipe has the tensors of one checkpoint. If the user made the model smaller (``loader.random_weights.config``), the
tensors follow: a shorter text, a smaller image, fewer layers of cache, no token beyond the vocabulary. This never
applies to the weights of a checkpoint: there, a tensor that does not fit is an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from winml_dag.canonical import JsonValue
from winml_dag.stages.export import ExportFields, InputTensor, RandomWeights
from winml_dag.stages.export.component_modules import STATES, DecoderModule
from winml_dag.stages.export.following import TEXT_TENSORS
from winml_dag.stages.export.makers import ModelInput, longest_text, usual_inputs
from winml_dag.stages.export.subject import Subject


def fitted(fields: ExportFields, subject: Subject, random_weights: RandomWeights | None) -> ExportFields:
    """Return *fields* with tensors that the model can take, if it was made from a seed."""
    if random_weights is None or not fields.input_tensors:
        return fields
    usual = usual_inputs(subject, fields.batch_size)
    absent = {name for name in _named(fields) if _of_absent_layer(name, subject)}
    return replace(
        fields,
        input_tensors=tuple(
            _fitted(each, usual.get(each.name), subject, random_weights)
            for each in fields.input_tensors
            if each.name not in absent
        ),
        output_tensors=tuple(name for name in fields.output_tensors or () if name not in absent) or None,
    )


def _named(fields: ExportFields) -> set[str]:
    return {*(each.name for each in fields.input_tensors or ()), *(fields.output_tensors or ())}


def _of_absent_layer(name: str, subject: Subject) -> bool:
    parts = name.split("_")
    if not isinstance(subject.module, DecoderModule) or parts[0] not in ("past", "present") or len(parts) != 3:
        return False
    return parts[1].isdecimal() and int(parts[1]) >= subject.module.layers


def _fitted(
    tensor: InputTensor, usual: ModelInput | None, subject: Subject, random_weights: RandomWeights
) -> InputTensor:
    if usual is None:
        return tensor
    shape, value_range = tensor.shape, tensor.value_range
    integers = (tensor.dtype or usual.dtype).startswith(("int", "uint"))
    if value_range and usual.value_range and integers and value_range[1] > usual.value_range[1]:
        value_range = (min(value_range[0], usual.value_range[1] - 1), usual.value_range[1])
    if shape and len(shape) == len(usual.sizes):
        shape = _fitted_shape(tensor.name, shape, usual.sizes, subject, random_weights)
    return replace(tensor, shape=shape, value_range=value_range)


def _fitted_shape(
    name: str, shape: tuple[int | str, ...], usual: tuple[int, ...], subject: Subject, random_weights: RandomWeights
) -> tuple[int | str, ...]:
    longest = longest_text(subject)
    if name in TEXT_TENSORS or name.startswith("past_") or name == STATES:
        asked = list(shape)
        axis = 1 if name in ("bbox", STATES) else 2 if name.startswith("past_") else len(shape) - 1
        image_states = name == STATES and "attention_mask" not in subject.takes
        if image_states:
            asked[axis] = usual[axis] if isinstance(asked[axis], int) else asked[axis]
        elif longest is not None and isinstance(asked[axis], int):
            asked[axis] = min(int(asked[axis]), longest)
        if name == STATES:
            asked[2] = usual[2]
        if name.startswith("past_"):
            asked[1], asked[3] = usual[1], usual[3]
        return tuple(asked)
    if name == "pixel_values" and _says(random_weights.config, ("image_size", "input_size")):
        return (*shape[:-2], *usual[-2:])
    if name in ("input_values", "input_features") and len(shape) == 3:
        return (shape[0], *usual[1:])  # AST and Whisper have a position for each frame
    return shape


def _says(config: Mapping[str, JsonValue], names: Sequence[str]) -> bool:
    """Whether the user's changes set one of *names*, in any part."""
    return any(key in names or (isinstance(value, Mapping) and _says(value, names)) for key, value in config.items())
