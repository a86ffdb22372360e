"""Makes random weights and a recipe's tensors, which are those of one checkpoint, fit together.

Settings of the architecture that the user did not change (``loader.random_weights.config``) follow the tensors: 512
tokens, images of 840 pixels, 6 layers of cache. The tensors follow those that the user did change: a shorter text, a
smaller image, fewer layers, no token beyond the vocabulary. The weights of a checkpoint are never adapted: there, a
tensor that does not fit is an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from transformers import PreTrainedConfig

from winml_dag.canonical import JsonValue
from winml_dag.stages.export import ExportFields, InputTensor, RandomWeights
from winml_dag.stages.export.architectures import STATES
from winml_dag.stages.export.inputs import TOKEN_TENSORS, ModelInput, longest_text, usual_inputs
from winml_dag.stages.export.subject import Subject

# Inner configurations that may also have a setting of an image, a text or a decoder.
_IMAGE_PARTS = ("vision_config", "encoder", "backbone_config")
_TEXT_PARTS = ("text_config", "decoder")

# RoBERTa and related models count positions from after the padding token's; others have the padding at 0 or far away.
_LAST_PADDING = 3

# The axis of a tensor that is as long as a text.
_TEXT_AXES = {**dict.fromkeys((*TOKEN_TENSORS, "decoder_attention_mask"), -1), "bbox": 1}
_POSITIONS = ("max_position_embeddings", "max_target_positions")
_HEAD_SIZE = 64


def follow_tensors(
    config: PreTrainedConfig, overrides: Mapping[str, JsonValue], tensors: Sequence[InputTensor]
) -> None:
    """Change settings of *config* that *overrides* do not set, so that the model can take *tensors*."""
    shapes = {each.name: each.shape for each in tensors if each.shape}
    image = shapes.get("pixel_values", ())[-2:]
    if len(image) == 2 and all(isinstance(size, int) for size in image):
        _follow_image(config, overrides, image)
    lengths = [shape[_TEXT_AXES[name]] for name, shape in shapes.items() if name in _TEXT_AXES]
    tokens = max((length for length in lengths if isinstance(length, int)), default=0)
    for part, changed in _parts(config, overrides, _TEXT_PARTS):
        _follow_text(part, changed, tokens)
    if "past_0_key" in shapes:
        _follow_cache(config, overrides, shapes)


def _parts(
    config: PreTrainedConfig, overrides: Mapping[str, JsonValue], names: Sequence[str]
) -> Iterator[tuple[PreTrainedConfig, Mapping[str, JsonValue]]]:
    """The configuration and those inside of it, each with the user's changes to it."""
    yield config, overrides
    for name in names:
        part, changed = getattr(config, name, None), overrides.get(name)
        if isinstance(part, PreTrainedConfig):
            yield part, changed if isinstance(changed, Mapping) else {}


def _follow_image(config: PreTrainedConfig, overrides: Mapping[str, JsonValue], image: Sequence[Any]) -> None:
    for part, changed in _parts(config, overrides, _IMAGE_PARTS):
        for name in ("image_size", "input_size"):
            size = getattr(part, name, None)
            if size is None:
                continue
            if name not in changed and isinstance(size, int) and image[0] == image[1]:
                setattr(part, name, image[0])
            elif name not in changed and isinstance(size, (list, tuple)):
                setattr(part, name, type(size)(image))
            return


def _follow_text(part: PreTrainedConfig, changed: Mapping[str, JsonValue], tokens: int) -> None:
    padding = getattr(part, "pad_token_id", None) or 0
    needed = tokens + (padding + 1 if 0 < padding <= _LAST_PADDING else 0)
    for name in _POSITIONS:
        positions = part.to_dict().get(name)  # not an attribute: XLNet's raises
        if isinstance(positions, int) and name not in changed and positions < needed:
            setattr(part, name, needed)


def _follow_cache(
    config: PreTrainedConfig, overrides: Mapping[str, JsonValue], shapes: Mapping[str, Sequence[int | str]]
) -> None:
    """Layers, heads and width of the decoder, and the width of the encoder's states."""
    _, heads, _, size = shapes["past_0_key"]
    layers = sum(name.startswith("past_") and name.endswith("_key") for name in shapes)
    # The first inner configuration, if there is any.
    part, changed = [*_parts(config, overrides, ("decoder", "text_config"))][:2][-1]
    if not isinstance(heads, int) or not isinstance(size, int):
        return
    _set_first(part, changed, layers, "decoder_layers", "num_decoder_layers", "num_hidden_layers")
    if not changed.keys() & {"d_model", "hidden_size", "decoder_attention_heads", "num_attention_heads", "num_heads"}:
        _set_first(part, changed, heads, "decoder_attention_heads", "num_heads", "num_attention_heads")
        if hasattr(part, "d_kv"):
            _set_first(part, changed, size, "d_kv")
        else:
            _set_first(part, changed, heads * size, "d_model", "hidden_size")
    width = shapes.get(STATES, (None,))[-1]
    for encoder, encoder_changed in _parts(config, overrides, ("encoder",)):
        if part is not config and encoder is not config and isinstance(width, int) and not encoder_changed:
            encoder.hidden_size = width
            if width % encoder.num_attention_heads:
                encoder.num_attention_heads = width // _HEAD_SIZE


def _set_first(part: PreTrainedConfig, changed: Mapping[str, JsonValue], value: int, *names: str) -> None:
    for name in names:
        if hasattr(part, name):
            if name not in changed:
                setattr(part, name, value)
            return


def fitted(fields: ExportFields, subject: Subject, random_weights: RandomWeights | None) -> ExportFields:
    """Return *fields* with tensors that the model can take, if it was made from a seed."""
    if random_weights is None or not fields.input_tensors:
        return fields
    usual = usual_inputs(subject, fields.batch_size)
    return replace(
        fields,
        input_tensors=tuple(
            _fitted(each, usual.get(each.name), subject, random_weights)
            for each in fields.input_tensors
            if not _of_absent_layer(each.name, subject)
        ),
        output_tensors=tuple(n for n in fields.output_tensors or () if not _of_absent_layer(n, subject)) or None,
    )


def _of_absent_layer(name: str, subject: Subject) -> bool:
    parts = name.split("_")
    if not subject.is_decoder or parts[0] not in ("past", "present") or len(parts) != 3:
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
    axis = 1 if name == STATES else 2 if name.startswith("past_") else _TEXT_AXES.get(name)
    if axis is not None:
        fits = list(shape)
        if isinstance(length := fits[axis], int):
            of_image = name == STATES and "attention_mask" not in subject.takes
            fits[axis] = usual[axis] if of_image else min(length, longest or length)
        for fixed in (2,) if name == STATES else (1, 3) if name.startswith("past_") else ():
            fits[fixed] = usual[fixed]
        return tuple(fits)
    if name == "pixel_values" and _has_any(random_weights.config, ("image_size", "input_size")):
        return (*shape[:-2], *usual[-2:])
    if name in ("input_values", "input_features") and len(shape) == 3:
        return (shape[0], *usual[1:])  # AST and Whisper have a position for each frame
    return shape


def _has_any(config: Mapping[str, JsonValue], names: Sequence[str]) -> bool:
    """Whether the user's changes set one of *names*, in any part."""
    return any(key in names or (isinstance(value, Mapping) and _has_any(value, names)) for key, value in config.items())
