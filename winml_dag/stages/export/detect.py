"""What a model folder's ``config.json`` says about the model, read without transformers, because planning needs it."""

from __future__ import annotations

from collections.abc import Mapping

from winml_dag.canonical import JsonValue
from winml_dag.stages.export.components import same_spelling

# Suffixes of transformers' class names, with the task that models of such a class are trained for.
_TASK_BY_HEAD = {
    "ForAudioClassification": "audio-classification",
    "ForAudioFrameClassification": "audio-frame-classification",
    "ForCTC": "automatic-speech-recognition",
    "ForCausalLM": "text-generation",
    "ForDepthEstimation": "depth-estimation",
    "ForDocumentQuestionAnswering": "document-question-answering",
    "ForImageClassification": "image-classification",
    "ForImageClassificationWithTeacher": "image-classification",
    "ForImageSuperResolution": "image-to-image",
    "ForInstanceSegmentation": "image-segmentation",
    "ForKeypointDetection": "keypoint-detection",
    "ForMaskedImageModeling": "masked-im",
    "ForMaskedLM": "fill-mask",
    "ForMultipleChoice": "multiple-choice",
    "ForNextSentencePrediction": "next-sentence-prediction",
    "ForObjectDetection": "object-detection",
    "ForPoseEstimation": "keypoint-detection",
    "ForQuestionAnswering": "question-answering",
    "ForSegmentation": "image-segmentation",
    "ForSemanticSegmentation": "image-segmentation",
    "ForSequenceClassification": "text-classification",
    "ForSpeechClassification": "audio-classification",
    "ForTokenClassification": "token-classification",
    "ForUniversalSegmentation": "image-segmentation",
    "ForVideoClassification": "video-classification",
    "ForVisionClassification": "image-classification",
    "ForVisualQuestionAnswering": "visual-question-answering",
    "ForXVector": "audio-xvector",
    "ForZeroShotObjectDetection": "zero-shot-object-detection",
    "LMHeadModel": "text-generation",
    "SpeechEncoderDecoderModel": "automatic-speech-recognition",
    "VisionEncoderDecoderModel": "image-to-text",
    "EncoderDecoderModel": "text2text-generation",
    "MTModel": "translation",
}

# Models for which the same head has another task.
_SOUND_KEYS = ("conv_dim", "num_mel_bins", "feature_projection_input_dim")
_OF_SOUND = {"text-classification": "audio-classification"}
_BY_TYPE = {
    ("owlvit", "object-detection"): "zero-shot-object-detection",
    ("owlv2", "object-detection"): "zero-shot-object-detection",
    ("grounding_dino", "object-detection"): "zero-shot-object-detection",
    ("omdet_turbo", "object-detection"): "zero-shot-object-detection",
    ("tapas", "question-answering"): "table-question-answering",
    ("vilt", "question-answering"): "visual-question-answering",
    ("blip", "question-answering"): "visual-question-answering",
}

# ``ForConditionalGeneration`` means that the model outputs text; the input depends on the architecture.
_GENERATES = {
    "blip": "image-to-text",
    "m2m_100": "translation",
    "mbart": "translation",
    "pegasus": "summarization",
    "speech_to_text": "automatic-speech-recognition",
    "unlimited_ocr": "feature-extraction",  # of its image encoder: the rest cannot be a single graph
    "whisper": "automatic-speech-recognition",
}
_GENERATES_TEXT = ("bart", "blenderbot", "blenderbot_small", "mt5", "mvp", "plbart", "t5", "umt5")
_TOWERS = ("altclip", "chinese_clip", "clip", "metaclip_2", "siglip", "siglip2")

_BARE_ENDS = ("Model", "ModelWithProjection")
_IMAGE_KEYS = ("num_channels", "image_size", "patch_size")


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
    kind = same_spelling(model_type_of(config_json) or "")
    if name.endswith("ForConditionalGeneration"):
        return _GENERATES.get(kind) or ("text2text-generation" if kind in _GENERATES_TEXT else None)
    task = next((task for head, task in _TASK_BY_HEAD.items() if name.endswith(head)), None)
    if task is not None:
        heard = _OF_SOUND.get(task) if any(key in config_json for key in _SOUND_KEYS) else None
        return heard or _BY_TYPE.get((kind, task), task)
    if name.endswith(_BARE_ENDS):
        return _features_task(name, kind, config_json)
    return None


def _features_task(name: str, kind: str, config_json: Mapping[str, JsonValue]) -> str | None:
    if "text_config" in config_json and "vision_config" in config_json and "Text" not in name and "Vision" not in name:
        # Some models with two towers match texts with images; the task of others is unknown.
        return "zero-shot-image-classification" if kind in _TOWERS else None
    if "Vision" in name or ("Text" not in name and any(key in config_json for key in _IMAGE_KEYS)):
        return "image-feature-extraction"
    return "feature-extraction"
