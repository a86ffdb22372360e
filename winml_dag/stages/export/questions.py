"""What `config` asks a model: its tensors, from the architecture alone, and the arguments of its modules, from a call.

:mod:`winml_dag.stages.export.module` uses the arguments to call a module in the same way: tensors by name, everything
else as constants.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.overrides import TorchFunctionMode

from winml_dag.canonical import JsonObject, JsonValue
from winml_dag.engine.stage import Workspace
from winml_dag.errors import StageError
from winml_dag.onnxmodel.facts import MASK_MAGNITUDE
from winml_dag.stages.export import MODEL, MODEL_SOURCE, SCRIPT_SOURCE, CaptureConfig, SignatureConfig
from winml_dag.stages.export.architectures import chosen_components
from winml_dag.stages.export.comparison import random_feed, sizes_by_run, tensors_of
from winml_dag.stages.export.conversion import own_fields
from winml_dag.stages.export.inputs import ModelInput, model_inputs
from winml_dag.stages.export.loading import LoadedModel, load_pytorch_model, model_without_weights
from winml_dag.stages.export.module import assembled, named_outputs
from winml_dag.stages.export.subject import (
    Subject,
    call_model,
    choose_outputs,
    chosen_subject,
    component_subject,
    whole_subject,
)

_MOST_NAMED = 8


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


def run_signature(config: SignatureConfig, workspace: Workspace) -> JsonObject:
    """Return ``input_tensors`` and, if they can be inferred without values, ``output_tensors``, as in a recipe.

    The architecture is made without weights, so this takes only as long as its imports, whatever the size of the model.

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
    return {"input_tensors": [_input_tensor(each) for each in inputs], "output_tensors": outputs}


def _outputs(subject: Subject, inputs: tuple[ModelInput, ...], asked: tuple[str, ...]) -> list[str]:
    example = {each.name: torch.empty(each.sizes, dtype=getattr(torch, each.dtype), device="meta") for each in inputs}
    with _without_values():
        produced = tuple(call_model(subject.module, {**example, **subject.constants}))
    return list(choose_outputs(produced, asked, subject.outputs or produced))


def _input_tensor(each: ModelInput) -> JsonObject:
    value_range = {} if each.value_range is None else {"value_range": [*each.value_range]}
    return {"name": each.name, "dtype": each.dtype, "shape": [*each.shape], **value_range}


@dataclass(frozen=True)
class _Told:
    """One call of a module."""

    arguments: Mapping[str, Any]
    result: Any


@dataclass
class _Arguments:
    """The arguments of a call: tensors by name, constants by name, and the names of all other arguments."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    constants: dict[str, JsonValue] = field(default_factory=dict)
    others: list[str] = field(default_factory=list)


def run_capture(config: CaptureConfig, workspace: Workspace) -> JsonObject:
    """Call the model once on its default inputs, and return ``modules`` and ``left_out``.

    ``modules`` has the path, input tensors, arguments and outputs of each module of the class; ``left_out`` has, by
    path, why a module is skipped.

    Raises:
        StageError: no module has the class, or none can be called alone.
    """
    folder, script = (
        Path(named) if (named := workspace.machine_facts.get(name)) else None for name in (MODEL_SOURCE, SCRIPT_SOURCE)
    )
    loaded = load_pytorch_model(config.loader, folder, script, config.export.input_tensors)
    modules = _of_class(loaded.model, config.module_class)
    calls: dict[str, _Told] = {}
    hooks = [
        module.register_forward_hook(_noting(path, module, calls), with_kwargs=True) for path, module in modules.items()
    ]
    for subject in _subjects(loaded, config, folder):
        with torch.no_grad():
            call_model(subject.module, {**_usual(subject, config), **subject.constants})
    for hook in hooks:
        hook.remove()
    told = {path: _described(path, modules[path], calls[path]) for path in calls}
    described = [each for each in told.values() if not isinstance(each, str)]
    left_out = {path: each for path, each in told.items() if isinstance(each, str)}
    left_out |= dict.fromkeys([path for path in modules if path not in calls], "the model does not call it")
    if not described:
        path, why = next(iter(left_out.items()))
        raise StageError(
            f"No {config.module_class} can be called alone: of {path}, {why}.",
            advice="Choose the modules inside of it, or one around it.",
        )
    return {"modules": described, "left_out": left_out}


def _of_class(model: Module, name: str) -> dict[str, Module]:
    found = {path: module for path, module in model.named_modules() if type(module).__name__ == name and path}
    if not found:
        classes = sorted({type(module).__name__ for path, module in model.named_modules() if path})
        near = difflib.get_close_matches(name, classes, n=3) or classes[:_MOST_NAMED]
        raise StageError(
            f"{type(model).__name__} has no module of the class {name!r}.",
            advice=f"It has, among others: {', '.join(near)}.",
        )
    return found


def _subjects(loaded: LoadedModel, config: CaptureConfig, folder: Path | None) -> Iterator[Subject]:
    loader = config.loader
    components = chosen_components(loaded.model.config.model_type, loader.task, loader.model_class)
    if loaded.whole or not components:
        yield whole_subject(loaded, loader.task, folder)
    else:
        yield from (component_subject(loaded, component, folder) for component in components)


def _usual(subject: Subject, config: CaptureConfig) -> dict[str, Tensor]:
    """Random inputs with masks of ones: what a module makes of a partial mask does not hold for other inputs."""
    inputs = model_inputs(subject, config.export)
    tensors = tensors_of(random_feed(inputs, sizes_by_run(inputs)[0], 0))
    return {name: torch.ones_like(tensor) if name.endswith("mask") else tensor for name, tensor in tensors.items()}


def _noting(path: str, module: Module, calls: dict[str, _Told]) -> Any:
    signature = inspect.signature(module.forward)

    def note(_module: Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        if path not in calls:
            # Copies: later code may write into the same tensors.
            arguments = {name: _copied(value) for name, value in _by_name(signature, args, kwargs).items()}
            calls[path] = _Told(arguments, _copied(result))

    return note


def _by_name(signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a module call, without those that equal their defaults."""
    bound = signature.bind(*args, **kwargs).arguments
    found: dict[str, Any] = {}
    for name, value in bound.items():
        parameter = signature.parameters[name]
        if parameter.kind is parameter.VAR_KEYWORD:
            found |= {inner: each for inner, each in value.items() if each is not None}
        elif not _is_same(value, parameter.default):
            found[name] = value
    return found


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    if type(value) in (list, tuple):
        return type(value)(map(_copied, value))
    if type(value) is dict:
        return {name: _copied(each) for name, each in value.items()}
    return value


