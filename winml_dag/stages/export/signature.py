"""The work of signature: make the architecture without weights to infer its inputs and outputs.

For a model of any size, this takes only as long as its imports.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from winml_dag.canonical import JsonObject, JsonValue
from winml_dag.engine.stage import Workspace
from winml_dag.errors import StageError
from winml_dag.stages.export import MODEL, SignatureConfig
from winml_dag.stages.export.conversion import own_fields
from winml_dag.stages.export.inputs import ModelInput, model_inputs
from winml_dag.stages.export.loading import model_without_weights
from winml_dag.stages.export.subject import Subject, call_model, choose_outputs, chosen_subject


class _EveryCheckHolds(TorchFunctionMode):  # type: ignore[misc]
    """Makes every check of tensor values true, such as whether a mask hides nothing.

    A model without values cannot evaluate such a check.
    """

    def __torch_function__(
        self, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return True if func is torch.Tensor.__bool__ else func(*args, **(kwargs or {}))


@contextmanager
def _without_values() -> Iterator[None]:
    with torch.no_grad(), torch.device("meta"), _EveryCheckHolds():
        yield


def run(config: SignatureConfig, workspace: Workspace) -> JsonObject:
    """Return ``input_tensors`` and, if they can be inferred without values, ``output_tensors``, as in a recipe.

    Raises:
        StageError: no such architecture exists, or nothing is known about its inputs.
    """
    folder = Path(named) if (named := workspace.machine_facts.get(MODEL)) else None
    loaded = model_without_weights(config.loader, folder, config.export.input_tensors)
    subject = chosen_subject(loaded, config.loader, folder)
    fields = config.export if config.component is None else own_fields(config.component, subject)
    with _without_values():  # the length of an encoder's states is known only after running it
        inputs = model_inputs(subject, fields)
    outputs: list[JsonValue] = []
    # A model that counts by values (the number of tokens in a text) cannot run without values.
    with suppress(StageError):
        outputs = [{"name": name} for name in _outputs(subject, inputs, config.export.output_tensors or ())]
    return {"input_tensors": [_tensor(each) for each in inputs], "output_tensors": outputs}


def _outputs(subject: Subject, inputs: tuple[ModelInput, ...], asked: tuple[str, ...]) -> list[str]:
    example = {each.name: torch.empty(each.sizes, dtype=getattr(torch, each.dtype), device="meta") for each in inputs}
    with _without_values():
        produced = tuple(call_model(subject.module, {**example, **subject.constants}))
    return list(choose_outputs(produced, asked, subject.outputs or produced))


def _tensor(each: ModelInput) -> JsonObject:
    value_range = {} if each.value_range is None else {"value_range": [*each.value_range]}
    return {"name": each.name, "dtype": each.dtype, "shape": [*each.shape], **value_range}
