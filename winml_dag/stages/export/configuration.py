"""The configuration of an architecture, and the class that makes its PyTorch model, from transformers or built-in."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import transformers
from transformers import CONFIG_MAPPING, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.auto_factory import _BaseAutoModelClass

from winml_dag.canonical import JsonValue
from winml_dag.errors import StageError, did_you_mean
from winml_dag.explanation import explanation
from winml_dag.stages.export import LoaderFields
from winml_dag.stages.export.architectures import (
    ARCHITECTURES,
    EMOTION,
    architecture,
    chosen_components,
    composite_of,
    same_spelling,
)
from winml_dag.stages.export.detect import TASKS, Task, task_named


def transformers_name(model_type: str) -> str | None:
    """The transformers name of *model_type*, spelled with ``-`` or ``_``; None if transformers does not have it."""
    row = architecture(model_type)
    wanted = row.based_on if row and row.based_on else model_type
    if wanted in CONFIG_MAPPING:
        return wanted
    return next((name for name in CONFIG_MAPPING if same_spelling(name) == same_spelling(wanted)), None)


def configuration_class(model_type: str) -> type[PreTrainedConfig]:
    """Return the configuration class of *model_type*.

    Raises:
        StageError: transformers has no such architecture.
    """
    name = transformers_name(model_type)
    if name is None:
        raise StageError(
            f"loader.model_type is {model_type!r}, which this version of transformers does not have"
            f"{did_you_mean(model_type, CONFIG_MAPPING.keys())}",
            advice=f"Tested are: {', '.join(sorted(each.name for each in ARCHITECTURES.values() if each.tested))}.",
        )
    found: type[PreTrainedConfig] = CONFIG_MAPPING[name]
    return found


def configuration(model_type: str, overrides: Mapping[str, JsonValue]) -> PreTrainedConfig:
    """The configuration of *model_type* with *overrides*.

    transformers keeps an unknown name as an attribute that nothing reads, so a typo would give the standard model.
    Therefore this checks names, including those inside of a composite configuration. An inner one of variable
    architecture (a backbone, an encoder) has the default architecture unless it sets ``model_type``.

    Raises:
        StageError: the architecture or a name is unknown, or a value does not fit.
    """
    made_by = configuration_class(model_type)
    _check_names(made_by, overrides, "loader.random_weights.config")
    row = architecture(model_type)
    parts = row.parts if row else {}
    try:
        completed: dict[str, Any] = {**parts, **overrides}
        for name, usual in parts.items():
            completed[name] = {**usual, **completed[name]}
        for name, part in getattr(made_by, "sub_configs", {}).items():
            given = completed.get(name)
            if isinstance(given, Mapping) and part.__name__ == "AutoConfig" and "model_type" not in given:
                usual_type = getattr(getattr(made_by(), name), "model_type", None)
                completed[name] = {**given, "model_type": usual_type}
        return made_by(**completed)
    except Exception as error:  # a validation error of any class, or an arithmetic error inside it
        raise StageError(
            f"loader.random_weights.config does not fit {made_by.__name__}: {explanation(error)}."
        ) from error


def named_class(class_name: str, model_type: str) -> Any:
    """The class *class_name* of transformers, or of the module that defines the architecture."""
    found = getattr(transformers, class_name, None)
    if found is not None:
        return found
    module = CONFIG_MAPPING[model_type].__module__.replace(".configuration_", ".modeling_")
    return getattr(importlib.import_module(module), class_name, None)


def _check_names(made_by: type[Any], overrides: Mapping[str, JsonValue], path: str) -> None:
    known = _names(made_by) | {"model_type"}
    for name, value in overrides.items():
        if name not in known:
            raise StageError(f"{path}.{name} is not a field of {made_by.__name__}{did_you_mean(name, known) or '.'}")
        part = getattr(made_by, "sub_configs", {}).get(name)
        if isinstance(value, Mapping) and part is not None and part.__name__ != "AutoConfig":
            _check_names(part, value, f"{path}.{name}")


def _names(made_by: type[Any]) -> set[str]:
    """The fields of a configuration class, whether declared as a dataclass or in ``__init__``."""
    names = {"num_labels", *made_by.attribute_map, *getattr(made_by, "__dataclass_fields__", {})}
    for base in made_by.__mro__:
        if "__init__" in base.__dict__:
            parameters = inspect.signature(base.__dict__["__init__"]).parameters.values()
            names |= {each.name for each in parameters if each.kind is not each.VAR_KEYWORD}
    # Settings of the class, not of a model.
    return {name for name in names if not name.startswith(("_", "base_")) and name not in {"self", "model_type"}}


def model_class_of(loader: LoaderFields, config: PreTrainedConfig, made: Any) -> tuple[Any, bool]:
    """The class to make the model with, and whether it is exported in one piece.

    It is the class of the user's script, the recipe's ``model_class``, or the first of the task's Auto classes that
    supports the architecture. For a composite model, it is the parent of the component.
    """
    task = task_named(loader.task)
    if made is not None:
        return made, True
    composite = composite_of(config.model_type)
    if composite is not None and chosen_components(config.model_type, loader.task, loader.model_class):
        return getattr(transformers, composite.parent_class), False
    own = _own_class(loader, config, task)
    if own is not None:
        return own, True
    if loader.model_class is None:
        return _auto_class([getattr(transformers, name) for name in task.auto_classes], task, config), True
    found = named_class(loader.model_class, config.model_type)
    if not is_model_class(found):
        models = [each for each in dir(transformers) if "Model" in each or "For" in each]
        models += [each.class_name for each in composite.components] if composite else []
        raise StageError(
            f"loader.model_class {loader.model_class!r} is not a model class of transformers"
            f"{did_you_mean(loader.model_class, models) or '.'}"
        )
    if issubclass(found, _BaseAutoModelClass):
        return _auto_class([found], task, config), True
    if not isinstance(config, found.config_class):
        raise StageError(
            f"loader.model_class {loader.model_class!r} is not a class for the architecture {config.model_type!r}."
        )
    return found, True


def _own_class(loader: LoaderFields, config: PreTrainedConfig, task: Task) -> Any:
    """The built-in class for such a model; None if transformers has one.

    Imported on demand, because it imports the modules that it is made from.
    """
    kind = same_spelling(loader.model_type or config.model_type)
    if kind == "wav2vec2" and "Wav2Vec2ForSpeechClassification" in (config.architectures or ()):
        kind = EMOTION  # as its checkpoints name the class, which comes from a script next to them
    if loader.model_class == "EmotionModel" or (kind == EMOTION and loader.model_class is None):
        from winml_dag.stages.export.ownmodels import EmotionModel

        return EmotionModel
    if kind == "unlimited_ocr" and loader.model_class is None and task.name.endswith("feature-extraction"):
        from winml_dag.stages.export.ownmodels import UnlimitedOcrImageTower

        return UnlimitedOcrImageTower
    return None


def _auto_class(found: Sequence[Any], task: Task, config: PreTrainedConfig) -> Any:
    """The first class of *found* that supports the architecture."""
    for each in found:
        if _knows(each, config):
            return each
    possible = [
        each.name
        for each in TASKS.values()
        if any(_knows(getattr(transformers, name), config) for name in each.auto_classes)
    ]
    raise StageError(
        f"{found[0].__name__} has no model for the architecture {config.model_type!r}, so it cannot be exported for "
        f"the task {task.name!r}.",
        advice=f"Choose another loader.task ({', '.join(possible)}), or name the class in loader.model_class.",
    )


def _knows(auto_class: Any, config: PreTrainedConfig) -> bool:
    has_code = auto_class.__name__ in (getattr(config, "auto_map", None) or {})
    return has_code or type(config) in auto_class._model_mapping


def is_model_class(value: object) -> bool:
    """Whether *value* is a class of transformers for whole models."""
    return inspect.isclass(value) and issubclass(value, (PreTrainedModel, _BaseAutoModelClass))
