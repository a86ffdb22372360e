"""Random weights and a recipe's tensors fit together, whichever of them the user changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from export_architectures import IDS, picture
from export_models import names, random_model, signature

from winml_dag.stages.export import ExportFields, InputTensor, LoaderFields, RandomWeights
from winml_dag.stages.export.architectures import ARCHITECTURES
from winml_dag.stages.export.configuration import configuration, transformers_name
from winml_dag.stages.export.detect import task_of
from winml_dag.stages.export.fitting import fitted, follow_tensors
from winml_dag.stages.export.inputs import Shape, model_inputs
from winml_dag.stages.export.loading import load_pytorch_model
from winml_dag.stages.export.subject import chosen_subject

_TRANSLATOR = {"d_model": 32, "decoder_layers": 1, "encoder_layers": 1, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}


def followed(model_type: str, tensors: tuple[InputTensor, ...], **overrides: Any) -> Any:
    config = configuration(model_type, overrides)
    follow_tensors(config, overrides, tensors)
    return config


def test_what_the_user_left_open_follows_the_tensors() -> None:
    texts = (InputTensor("input_ids", shape=(1, 700)),)
    assert followed("bert", texts).max_position_embeddings == 700
    assert followed("roberta", texts).max_position_embeddings == 702  # positions count from after the padding token
    assert followed("vit", picture(384, 384)).image_size == 384
    assert followed("owlvit", picture(840, 840)).vision_config.image_size == 840
    assert list(followed("vitpose", picture(64, 48)).backbone_config.image_size) == [64, 48]


def test_what_the_user_set_stays() -> None:
    texts = (InputTensor("input_ids", shape=(1, 700)),)
    assert followed("bert", texts, max_position_embeddings=40).max_position_embeddings == 40
    assert followed("vit", picture(384, 384), image_size=32).image_size == 32


def test_a_decoder_has_the_layers_and_heads_of_the_cache() -> None:
    cache = tuple(InputTensor(f"past_{layer}_key", shape=(1, 8, 512, 64)) for layer in range(6))
    config = followed("marian", cache)
    assert (config.decoder_layers, config.decoder_attention_heads, config.d_model) == (6, 8, 512)
    assert followed("marian", cache, d_model=32, decoder_attention_heads=2).d_model == 32


def prepared(loader: LoaderFields, fields: ExportFields) -> tuple[Mapping[str, Shape], ExportFields]:
    """Return the shapes of the inputs that an export has, by name, and its fields."""
    subject = chosen_subject(load_pytorch_model(loader, None, None, fields.input_tensors), loader, None)
    fields = fitted(fields, subject, loader.random_weights)
    return {each.name: each.shape for each in model_inputs(subject, fields)}, fields


def test_tensors_follow_a_model_that_was_made_smaller() -> None:
    texts = tuple(InputTensor(each.name, each.dtype, (1, 512), (0, 30522)) for each in IDS)
    found, _ = prepared(random_model("bert", "feature-extraction"), ExportFields(input_tensors=texts))
    assert found == {"input_ids": (1, 40), "attention_mask": (1, 40)}
    found, _ = prepared(random_model("vit", "image-classification"), ExportFields(input_tensors=picture(224, 224)))
    assert found == {"pixel_values": (1, 3, 32, 32)}


def test_layers_that_a_smaller_decoder_does_not_have_are_left_out() -> None:
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
    heads = {"decoder_attention_heads": 2, "encoder_attention_heads": 2, "max_position_embeddings": 40}
    weights = RandomWeights(0, {**_TRANSLATOR, **heads, "vocab_size": 100, "pad_token_id": 99})
    loader = LoaderFields("text2text-generation", "marian", "MarianDecoderWrapper", random_weights=weights)
    found, fields = prepared(loader, ExportFields(input_tensors=(*given, *past), output_tensors=outputs))
    assert fields.output_tensors == ("logits", "present_0_key", "present_0_value")
    assert {name: shape for name, shape in found.items() if name.startswith("past")} == {
        "past_0_key": (1, 2, 40, 16),
        "past_0_value": (1, 2, 40, 16),
    }
    assert found["encoder_hidden_states"] == (1, 40, 32)
    assert found["attention_mask"] == found["decoder_attention_mask"] == (1, 40)


@pytest.mark.parametrize("part", ["Encoder", "Decoder"])
def test_a_row_is_all_that_an_architecture_of_components_needs(monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    row = replace(ARCHITECTURES["pegasus"], name="pegasus_x")
    monkeypatch.setitem(ARCHITECTURES, row.name, row)
    assert task_of({"model_type": row.name, "architectures": ["PegasusXForConditionalGeneration"]}) == "summarization"
    heads = {"decoder_attention_heads": 2, "encoder_attention_heads": 2, "max_position_embeddings": 40}
    weights = RandomWeights(0, {**_TRANSLATOR, **heads, "vocab_size": 100})
    loader = LoaderFields("summarization", row.name, f"Pegasus{part}Wrapper", random_weights=weights)
    assert ("past_0_key" in names(signature(loader)["input_tensors"])) == (part == "Decoder")


@pytest.mark.parametrize("spelling", ["xlm-roberta", "xlm_roberta"])
def test_an_architecture_is_found_however_its_name_is_spelled(spelling: str) -> None:
    assert transformers_name(spelling) == "xlm-roberta"
    assert transformers_name("wav2vec2-emotion-regression") == "wav2vec2"
    assert transformers_name("no-such-thing") is None
