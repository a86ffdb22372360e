"""The class of a PyTorch model: from transformers, from the user's script, or built-in."""

from __future__ import annotations

import inspect
from typing import Any

import transformers
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.auto.auto_factory import _BaseAutoModelClass

from winml_dag.errors import StageError
from winml_dag.stages.export import LoaderFields
from winml_dag.stages.export.architectures import EMOTION, did_you_mean, named_class
from winml_dag.stages.export.components import chosen_components, composite_of, same_spelling
from winml_dag.stages.export.detect import TASKS, Task, task_named


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
        return _auto_class(task, config), True
    found = named_class(loader.model_class, config.model_type)
    if not is_model_class(found):
        models = [each for each in dir(transformers) if "Model" in each or "For" in each]
        models += [each.class_name for each in composite.components] if composite else []
        raise StageError(
            f"loader.model_class {loader.model_class!r} is not a model class of transformers."
            f"{did_you_mean(loader.model_class, models)}"
        )
    if issubclass(found, _BaseAutoModelClass):
        if not _knows(found, config):
            raise StageError(
                f"{found.__name__} has no model for the architecture {config.model_type!r}, so it cannot be exported "
                f"for the task {task.name!r}.",
                advice="Choose another loader.task, or name the class in loader.model_class.",
            )
    elif not isinstance(config, found.config_class):
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


def _auto_class(task: Task, config: PreTrainedConfig) -> Any:
    found = [getattr(transformers, name) for name in task.auto_classes]
    for each in found:
        if _knows(each, config):
            return each
    possible = [each.name for each in TASKS.values() if any(_knows(_class(name), config) for name in each.auto_classes)]
    raise StageError(
        f"{found[0].__name__} has no model for the architecture {config.model_type!r}, so it cannot be exported for "
        f"the task {task.name!r}.",
        advice=f"Choose another loader.task ({', '.join(possible)}), or name the class in loader.model_class.",
    )


def _class(name: str) -> Any:
    return getattr(transformers, name)


def _knows(auto_class: Any, config: PreTrainedConfig) -> bool:
    has_code = auto_class.__name__ in (getattr(config, "auto_map", None) or {})
    return has_code or type(config) in auto_class._model_mapping


def is_model_class(value: object) -> bool:
    """Whether *value* is a class of transformers for whole models."""
    return inspect.isclass(value) and issubclass(value, (PreTrainedModel, _BaseAutoModelClass))
