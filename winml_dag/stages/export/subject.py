"""What is exported: a PyTorch module, a whole model or a part of one, with the names of its inputs and outputs."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import Module
from transformers import PreTrainedConfig

from winml_dag.errors import StageError
from winml_dag.explanation import explanation
from winml_dag.stages.export import LoaderFields
from winml_dag.stages.export.architectures import Component, chosen_components
from winml_dag.stages.export.component_modules import DecoderModule, component_module
from winml_dag.stages.export.detect import task_named

if TYPE_CHECKING:
    from winml_dag.stages.export.inputs import ModelInput
    from winml_dag.stages.export.loading import LoadedModel


class SentenceEndClassifier(Module):  # type: ignore[misc]  # torch is not followed by the type checker
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


def choose_outputs(produced: Sequence[str], asked: Sequence[str], usual: Sequence[str]) -> dict[str, str]:
    """The outputs to export, those in *asked*, else those of the *usual* ones that the model has: its own names of
    them, by the exported model's.

    Names that the model has refer to its outputs. If it has none of the names, they are new names for its first
    outputs, in order; a mixture would be a guess.

    Raises:
        StageError: there are more names than outputs, a name is used twice, only some names are known, or there is
            nothing to export.
    """
    has = ", ".join(produced) or "none"
    if not asked:
        choices = {name: name for name in usual if name in produced}
        if not choices:
            raise StageError(
                f"The model has none of the outputs that its task is about ({', '.join(usual)}); it has: {has}.",
                advice="Name the outputs in export.output_tensors, or choose another task.",
            )
        return choices
    if len(set(asked)) != len(asked):
        raise StageError(f"export.output_tensors names an output twice: {', '.join(asked)}.")
    if len(asked) > len(produced):
        raise StageError(f"export.output_tensors names {len(asked)} outputs, but the model has {len(produced)}: {has}.")
    unknown = [name for name in asked if name not in produced]
    if not unknown:
        return {name: name for name in asked}
    if len(unknown) < len(asked):
        raise StageError(f"export.output_tensors names {', '.join(unknown)}, but the model's outputs are: {has}.")
    return dict(zip(asked, produced, strict=False))
