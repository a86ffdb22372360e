"""Infers settings of an architecture from a recipe's tensors, so that random weights fit them.

A recipe has the tensors of one checkpoint: 512 tokens, images of 840 pixels, 6 layers of cache. Random weights use the
defaults of the architecture with the user's changes; settings that the user did not change follow the tensors.
:mod:`winml_dag.stages.export.fitting` covers the other direction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from transformers import PreTrainedConfig

from winml_dag.canonical import JsonValue
from winml_dag.stages.export import InputTensor
from winml_dag.stages.export.component_modules import STATES

# Parts, next to the configuration itself, that may have a setting of an image, a text or a decoder.
_IMAGE_PARTS = ("vision_config", "encoder", "backbone_config")
_TEXT_PARTS = ("text_config", "decoder")

# RoBERTa and related models count positions from after the padding token's; others have the padding at 0 or far away.
_LAST_PADDING = 3

TEXT_TENSORS = ("input_ids", "attention_mask", "token_type_ids", "bbox", "decoder_attention_mask")
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
    lengths = [shape[-1 if name != "bbox" else 1] for name, shape in shapes.items() if name in TEXT_TENSORS]
    tokens = max((length for length in lengths if isinstance(length, int)), default=0)
    for part, changed in _parts(config, overrides, _TEXT_PARTS):
        _follow_text(part, changed, tokens)
    if "past_0_key" in shapes:
        _follow_cache(config, overrides, shapes)


def _parts(
    config: PreTrainedConfig, overrides: Mapping[str, JsonValue], names: Sequence[str]
) -> Iterator[tuple[PreTrainedConfig, Mapping[str, JsonValue]]]:
    """The configuration and its parts, each with the user's changes to it."""
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
    part, changed = next(
        (
            (part, changed)
            for part, changed in _parts(config, overrides, ("decoder", "text_config"))
            if part is not config
        ),
        (config, overrides),
    )
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
