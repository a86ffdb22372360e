"""Composite models: components that a recipe refers to, exported from one load, compute the same as the whole model."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from transformers import (
    AutoConfig,
    PreTrainedModel,
    T5ForConditionalGeneration,
    VisionEncoderDecoderModel,
    WhisperForConditionalGeneration,
)

from winml_dag.canonical import JsonObject
from winml_dag.engine.stage import Workspace
from winml_dag.errors import RecipeError, StageError
from winml_dag.stages.export import (
    ComponentFields,
    ComponentsConfig,
    ExportConfig,
    ExportFields,
    InputTensor,
    LoaderFields,
    RandomWeights,
    export_stage,
)
from winml_dag.stages.export.architectures import chosen_components, component_named, composite_of
from winml_dag.stages.export.configuration import configuration
from winml_dag.stages.export.exporter import DYNAMO, TORCHSCRIPT, exporter_of
from winml_dag.stages.export.loading import LoadedModel
from winml_dag.stages.export.subject import DecoderModule, cache_shape, component_module, component_subject

_CACHE = 12
_SOURCE = {"input_ids": torch.arange(3, 12)[None], "attention_mask": torch.ones(1, 9, dtype=torch.int64)}


def names(model_type: str | None, task: str | None, model_class: str | None) -> list[str]:
    return [each.name for each in chosen_components(model_type, task, model_class)]


@pytest.mark.parametrize("model_type", ["vision-encoder-decoder", "vision_encoder_decoder"])
def test_a_recipe_means_all_components_or_one(model_type: str) -> None:
    assert names(model_type, "image-to-text", None) == ["encoder", "decoder"]
    assert names(model_type, None, None) == ["encoder", "decoder"]
    assert names(model_type, "image-feature-extraction", None) == ["encoder"]
    assert names(model_type, "image-to-text", "VisionDecoderWrapper") == ["decoder"]
    assert names(model_type, "image-to-text", "VisionEncoderDecoderModel") == []


def test_models_of_one_piece_have_no_components() -> None:
    assert names("bert", "fill-mask", None) == names(None, None, None) == []
    assert composite_of("bert") is None


def test_an_unknown_component_is_refused_with_those_that_there_are() -> None:
    assert component_named("clip", "text-encoder").class_name == "CLIPTextModelWithProjection"
    with pytest.raises(RecipeError, match="It has: image-encoder, text-encoder"):
        component_named("clip", "decoder")
    with pytest.raises(RecipeError, match="no components"):
        component_named("bert", "decoder")


def t5() -> tuple[PreTrainedModel, Mapping[str, Any]]:
    sizes = {"vocab_size": 50, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2}
    return T5ForConditionalGeneration(AutoConfig.for_model("t5", **sizes)), _SOURCE


def whisper() -> tuple[PreTrainedModel, Mapping[str, Any]]:
    sizes = {"vocab_size": 50, "d_model": 16, "encoder_layers": 1, "decoder_layers": 2, "num_mel_bins": 8}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "max_source_positions": 10}
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 3}
    config = AutoConfig.for_model("whisper", **sizes, **heads, **tokens)
    return WhisperForConditionalGeneration(config), {"input_features": torch.rand(1, 8, 20)}


def trocr() -> tuple[PreTrainedModel, Mapping[str, Any]]:
    encoder = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    decoder = {"vocab_size": 50, "d_model": 16, "decoder_layers": 2, "decoder_attention_heads": 2}
    picture = {"image_size": 16, "patch_size": 8}
    config = configuration("vision-encoder-decoder", {"encoder": {**encoder, **picture}, "decoder": decoder})
    return VisionEncoderDecoderModel(config), {"pixel_values": torch.rand(1, 3, 16, 16)}


def test_a_decoder_with_a_cache_goes_through_torchscript_unless_the_recipe_says_otherwise() -> None:
    """TrOCR's decoder is a language model, and those use dynamo when they have no cache."""
    parent, _ = trocr()
    composite = composite_of("vision_encoder_decoder")
    assert composite is not None
    decoder = component_subject(LoadedModel(parent, frozenset()), composite.components[1], None)
    assert exporter_of(ExportFields(), decoder) == TORCHSCRIPT
    assert exporter_of(ExportFields(dynamo=True), decoder) == DYNAMO


