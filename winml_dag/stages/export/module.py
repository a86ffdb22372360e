"""One module of a loaded model, such as a layer, as a separate model: what module mode exports.

The module object keeps its name and its weights; only the way it is called changes. An exported model takes and returns
tensors by name, while modules take tuples of tensors and settings, and return tuples. `config --module` finds out the
arguments by calling the whole model once (:func:`run_capture`): tensors by name, everything else as constants.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from torch.nn import Module

from winml_dag.canonical import JsonObject, JsonValue
from winml_dag.engine.stage import Workspace
from winml_dag.errors import StageError, did_you_mean
from winml_dag.onnxmodel.graph import MASK_MAGNITUDE
from winml_dag.stages.export import MODEL_SOURCE, SCRIPT_SOURCE, CaptureConfig, ExportFields, LoaderFields
from winml_dag.stages.export.architectures import chosen_components
from winml_dag.stages.export.comparison import random_feed, sizes_by_run, tensors_of
from winml_dag.stages.export.configuration import is_model_class
from winml_dag.stages.export.inputs import UNKNOWN_SIZE, ModelInput, model_inputs, named_axes
from winml_dag.stages.export.loading import LoadedModel, load_pytorch_model
from winml_dag.stages.export.subject import Subject, call_model, component_subject, named_tensors, whole_subject

_MOST_NAMED = 5
# How similar two names must be for one to count as a typo of the other.
_SLIP = 0.85


def parent_loader(loader: LoaderFields, script: Path | None) -> LoaderFields:
    """How to load the whole model.

    ``model_class`` names its class (from the user's *script*, or a model class of transformers), or, as in winml-cli's
    recipes, the class of the module. In that case, the task determines the class of the model.
    """
    if script is not None or is_model_class(getattr(transformers, loader.model_class or "", None)):
        return loader
    return replace(loader, model_class=None)


def module_subject(
    loaded: LoadedModel, loader: LoaderFields, parent: LoaderFields, fields: ExportFields
) -> tuple[LoadedModel, Subject]:
    """The module at ``loader.module_path`` of the whole model *loaded*, which *parent* describes.

    Returns the module in the form of a loaded model, then as a subject. A caller that drops *loaded* frees the memory
    of everything else.

    Raises:
        StageError: no such module exists, or it does not take the arguments.
    """
    path = module_path(loaded.model, loader.module_path or "")
    module: Any = loaded.model.get_submodule(path)
    if loader.model_class != parent.model_class and type(module).__name__ != loader.model_class:
        raise StageError(
            f"loader.module_path {loader.module_path!r} is a {type(module).__name__}, but loader.model_class says "
            f"{loader.model_class!r}.",
            advice="Correct one of the two, or leave loader.model_class out.",
        )
    inputs = _inputs(module, fields)
    _call_by_name(module, fields)
    ahead = f"{path}." if path else ""
    missing = {name.removeprefix(ahead) for name in loaded.missing if name.startswith(ahead)}
    config = getattr(module, "config", loaded.model.config)
    subject = Subject(module, config, loader.task, tuple(each.name for each in inputs), (), inputs=inputs)
    return replace(loaded, model=module, missing=frozenset(missing)), subject


def module_path(model: Module, asked: str) -> str:
    """The path in *model* of the module *asked*.

    Some classes of an architecture hold all modules in a part (``bert.``) that is the whole of another class; a path of
    either form works for both.

    Raises:
        StageError: no such module exists; the message has the closest names.
    """
    known = dict(model.named_modules(remove_duplicate=False))
    part = getattr(model, "base_model_prefix", "")
    for path in (asked, asked.removeprefix(f"{part}."), f"{part}.{asked}"):
        if path and path in known:
            return path
    if part and asked == part:
        return ""
    near = difflib.get_close_matches(asked, known, n=_MOST_NAMED) or [name for name in known if name][:_MOST_NAMED]
    raise StageError(
        f"{type(model).__name__} has no module {asked!r}.", advice=f"loader.module_path could be: {', '.join(near)}."
    )


def _inputs(module: Module, fields: ExportFields) -> tuple[ModelInput, ...]:
    """The inputs that a recipe names for a module, in its order; a module has no default inputs."""
    if not fields.input_tensors:
        raise StageError(
            f"The inputs of {type(module).__name__} are not known.",
            advice="Name them in export.input_tensors, or have `winml-dag config --module` write the recipe.",
        )
    inputs = []
    for tensor in fields.input_tensors:
        if tensor.shape is None:
            raise StageError(f"export.input_tensors must give the shape of {tensor.name!r}, an input of a module.")
        shape = named_axes(tensor.name, tensor.shape, fields.dynamic_axes or {})
        sizes = tuple(size if isinstance(size, int) else UNKNOWN_SIZE for size in tensor.shape)
        inputs.append(ModelInput(tensor.name, tensor.dtype or "float32", shape, tensor.value_range, sizes))
    return tuple(inputs)


def _call_by_name(module: Any, fields: ExportFields) -> None:
    """Make *module* take the recipe's tensors by name, next to its other arguments, and return tensors by name."""
    forward = module.forward
    parameters = inspect.signature(forward).parameters
    called = {each.name: _argument(each.name, list(parameters)) for each in fields.input_tensors or ()}
    constants = fields.module_arguments or {}
    _refuse_unknown(parameters, list(called.values()), constants)
    several = next((each.name for each in parameters.values() if each.kind is each.VAR_POSITIONAL), None)

    def call(**tensors: Tensor) -> dict[str, Tensor]:
        arguments = {**_assembled({called[name]: tensor for name, tensor in tensors.items()}), **constants}
        unnamed = () if several is None else arguments.pop(several, ())
        result = forward(*unnamed, **arguments)
        return dict(_named_outputs(result, tensors))

    module.forward = call


def _argument(name: str, takes: Sequence[str]) -> str:
    """The argument that *name* refers to: itself, or the one at the position in ``input_1``.

    winml-cli uses such names for arguments whose names it does not know.
    """
    place = name.removeprefix("input_")
    by_place = name not in takes and name != place and place.isdecimal() and int(place) < len(takes)
    return takes[int(place)] if by_place else name


def _refuse_unknown(
    parameters: Mapping[str, inspect.Parameter], tensors: Sequence[str], constants: Mapping[str, JsonValue]
) -> None:
    takes = [name for name, each in parameters.items() if each.kind is not each.VAR_KEYWORD]
    takes_any = len(takes) < len(parameters)
    for section, names in (("export.input_tensors", tensors), ("export.module_arguments", constants)):
        for name in names:
            argument = name.partition(".")[0]
            # Most modules pass unknown arguments on to inner modules, where a typo would be lost.
            is_slip = not takes_any or difflib.get_close_matches(argument, takes, cutoff=_SLIP)
            if argument not in takes and is_slip:
                raise StageError(
                    f"{section} names {name!r}, which the module does not take{did_you_mean(name, takes)}",
                    advice=f"It takes: {', '.join(takes)}.",
                )


def _assembled(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Arguments made of tensors: ``position_embeddings.0`` and ``.1`` are a tuple, other names after a dot a dict."""
    nested: dict[str, Any] = {}
    for name, tensor in tensors.items():
        place = nested
        *outer, last = name.split(".")
        for part in outer:
            place = place.setdefault(part, {})
        place[last] = tensor
    return {name: _filled(value) for name, value in nested.items()}


def _filled(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    inner = {name: _filled(each) for name, each in value.items()}
    if all(name.isdecimal() for name in inner):
        return tuple(inner[name] for name in sorted(inner, key=int))
    return inner


def _named_outputs(result: Any, taken: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """The tensors in a module's result, each with a name that differs from those of the inputs *taken*."""
    for name, tensor in named_tensors(result).items():
        yield f"{name}_out" if name in taken else name, tensor


@dataclass
class _Arguments:
    """The arguments of a call: tensors by name, constants by name, and the names of all other arguments."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    constants: dict[str, JsonValue] = field(default_factory=dict)
    others: list[str] = field(default_factory=list)

    def add(self, name: str, value: Any) -> None:
        plain = (bool, int, float, str)
        if isinstance(value, Tensor):
            self.tensors[name] = value
        elif isinstance(value, plain) or value is None:
            self.constants[name] = value
        elif _has_only_tensors(value):
            for part, each in value.items() if isinstance(value, Mapping) else enumerate(value):
                self.add(f"{name}.{part}", each)
        elif isinstance(value, list | tuple) and all(isinstance(each, plain) for each in value):
            self.constants[name] = list(value)
        else:
            self.others.append(name)


# By the path of a module, the arguments of its first call, and the result.
_Calls = dict[str, tuple[dict[str, Any], Any]]


def run_capture(config: CaptureConfig, workspace: Workspace) -> JsonObject:
    """Call the model once on its default inputs, and return ``modules`` and ``left_out``.

    ``modules`` has the path, input tensors, arguments and outputs of each module of the class; ``left_out`` has, by
    path, why a module is skipped.

    Raises:
        StageError: no module has the class, or none can be called alone.
    """
    named = (workspace.machine_facts.get(name) for name in (MODEL_SOURCE, SCRIPT_SOURCE))
    folder, script = (Path(each) if each else None for each in named)
    loader = config.loader
    loaded = load_pytorch_model(loader, folder, script, config.export.input_tensors)
    modules = _of_class(loaded.model, config.module_class)
    calls: _Calls = {}
    hooks = [
        module.register_forward_hook(partial(_note, calls, path), with_kwargs=True) for path, module in modules.items()
    ]
    components = (
        () if loaded.whole else chosen_components(loaded.model.config.model_type, loader.task, loader.model_class)
    )
    subjects = [component_subject(loaded, component, folder) for component in components]
    for subject in subjects or [whole_subject(loaded, loader.task, folder)]:
        with torch.no_grad():
            call_model(subject.module, {**_usual(subject, config), **subject.constants})
    for hook in hooks:
        hook.remove()
    descriptions = {path: _described(path, modules[path], *calls[path]) for path in calls}
    described = [each for each in descriptions.values() if not isinstance(each, str)]
    left_out = {path: each for path, each in descriptions.items() if isinstance(each, str)}
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


def _usual(subject: Subject, config: CaptureConfig) -> dict[str, Tensor]:
    """Random inputs with masks of ones: what a module makes of a partial mask does not hold for other inputs."""
    inputs = model_inputs(subject, config.export)
    tensors = tensors_of(random_feed(inputs, sizes_by_run(inputs)[0], 0))
    return {name: torch.ones_like(tensor) if name.endswith("mask") else tensor for name, tensor in tensors.items()}


def _note(calls: _Calls, path: str, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
    if path not in calls:
        # Copies: later code may write into the same tensors.
        arguments = _by_name(inspect.signature(module.forward), args, kwargs)
        calls[path] = {name: _copied(value) for name, value in arguments.items()}, _copied(result)


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


def _described(path: str, module: Module, given: Mapping[str, Any], result: Any) -> JsonObject | str:
    """The description of a module, or why it cannot be called alone."""
    arguments = _Arguments()
    for name, value in given.items():
        arguments.add(name, value)
    if not _gives_the_same(module, result, arguments):
        others = ", ".join(arguments.others) or "what changes while it runs"
        return f"it is called with {others}, which is neither tensors nor plain values"
    for name in dict.fromkeys(each.partition(".")[0] for each in arguments.tensors):
        fewer = {each: tensor for each, tensor in arguments.tensors.items() if each.partition(".")[0] != name}
        without = replace(arguments, tensors=fewer)
        if fewer and _gives_the_same(module, result, without):
            arguments = without  # an unused input is not an input of the exported module
    return {
        "path": path,
        "input_tensors": [_tensor(name, tensor) for name, tensor in arguments.tensors.items()],
        "arguments": arguments.constants,
        "outputs": [name for name, _ in _named_outputs(result, arguments.tensors)],
    }


def _gives_the_same(module: Module, expected: Any, arguments: _Arguments) -> bool:
    """Whether the module gives the same result with *arguments* alone."""
    try:
        with torch.no_grad():
            found = module(**_assembled(arguments.tensors), **arguments.constants)
    except Exception:  # any exception means that it needs something else
        return False
    before, now = (dict(_named_outputs(each, {})) for each in (expected, found))
    return before.keys() == now.keys() and all(
        before[name].shape == now[name].shape and torch.allclose(before[name], now[name], equal_nan=True)
        for name in before
    )


def _has_only_tensors(value: Any) -> bool:
    if isinstance(value, Mapping | list | tuple):
        inner = list(value.values() if isinstance(value, Mapping) else value)
        return bool(inner) and all(map(_has_only_tensors, inner))
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
    return float(f"{low:.4g}"), float(f"{high:.4g}")
