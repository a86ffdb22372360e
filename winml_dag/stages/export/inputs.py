"""The input tensors of models: one row for each, with the names of its axes and what makes the default tensor.

``export.shape_config`` and ``export.batch_size`` apply to axes by name; the names are winml-cli's. Default shapes
follow from the configuration and the preprocessor of a model. Integers are int32, because NPUs have no int64, and
recipes use it too; a range excludes its upper end, as in recipes. A text has 128 tokens: the cost of attention grows
with the square of the length, and a fixed shape also pays for padding, so the maximum of the architecture is a bad
default for a device.

Planning reads this table, so torch and transformers are imported where they are used.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from winml_dag.errors import StageError, did_you_mean
from winml_dag.onnxmodel.inspect import TensorSpec
from winml_dag.stages.export import ExportFields, InputTensor
from winml_dag.stages.export.architectures import STATES
from winml_dag.stages.export.detect import read_json

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from winml_dag.stages.export.subject import DecoderModule, Subject

BATCH = "batch_size"
# One number for each token of a text: the tokenizer makes them together, in one shape.
TOKEN_TENSORS = ("input_ids", "attention_mask", "token_type_ids")

# For a dynamic axis without any known size. Not 1: torch.export treats a size of 0 or 1 as a constant.
UNKNOWN_SIZE = 2
DEFAULT_TOKENS = 128
DEFAULT_IMAGE_SIZE = (224, 224)
DEFAULT_SAMPLES = 16000  # one second of audio, on which speech models are trained
DEFAULT_FRAMES = 100  # of audio features: one second, at the usual 10 ms
DEFAULT_CHOICES = 2
PREPROCESSOR_FILE = "preprocessor_config.json"

# A box is left, top, right and bottom, in thousandths of a page.
_BOX = (0, 1000)

# Inner configurations of a composite one, in the order in which they are searched for a setting.
_PARTS = (
    "text_config",
    "vision_config",
    "audio_config",
    "encoder",
    "decoder",
    "backbone_config",
    "prompt_encoder_config",
)

Shape = tuple[int | str, ...]


@dataclass(frozen=True)
class ModelInput(TensorSpec):
    """An input tensor. A text in ``shape`` names a dynamic axis; ``sizes`` has a default size for those axes too."""

    sizes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Input:
    """A tensor that models take.

    Attributes:
        axes: their names, for every rank that it may have; "" is an axis whose size the tensor itself determines.
        make: makes the default tensor for a model, from its name and the batch size; None if there is no default. The
            result is None if too little is known about the model.
    """

    name: str
    axes: tuple[tuple[str, ...], ...] = ()
    make: Callable[[Subject, str, int], ModelInput | None] | None = None


def model_inputs(subject: Subject, fields: ExportFields) -> tuple[ModelInput, ...]:
    """The inputs in the order in which the model is called with them.

    Raises:
        StageError: the model does not take a name, too little is known about a tensor, or an axis does not exist or has
            two names.
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
    """Convert whole numbers to integers, as in default inputs: the same range in a recipe gives the same file."""
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
    """*shape* with the names from ``export.dynamic_axes`` for axes of *tensor*.

    Raises:
        StageError: an axis does not exist or already has another name.
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
    """The recipe's tensors; fields that it omits are taken from the default input of that name."""
    # A shape that the recipe gives for one token tensor applies to the others too.
    text_shape = next((each.shape for each in asked if each.shape and each.name in TOKEN_TENSORS), None)
    completed = []
    for tensor in asked:
        if tensor.name not in takes:
            raise StageError(
                f"export.input_tensors names {tensor.name!r}, which the model does not take"
                f"{did_you_mean(tensor.name, takes)}",
                advice=f"It takes: {', '.join(takes)}.",
            )
        known = usual.get(tensor.name)
        like_others = text_shape if tensor.name in TOKEN_TENSORS else None
        shape = tensor.shape or like_others or (known.shape if known else None)
        dtype = tensor.dtype or (known.dtype if known else None)
        if shape is None or dtype is None:
            raise StageError(
                f"export.input_tensors must give dtype and shape of {tensor.name!r}: there is no default for it."
            )
        sizes = known.sizes if known and len(known.sizes) == len(shape) else (UNKNOWN_SIZE,) * len(shape)
        sizes = tuple(size if isinstance(size, int) else usually for size, usually in zip(shape, sizes, strict=True))
        value_range = _plain(tensor.value_range) or (known.value_range if known else None)
        completed.append(ModelInput(tensor.name, dtype, shape, value_range, sizes))
    return tuple(completed)


def sized(tensor: str, shape: Shape, sizes: Mapping[str, int], batch_size: int) -> Shape:
    """Apply *sizes* to the *shape* of *tensor*; dynamic axes stay dynamic.

    Recipes write a batch size of 1, so a leading batch axis of 1 becomes *batch_size*.
    """
    named = next((axes for axes in _AXES.get(tensor, ()) if len(axes) == len(shape)), ("",) * len(shape))
    found = [size if isinstance(size, str) else sizes.get(name, size) for name, size in zip(named, shape, strict=True)]
    if found and named[0] == BATCH and found[0] == 1:
        found[0] = batch_size
    return tuple(found)


