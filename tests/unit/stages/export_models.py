"""Tiny models of the supported architectures, and ways to run the stages of an export as in the engine."""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from late import Late

from winml_dag.canonical import JsonObject
from winml_dag.engine.stage import Workspace
from winml_dag.stages.export import (
    MODEL_SOURCE,
    ExportConfig,
    ExportFields,
    InputTensor,
    LoaderFields,
    RandomWeights,
    SignatureConfig,
)

conversion = Late("winml_dag.stages.export.conversion")

_LAYERS = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
_TEXT = {"vocab_size": 100, "max_position_embeddings": 40}

SMALL: Mapping[str, Mapping[str, Any]] = {
    "bert": {**_LAYERS, **_TEXT},
    "roberta": {**_LAYERS, **_TEXT, "type_vocab_size": 1},
    "distilbert": {**_TEXT, "dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64},
    "gpt2": {"vocab_size": 100, "n_positions": 40, "n_embd": 32, "n_layer": 2, "n_head": 2},
    "vit": {**_LAYERS, "image_size": 32, "patch_size": 8},
    "resnet": {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]},
    "convnext": {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2, "image_size": 32},
}


def made(
    task: str, model_type: str | None, model_class: str | None = None, seed: int = 0, **config: Any
) -> LoaderFields:
    """Return a model with random weights."""
    return LoaderFields(task, model_type, model_class, random_weights=RandomWeights(seed, config))


def random_model(model_type: str, task: str, seed: int = 0, **overrides: Any) -> LoaderFields:
    return made(task, model_type, seed=seed, **{**SMALL[model_type], **overrides})


@dataclass(frozen=True)
class Exported:
    model: Path
    metrics: JsonObject
    hierarchy: Mapping[str, Any]


class Bench:
    """Runs a stage in a fresh scratch folder each time, with relative folders only."""

    def __init__(self, folder: Path) -> None:
        self._scratches = (folder / f"scratch-{number}" for number in range(100))

    def run(
        self, work: Callable[[Any, Workspace], JsonObject], config: object, slots: Iterable[str], **inputs: Path
    ) -> tuple[Path, JsonObject]:
        """Return the folder with the outputs, and the metrics."""
        scratch = next(self._scratches)
        for slot in slots:
            (scratch / "outputs" / slot).mkdir(parents=True)
        for slot, folder in inputs.items():
            shutil.copytree(folder, scratch / "inputs" / slot)
        with contextlib.chdir(scratch):
            workspace = Workspace(
                {slot: Path("inputs") / slot for slot in inputs}, {slot: Path("outputs") / slot for slot in slots}
            )
            return scratch / "outputs", work(config, workspace)

    def export(
        self, loader: LoaderFields, fields: ExportFields | None = None, folder: Path | None = None, slot: str = "model"
    ) -> Exported:
        """Export with *folder* as the input *slot*."""
        config = ExportConfig(loader, fields or ExportFields())
        inputs = {} if folder is None else {slot: folder}
        outputs, metrics = self.run(conversion.run, config, ("model", "hierarchy"), **inputs)
        [hierarchy] = (outputs / "hierarchy").iterdir()
        return Exported(outputs / "model/export.onnx", metrics, json.loads(hierarchy.read_text(encoding="utf-8")))


_SHARED: dict[str, Exported] = {}
_FOLDER = tempfile.TemporaryDirectory()


def exported_once(loader: LoaderFields, fields: ExportFields | None = None) -> Exported:
    """Return an export that tests only read, made once in this process."""
    key = repr((loader, fields or ExportFields()))
    if key not in _SHARED:
        _SHARED[key] = Bench(Path(_FOLDER.name, str(len(_SHARED)))).export(loader, fields)
    return _SHARED[key]


def signature(loader: LoaderFields, fields: ExportFields | None = None, folder: Path | None = None) -> Any:
    """Return the tensors of an export without exporting: ``input_tensors`` and ``output_tensors``, as in a recipe."""
    facts = {} if folder is None else {MODEL_SOURCE: str(folder)}
    return conversion.run_signature(
        SignatureConfig(loader, fields or ExportFields()), Workspace({}, {}, machine_facts=facts)
    )


def names(tensors: Iterable[Mapping[str, Any]]) -> list[str]:
    return [each["name"] for each in tensors]


