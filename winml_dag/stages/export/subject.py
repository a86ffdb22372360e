"""What is exported: a PyTorch module with the names of the tensors that it takes; a whole model or a part of one."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from transformers import PreTrainedConfig

from winml_dag.stages.export.component_modules import component_module
from winml_dag.stages.export.components import Component
from winml_dag.stages.export.loading import LoadedModel
from winml_dag.stages.export.sentence_end import SentenceEndClassifier
from winml_dag.stages.export.tasks import task_named

if TYPE_CHECKING:
    from winml_dag.stages.export.makers import ModelInput


@dataclass(frozen=True)
class Subject:
    """
    Attributes:
        config: of ``module``; that of the part when it is one.
        takes: names of the tensors that ``module`` can be called with.
        outputs: names that a caller expects, in order; those that the module has are exported.
        constants: arguments that are the same in every call, so that they are no inputs of the exported model.
        folder: of the saved model, None with random weights.
        inputs: of a module alone, whose inputs only the recipe knows; None where they are made from all the rest.
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
    """One component of the loaded model; its weights are shared with the others."""
    module = component_module(loaded.model, component)
    # All that a component puts out is wanted, in its own order.
    return Subject(module, module.config, component.task, module.input_names, (), {}, folder)


def _constants(model: torch.nn.Module, takes: tuple[str, ...]) -> dict[str, Tensor]:
    """Arguments without which a model refuses to run, although there is only one sensible value for them."""
    backbone = getattr(model.config, "backbone_config", None)
    if "dataset_index" in takes and getattr(backbone, "num_experts", 1) > 1:
        # Which data set's expert of ViTPose+: 0 is COCO, whose keypoints its head is about.
        return {"dataset_index": torch.zeros(1, dtype=torch.int64)}
    return {}
