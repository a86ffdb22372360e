"""What is decided before a model is exported: the task, sizes of the model and of tensors, and which outputs.

Also how an export is compared with PyTorch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from export_models import IDS, made, names, picture, random_model, signature
from hypothesis import given
from hypothesis import strategies as st
from late import Late

from winml_dag.errors import StageError
from winml_dag.stages.export import ExportFields, InputTensor, LoaderFields
from winml_dag.stages.export.architectures import ARCHITECTURES
from winml_dag.stages.export.detect import _TASK_BY_HEAD, TASKS, model_type_of, task_of
from winml_dag.stages.export.inputs import ModelInput, Shape, model_inputs, sized

comparison = Late("winml_dag.stages.export.comparison")
configuration = Late("winml_dag.stages.export.configuration")
conversion = Late("winml_dag.stages.export.conversion")
fitting = Late("winml_dag.stages.export.fitting")
loading = Late("winml_dag.stages.export.loading")
subject = Late("winml_dag.stages.export.subject")

BY_CLASS = {
    "BertForSequenceClassification": "text-classification",
    "RobertaForMaskedLM": "fill-mask",
    "DistilBertForQuestionAnswering": "question-answering",
    "BertForTokenClassification": "token-classification",
    "BertForNextSentencePrediction": "next-sentence-prediction",
    "ResNetForImageClassification": "image-classification",
    "DeiTForImageClassificationWithTeacher": "image-classification",
    "BertModel": "feature-extraction",
    "CLIPTextModelWithProjection": "feature-extraction",
    "CLIPVisionModelWithProjection": "image-feature-extraction",
    "GPT2LMHeadModel": "text-generation",
    "SegformerForSemanticSegmentation": "image-segmentation",
    "VitPoseForPoseEstimation": "keypoint-detection",
    "DPTForDepthEstimation": "depth-estimation",
    "Wav2Vec2ForCTC": "automatic-speech-recognition",
    "ASTForAudioClassification": "audio-classification",
    "MarianMTModel": "translation",
    "VisionEncoderDecoderModel": "image-to-text",
    "SomethingForConditionalGeneration": None,
    "BertForPreTraining": None,
}
TOWERS = {"text_config": {}, "vision_config": {}}


@pytest.mark.parametrize(
    ("name", "config", "task"),
    [
        *((name, {}, task) for name, task in BY_CLASS.items()),
        # Classes of one name, which fields of the config tell apart.
        ("OwlViTForObjectDetection", {"model_type": "owlvit"}, "zero-shot-object-detection"),
        ("DetrForObjectDetection", {"model_type": "detr"}, "object-detection"),
        ("Wav2Vec2ForSequenceClassification", {"model_type": "wav2vec2", "conv_dim": [8]}, "audio-classification"),
        ("WhisperForConditionalGeneration", {"model_type": "whisper"}, "automatic-speech-recognition"),
        ("ViTModel", {"image_size": 224}, "image-feature-extraction"),
        ("ResNetModel", {"num_channels": 3}, "image-feature-extraction"),
        ("LxmertModel", TOWERS, None),  # nothing is guessed about two towers
        ("T5ForConditionalGeneration", {"model_type": "t5"}, "text2text-generation"),
        ("TapasForQuestionAnswering", {"model_type": "tapas"}, "table-question-answering"),
        ("UnlimitedOCRForConditionalGeneration", {"model_type": "unlimited-ocr"}, "feature-extraction"),
        ("CLIPModel", {"model_type": "clip", **TOWERS}, "zero-shot-image-classification"),
    ],
)
def test_task_follows_from_architecture_class_and_config(name: str, config: dict[str, Any], task: str | None) -> None:
    assert task_of({"architectures": [name], **config}) == task


def test_every_detected_task_is_exportable_with_unique_outputs() -> None:
    rows = ARCHITECTURES.values()
    of_rows = {task for each in rows for task in (each.generates, *each.tasks.values()) if task is not None}
    assert {*_TASK_BY_HEAD.values(), *of_rows} <= set(TASKS)
    assert [name for name, task in TASKS.items() if len(set(task.outputs)) < len(task.outputs)] == []


@pytest.mark.parametrize("config", [{}, {"architectures": None}, {"architectures": []}, {"architectures": "BertModel"}])
def test_incomplete_config_gives_no_task(config: dict[str, Any]) -> None:
    assert task_of(config) is None
    assert model_type_of(config) is None
    assert model_type_of({"model_type": "bert"}) == "bert"


_TRANSLATOR = {"d_model": 32, "decoder_layers": 1, "encoder_layers": 1, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
_TRANSLATOR |= {"decoder_attention_heads": 2, "encoder_attention_heads": 2, "max_position_embeddings": 40}


def followed(model_type: str, tensors: tuple[InputTensor, ...], **overrides: Any) -> Any:
    config = configuration.configuration(model_type, overrides)
    fitting.follow_tensors(config, overrides, tensors)
    return config


def test_open_config_fields_follow_tensors_and_set_fields_stay() -> None:
    texts = (InputTensor("input_ids", shape=(1, 700)),)
    assert followed("bert", texts).max_position_embeddings == 700
    assert followed("bert", texts, max_position_embeddings=40).max_position_embeddings == 40
    assert followed("roberta", texts).max_position_embeddings == 702  # positions count from after the padding token
    assert followed("vit", picture(384, 384)).image_size == 384
    assert followed("vit", picture(384, 384), image_size=32).image_size == 32
    assert followed("owlvit", picture(840, 840)).vision_config.image_size == 840
    assert list(followed("vitpose", picture(64, 48)).backbone_config.image_size) == [64, 48]


def test_decoder_layers_and_heads_follow_cache() -> None:
    cache = tuple(InputTensor(f"past_{layer}_key", shape=(1, 8, 512, 64)) for layer in range(6))
    config = followed("marian", cache)
    assert (config.decoder_layers, config.decoder_attention_heads, config.d_model) == (6, 8, 512)
    assert followed("marian", cache, d_model=32, decoder_attention_heads=2).d_model == 32


def prepared(loader: LoaderFields, fields: ExportFields) -> tuple[Mapping[str, Shape], ExportFields]:
    """Return the shapes of the inputs that an export has, by name, and its fields."""
    model = loading.load_pytorch_model(loader, None, None, fields.input_tensors)
    exported = subject.chosen_subject(model, loader, None)
    fields = fitting.fitted(fields, exported, loader.random_weights)
    return {each.name: each.shape for each in model_inputs(exported, fields)}, fields


def test_tensors_follow_a_smaller_model() -> None:
    texts = tuple(InputTensor(each.name, each.dtype, (1, 512), (0, 30522)) for each in IDS)
    found, _ = prepared(random_model("bert", "feature-extraction"), ExportFields(input_tensors=texts))
    assert found == {"input_ids": (1, 40), "attention_mask": (1, 40)}
    found, _ = prepared(random_model("vit", "image-classification"), ExportFields(input_tensors=picture(224, 224)))
    assert found == {"pixel_values": (1, 3, 32, 32)}


def test_cache_tensors_of_missing_layers_are_dropped() -> None:
    past = tuple(
        InputTensor(f"past_{layer}_{part}", "float32", (1, 8, 512, 64), (0, 1))
        for layer in range(6)
        for part in ("key", "value")
    )
    given = (
        InputTensor("decoder_input_ids", "int32", (1, 1), (0, 62518)),
        InputTensor("encoder_hidden_states", "float32", (1, 512, 512), (0, 1)),
        InputTensor("attention_mask", "int64", (1, 512)),
        InputTensor("decoder_attention_mask", "int64", (1, 512)),
        InputTensor("cache_position", "int64", (1,)),
    )
    outputs = ("logits", *(each.name.replace("past", "present") for each in past))
    sizes = {**_TRANSLATOR, "vocab_size": 100, "pad_token_id": 99}
    loader = made("text2text-generation", "marian", "MarianDecoderWrapper", **sizes)
    found, fields = prepared(loader, ExportFields(input_tensors=(*given, *past), output_tensors=outputs))
    assert fields.output_tensors == ("logits", "present_0_key", "present_0_value")
    assert {name: shape for name, shape in found.items() if name.startswith("past")} == {
        "past_0_key": (1, 2, 40, 16),
        "past_0_value": (1, 2, 40, 16),
    }
    assert found["encoder_hidden_states"] == (1, 40, 32)
    assert found["attention_mask"] == found["decoder_attention_mask"] == (1, 40)


@pytest.mark.parametrize("part", ["Encoder", "Decoder"])
def test_catalog_row_suffices_for_composite_architecture(monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    row = replace(ARCHITECTURES["pegasus"], name="pegasus_x")
    monkeypatch.setitem(ARCHITECTURES, row.name, row)
    assert task_of({"model_type": row.name, "architectures": ["PegasusXForConditionalGeneration"]}) == "summarization"
    loader = made("summarization", row.name, f"Pegasus{part}Wrapper", **_TRANSLATOR, vocab_size=100)
    assert ("past_0_key" in names(signature(loader)["input_tensors"])) == (part == "Decoder")


@pytest.mark.parametrize("spelling", ["xlm-roberta", "xlm_roberta"])
def test_architecture_name_spelling_is_normalized(spelling: str) -> None:
    assert configuration.transformers_name(spelling) == "xlm-roberta"
    assert configuration.transformers_name("wav2vec2-emotion-regression") == "wav2vec2"
    assert configuration.transformers_name("no-such-thing") is None


def _input(*shape: int | str, sizes: tuple[int, ...]) -> ModelInput:
    return ModelInput("pixel_values", "float32", shape, None, sizes)


TEXT = _input("batch", "sequence", sizes=(1, 128))


@given(st.lists(st.sampled_from(["batch", "a", "b", "c", 3]), min_size=1, max_size=4), st.integers(1, 300))
def test_every_axis_is_tried_at_several_sizes(shape: list[int | str], size: int) -> None:
    runs = comparison.sizes_by_run([_input(*shape, sizes=(size,) * len(shape))])
    for axis in {each for each in shape if isinstance(each, str)}:
        assert len({run[axis] for run in runs}) > 1
        assert all(run[axis] >= 1 for run in runs)


def test_sizes_are_chosen_for_named_axes_only() -> None:
    """The first is not 1, which exporters take for a constant."""
    assert comparison.sizes_by_run([_input(1, 3, sizes=(1, 3))]) == ({}, {})
    assert comparison.sizes_by_run([TEXT])[0] == {"batch": 2, "sequence": 128}


def test_output_axes_take_matching_or_own_names() -> None:
    sizes = comparison.sizes_by_run([TEXT])
    states = [(run["batch"], run["sequence"], 32) for run in sizes]
    assert comparison.output_shape("last_hidden_state", states, sizes, {}) == ("batch", "sequence", 32)
    quarters = [(run["sequence"] // 4,) for run in sizes]
    assert comparison.output_shape("pooled", quarters, sizes, {}) == ("pooled_axis_0",)
    assert comparison.output_shape("pooled", quarters, sizes, {"pooled": {"0": "quarter"}}) == ("quarter",)


RIGHT = np.linspace(-2, 3, 50, dtype=np.float32)


def test_small_rounding_and_few_larger_differences_agree() -> None:
    difference, cosine = comparison.agreement([{"logits": RIGHT}], [{"logits": RIGHT + np.float32(1e-5)}])
    assert difference == pytest.approx(1e-5, rel=0.1)
    assert cosine > 0.9999
    many = np.tile(RIGHT, 1000)
    few = many.copy()
    few[:3] += np.float32(8e-3)
    comparison.agreement([{"logits": many}], [{"logits": few}])
    with pytest.raises(StageError, match="differs from PyTorch"):
        comparison.agreement([{"logits": many}], [{"logits": many + np.float32(8e-3)}])


NAN = np.full_like(RIGHT, np.nan)


@pytest.mark.parametrize(
    ("expected", "found", "words"),
    [
        *((RIGHT, wrong, "differs from PyTorch") for wrong in (RIGHT[::-1], RIGHT + 0.1, np.zeros_like(RIGHT), NAN)),
        # Tiny outputs are held against their own scale.
        (RIGHT * 1e-6, RIGHT * 1.1e-6, "differs from PyTorch in 'logits'"),
        (NAN, NAN, "itself gives NaN"),
    ],
)
def test_wrong_output_in_any_run_is_refused(expected: np.ndarray, found: np.ndarray, words: str) -> None:
    with pytest.raises(StageError, match=words):
        comparison.agreement([{"logits": RIGHT}, {"logits": expected}], [{"logits": RIGHT}, {"logits": found}])


SIZES = st.integers(2, 5000)


@given(SIZES, SIZES, SIZES, SIZES)
def test_sizes_apply_to_named_axes_only(tokens: int, height: int, width: int, batch: int) -> None:
    sizes = {"sequence_length": tokens, "height": height, "width": width}
    assert sized("input_ids", (1, 512), sizes, batch) == (batch, tokens)
    assert sized("attention_mask", ("batch", "tokens"), sizes, batch) == ("batch", "tokens")
    assert sized("bbox", (1, 512, 4), sizes, 1) == (1, tokens, 4)
    assert sized("input_ids", (1, 4, 32), sizes, 1) == (1, 4, tokens)
    assert sized("pixel_values", (1, 3, 224, 224), sizes, 1) == (1, 3, height, width)
    assert sized("pixel_values", (1, 8, 3, 224, 224), sizes, batch) == (batch, 8, 3, height, width)
    assert sized("pixel_values", (4, 3, 8, 8), {}, batch) == (4, 3, 8, 8)
    assert sized("something_else", (1, 512), sizes, 1) == (1, 512)
    assert sized("cache_position", (1,), {}, batch) == (1,)


PRODUCED = ("last_hidden_state", "pooler_output")


@pytest.mark.parametrize(
    ("asked", "usual", "chosen"),
    [
        ((), ("text_embeds", "last_hidden_state"), {"last_hidden_state": "last_hidden_state"}),
        (PRODUCED[::-1], (), dict(zip(PRODUCED[::-1], PRODUCED[::-1], strict=True))),
        (("embedding",), (), {"embedding": "last_hidden_state"}),
    ],
    ids=["the usual ones that the model has", "by name in the recipe's order", "names of the recipe's own in order"],
)
def test_requested_outputs_are_selected(asked: tuple[str, ...], usual: tuple[str, ...], chosen: dict[str, str]) -> None:
    found = conversion.choose_outputs(PRODUCED, asked, usual)
    assert list(found.items()) == list(chosen.items())


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (("a", "b", "c"), "3 outputs, but the model has 2"),
        (("pooler_output", "embedding"), "names embedding"),
        (("a", "a"), "twice"),
        ((), "none of the outputs"),
    ],
)
def test_ambiguous_or_unknown_outputs_are_refused(asked: tuple[str, ...], words: str) -> None:
    with pytest.raises(StageError, match=words):
        conversion.choose_outputs(PRODUCED, asked, ("logits",))
