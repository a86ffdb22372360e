from __future__ import annotations

import subprocess
import sys

import pytest

from winml_dag.stages.export.detect import model_type_of, task_of


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
        ("GPT2LMHeadModel", None),
        ("WhisperForConditionalGeneration", None),
    ],
)
def test_the_task_follows_from_the_class_that_was_trained(architecture: str, task: str | None) -> None:
    assert task_of({"architectures": [architecture]}) == task


def test_a_bare_model_of_images_gives_image_features() -> None:
    assert task_of({"architectures": ["ViTModel"], "image_size": 224}) == "image-feature-extraction"
    assert task_of({"architectures": ["ResNetModel"], "num_channels": 3}) == "image-feature-extraction"


def test_nothing_is_guessed_about_a_model_of_two_towers() -> None:
    assert task_of({"architectures": ["CLIPModel"], "text_config": {}, "vision_config": {}}) is None


@pytest.mark.parametrize("config", [{}, {"architectures": None}, {"architectures": []}, {"architectures": "BertModel"}])
def test_a_config_that_does_not_say_gives_none(config: dict[str, object]) -> None:
    assert task_of(config) is None  # type: ignore[arg-type]
    assert model_type_of(config) is None  # type: ignore[arg-type]


def test_the_model_type_is_read() -> None:
    assert model_type_of({"model_type": "bert"}) == "bert"


def test_planning_needs_no_heavy_import() -> None:
    heavy = "{'torch', 'transformers', 'onnx', 'onnxruntime', 'numpy'}"
    modules = "winml_dag.stages.export, winml_dag.stages.export.detect, winml_dag.stages.export.tasks"
    code = f"import sys, {modules}; sys.exit(str({heavy} & set(sys.modules)) if {heavy} & set(sys.modules) else 0)"
    subprocess.run([sys.executable, "-c", code], check=True)