def _is_same(value: Any, default: Any) -> bool:
    return value is default or (isinstance(value, bool | int | float | str) and bool(value == default))


def _described(path: str, module: Module, told: _Told) -> JsonObject | str:
    """The description of a module, or why it cannot be called alone."""
    arguments = _Arguments()
    for name, value in told.arguments.items():
        _sort(name, value, arguments)
    if not _gives_the_same(module, told, arguments):
        others = ", ".join(arguments.others) or "what changes while it runs"
        return f"it is called with {others}, which is neither tensors nor plain values"
    for name in dict.fromkeys(each.partition(".")[0] for each in arguments.tensors):
        fewer = {each: tensor for each, tensor in arguments.tensors.items() if each.partition(".")[0] != name}
        without = replace(arguments, tensors=fewer)
        if fewer and _gives_the_same(module, told, without):
            arguments = without  # an unused input is not an input of the exported module
    return {
        "path": path,
        "input_tensors": [_tensor(name, tensor) for name, tensor in arguments.tensors.items()],
        "arguments": arguments.constants,
        "outputs": [name for name, _ in named_outputs(told.result, arguments.tensors)],
    }


def _gives_the_same(module: Module, told: _Told, arguments: _Arguments) -> bool:
    """Whether the module gives the same result with *arguments* alone."""
    try:
        with torch.no_grad():
            result = module(**assembled(arguments.tensors), **arguments.constants)
    except Exception:  # any exception means that it needs something else
        return False
    before, now = (dict(named_outputs(each, {})) for each in (told.result, result))
    return before.keys() == now.keys() and all(
        before[name].shape == now[name].shape and torch.allclose(before[name], now[name], equal_nan=True)
        for name in before
    )


def _sort(name: str, value: Any, into: _Arguments) -> None:
    if isinstance(value, Tensor):
        into.tensors[name] = value
    elif isinstance(value, bool | int | float | str) or value is None:
        into.constants[name] = value
    elif isinstance(value, Mapping | list | tuple) and _has_only_tensors(value):
        inner = value.items() if isinstance(value, Mapping) else enumerate(value)
        for part, each in inner:
            _sort(f"{name}.{part}", each, into)
    elif isinstance(value, list | tuple) and all(isinstance(each, bool | int | float | str) for each in value):
        into.constants[name] = list(value)
    else:
        into.others.append(name)


def _has_only_tensors(value: Any) -> bool:
    if isinstance(value, Mapping):
        return bool(value) and all(_has_only_tensors(each) for each in value.values())
    if isinstance(value, list | tuple):
        return bool(value) and all(_has_only_tensors(each) for each in value)
    return isinstance(value, Tensor)


def _tensor(name: str, tensor: Tensor) -> JsonObject:
    """The tensor as in ``export.input_tensors``, with the observed range of values."""
    return {
        "name": name,
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "shape": list(tensor.shape),
        "value_range": list(_range(tensor)),
    }


def _range(tensor: Tensor) -> tuple[float, float]:
    """The range of observed values, upper end excluded; for an additive mask, the value that masks nothing."""
    low, high = (float(each) for each in (tensor.min(), tensor.max())) if tensor.numel() else (0.0, 0.0)
    if not tensor.is_floating_point():
        return low, high + 1
    # Random numbers up to the values in masks would mask all but one value.
    if not (abs(low) < MASK_MAGNITUDE and abs(high) < MASK_MAGNITUDE):
        return 0.0, 0.0
    return _short(low), _short(high)


def _short(value: float) -> float:
    return float(f"{value:.4g}")
