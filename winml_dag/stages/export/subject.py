"""The object of an export: a PyTorch module, a whole model or a part of one, with the names of its input tensors."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig

from winml_dag.stages.export.architectures import Component
from winml_dag.stages.export.component_modules import component_module
from winml_dag.stages.export.detect import task_named

if TYPE_CHECKING:
    from winml_dag.stages.export.loading import LoadedModel
    from winml_dag.stages.export.makers import ModelInput


# Classifiers that use the end of a text (BART, T5 and related models), in a form that has a graph.
#
# transformers selects the last end-of-text token of each row with a boolean index, and rejects rows with different
# numbers of them; a graph of one shape supports neither. Here the position is computed, and its state is gathered.


class SentenceEndClassifier(torch.nn.Module):  # type: ignore[misc]  # torch is not followed by the type checker
    """``logits`` of *model*, from ``input_ids`` and ``attention_mask``; a row without an end uses its start."""

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

    module: torch.nn.Module
    config: PreTrainedConfig
    task: str
    takes: tuple[str, ...]
    outputs: tuple[str, ...]
    constants: Mapping[str, Tensor] = field(default_factory=dict)
    folder: Path | None = None
    inputs: tuple[ModelInput, ...] | None = None


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


def _constants(model: torch.nn.Module, takes: tuple[str, ...]) -> dict[str, Tensor]:
    """Arguments that a model requires although they have only one sensible value."""
    backbone = getattr(model.config, "backbone_config", None)
    if "dataset_index" in takes and getattr(backbone, "num_experts", 1) > 1:
        # The expert of ViTPose+ for a data set: 0 is COCO, whose keypoints its head predicts.
        return {"dataset_index": torch.zeros(1, dtype=torch.int64)}
    return {}