def usual_inputs(subject: Subject, batch_size: int) -> dict[str, ModelInput]:
    """The default inputs of *subject*, by name, in the order in which it is called with them."""
    rows: tuple[Input, ...] = _INPUTS
    if subject.is_decoder:
        rows = (*_DECODER_INPUTS, *(Input(name, (), _past) for name in subject.takes if name.startswith("past_")))
    made = {row.name: row.make(subject, row.name, batch_size) for row in rows if row.make and row.name in subject.takes}
    if "input_ids" not in made and not subject.is_decoder:
        made.pop("attention_mask", None)  # a mask of something that is not text
    return {name: each for name, each in made.items() if each is not None}


def longest_text(subject: Subject) -> int | None:
    """How many tokens the model has positions for; None if it has no limit."""
    positions = _setting(subject.config, "max_position_embeddings", "max_target_positions", "n_positions")
    if not isinstance(positions, int) or positions <= 0:
        return None
    from torch.nn import Embedding

    # A position table with a padding row starts counting after that row: RoBERTa's 514 rows are for 512 tokens.
    tables = [module for module in subject.module.modules() if isinstance(module, Embedding)]
    padding = [table.padding_idx for table in tables if table.num_embeddings == positions]
    return positions - max((row + 1 for row in padding if row is not None), default=0)


def _made(name: str, dtype: str, shape: tuple[int, ...], value_range: tuple[float, float] | None) -> ModelInput:
    return ModelInput(name, dtype, shape, value_range, shape)


def _tokens(subject: Subject) -> int:
    return min(longest_text(subject) or DEFAULT_TOKENS, DEFAULT_TOKENS)


def _text_input(subject: Subject, name: str, batch: int, values: int, *inner: int) -> ModelInput:
    choices = (DEFAULT_CHOICES,) if subject.task == "multiple-choice" else ()
    return _made(name, "int32", (batch, *choices, _tokens(subject), *inner), (0, values))


def _input_ids(subject: Subject, name: str, batch: int) -> ModelInput | None:
    words = _setting(subject.config, "vocab_size")
    return _text_input(subject, name, batch, words) if words else None


def _token_type_ids(subject: Subject, name: str, batch: int) -> ModelInput | None:
    kinds = _setting(subject.config, "type_vocab_sizes")
    if kinds:  # TAPAS has several kinds of type for each token
        return _text_input(subject, name, batch, 2, len(kinds))
    types = _setting(subject.config, "type_vocab_size")
    # A single type carries no information: RoBERTa takes the tensor, but its tokenizer does not make it.
    return _text_input(subject, name, batch, types) if types and types > 1 else None


def _bbox(subject: Subject, name: str, batch: int) -> ModelInput | None:
    places = _setting(subject.config, "max_2d_position_embeddings")
    if places is None:
        return None
    return _made(name, "int32", (batch, _tokens(subject), 4), (0, min(places, _BOX[1])))


def _decoder_input_ids(subject: Subject, name: str, batch: int) -> ModelInput | None:
    if subject.task == "question-answering":
        return None  # computed from the text itself
    words = _setting(subject.config, "decoder_vocab_size", "vocab_size")
    return _text_input(subject, name, batch, words)


def _pixel_values(subject: Subject, name: str, batch: int) -> ModelInput:
    channels = _setting(subject.config, "num_channels") or 3
    frames = getattr(subject.config, "num_frames", None)
    video = (frames,) if isinstance(frames, int) else ()
    return _made(name, "float32", (batch, *video, channels, *_image_size(subject)), (0, 1))


def _image_size(subject: Subject) -> tuple[int, int]:
    """The size that the preprocessor crops or scales to, which is what the model receives; else that of the config."""
    path = subject.folder / PREPROCESSOR_FILE if subject.folder else None
    if path is not None and path.is_file():
        preprocessor = read_json(path)
        crops = preprocessor.get("do_center_crop", "crop_size" in preprocessor)
        for size in (preprocessor.get("crop_size") if crops else None, preprocessor.get("size")):
            pair = _pair(size)
            if pair is not None:
                return pair
    return _pair(_setting(subject.config, "image_size", "input_size")) or DEFAULT_IMAGE_SIZE


def _pair(size: Any) -> tuple[int, int] | None:
    """Height and width from any of the forms in which transformers writes a size."""
    if isinstance(size, Mapping):
        edge = size.get("shortest_edge")
        size = (size.get("height", edge), size.get("width", edge))
    if isinstance(size, int):
        size = (size, size)
    if isinstance(size, (list, tuple)) and len(size) == 2 and all(isinstance(each, int) for each in size):
        return (size[0], size[1])
    return None


def _input_values(subject: Subject, name: str, batch: int) -> ModelInput:
    """A waveform; for models that take frames (AST), a spectrogram."""
    bins = _setting(subject.config, "num_mel_bins")
    frames = getattr(subject.config, "max_length", None)
    shape = (batch, frames, bins) if isinstance(frames, int) and bins else (batch, DEFAULT_SAMPLES)
    return _made(name, "float32", shape, (-1, 1))


