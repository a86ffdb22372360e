"""Names of the axes of input tensors, to which ``export.shape_config`` and ``export.batch_size`` apply.

The names are winml-cli's. Works without torch, because planning applies them to the tensors in a recipe.
"""

from __future__ import annotations

from collections.abc import Mapping

BATCH = "batch_size"

_TEXT = (BATCH, "sequence_length")
_CHOICES = (BATCH, "num_choices", "sequence_length")
_POINTS = (BATCH, "point_batch_size", "nb_points_per_image")

# Axis names by tensor, for every rank that it may have; "" is an axis whose size the tensor itself determines.
_AXES: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "input_ids": (_TEXT, _CHOICES),
    "attention_mask": (_TEXT, _CHOICES),
    "token_type_ids": (_TEXT, _CHOICES),
    "position_ids": (_TEXT,),
    "encoder_hidden_states": ((*_TEXT, ""),),
    "bbox": ((*_TEXT, ""),),
    "pixel_values": (
        (BATCH, "num_channels", "height", "width"),
        (BATCH, "num_frames", "num_channels", "height", "width"),
    ),
    "pixel_mask": ((BATCH, "height", "width"),),
    "input_values": ((BATCH, "audio_sequence_length"), (BATCH, "nb_max_frames", "feature_size")),
    "input_features": ((BATCH, "feature_size", "nb_max_frames"),),
    "input_points": ((*_POINTS, ""),),
    "input_labels": (_POINTS,),
}


def sized(
    tensor: str, shape: tuple[int | str, ...], sizes: Mapping[str, int], batch_size: int
) -> tuple[int | str, ...]:
    """Apply *sizes* to the *shape* of *tensor*; dynamic axes stay dynamic.

    Recipes write a batch size of 1, so a leading batch axis of 1 becomes *batch_size*.
    """
    named = next((axes for axes in _AXES.get(tensor, ()) if len(axes) == len(shape)), ("",) * len(shape))
    found = [size if isinstance(size, str) else sizes.get(name, size) for name, size in zip(named, shape, strict=True)]
    if found and named[0] == BATCH and found[0] == 1:
        found[0] = batch_size
    return tuple(found)
