"""What a model folder's ``config.json`` says about the model, read without transformers, because planning needs it.

This module also has the tasks a model can be exported for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from winml_dag.canonical import JsonValue
from winml_dag.errors import StageError, UsageError, known_instead
from winml_dag.explanation import explanation
from winml_dag.stages.export.architectures import Architecture, architecture

# Models for which the same head has another task.
_SOUND_KEYS = ("conv_dim", "num_mel_bins", "feature_projection_input_dim")
_OF_SOUND = {"text-classification": "audio-classification"}

_BARE_ENDS = ("Model", "ModelWithProjection")
_IMAGE_KEYS = ("num_channels", "image_size", "patch_size")


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file of the model folder.

    Raises:
        StageError: there is none.
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


def model_type_of(config_json: Mapping[str, JsonValue]) -> str | None:
    """The architecture as transformers names it, such as ``bert``; None if the config does not say."""
    model_type = config_json.get("model_type")
    return model_type if isinstance(model_type, str) and model_type else None


def task_of(config_json: Mapping[str, JsonValue]) -> str | None:
    """The task of the first of ``architectures``; None if export does not support it."""
    architectures = config_json.get("architectures")
    if isinstance(architectures, str) or not isinstance(architectures, (list, tuple)) or not architectures:
        return None
    name = str(architectures[0])
    row = architecture(model_type_of(config_json))
    if name.endswith("ForConditionalGeneration"):
        return row.generates if row else None
    task = next((task for head, task in _TASK_BY_HEAD.items() if name.endswith(head)), None)
    if task is not None:
        heard = _OF_SOUND.get(task) if any(key in config_json for key in _SOUND_KEYS) else None
        return heard or (row.tasks.get(task, task) if row else task)
    if name.endswith(_BARE_ENDS):
        return _features_task(name, row, config_json)
    return None


def _features_task(name: str, row: Architecture | None, config_json: Mapping[str, JsonValue]) -> str | None:
    if "text_config" in config_json and "vision_config" in config_json and "Text" not in name and "Vision" not in name:
        # Some models with two towers match texts with images; the task of others is unknown.
        matches = "zero-shot-image-classification"
        return matches if row and row.composite and matches in row.composite.tasks else None
    if "Vision" in name or ("Text" not in name and any(key in config_json for key in _IMAGE_KEYS)):
        return "image-feature-extraction"
    return "feature-extraction"


@dataclass(frozen=True)
class Task:
    """A task.

    Attributes:
        auto_classes: the first that supports the architecture makes the model.
        outputs: searched in this order; those that the model has are exported, unless the recipe names others.
        also: other names of the task.
    """

    name: str
    auto_classes: tuple[str, ...]
    outputs: tuple[str, ...]
    also: tuple[str, ...] = ()


# The pooled output is omitted on purpose: many checkpoints have no weights for it, and its meaning differs between
# architectures. A projection (CLIP) is the purpose of its model, so it comes first.
_FEATURES = ("text_embeds", "image_embeds", "audio_embeds", "last_hidden_state", "encoder_hidden_states")
_LOGITS = ("logits",)
_BOXES = ("logits", "pred_boxes")
_SPAN = ("start_logits", "end_logits")
_MASKS = ("logits", "pred_boxes", "pred_masks", "class_queries_logits", "masks_queries_logits")
_DECODED = ("logits", "encoder_hidden_states")

_TEXT_TO_TEXT = ("AutoModelForSeq2SeqLM",)
_IMAGE_TO_TEXT = ("AutoModelForImageTextToText",)
_SEGMENTATION = (
    "AutoModelForSemanticSegmentation",
    "AutoModelForImageSegmentation",
    "AutoModelForUniversalSegmentation",
    "AutoModelForInstanceSegmentation",
)

TASKS = {
    task.name: task
    for task in (
        # Text.
        Task("feature-extraction", ("AutoModel",), _FEATURES, ("default",)),
        Task("fill-mask", ("AutoModelForMaskedLM",), _LOGITS, ("masked-lm",)),
        Task("multiple-choice", ("AutoModelForMultipleChoice",), _LOGITS),
        Task("next-sentence-prediction", ("AutoModelForNextSentencePrediction",), _LOGITS),
        Task("question-answering", ("AutoModelForQuestionAnswering", "AutoModelForDocumentQuestionAnswering"), _SPAN),
        Task("sentence-similarity", ("AutoModel",), _FEATURES),
        Task("summarization", _TEXT_TO_TEXT, _DECODED),
        Task("table-question-answering", ("AutoModelForTableQuestionAnswering", *_TEXT_TO_TEXT), _LOGITS),
        Task(
            "text-classification",
            ("AutoModelForSequenceClassification",),
            _LOGITS,
            ("sequence-classification", "sentiment-analysis", "text-ranking"),
        ),
        Task("text-generation", ("AutoModelForCausalLM",), _LOGITS, ("causal-lm",)),
        Task("text2text-generation", _TEXT_TO_TEXT, _DECODED, ("seq2seq-lm",)),
        Task("token-classification", ("AutoModelForTokenClassification",), _LOGITS, ("ner",)),
        Task("translation", _TEXT_TO_TEXT, _DECODED),
        # Entailment of "this text is about <label>": the model is an ordinary classifier of sentence pairs.
        Task("zero-shot-classification", ("AutoModelForSequenceClassification",), _LOGITS),
        # Images and videos.
        Task("depth-estimation", ("AutoModelForDepthEstimation",), ("predicted_depth", "field_of_view")),
        Task("image-classification", ("AutoModelForImageClassification",), _LOGITS),
        Task("image-feature-extraction", ("AutoModel", "AutoBackbone"), _FEATURES),
        Task("image-segmentation", _SEGMENTATION, _MASKS),
        Task("image-to-image", ("AutoModelForImageToImage",), ("reconstruction",)),
        Task("instance-segmentation", tuple(reversed(_SEGMENTATION)), _MASKS),
        Task(
            "keypoint-detection",
            ("AutoModelForKeypointDetection", "AutoModelForPoseEstimation"),
            ("heatmaps", "keypoints", "scores", "descriptors", "mask"),
            ("pose-estimation",),
        ),
        Task("mask-generation", ("AutoModelForMaskGeneration",), ("iou_scores", "pred_masks")),
        Task(
            "masked-im", ("AutoModelForMaskedImageModeling",), ("reconstruction", "logits"), ("masked-image-modeling",)
        ),
        Task("object-detection", ("AutoModelForObjectDetection",), _BOXES),
        Task("semantic-segmentation", _SEGMENTATION, _MASKS),
        Task("universal-segmentation", tuple(reversed(_SEGMENTATION)), _MASKS),
        Task("video-classification", ("AutoModelForVideoClassification",), _LOGITS),
        # Images and texts.
        Task("document-question-answering", ("AutoModelForDocumentQuestionAnswering",), (*_SPAN, "logits")),
        Task("image-text-to-text", _IMAGE_TO_TEXT, _DECODED),
        Task("image-to-text", _IMAGE_TO_TEXT, _DECODED, ("image-captioning",)),
        Task("visual-question-answering", ("AutoModelForVisualQuestionAnswering", *_IMAGE_TO_TEXT), _LOGITS, ("vqa",)),
        Task(
            "zero-shot-image-classification",
            ("AutoModelForZeroShotImageClassification",),
            ("logits_per_image", "logits_per_text", "text_embeds", "image_embeds"),
        ),
        Task(
            "zero-shot-object-detection",
            ("AutoModelForZeroShotObjectDetection",),
            (*_BOXES, "text_embeds", "image_embeds"),
        ),
        # Audio.
        Task("audio-classification", ("AutoModelForAudioClassification",), ("hidden_states", "logits")),
        Task("audio-feature-extraction", ("AutoModel",), _FEATURES),
        Task("audio-frame-classification", ("AutoModelForAudioFrameClassification",), _LOGITS),
        Task("audio-xvector", ("AutoModelForAudioXVector",), ("logits", "embeddings")),
        Task("automatic-speech-recognition", ("AutoModelForCTC", "AutoModelForSpeechSeq2Seq"), _DECODED, ("asr",)),
        Task(
            "zero-shot-audio-classification",
            ("AutoModel",),
            ("logits_per_audio", "logits_per_text", "text_embeds", "audio_embeds"),
        ),
    )
}
# The task by the suffix of transformers' class names: what follows AutoModel in the first class of the first such task,
# and others.
_TASK_BY_HEAD = {
    **{task.auto_classes[0].removeprefix("AutoModel"): task.name for task in reversed(TASKS.values())},
    "ForImageClassificationWithTeacher": "image-classification",
    "ForImageSuperResolution": "image-to-image",
    "ForInstanceSegmentation": "image-segmentation",
    "ForPoseEstimation": "keypoint-detection",
    "ForSegmentation": "image-segmentation",
    "ForSpeechClassification": "audio-classification",
    "ForUniversalSegmentation": "image-segmentation",
    "ForVisionClassification": "image-classification",
    "ForXVector": "audio-xvector",
    "LMHeadModel": "text-generation",
    "SpeechEncoderDecoderModel": "automatic-speech-recognition",
    "VisionEncoderDecoderModel": "image-to-text",
    "EncoderDecoderModel": "text2text-generation",
    "MTModel": "translation",
}
del _TASK_BY_HEAD[""]  # a model without a head
_BY_ANY_NAME = {name: task for task in TASKS.values() for name in (task.name, *task.also)}


def task_named(name: str) -> Task:
    """Return the task called *name*.

    Raises:
        UsageError: no such task exists.
    """
    try:
        return _BY_ANY_NAME[name]
    except KeyError:
        raise UsageError(
            f"There is no task {name!r} to export a model for{known_instead(name, TASKS)}",
            advice="For another one, export the model yourself and build from the ONNX file.",
        ) from None
