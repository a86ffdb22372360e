"""The user's own Python file that makes a model: ``loader.user_script``.

It is the one piece of Python that a recipe may bring, it runs because the user named it there, and its content is in
the key. It runs in the stage's own process and scratch folder, and may import what is installed.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from winml_dag.errors import StageError
from winml_dag.explanation import explanation
from winml_dag.stages.export.architectures import did_you_mean

_MODULE = "winml_dag_user_script"


def scripted(folder: Path, name: str | None) -> Any:
    """What the script in *folder* calls *name*: a class, or a function that makes a model. Without a name, the only
    class of a model that it defines.

    Raises:
        StageError: when the script fails, or has no such thing.
    """
    (path,) = folder.glob("*.py")
    specification = importlib.util.spec_from_file_location(_MODULE, path)
    if specification is None or specification.loader is None:
        raise StageError(f"{path.name} is not a Python file.")
    module = importlib.util.module_from_spec(specification)
    sys.modules[_MODULE] = module  # dataclasses and pickling of its own classes look there
    try:
        specification.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # whatever the user's code raises
        raise StageError(f"{path.name} (loader.user_script) cannot be run: {explanation(error)}.") from error
    defined = {key: value for key, value in vars(module).items() if getattr(value, "__module__", None) == _MODULE}
    if name is not None:
        if not callable(getattr(module, name, None)):
            raise StageError(
                f"loader.model_class is {name!r}, which {path.name} does not define.{did_you_mean(name, defined)}"
            )
        return getattr(module, name)
    models = [each for each in defined.values() if inspect.isclass(each) and issubclass(each, torch.nn.Module)]
    if len(models) != 1:
        raise StageError(
            f"{path.name} (loader.user_script) defines {len(models)} model classes.",
            advice="Say in loader.model_class which class or function makes the model.",
        )
    return models[0]


def made_by_script(maker: Any, folder: Path | None, seed: int) -> PreTrainedModel:
    """The module that a function or an ordinary class of the script makes; it is given the model folder if it takes an
    argument.

    Raises:
        StageError: when that fails, or gives something else.
    """
    name = maker.__name__
    torch.manual_seed(seed)
    try:
        model = maker(folder) if _takes_argument(maker) else maker()
    except (Exception, SystemExit) as error:  # whatever the user's code raises
        raise StageError(f"{name} (loader.model_class) cannot make a model: {explanation(error)}.") from error
    if not isinstance(model, torch.nn.Module):
        raise StageError(f"{name} (loader.model_class) gives {type(model).__name__}, which is no torch.nn.Module.")
    if not hasattr(model, "config"):
        model.config = PreTrainedConfig()
    return model


def _takes_argument(maker: Any) -> bool:
    """Whether it names one: a class without an ``__init__`` of its own has torch's, which fails on any."""
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(parameter.kind in by_place for parameter in inspect.signature(maker).parameters.values())