@pytest.mark.parametrize(
    ("model_type", "make"),
    [("t5", t5), ("whisper", whisper), ("vision_encoder_decoder", trocr)],
    ids=["t5", "whisper", "trocr"],
)
def test_tokens_one_by_one_with_a_cache_give_what_all_at_once_give(model_type: str, make: Any) -> None:
    torch.manual_seed(0)
    parent, source = make()
    parent.eval()
    composite = composite_of(model_type)
    assert composite is not None
    encoder, decoder = (component_module(parent, each) for each in composite.components)
    assert isinstance(decoder, DecoderModule)
    tokens = torch.arange(4, 9)[None]
    heads, size = cache_shape(decoder.config)
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
LOADER = LoaderFields("zero-shot-image-classification", model_type="clip", random_weights=RandomWeights(0, _CLIP))
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


@contextlib.contextmanager
def scratch(folder: Path) -> Iterator[Workspace]:
    folder.mkdir()
    with contextlib.chdir(folder):
        outputs = {slot: Path("outputs") / slot for slot in export_stage((TEXT, IMAGE)).outputs}
        for output in outputs.values():
            output.mkdir(parents=True)
        yield Workspace({}, outputs)


def config(fields: ExportFields = FIELDS, shared: tuple[str, ...] = SHARED) -> ComponentsConfig:
    components = {name: ComponentFields(_CLASSES[name], _TASKS[name], fields, shared) for name in (TEXT, IMAGE)}
    return ComponentsConfig(LOADER, components)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, JsonObject, list[LoaderFields]]:
    """The outputs of one run, its metrics, and what it loaded."""
    from winml_dag.stages.export import conversion, loading

    loaded: list[LoaderFields] = []

    def load(loader: LoaderFields, *arguments: Any) -> loading.LoadedModel:
        loaded.append(loader)
        return loading.load_pytorch_model(loader, *arguments)

    folder = tmp_path_factory.mktemp("composite") / "scratch"
    with pytest.MonkeyPatch.context() as patch, scratch(folder) as workspace:
        patch.setattr(conversion, "load_pytorch_model", load)
        metrics = conversion.run_components(config(), workspace)
    return folder / "outputs", metrics, loaded


def test_the_model_is_loaded_once_for_all_components(
    exported: tuple[Path, JsonObject, list[LoaderFields]],
) -> None:
    outputs, metrics, loaded = exported
    assert loaded == [LOADER]
    assert sorted(path.name for path in outputs.iterdir()) == sorted(export_stage((TEXT, IMAGE)).outputs)
    measured = metrics["components"]
    assert isinstance(measured, Mapping)
    assert {name: round(each["cosine"], 6) for name, each in measured.items()} == {TEXT: 1, IMAGE: 1}


def test_a_component_alone_has_the_bytes_that_it_has_among_others(
    exported: tuple[Path, JsonObject, list[LoaderFields]], tmp_path: Path
) -> None:
    from winml_dag.stages.export.conversion import run

    text = replace(FIELDS, input_tensors=FIELDS.input_tensors and FIELDS.input_tensors[:2], dynamic_axes=None)
    loader = replace(LOADER, model_class=_CLASSES[TEXT], task=_TASKS[TEXT])
    outputs = {slot: tmp_path / slot for slot in ("model", "hierarchy")}
    for output in outputs.values():
        output.mkdir()
    with contextlib.chdir(tmp_path):
        run(ExportConfig(loader, text), Workspace({}, outputs))
    alone = (outputs["model"] / "export.onnx").read_bytes()
    assert alone == (exported[0] / f"{TEXT}_model" / "export.onnx").read_bytes()


def test_each_takes_its_own_of_the_tensors_that_are_named_for_all(
    exported: tuple[Path, JsonObject, list[LoaderFields]],
) -> None:
    found = {}
    for name in (TEXT, IMAGE):
        graph = onnx.load(exported[0] / f"{name}_model" / "export.onnx").graph
        found[name] = {
            value.name: [axis.dim_param or axis.dim_value for axis in value.type.tensor_type.shape.dim]
            for value in graph.input
        }
    assert found == {
        TEXT: {"input_ids": [1, 6], "attention_mask": [1, 6]},
        IMAGE: {"pixel_values": ["batch", 3, 16, 16]},
    }


@pytest.mark.parametrize(
    ("fields", "shared", "complaint"),
    [
        (
            replace(FIELDS, dynamic_axes={"pixel_value": {"0": "batch"}}),
            (*SHARED, "pixel_value"),
            "'pixel_value', which no component takes. Did you mean 'pixel_values'",
        ),
        (FIELDS, (), "names 'pixel_values', which the model does not take"),
    ],
    ids=["of none", "of another"],
)
def test_a_tensor_that_no_component_takes_is_refused(
    tmp_path: Path, fields: ExportFields, shared: tuple[str, ...], complaint: str
) -> None:
    from winml_dag.stages.export.conversion import run_components

    with scratch(tmp_path / "scratch") as workspace, pytest.raises(StageError, match=complaint):
        run_components(config(fields, shared), workspace)
