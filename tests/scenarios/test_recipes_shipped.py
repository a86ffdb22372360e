"""The bundled recipes: all of them can be planned, by name and offline, and cover all common uses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from winml_dag.cli import run
from winml_dag.recipe.load import Shipped, shipped_path, shipped_recipes
from winml_dag.stages.export.architectures import composite_of

# The common uses of winml-cli's configurations.
USED = {
    "audio-spectrogram-transformer": ["audio-classification"],
    "bert": ["feature-extraction", "fill-mask", "sentence-similarity", "text-classification", "token-classification"],
    "clip_text_model": ["feature-extraction"],
    "clip_vision_model": ["image-feature-extraction"],
    "convnext": ["image-classification"],
    "deberta-v2": ["text-classification"],
    "dinov2": ["image-feature-extraction"],
    "distilbert": ["fill-mask", "question-answering", "text-classification"],
    "electra": ["question-answering", "text-classification"],
    "layoutlm": ["question-answering"],
    "layoutlmv3": ["question-answering"],
    "marian": ["feature-extraction", "text2text-generation"],
    "mobilevit": ["image-classification"],
    "mpnet": ["feature-extraction"],
    "owlv2": ["zero-shot-object-detection"],
    "owlvit": ["zero-shot-object-detection"],
    "resnet": ["image-classification"],
    "roberta": ["fill-mask", "question-answering"],
    "segformer": ["image-segmentation"],
    "swin": ["image-classification"],
    "unlimited-ocr": ["feature-extraction"],
    "vision-encoder-decoder": ["image-feature-extraction", "text2text-generation"],
    "vit": ["image-classification"],
    "vitpose": ["keypoint-detection"],
    "wav2vec2": ["audio-classification", "automatic-speech-recognition"],
    "wav2vec2_emotion_regression": ["audio-classification"],
    "xlm-roberta": ["fill-mask", "text-classification"],
}

SHIPPED = shipped_recipes()


def tasks_of(shipped: Shipped) -> set[str]:
    """Return the task of a recipe; for a composite model, those of its components."""
    composite = composite_of(shipped.model_type)
    in_one_piece = composite is None or shipped.recipe.loader.model_class is not None
    return {shipped.task} if in_one_piece else {component.task for component in composite.components}


def test_every_architecture_has_recipe_for_each_task() -> None:
    has = {(shipped.model_type, task) for shipped in SHIPPED for task in tasks_of(shipped)}
    assert {(model_type, task) for model_type, tasks in USED.items() for task in tasks} - has == set()


def test_shipped_recipe_has_summary_and_no_provider() -> None:
    """tests/golden plans each of them for several targets."""
    for shipped in SHIPPED:
        export = shipped.recipe.export
        assert shipped.summary
        assert shipped.recipe.model
        assert export is not None
        assert export.input_tensors or export.shape_config, shipped.name
        assert shipped.recipe.ep is None


def test_shipped_recipe_is_found_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["plan", "--random-weights", "--format", "json", "--cache-dir", str(tmp_path / "cache")]
    plans = []
    for named in ("catalog:resnet/image-classification", str(shipped_path("resnet/image-classification"))):
        assert run([*arguments, "-c", named]) == 0
        plans.append(json.loads(capsys.readouterr().out)["builds"][0]["stages"][0]["cache_key"])
    assert plans[0] == plans[1]
    assert run([*arguments, "-c", "catalog:resnet/image-clasification"]) == 2
    assert "did you mean 'resnet/image-classification'" in capsys.readouterr().err


def test_catalog_is_filtered_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["catalog", "-t", "question-answering", "--model-type", "layoutlm", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)["recipes"]
    assert [each["name"] for each in found] == ["layoutlm/question-answering"]
    listed = tmp_path / "list.json"
    assert run(["catalog", "-o", str(listed)]) == 0
    assert len(json.loads(listed.read_text(encoding="utf-8"))["recipes"]) == len(SHIPPED)
    assert run(["catalog", "-o", str(listed)]) == 2
    assert "already exists" in capsys.readouterr().err
    assert run(["catalog", "--ep", "tensorrt", "-p", "w8a16"]) == 2
    assert "no 16-bit integers" in capsys.readouterr().err
