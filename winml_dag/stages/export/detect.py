"""What a model folder's ``config.json`` says about the model, read without transformers, because planning needs it."""

from __future__ import annotations

from collections.abc import Mapping

from winml_dag.canonical import JsonValue

# Ends of transformers' class names, with the task that a model of such a class was trained for.
_TASK_BY_HEAD = {
    "ForImageClassification": "image-classification",
    "ForImageClassificationWithTeacher": "image-classification",
    "ForMaskedLM": "fill-mask",
    "ForNextSentencePrediction": "next-sentence-prediction",
    "ForQuestionAnswering": "question-answering",
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
}
_BARE_ENDS = ("Model", "ModelWithProjection")
_IMAGE_KEYS = ("num_channels", "image_size", "patch_size")


def model_type_of(config_json: Mapping[str, JsonValue]) -> str | None:
    """The architecture in transformers' words, such as ``bert``; None when the config does not say."""
    model_type = config_json.get("model_type")
    return model_type if isinstance(model_type, str) and model_type else None


def task_of(config_json: Mapping[str, JsonValue]) -> str | None:
    """The task that the first of ``architectures`` is for; None when it is not one that export knows."""
    architectures = config_json.get("architectures")
    if isinstance(architectures, str) or not isinstance(architectures, (list, tuple)) or not architectures:
        return None
    name = str(architectures[0])
    for head, task in _TASK_BY_HEAD.items():
        if name.endswith(head):
            return task
    if name.endswith(_BARE_ENDS) and not name.endswith("LMHeadModel"):
        return _features_task(name, config_json)
    return None


def _features_task(name: str, config_json: Mapping[str, JsonValue]) -> str | None:
    if "text_config" in config_json and "vision_config" in config_json and "Text" not in name and "Vision" not in name:
        return None  # a model of two towers: only its user knows which features are wanted
    if "Vision" in name or ("Text" not in name and any(key in config_json for key in _IMAGE_KEYS)):
        return "image-feature-extraction"
    return "feature-extraction"
