"""The input tensors of the exported model: those of the recipe, completed by what the model's configuration says.

Integers are int32, because NPUs have no int64 and recipes say so too; a range excludes its upper end, as in recipes. A
text is 128 tokens long unless the recipe says otherwise: the cost of attention grows with the square of the length, and
a fixed shape pays for its padding too, so the maximum of the architecture is a bad default for a device.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from winml_dag.errors import StageError
from winml_dag.stages.export import ExportFields, InputTensor
from winml_dag.stages.export.architectures import did_you_mean
from winml_dag.stages.export.loading import read_json

DEFAULT_TOKENS = 128
DEFAULT_IMAGE_SIZE = (224, 224)
PREPROCESSOR_FILE = "preprocessor_config.json"

# For a dynamic axis of which nothing is known. Not 1: torch.export takes a size of 0 or 1 for a constant.
_UNKNOWN_SIZE = 2

Shape = tuple[int | str, ...]


@dataclass(frozen=True)
class ModelInput:
    """An input tensor. A text in ``shape`` names a dynamic axis; ``sizes`` has a usual size for those axes too."""

    name: str
    dtype: str
    shape: Shape
    sizes: tuple[int, ...]
    value_range: tuple[float, float] | None


@dataclass(frozen=True)
class _Subject:
    """What the makers of inputs look at. ``folder`` is the model folder, None with random weights."""

    model: PreTrainedModel
    batch_size: int
    folder: Path | None


def model_inputs(model: PreTrainedModel, fields: ExportFields, folder: Path | None) -> tuple[ModelInput, ...]:
    """The inputs in the order in which the model is called with them.

    Raises:
        StageError: for a name that the model does not take, a tensor of which too little is known, or an axis that does
            not exist or has two names.
    """
    takes = tuple(inspect.signature(model.forward).parameters)
    usual = _usual_inputs(_Subject(model, fields.batch_size, folder), takes)
    inputs = _asked_inputs(fields.input_tensors, usual, takes) if fields.input_tensors else tuple(usual.values())
    if not inputs:
        raise StageError(
            f"No inputs are known for {type(model).__name__}.",
            advice=f"Name them in export.input_tensors; the model takes: {', '.join(takes)}.",
        )
    axes = fields.dynamic_axes or {}
    return tuple(dataclasses.replace(each, shape=named_axes(each.name, each.shape, axes)) for each in inputs)


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


def _usual_inputs(subject: _Subject, takes: tuple[str, ...]) -> dict[str, ModelInput]:
    made = {name: make(subject) for name, make in _MAKERS.items() if name in takes}
    if "input_ids" not in made:
        made.pop("attention_mask", None)  # of something that is not text
    return {name: each for name, each in made.items() if each is not None}


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
        value_range = tensor.value_range or (known.value_range if known else None)
        completed.append(ModelInput(tensor.name, dtype, shape, sizes, value_range))
    return tuple(completed)


def _text_input(subject: _Subject, name: str, values: int) -> ModelInput:
    shape = (subject.batch_size, min(_longest_text(subject.model), DEFAULT_TOKENS))
    return ModelInput(name, "int32", shape, shape, (0, values))


def _longest_text(model: PreTrainedModel) -> int:
    """How many tokens the model has positions for; the default length when it has no limit."""
    positions = _setting(model, "max_position_embeddings")
    if not isinstance(positions, int):
        return DEFAULT_TOKENS
    # A position table with a padding row starts counting behind that row: RoBERTa's 514 rows are for 512 tokens.
    tables = [module for module in model.modules() if isinstance(module, torch.nn.Embedding)]
    padding = [table.padding_idx for table in tables if table.num_embeddings == positions]
    return positions - max((row + 1 for row in padding if row is not None), default=0)


def _input_ids(subject: _Subject) -> ModelInput:
    return _text_input(subject, "input_ids", _setting(subject.model, "vocab_size"))


def _attention_mask(subject: _Subject) -> ModelInput:
    return _text_input(subject, "attention_mask", 2)


def _token_type_ids(subject: _Subject) -> ModelInput | None:
    types = _setting(subject.model, "type_vocab_size")
    # With one type there is nothing to say: RoBERTa takes the tensor, but its tokenizer does not make it.
    return _text_input(subject, "token_type_ids", types) if types and types > 1 else None


def _pixel_values(subject: _Subject) -> ModelInput:
    shape = (subject.batch_size, _setting(subject.model, "num_channels") or 3, *_image_size(subject))
    return ModelInput("pixel_values", "float32", shape, shape, (0, 1))


def _image_size(subject: _Subject) -> tuple[int, int]:
    """What the preprocessor crops or scales to, since that is what the model will be fed; else what the config says."""
    path = subject.folder / PREPROCESSOR_FILE if subject.folder else None
    if path is not None and path.is_file():
        preprocessor = read_json(path)
        crops = preprocessor.get("do_center_crop", "crop_size" in preprocessor)
        for size in (preprocessor.get("crop_size") if crops else None, preprocessor.get("size")):
            pair = _pair(size)
            if pair is not None:
                return pair
    return _pair(_setting(subject.model, "image_size")) or DEFAULT_IMAGE_SIZE


def _pair(size: Any) -> tuple[int, int] | None:
    """Height and width from any of the ways in which transformers writes a size."""
    if isinstance(size, Mapping):
        edge = size.get("shortest_edge")
        size = (size.get("height", edge), size.get("width", edge))
    if isinstance(size, int):
        size = (size, size)
    if isinstance(size, (list, tuple)) and len(size) == 2 and all(isinstance(each, int) for each in size):
        return (size[0], size[1])
    return None


def _setting(model: PreTrainedModel, name: str) -> Any:
    """A setting of the model's configuration, or of the text or vision part of a composite one."""
    config = model.config
    for part in (config, getattr(config, "text_config", None), getattr(config, "vision_config", None)):
        value = getattr(part, name, None)
        if value is not None:
            return value
    return None


_MAKERS: Mapping[str, Callable[[_Subject], ModelInput | None]] = {
    "input_ids": _input_ids,
    "attention_mask": _attention_mask,
    "token_type_ids": _token_type_ids,
    "pixel_values": _pixel_values,
}
_TOKEN_TENSORS = ("input_ids", "attention_mask", "token_type_ids")