# Architectures with tasks and classes of recipes, with their usual inputs and outputs, small enough to export quickly.
_LAYER = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
_WORDS = {**_LAYER, "vocab_size": 100}
_SHORT = {**_WORDS, "max_position_embeddings": 40}
_IMAGE = {**_LAYER, "image_size": 32, "patch_size": 8}
_STAGES = {"hidden_sizes": [8, 16, 16, 16], "depths": [1, 1, 1, 1]}
_SOUND = {
    **_LAYER,
    "conv_dim": [8] * 7,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
    "classifier_proj_size": 16,
}
_TRANSLATOR = {
    "vocab_size": 100,
    "pad_token_id": 99,
    "max_position_embeddings": 40,
    "d_model": 32,
    "encoder_layers": 1,
    **dict.fromkeys(("decoder_layers", "encoder_attention_heads", "decoder_attention_heads"), 2),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 64),
}
_MATCHER = {
    "text_config": {**_WORDS, "max_position_embeddings": 16, "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1},
    "vision_config": _IMAGE,
    "projection_dim": 32,
}
_READER = {
    "text_config": {"hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2},
    "vision_config": {
        "sam_config": {
            "hidden_size": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "mlp_dim": 32,
            "output_channels": 8,
            "downsample_channels": [16, 32],
            "global_attn_indexes": [1],
            "image_size": 128,
        },
        "encoder_config": {**_LAYER, "image_size": 28},
    },
}
_DESCRIBER = {
    "encoder": _IMAGE,
    "decoder": {"vocab_size": 100, "d_model": 32, "decoder_layers": 2, "decoder_attention_heads": 2}
    | {"decoder_ffn_dim": 64, "max_position_embeddings": 40},
}

IDS = (InputTensor("input_ids", "int32", (1, 24), (0, 100)), InputTensor("attention_mask", "int32", (1, 24), (0, 2)))
PAIRS = (*IDS, InputTensor("token_type_ids", "int32", (1, 24), (0, 2)))
CAPTION = tuple(replace(each, shape=(1, 16)) for each in IDS)
BOXES = InputTensor("bbox", "int32", (1, 24, 4), (0, 1000))
SPECTROGRAM = (InputTensor("input_values", "float32", (1, 64, 32), (-1, 1)),)
WAVE = (InputTensor("input_values", "float32", (1, 2000), (-1, 1)),)
_ENCODED = {"marian": (1, 24, 32), "vision-encoder-decoder": (1, 17, 32)}


def picture(*size: int) -> tuple[InputTensor, ...]:
    return (InputTensor("pixel_values", "float32", (1, 3, *(size or (32, 32))), (0, 1)),)


def decoder_inputs(model_type: str) -> tuple[InputTensor, ...]:
    """Return a token, the encoder's output, and a cache of 20 tokens for 2 layers with 2 heads of 16."""
    mask = (InputTensor("attention_mask", "int64", (1, 24)),) if model_type == "marian" else ()
    names = [f"past_{layer}_{part}" for layer in range(2) for part in ("key", "value")]
    return (
        InputTensor("decoder_input_ids", "int32", (1, 1), (0, 100)),
        InputTensor("encoder_hidden_states", "float32", _ENCODED[model_type], (0, 1)),
        *mask,
        InputTensor("decoder_attention_mask", "int64", (1, 20)),
        InputTensor("cache_position", "int64", (1,)),
        *(InputTensor(name, "float32", (1, 2, 20, 16), (0, 1)) for name in names),
    )


PRESENT = tuple(f"present_{layer}_{part}" for layer in range(2) for part in ("key", "value"))


@dataclass(frozen=True)
class Architecture:
    """``model_class``: None for the usual one of the task."""

    model_type: str
    task: str
    inputs: tuple[InputTensor, ...]
    outputs: tuple[str, ...]
    config: Mapping[str, Any] = field(default_factory=dict)
    model_class: str | None = None

    def __str__(self) -> str:
        return f"{self.model_type}-{self.task}"

    @property
    def loader(self) -> LoaderFields:
        return made(self.task, self.model_type, self.model_class, **self.config)

    @property
    def fields(self) -> ExportFields:
        return ExportFields(opset_version=17, dynamo=False, input_tensors=self.inputs, output_tensors=self.outputs)


_SPAN = ("start_logits", "end_logits")
_STATE = ("last_hidden_state",)
_LOGITS = ("logits",)
_FOUND = ("logits", "pred_boxes", "text_embeds", "image_embeds")
_ANSWER, _IMAGE_CLASS, _TEXT_CLASS = "question-answering", "image-classification", "text-classification"
_AUDIO_CLASS, _DETECTION = "audio-classification", "zero-shot-object-detection"

# fmt: off
ARCHITECTURES = (
    Architecture("audio-spectrogram-transformer", _AUDIO_CLASS, SPECTROGRAM, _LOGITS,
                 {**_LAYER, "max_length": 64, "num_mel_bins": 32}),
    Architecture("bert", _TEXT_CLASS, PAIRS, _LOGITS, _SHORT, "AutoModelForSequenceClassification"),
    Architecture("clip_text_model", "feature-extraction", IDS, ("text_embeds", *_STATE),
                 {**_SHORT, "projection_dim": 16, "bos_token_id": 0, "eos_token_id": 2}, "CLIPTextModelWithProjection"),
    Architecture("clip_vision_model", "image-feature-extraction", picture(), ("image_embeds", *_STATE),
                 {**_IMAGE, "projection_dim": 16}, "CLIPVisionModelWithProjection"),
    Architecture("deberta-v2", _TEXT_CLASS, IDS, _LOGITS, _SHORT),
    Architecture("dinov2", "image-feature-extraction", picture(56, 56), _STATE,
                 {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "patch_size": 14}),
    Architecture("electra", _ANSWER, PAIRS, _SPAN, {**_SHORT, "embedding_size": 16}),
    Architecture("layoutlm", _ANSWER, (PAIRS[0], BOXES, *PAIRS[1:]), _SPAN, _SHORT),
    Architecture("layoutlmv3", _ANSWER, (*IDS, BOXES, *picture()), _SPAN,
                 {**_WORDS, "coordinate_size": 4, "shape_size": 8, "patch_size": 8, "input_size": 32}),
    Architecture("marian", "feature-extraction", IDS, ("encoder_hidden_states",), _TRANSLATOR, "MarianEncoderWrapper"),
    Architecture("marian", "text2text-generation", decoder_inputs("marian"), ("logits", *PRESENT),
                 _TRANSLATOR, "MarianDecoderWrapper"),
    Architecture("mobilevit", _IMAGE_CLASS, picture(64, 64), _LOGITS,
                 {"hidden_sizes": [16, 24, 32], "neck_hidden_sizes": [8, 8, 16, 16, 24, 32, 64],
                  "num_attention_heads": 2}),
    Architecture("mpnet", "feature-extraction", IDS, _STATE, _WORDS),
    Architecture("owlv2", _DETECTION, (*picture(48, 48), *CAPTION), _FOUND,
                 {**_MATCHER, "vision_config": {**_LAYER, "patch_size": 16}}),
    Architecture("owlvit", _DETECTION, (*picture(), *CAPTION), _FOUND, _MATCHER),
    Architecture("segformer", "image-segmentation", picture(64, 64), _LOGITS,
                 {**_STAGES, "num_attention_heads": [1, 2, 2, 2], "decoder_hidden_size": 16}),
    Architecture("swin", _IMAGE_CLASS, picture(56, 56), _LOGITS,
                 {"embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2]}),
    Architecture("unlimited-ocr", "feature-extraction", picture(128, 128), ("image_embeds",), _READER),
    Architecture("vision-encoder-decoder", "image-feature-extraction", picture(), ("encoder_hidden_states",),
                 _DESCRIBER, "VisionEncoderWrapper"),
    Architecture("vision-encoder-decoder", "text2text-generation", decoder_inputs("vision-encoder-decoder"),
                 ("logits", *PRESENT), _DESCRIBER, "VisionDecoderWrapper"),
    Architecture("vitpose", "keypoint-detection", picture(64, 48), ("heatmaps",),
                 {"backbone_config": {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
                                      "out_indices": [1]}}),
    Architecture("wav2vec2", "automatic-speech-recognition", WAVE, _LOGITS, _SOUND, "AutoModelForCTC"),
    Architecture("wav2vec2_emotion_regression", _AUDIO_CLASS, WAVE, ("hidden_states", "logits"),
                 {**_SOUND, "num_labels": 3}, "EmotionModel"),
    Architecture("xlm-roberta", "fill-mask", IDS, _LOGITS, _WORDS),
)
# fmt: on
