"""What is exported: a PyTorch module, a whole model or a part of one, with the names of its inputs and outputs.

A component is a module of its own, with named tensors and the weights of the parent.

A decoder processes one token at a time and keeps no state. The caller holds the keys and values of all earlier tokens
in tensors of fixed length (``past_0_key``, ...), passes the position of this token in ``cache_position``, and receives
the token's keys and values (``present_0_key``, ..., as long as the input tokens) to write there. All shapes are
therefore fixed, which an NPU needs, and the outputs hold a few numbers instead of the whole cache.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import Module
from transformers import DynamicCache, EncoderDecoderCache, PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin

from winml_dag.errors import StageError
from winml_dag.explanation import explanation
from winml_dag.stages.export import LoaderFields
from winml_dag.stages.export.architectures import (
    DECODER,
    ENCODER,
    IMAGE_TOWER,
    STATES,
    TEXT_TOWER,
    Component,
    chosen_components,
)
from winml_dag.stages.export.detect import task_named

if TYPE_CHECKING:
    from winml_dag.stages.export.inputs import ModelInput
    from winml_dag.stages.export.loading import LoadedModel


class ComponentModule(Module):  # type: ignore[misc]  # torch is not followed by the type checker
    """A part of ``model``. ``input_names`` are its keyword arguments; ``config`` is that of the part."""

    def __init__(self, model: PreTrainedModel, config: PreTrainedConfig, input_names: tuple[str, ...]) -> None:
        super().__init__()
        self.model = model
        self.config = config
        self.input_names = input_names
        self.eval()


class EncoderModule(ComponentModule):
    """Everything that a decoder needs from the input: ``encoder_hidden_states``."""

    def forward(self, **tensors: Tensor) -> dict[str, Tensor]:
        return {STATES: self.model(**tensors)[0]}


class TowerModule(ComponentModule):
    """One of two towers: the embedding to compare with that of the other tower, and the hidden states."""

    def __init__(self, model: PreTrainedModel, config: PreTrainedConfig, names: tuple[str, ...], output: str) -> None:
        super().__init__(model, config, names)
        self.output = output

    def forward(self, **tensors: Tensor) -> dict[str, Tensor]:
        embed = self.model.get_text_features if self.output == "text_embeds" else self.model.get_image_features
        features = embed(**tensors)
        return {self.output: features.pooler_output, "last_hidden_state": features.last_hidden_state}


class DecoderModule(ComponentModule):
    """The logits of the next token, and the keys and values of the input tokens.

    Attributes:
        masks_source: ``attention_mask`` marks encoder states that are padding.
        encoder: computes the states that this decoder reads; it has the same parent.
        states_shape: number and width of these states, once known: an encoder may take seconds.
    """

    states_shape: tuple[int, int] | None = None

    def __init__(self, parent: PreTrainedModel, encoder: EncoderModule, *, masks_source: bool) -> None:
        config = decoder_config(parent.config)
        past = tuple(f"past_{layer}_{part}" for layer in range(layers_of(config)) for part in ("key", "value"))
        mask = ("attention_mask",) if masks_source else ()
        names = ("decoder_input_ids", STATES, *mask, "decoder_attention_mask", "cache_position", *past)
        super().__init__(parent, config, names)
        self.masks_source = masks_source
        self.layers = layers_of(config)
        # A tuple, so that its modules are not registered twice.
        self.encoder_of = (encoder,)

    def forward(self, **tensors: Tensor) -> dict[str, Tensor]:
        position = tensors["cache_position"].to(torch.int64)  # PyTorch indices are int64
        layers = [
            _GivenLayer(tensors[f"past_{layer}_key"], tensors[f"past_{layer}_value"], position)
            for layer in range(self.layers)
        ]
        mask = _additive_mask(tensors["decoder_attention_mask"], position, tensors[STATES].dtype)
        logits = self.decode(tensors, mask, EncoderDecoderCache(Cache(layers=layers), DynamicCache()))
        produced = {"logits": logits}
        for number, layer in enumerate(layers):
            produced[f"present_{number}_key"], produced[f"present_{number}_value"] = layer.added
        return produced

    def decode(self, tensors: Mapping[str, Tensor], mask: Tensor, cache: Cache) -> Tensor:
        source = {"attention_mask": tensors["attention_mask"]} if self.masks_source else {}
        answer = self.model(
            decoder_input_ids=tensors["decoder_input_ids"],
            encoder_outputs=(tensors[STATES],),
            decoder_attention_mask=mask,
            past_key_values=cache,
            use_cache=True,
            **source,
        )
        logits: Tensor = answer.logits
        return logits


class TextDecoderModule(DecoderModule):
    """A decoder whose parent has no forward for it alone (BLIP)."""

    def decode(self, tensors: Mapping[str, Tensor], mask: Tensor, cache: Cache) -> Tensor:
        answer = self.model.text_decoder(
            input_ids=tensors["decoder_input_ids"],
            attention_mask=mask,
            encoder_hidden_states=tensors[STATES],
            past_key_values=cache,
            use_cache=True,
        )
        logits: Tensor = answer.logits
        return logits


class _GivenLayer(CacheLayerMixin):  # type: ignore[misc]  # transformers is not followed by the type checker
    """Keys and values from the caller, with those of this step written at their position and stored in ``added``."""

    def __init__(self, keys: Tensor, values: Tensor, position: Tensor) -> None:
        super().__init__()
        self.keys, self.values, self.position = keys, values, position
        self.is_initialized = True
        self.added: tuple[Tensor, ...] = ()

    def lazy_initialization(self, *_: Tensor) -> None:
        raise AssertionError("keys and values are given")

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        self.added = key_states, value_states
        return self._placed(self.keys, key_states), self._placed(self.values, value_states)

    def _placed(self, past: Tensor, new: Tensor) -> Tensor:
        if new.shape[2] == 1:
            # Unlike a scatter, every execution provider supports a choice between two tensors.
            here = torch.arange(past.shape[2], device=past.device) == self.position
            return torch.where(here[None, None, :, None], new, past)
        return past.index_copy(2, self.position, new)

    def get_mask_sizes(self, _: int) -> tuple[int, int]:
        return self.keys.shape[2], 0

    def get_seq_length(self) -> Tensor:  # a tensor, as in transformers' static layers: positions are computed from it
        return self.position[0]

    def get_max_length(self) -> int:
        return int(self.keys.shape[2])


def _additive_mask(mask: Tensor, position: Tensor, dtype: torch.dtype) -> Tensor:
    """``[batch, 1, tokens, length]``: 0 where a token may attend, the lowest number elsewhere.

    A single token may attend to everything in *mask*, which marks the filled part of the cache. With several tokens,
    none attends to a later one.
    """
    seen = mask[:, None, None, :] != 0
    if position.shape[0] != 1:
        slots = torch.arange(mask.shape[1], device=mask.device)
        seen = seen & (slots[None, None, None, :] <= position[None, None, :, None])
    return torch.where(seen, 0.0, torch.finfo(dtype).min).to(dtype)


def decoder_config(config: PreTrainedConfig) -> PreTrainedConfig:
    """The part of a composite configuration that describes its decoder.

    ``get_text_config(decoder=True)`` does not work: for flat configurations it returns a copy without
    ``decoder_layers``.
    """
    for name in ("decoder", "text_config"):
        part = getattr(config, name, None)
        if isinstance(part, PreTrainedConfig):
            return part
    return config


def layers_of(config: PreTrainedConfig) -> int:
    """The number of layers of a decoder, under any of the names that architectures use."""
    return int(_first(config, "decoder_layers", "num_decoder_layers", "num_layers", "num_hidden_layers"))


def cache_shape(config: PreTrainedConfig) -> tuple[int, int]:
    """The number of heads of a decoder, and the size of one head."""
    heads = int(_first(config, "decoder_attention_heads", "num_attention_heads", "num_heads"))
    size = getattr(config, "d_kv", None) or getattr(config, "head_dim", None)
    return heads, int(size or _first(config, "d_model", "hidden_size") // heads)


def _first(config: PreTrainedConfig, *names: str) -> Any:
    return next(value for name in names if (value := getattr(config, name, None)) is not None)


def component_module(parent: PreTrainedModel, component: Component) -> ComponentModule:
    """The module of *component*, with weights of *parent* that it shares with the other components."""
    module = _MAKERS[component.role](parent)
    # Name the module as recipes do, for error messages and the tags of its nodes.
    module.__class__ = type(component.class_name, (type(module),), {})
    return module


def _encoder(parent: PreTrainedModel) -> EncoderModule:
    encoder = parent.vision_model if hasattr(parent, "text_decoder") else parent.get_encoder()
    main = encoder.main_input_name
    return EncoderModule(encoder, encoder.config, (main, "attention_mask") if main == "input_ids" else (main,))


def _decoder(parent: PreTrainedModel) -> DecoderModule:
    encoder = _encoder(parent)
    if hasattr(parent, "text_decoder"):
        return TextDecoderModule(parent, encoder, masks_source=False)
    return DecoderModule(parent, encoder, masks_source="attention_mask" in encoder.input_names)


_MAKERS: Mapping[str, Callable[[PreTrainedModel], ComponentModule]] = {
    ENCODER: _encoder,
    DECODER: _decoder,
    TEXT_TOWER: lambda parent: TowerModule(
        parent, parent.config.text_config, ("input_ids", "attention_mask"), "text_embeds"
    ),
    IMAGE_TOWER: lambda parent: TowerModule(parent, parent.config.vision_config, ("pixel_values",), "image_embeds"),
}


class SentenceEndClassifier(Module):  # type: ignore[misc]
    """A classifier that uses the end of a text (BART, T5 and related models), in a form that has a graph.

    transformers selects the last end-of-text token of each row with a boolean index, and rejects rows with different
    numbers of them; a graph of one shape supports neither. Here the position is computed, and its state is gathered. A
    row without an end uses its start.
    """

    input_names = ("input_ids", "attention_mask")

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.config = model.config
        # Name it after the model, for error messages and the tags of its nodes.
        self.__class__ = type(type(model).__name__, (type(self),), {})
        self.eval()

    @staticmethod
    def is_for(model: Any) -> bool:
        named = type(model).__name__.endswith("ForSequenceClassification")
        return named and model.config.is_encoder_decoder and hasattr(model, "classification_head")

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> dict[str, Tensor]:
        # T5 needs the inputs of its decoder; BART derives them from the text itself.
        shifted = (
            {"decoder_input_ids": self.model._shift_right(input_ids)} if hasattr(self.model, "_shift_right") else {}
        )
        states = self.model.base_model(input_ids, attention_mask=attention_mask, **shifted)[0]
        ends = (input_ids == self.config.eos_token_id).to(torch.int64)
        last = (ends * torch.arange(ends.shape[1], device=ends.device)).argmax(dim=1)
        at_end = states.gather(1, last[:, None, None].expand(-1, 1, states.shape[2])).squeeze(1)
        return {"logits": self.model.classification_head(at_end)}


@dataclass(frozen=True)
class Subject:
    """What to export.

    Attributes:
        config: of ``module``; that of the part if it is one.
        takes: names of the tensors that ``module`` can be called with.
        outputs: names that a caller expects, in order; those that the module has are exported.
        constants: arguments that are the same in every call, and so are not inputs of the exported model.
        folder: of the saved model; None with random weights.
        inputs: of a single module, whose inputs only the recipe knows; None if they follow from the other fields.
    """

    module: Module
    config: PreTrainedConfig
    task: str
    takes: tuple[str, ...]
    outputs: tuple[str, ...]
    constants: Mapping[str, Tensor] = field(default_factory=dict)
    folder: Path | None = None
    inputs: tuple[ModelInput, ...] | None = None

    @property
    def is_decoder(self) -> bool:
        """Whether it is a decoder with a cache among its inputs."""
        return isinstance(self.module, DecoderModule)


def whole_subject(loaded: LoadedModel, task: str, folder: Path | None) -> Subject:
    """The loaded model in one piece, for *task*."""
    found = task_named(task)
    model = loaded.model
    if SentenceEndClassifier.is_for(model):
        model = SentenceEndClassifier(model)
    takes = getattr(model, "input_names", None) or tuple(inspect.signature(model.forward).parameters)
    return Subject(model, model.config, found.name, takes, found.outputs, _constants(model, takes), folder)


def component_subject(loaded: LoadedModel, component: Component, folder: Path | None) -> Subject:
    """One component of the loaded model, which shares its weights with the others."""
    module = component_module(loaded.model, component)
    # All outputs of a component are exported, in its own order.
    return Subject(module, module.config, component.task, module.input_names, (), {}, folder)


def chosen_subject(loaded: LoadedModel, loader: LoaderFields, folder: Path | None) -> Subject:
    """The component that the recipe names, else the whole model."""
    chosen = chosen_components(loaded.model.config.model_type, loader.task, loader.model_class)
    if loaded.whole or len(chosen) != 1:
        return whole_subject(loaded, loader.task, folder)
    return component_subject(loaded, chosen[0], folder)


def _constants(model: Module, takes: tuple[str, ...]) -> dict[str, Tensor]:
    """Arguments that a model requires although they have only one sensible value."""
    backbone = getattr(model.config, "backbone_config", None)
    if "dataset_index" in takes and getattr(backbone, "num_experts", 1) > 1:
        # The expert of ViTPose+ for a data set: 0 is COCO, whose keypoints its head predicts.
        return {"dataset_index": torch.zeros(1, dtype=torch.int64)}
    return {}


def call_model(model: Module, arguments: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The output tensors of *model*, by transformers' names.

    Raises:
        StageError: the model cannot take *arguments*.
    """
    try:
        result = model(**arguments)
    except Exception as error:  # whatever the model raises is about shapes, types and values from the recipe
        given = ", ".join(f"{name} {tensor.dtype} {list(tensor.shape)}" for name, tensor in arguments.items())
        raise StageError(
            f"The PyTorch model cannot run on {given}: {explanation(error)}.",
            advice="Check export.input_tensors and export.dynamic_axes.",
        ) from error
    return named_tensors(result)


def named_tensors(result: Any) -> dict[str, Tensor]:
    """The tensors in a model's result, by name; caches and other objects are skipped.

    The name is that of a field, or else ``output_0`` by number. A tensor within another value has both
    (``feature_maps_0``).
    """
    if not isinstance(result, Mapping):
        several = result if isinstance(result, list | tuple) else (result,)
        result = {f"output_{place}": value for place, value in enumerate(several)}
    return dict(tensor for name, value in result.items() for tensor in _tensors(name, value))


def _tensors(name: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, list | tuple):
        for place, inner in enumerate(value):
            yield from _tensors(f"{name}_{place}", inner)
