"""Which output tensors of a PyTorch model are exported, and under which names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn import Module

from winml_dag.errors import StageError
from winml_dag.explanation import explanation


@dataclass(frozen=True)
class OutputChoice:
    """``name`` is the exported model's name for what transformers calls ``attribute``."""

    name: str
    attribute: str


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


def choose_outputs(produced: Sequence[str], asked: Sequence[str], usual: Sequence[str]) -> tuple[OutputChoice, ...]:
    """The outputs to export: those in *asked*, else those of the *usual* ones that the model has.

    Names that the model has refer to its outputs. If it has none of the names, they are new names for its first
    outputs, in order; a mixture would be a guess.

    Raises:
        StageError: there are more names than outputs, a name is used twice, only some names are known, or there is
            nothing to export.
    """
    has = ", ".join(produced) or "none"
    if not asked:
        choices = tuple(OutputChoice(name, name) for name in usual if name in produced)
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
        return tuple(OutputChoice(name, name) for name in asked)
    if len(unknown) < len(asked):
        raise StageError(f"export.output_tensors names {', '.join(unknown)}, but the model's outputs are: {has}.")
    return tuple(OutputChoice(name, attribute) for name, attribute in zip(asked, produced, strict=False))