def _input_features(subject: Subject, name: str, batch: int) -> ModelInput | None:
    bins, frames = _setting(subject.config, "num_mel_bins"), _setting(subject.config, "max_source_positions")
    if bins and frames:  # Whisper halves the number of frames
        return _made(name, "float32", (batch, bins, 2 * frames), (-1, 1))
    size = _setting(subject.config, "feature_projection_input_dim", "input_feat_per_channel")
    return _made(name, "float32", (batch, DEFAULT_FRAMES, size), (-1, 1)) if size else None


def _input_points(subject: Subject, name: str, batch: int) -> ModelInput:
    height, width = _image_size(subject)
    return _made(name, "float32", (batch, 1, 1, 2), (0, min(height, width)))


def _states(subject: Subject, name: str, batch: int) -> ModelInput:
    shape = _states_shape(subject.module, subject.folder)
    return _made(name, "float32", (batch, *shape), (0, 1))


def _states_shape(decoder: DecoderModule, folder: Path | None) -> tuple[int, int]:
    """The number and the width of the states that the encoder computes from its default inputs, found by running it."""
    if decoder.states_shape is not None:
        return decoder.states_shape
    import torch

    from winml_dag.stages.export.subject import Subject

    (encoder,) = decoder.encoder_of
    subject = Subject(encoder, encoder.config, "feature-extraction", encoder.input_names, (), {}, folder)
    inputs = usual_inputs(subject, 1)
    tensors = {each.name: torch.zeros(each.sizes, dtype=getattr(torch, each.dtype)) for each in inputs.values()}
    with torch.no_grad():
        _, tokens, width = encoder(**tensors)[STATES].shape
    decoder.states_shape = tokens, width
    return tokens, width


def _source_mask(subject: Subject, name: str, batch: int) -> ModelInput:
    return _made(name, "int32", (batch, _states_shape(subject.module, subject.folder)[0]), (0, 2))


def _next_token(subject: Subject, name: str, batch: int) -> ModelInput:
    words = _setting(subject.config, "decoder_vocab_size", "vocab_size")
    return _made(name, "int32", (batch, 1), (0, words))


def _past(subject: Subject, name: str, batch: int) -> ModelInput:
    from winml_dag.stages.export.subject import cache_shape

    heads, size = cache_shape(subject.config)
    return _made(name, "float32", (batch, heads, _tokens(subject), size), (0, 1))


def _setting(config: PreTrainedConfig, *names: str) -> Any:
    """The value of the first of *names* that the configuration or one inside of it has."""
    parts = [config, *(getattr(config, each, None) for each in _PARTS)]
    for part in (*parts, *(getattr(each, "sam_config", None) for each in parts)):
        for name in names:
            try:
                value = getattr(part, name, None)
            except NotImplementedError:  # XLNet raises it for a limit that it does not have
                value = None
            if value is not None:
                return value
    return None


_TEXT = (BATCH, "sequence_length")
_TOKENS = (_TEXT, (BATCH, "num_choices", "sequence_length"))
_POINTS = (BATCH, "point_batch_size", "nb_points_per_image")
_IMAGE = ("num_channels", "height", "width")
_INPUTS = (
    Input("input_ids", _TOKENS, _input_ids),
    Input("bbox", ((*_TEXT, ""),), _bbox),
    Input("attention_mask", _TOKENS, lambda subject, name, batch: _text_input(subject, name, batch, 2)),
    Input("token_type_ids", _TOKENS, _token_type_ids),
    Input("position_ids", (_TEXT,)),
    Input("pixel_values", ((BATCH, *_IMAGE), (BATCH, "num_frames", *_IMAGE)), _pixel_values),
    Input("pixel_values_videos", (), _pixel_values),
    Input("pixel_mask", ((BATCH, "height", "width"),)),
    Input("input_values", ((BATCH, "audio_sequence_length"), (BATCH, "nb_max_frames", "feature_size")), _input_values),
    Input("input_features", ((BATCH, "feature_size", "nb_max_frames"),), _input_features),
    Input("input_points", ((*_POINTS, ""),), _input_points),
    Input("input_labels", (_POINTS,), lambda _, name, batch: _made(name, "int32", (batch, 1, 1), (0, 2))),
    Input("decoder_input_ids", (), _decoder_input_ids),
)
# Those of a decoder with a cache, without the cache.
_DECODER_INPUTS = (
    Input("decoder_input_ids", (), _next_token),
    Input(STATES, ((*_TEXT, ""),), _states),
    Input("attention_mask", _TOKENS, _source_mask),
    Input(
        "decoder_attention_mask",
        (),
        lambda subject, name, batch: _made(name, "int32", (batch, _tokens(subject)), (0, 2)),
    ),
    Input("cache_position", (), lambda subject, name, _: _made(name, "int32", (1,), (0, _tokens(subject)))),
)
_AXES = {row.name: row.axes for row in (*_DECODER_INPUTS, *_INPUTS)}
