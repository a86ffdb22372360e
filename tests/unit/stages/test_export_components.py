"""Composite models: components that a recipe refers to, exported from one load, compute the same as the whole model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from export_models import Bench, made
from late import Late

from winml_dag.errors import RecipeError, StageError
from winml_dag.onnxmodel.feeds import model_inputs
from winml_dag.stages.export import (
    ComponentFields,
    ComponentsConfig,
    ExportFields,
    InputTensor,
    LoaderFields,
    export_stage,
)
from winml_dag.stages.export.architectures import chosen_components, component_named, composite_of

torch = Late("torch")
transformers = Late("transformers")
configuration = Late("winml_dag.stages.export.configuration")
conversion = Late("winml_dag.stages.export.conversion")
exporter = Late("winml_dag.stages.export.exporter")
loading = Late("winml_dag.stages.export.loading")
subject = Late("winml_dag.stages.export.subject")

_CACHE = 12


@pytest.mark.parametrize(
    ("asked", "components"),
    [
        (("vision-encoder-decoder", "image-to-text", None), ["encoder", "decoder"]),
        (("vision_encoder_decoder", None, None), ["encoder", "decoder"]),
        (("vision-encoder-decoder", "image-feature-extraction", None), ["encoder"]),
        (("vision_encoder_decoder", "image-to-text", "VisionDecoderWrapper"), ["decoder"]),
        (("vision-encoder-decoder", "image-to-text", "VisionEncoderDecoderModel"), []),
        (("bert", "fill-mask", None), []),
        ((None, None, None), []),
    ],
)
def test_recipe_selects_all_one_or_no_components(
    asked: tuple[str | None, str | None, str | None], components: list[str]
) -> None:
    assert [each.name for each in chosen_components(*asked)] == components


def test_unknown_component_is_refused_with_available_ones() -> None:
    assert component_named("clip", "text-encoder").class_name == "CLIPTextModelWithProjection"
    with pytest.raises(RecipeError, match="It has: image-encoder, text-encoder"):
        component_named("clip", "decoder")
    with pytest.raises(RecipeError, match="no components"):
        component_named("bert", "decoder")


def t5() -> tuple[transformers.PreTrainedModel, Mapping[str, Any]]:
    sizes = {"vocab_size": 50, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2}
    source = {"input_ids": torch.arange(3, 12)[None], "attention_mask": torch.ones(1, 9, dtype=torch.int64)}
    return transformers.T5ForConditionalGeneration(transformers.AutoConfig.for_model("t5", **sizes)), source


def whisper() -> tuple[transformers.PreTrainedModel, Mapping[str, Any]]:
    sizes = {"vocab_size": 50, "d_model": 16, "encoder_layers": 1, "decoder_layers": 2, "num_mel_bins": 8}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "max_source_positions": 10}
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 3}
    config = transformers.AutoConfig.for_model("whisper", **sizes, **heads, **tokens)
    return transformers.WhisperForConditionalGeneration(config), {"input_features": torch.rand(1, 8, 20)}


def trocr() -> tuple[transformers.PreTrainedModel, Mapping[str, Any]]:
    encoder = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    decoder = {"vocab_size": 50, "d_model": 16, "decoder_layers": 2, "decoder_attention_heads": 2}
    picture = {"image_size": 16, "patch_size": 8}
    config = configuration.configuration("vision-encoder-decoder", {"encoder": encoder | picture, "decoder": decoder})
    return transformers.VisionEncoderDecoderModel(config), {"pixel_values": torch.rand(1, 3, 16, 16)}


def test_decoder_with_cache_defaults_to_torchscript() -> None:
    """TrOCR's decoder is a language model, and those use dynamo when they have no cache."""
    parent, _ = trocr()
    composite = composite_of("vision_encoder_decoder")
    assert composite is not None
    decoder = subject.component_subject(loading.LoadedModel(parent, frozenset()), composite.components[1], None)
    assert exporter.exporter_of(ExportFields(), decoder) == "torchscript"
    assert exporter.exporter_of(ExportFields(dynamo=True), decoder) == "dynamo"


