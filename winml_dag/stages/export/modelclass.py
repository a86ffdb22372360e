"""The class that a PyTorch model is made with: of transformers, of a user's script, or one of ours."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel, Wav2Vec2Model
from transformers.models.auto.auto_factory import _BaseAutoModelClass
from transformers.models.unlimited_ocr.modeling_unlimited_ocr import (
    UnlimitedOcrPreTrainedModel,
    UnlimitedOcrVisionModel,
)
from transformers.models.wav2vec2.modeling_wav2vec2 import Wav2Vec2PreTrainedModel

from winml_dag.errors import StageError
from winml_dag.explanation import explanation
from winml_dag.stages.export import LoaderFields
from winml_dag.stages.export.architectures import EMOTION, did_you_mean, named_class
from winml_dag.stages.export.components import chosen_components, composite_of, same_spelling
from winml_dag.stages.export.tasks import TASKS, Task, task_named

# The files of a model folder as transformers saves it: whether they are all there, and nowhere else.

WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)


def check_files(folder: Path) -> None:
    """
    Raises:
        StageError: when the folder has no weights, or refers to files or code outside of it.
    """
    if (folder / "adapter_config.json").is_file():
        raise StageError(
            "The model folder is an adapter, whose base model is elsewhere.",
            advice="Give the folder of the merged model.",
        )
    if not any((folder / name).is_file() for name in WEIGHT_FILES):
        present = ", ".join(sorted(path.name for path in folder.iterdir())) or "nothing"
        raise StageError(
            f"The model folder has no weights: there is {present}.",
            advice=f"Expected one of: {', '.join(WEIGHT_FILES)}.",
        )
    for index in sorted(folder.glob("*.index.json")):
        for shard in set(read_json(index).get("weight_map", {}).values()):
            _refuse_elsewhere(str(shard), folder, f"{index.name} names the weights file {str(shard)!r}")
    for reference in (read_json(folder / "config.json").get("auto_map") or {}).values():
        for each in reference if isinstance(reference, list) else [reference]:
            if "--" in str(each):
                raise StageError(
                    f"config.json takes its code from another repository ({each!r}), which is not part of the folder.",
                    advice="Copy that code into the model folder and name it without a repository.",
                )


def _refuse_elsewhere(name: str, folder: Path, what: str) -> None:
    if Path(name).name != name or "\\" in name or not (folder / name).is_file():
        raise StageError(f"{what}, which is not a file of the model folder.")


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file of the model folder.

    Raises:
        StageError: when there is none.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise StageError(f"The model folder has no {path.name}.") from None
    except ValueError as error:
        raise StageError(f"{path.name} of the model folder is not JSON: {explanation(error)}.") from error
    if not isinstance(value, dict):
        raise StageError(f"{path.name} of the model folder is not a JSON object.")
    return value


# Models that transformers does not have as such, made from parts that it has.


class _RegressionHead(torch.nn.Module):  # type: ignore[misc]  # torch is not followed by the type checker
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.dense = torch.nn.Linear(config.hidden_size, config.hidden_size)
        self.dropout = torch.nn.Dropout(config.final_dropout)
        self.out_proj = torch.nn.Linear(config.hidden_size, config.num_labels)

    def forward(self, features: Tensor) -> Tensor:
        return self.out_proj(self.dropout(torch.tanh(self.dense(self.dropout(features)))))


class EmotionModel(Wav2Vec2PreTrainedModel):  # type: ignore[misc]
    """wav2vec2 with a head that rates a whole recording (arousal, dominance, valence), as audeering publishes it.

    ``hidden_states`` is one vector for a recording: the mean over its frames.
    """

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.wav2vec2 = Wav2Vec2Model(config)
        self.classifier = _RegressionHead(config)
        self.post_init()

    def forward(self, input_values: Tensor) -> dict[str, Tensor]:
        pooled = self.wav2vec2(input_values).last_hidden_state.mean(dim=1)
        return {"hidden_states": pooled, "logits": self.classifier(pooled)}


class UnlimitedOcrImageTower(UnlimitedOcrPreTrainedModel):  # type: ignore[misc]
    """What Unlimited-OCR's language model gets of an image: the patches of both image encoders, projected.

    The language model, most of the weights, is neither made nor read.
    """

    base_model_prefix = "model"
    main_input_name = "pixel_values"
    _keys_to_ignore_on_load_unexpected = (r"language_model", r"lm_head", r"view_separator", r"image_newline")

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        vision = config.vision_config
        width = vision.sam_config.downsample_channels[-1] + vision.encoder_config.hidden_size
        self.vision_tower = UnlimitedOcrVisionModel(vision)
        self.multi_modal_projector = torch.nn.Linear(width, config.text_config.hidden_size)
        self.post_init()

    def forward(self, pixel_values: Tensor) -> dict[str, Tensor]:
        return {"image_embeds": self.multi_modal_projector(self.vision_tower(pixel_values).last_hidden_state)}


def model_class_of(loader: LoaderFields, config: PreTrainedConfig, made: Any) -> tuple[Any, bool]:
    """The class to make the model with, and whether it is exported in one piece.

    That of the user's script, the recipe's ``model_class``, or the first of the task's Auto classes that knows the
    architecture. Of a composite model, the parent that has the component.
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
    """The class of ours for such a model, None when it is transformers' business. Imported only when it is asked for:
    it brings the parts that it is made from.
    """
    kind = same_spelling(loader.model_type or config.model_type)
    if kind == "wav2vec2" and "Wav2Vec2ForSpeechClassification" in (config.architectures or ()):
        kind = EMOTION  # as its checkpoints name the class, which comes from a script beside them
    if loader.model_class == "EmotionModel" or (kind == EMOTION and loader.model_class is None):
        return EmotionModel
    if kind == "unlimited_ocr" and loader.model_class is None and task.name.endswith("feature-extraction"):
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
    """Whether *value* is a class of transformers that whole models are made with."""
    return inspect.isclass(value) and issubclass(value, (PreTrainedModel, _BaseAutoModelClass))
