"""One module of a loaded model, such as a layer, as a separate model: what module mode exports.

The module object keeps its name and its weights; only the way it is called changes. An exported model takes and returns
tensors by name, while modules take tuples of tensors and settings, and return tuples.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import transformers
from torch import Tensor
from torch.nn import Module

from winml_dag.canonical import JsonValue
from winml_dag.errors import StageError
from winml_dag.stages.export import ExportFields, InputTensor, LoaderFields
from winml_dag.stages.export.configuration import did_you_mean, is_model_class
from winml_dag.stages.export.inputs import UNKNOWN_SIZE, ModelInput, named_axes
from winml_dag.stages.export.loading import LoadedModel
from winml_dag.stages.export.subject import Subject, named_tensors

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
    """The inputs that a recipe names for a module, in its order; a module has no default inputs.

    Raises:
        StageError: there are none, one is incomplete, or the module does not take one.
    """
    if not fields.input_tensors:
        raise StageError(
            f"The inputs of {type(module).__name__} are not known.",
            advice="Name them in export.input_tensors, or have `winml-dag config --module` write the recipe.",
        )
    return tuple(_input(each, fields) for each in fields.input_tensors)


def _input(tensor: InputTensor, fields: ExportFields) -> ModelInput:
    if tensor.shape is None:
        raise StageError(f"export.input_tensors must give the shape of {tensor.name!r}, an input of a module.")
    shape = named_axes(tensor.name, tensor.shape, fields.dynamic_axes or {})
    sizes = tuple(size if isinstance(size, int) else UNKNOWN_SIZE for size in tensor.shape)
    return ModelInput(tensor.name, tensor.dtype or "float32", shape, sizes, tensor.value_range)


def _call_by_name(module: Any, fields: ExportFields) -> None:
    """Make *module* take the recipe's tensors by name, next to its other arguments, and return tensors by name."""
    forward = module.forward
    parameters = inspect.signature(forward).parameters
    called = {each.name: _argument(each.name, list(parameters)) for each in fields.input_tensors or ()}
    constants = fields.module_arguments or {}
    _refuse_unknown(parameters, list(called.values()), constants)
    several = next((each.name for each in parameters.values() if each.kind is each.VAR_POSITIONAL), None)

    def call(**tensors: Tensor) -> dict[str, Tensor]:
        arguments = {**assembled({called[name]: tensor for name, tensor in tensors.items()}), **constants}
        unnamed = () if several is None else arguments.pop(several, ())
        result = forward(*unnamed, **arguments)
        return dict(named_outputs(result, tensors))

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
    for field, names in (("export.input_tensors", tensors), ("export.module_arguments", constants)):
        for name in names:
            argument = name.partition(".")[0]
            # Most modules pass unknown arguments on to inner modules, where a typo would be lost.
            is_slip = not takes_any or difflib.get_close_matches(argument, takes, cutoff=_SLIP)
            if argument not in takes and is_slip:
                raise StageError(
                    f"{field} names {name!r}, which the module does not take.{did_you_mean(name, takes)}",
                    advice=f"It takes: {', '.join(takes)}.",
                )


def assembled(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
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


def named_outputs(result: Any, taken: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """The tensors in a module's result, each with a name that differs from those of the inputs *taken*."""
    for name, tensor in named_tensors(result).items():
        yield f"{name}_out" if name in taken else name, tensor