@pytest.mark.parametrize(
    ("model_type", "make"),
    [("t5", t5), ("whisper", whisper), ("vision_encoder_decoder", trocr)],
    ids=["t5", "whisper", "trocr"],
)
def test_cached_decoding_equals_full_decoding(model_type: str, make: Any) -> None:
    torch.manual_seed(0)
    parent, source = make()
    parent.eval()
    composite = composite_of(model_type)
    assert composite is not None
    encoder, decoder = (subject.component_module(parent, each) for each in composite.components)
    assert isinstance(decoder, subject.DecoderModule)
    tokens = torch.arange(4, 9)[None]
    heads, size = subject.cache_shape(decoder.config)
    # Cache contents after the existing tokens must not matter.
    cache = {name: torch.rand(1, heads, _CACHE, size) for name in decoder.input_names if name.startswith("past_")}
    with torch.no_grad():
        wanted = parent(**source, decoder_input_ids=tokens).logits
        states = encoder(**source)["encoder_hidden_states"]
        given = {"encoder_hidden_states": states}
        if "attention_mask" in decoder.input_names:
            given["attention_mask"] = source["attention_mask"]
        found = []
        for place in range(tokens.shape[1]):
            answer = decoder(
                decoder_input_ids=tokens[:, place : place + 1],
                decoder_attention_mask=(torch.arange(_CACHE) <= place).to(torch.int64)[None],
                cache_position=torch.tensor([place]),
                **given,
                **cache,
            )
            found.append(answer["logits"])
            for name, held in cache.items():
                held[:, :, place : place + 1] = answer[name.replace("past", "present")]
    torch.testing.assert_close(torch.cat(found, dim=1), wanted)


_LAYERS = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
_CLIP = {
    "projection_dim": 8,
    "text_config": {**_LAYERS, "vocab_size": 64, "max_position_embeddings": 12, "eos_token_id": 2},
    "vision_config": {**_LAYERS, "image_size": 16, "patch_size": 8},
}
LOADER = made("zero-shot-image-classification", "clip", **_CLIP)
TEXT, IMAGE = "text-encoder", "image-encoder"
_TASKS = {TEXT: "feature-extraction", IMAGE: "image-feature-extraction"}
_CLASSES = {TEXT: "CLIPTextModelWithProjection", IMAGE: "CLIPVisionModelWithProjection"}

# For both towers: each ignores the other's tensor.
FIELDS = ExportFields(
    input_tensors=(
        InputTensor("input_ids", shape=(1, 6)),
        InputTensor("attention_mask", shape=(1, 6)),
        InputTensor("pixel_values", shape=(1, 3, 16, 16)),
    ),
    dynamic_axes={"pixel_values": {"0": "batch"}},
)
SHARED = ("attention_mask", "input_ids", "pixel_values")


def config(fields: ExportFields = FIELDS, shared: tuple[str, ...] = SHARED) -> ComponentsConfig:
    components = {name: ComponentFields(_CLASSES[name], _TASKS[name], fields, shared) for name in (TEXT, IMAGE)}
    return ComponentsConfig(LOADER, components)


SLOTS = export_stage((TEXT, IMAGE)).outputs


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, list[LoaderFields]]:
    """The outputs of one run, its metrics, and what it loaded."""
    loaded: list[LoaderFields] = []

    def load(loader: LoaderFields, *arguments: Any) -> loading.LoadedModel:
        loaded.append(loader)
        return loading.load_pytorch_model(loader, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("winml_dag.stages.export.conversion.load_pytorch_model", load)
        bench = Bench(tmp_path_factory.mktemp("composite"))
        return *bench.run(conversion.run_components, config(), SLOTS), loaded


def test_model_is_loaded_once_for_all_components(exported: tuple[Path, Any, list[LoaderFields]]) -> None:
    outputs, metrics, loaded = exported
    assert loaded == [LOADER]
    assert sorted(path.name for path in outputs.iterdir()) == sorted(SLOTS)
    assert {name: round(each["cosine"], 6) for name, each in metrics["components"].items()} == {TEXT: 1, IMAGE: 1}
    # Each takes its own of the tensors that are named for all.
    text, image = (model_inputs(outputs / f"{name}_model" / "export.onnx") for name in (TEXT, IMAGE))
    assert {each.name: each.shape for each in text} == {"input_ids": (1, 6), "attention_mask": (1, 6)}
    assert {each.name: each.shape for each in image} == {"pixel_values": ("batch", 3, 16, 16)}


def test_single_component_export_has_identical_bytes(
    exported: tuple[Path, Any, list[LoaderFields]], tmp_path: Path
) -> None:
    text = replace(FIELDS, input_tensors=FIELDS.input_tensors and FIELDS.input_tensors[:2], dynamic_axes=None)
    loader = replace(LOADER, model_class=_CLASSES[TEXT], task=_TASKS[TEXT])
    alone = Bench(tmp_path).export(loader, text).model
    assert alone.read_bytes() == (exported[0] / f"{TEXT}_model" / "export.onnx").read_bytes()


@pytest.mark.parametrize(
    ("axis", "shared", "complaint"),
    [
        ("pixel_value", (*SHARED, "pixel_value"), "no component takes; did you mean 'pixel_values'"),
        ("pixel_values", (), "names 'pixel_values', which the model does not take"),
    ],
    ids=["of none", "of another"],
)
def test_tensor_of_no_component_is_refused(tmp_path: Path, axis: str, shared: tuple[str, ...], complaint: str) -> None:
    fields = replace(FIELDS, dynamic_axes={axis: {"0": "batch"}})
    with pytest.raises(StageError, match=complaint):
        Bench(tmp_path).run(conversion.run_components, config(fields, shared), SLOTS)
