from __future__ import annotations

import pytest

from winml_dag.canonical import JsonValue
from winml_dag.stages.export.architectures import ARCHITECTURES
from winml_dag.stages.export.detect import _TASK_BY_HEAD, TASKS, Task, model_type_of, task_of


@pytest.mark.parametrize(
    ("architecture", "task"),
    [
        ("BertForSequenceClassification", "text-classification"),
        ("RobertaForMaskedLM", "fill-mask"),
        ("DistilBertForQuestionAnswering", "question-answering"),
        ("BertForTokenClassification", "token-classification"),
        ("BertForNextSentencePrediction", "next-sentence-prediction"),
        ("ResNetForImageClassification", "image-classification"),
        ("DeiTForImageClassificationWithTeacher", "image-classification"),
        ("BertModel", "feature-extraction"),
        ("CLIPTextModelWithProjection", "feature-extraction"),
        ("CLIPVisionModelWithProjection", "image-feature-extraction"),
        ("GPT2LMHeadModel", "text-generation"),
        ("SegformerForSemanticSegmentation", "image-segmentation"),
        ("VitPoseForPoseEstimation", "keypoint-detection"),
        ("DPTForDepthEstimation", "depth-estimation"),
        ("Wav2Vec2ForCTC", "automatic-speech-recognition"),
        ("ASTForAudioClassification", "audio-classification"),
        ("MarianMTModel", "translation"),
        ("VisionEncoderDecoderModel", "image-to-text"),
        ("SomethingForConditionalGeneration", None),
        ("BertForPreTraining", None),
    ],
)
def test_the_task_follows_from_the_class_that_was_trained(architecture: str, task: str | None) -> None:
    assert task_of({"architectures": [architecture]}) == task


@pytest.mark.parametrize(
    ("config", "task"),
    [
        ({"model_type": "owlvit", "architectures": ["OwlViTForObjectDetection"]}, "zero-shot-object-detection"),
        ({"model_type": "detr", "architectures": ["DetrForObjectDetection"]}, "object-detection"),
        (
            {"model_type": "wav2vec2", "conv_dim": [8], "architectures": ["Wav2Vec2ForSequenceClassification"]},
            "audio-classification",
        ),
        (
            {"model_type": "whisper", "architectures": ["WhisperForConditionalGeneration"]},
            "automatic-speech-recognition",
        ),
        ({"architectures": ["ViTModel"], "image_size": 224}, "image-feature-extraction"),
        ({"architectures": ["ResNetModel"], "num_channels": 3}, "image-feature-extraction"),
        # Nothing is guessed about two towers.
        ({"architectures": ["LxmertModel"], "text_config": {}, "vision_config": {}}, None),
        ({"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]}, "text2text-generation"),
        ({"model_type": "tapas", "architectures": ["TapasForQuestionAnswering"]}, "table-question-answering"),
        (
            {"model_type": "unlimited-ocr", "architectures": ["UnlimitedOCRForConditionalGeneration"]},
            "feature-extraction",
        ),
        (
            {"model_type": "clip", "architectures": ["CLIPModel"], "text_config": {}, "vision_config": {}},
            "zero-shot-image-classification",
        ),
    ],
)
def test_other_fields_tell_heads_of_one_name_apart(config: dict[str, JsonValue], task: str | None) -> None:
    assert task_of(config) == task


@pytest.mark.parametrize("task", TASKS.values(), ids=list(TASKS))
def test_no_task_exports_an_output_twice(task: Task) -> None:
    assert len(set(task.outputs)) == len(task.outputs)


def test_every_task_that_is_detected_can_be_exported() -> None:
    rows = ARCHITECTURES.values()
    of_rows = {task for each in rows for task in (each.generates, *each.tasks.values()) if task is not None}
    assert {*_TASK_BY_HEAD.values(), *of_rows} <= set(TASKS)


@pytest.mark.parametrize("config", [{}, {"architectures": None}, {"architectures": []}, {"architectures": "BertModel"}])
def test_a_config_that_does_not_say_gives_none(config: dict[str, object]) -> None:
    assert task_of(config) is None  # type: ignore[arg-type]
    assert model_type_of(config) is None  # type: ignore[arg-type]
    assert model_type_of({"model_type": "bert"}) == "bert"
