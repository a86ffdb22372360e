"""Composite models, and the components that they are exported as: an encoder and a decoder, a text and an image tower.

Such a model is loaded once. Each component becomes an ONNX model of its own, because a caller runs them at different
times: the encoder once per sentence, the decoder once per output token. Planning reads this table, so it imports
nothing heavy; the PyTorch modules are in :mod:`winml_dag.stages.export.component_modules`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from winml_dag.errors import RecipeError

# The roles of components; component_modules has a PyTorch module for each.
TEXT_ENCODER = "text encoder"
IMAGE_ENCODER = "image encoder"
AUDIO_ENCODER = "audio encoder"
DECODER = "decoder"
TEXT_TOWER = "text tower"
IMAGE_TOWER = "image tower"


@dataclass(frozen=True)
class Component:
    """``name`` is the prefix of its files; ``class_name`` selects it in ``loader.model_class``."""

    name: str
    task: str
    class_name: str
    role: str


@dataclass(frozen=True)
class Composite:
    """``tasks``: the tasks that need all components; ``parent_class``: the class that is loaded to take them from."""

    tasks: tuple[str, ...]
    parent_class: str
    components: tuple[Component, ...]


_TRANSLATES = ("translation", "summarization", "text2text-generation", "table-question-answering")
_TRANSCRIBES = ("automatic-speech-recognition",)
_DESCRIBES = ("image-to-text", "image-text-to-text")
_MATCHES = ("zero-shot-image-classification",)


def _encoder(prefix: str, role: str) -> Component:
    task = "image-feature-extraction" if role == IMAGE_ENCODER else "feature-extraction"
    return Component("encoder", task, f"{prefix}EncoderWrapper", role)


def _decoder(prefix: str) -> Component:
    return Component("decoder", "text2text-generation", f"{prefix}DecoderWrapper", DECODER)


def _text_to_text(prefix: str, parent_class: str = "AutoModelForSeq2SeqLM") -> Composite:
    return Composite(_TRANSLATES, parent_class, (_encoder(prefix, TEXT_ENCODER), _decoder(prefix)))


def _speech_to_text(prefix: str, parent_class: str = "AutoModelForSpeechSeq2Seq") -> Composite:
    return Composite(_TRANSCRIBES, parent_class, (_encoder(prefix, AUDIO_ENCODER), _decoder(prefix)))


def _towers(prefix: str, ending: str = "") -> Composite:
    return Composite(
        _MATCHES,
        f"{prefix}Model",
        (
            Component("image-encoder", "image-feature-extraction", f"{prefix}VisionModel{ending}", IMAGE_TOWER),
            Component("text-encoder", "feature-extraction", f"{prefix}TextModel{ending}", TEXT_TOWER),
        ),
    )


# By model type, with underscores.
COMPOSITES: Mapping[str, Composite] = {
    "bart": _text_to_text("Bart"),
    "blenderbot": _text_to_text("Blenderbot"),
    "blenderbot_small": _text_to_text("BlenderbotSmall"),
    "encoder_decoder": _text_to_text("Text", "EncoderDecoderModel"),
    "m2m_100": _text_to_text("M2M100"),
    "marian": _text_to_text("Marian"),
    "mbart": _text_to_text("MBart"),
    "mt5": _text_to_text("MT5"),
    "mvp": _text_to_text("Mvp"),
    "pegasus": _text_to_text("Pegasus"),
    "plbart": _text_to_text("PLBart"),
    "t5": _text_to_text("T5"),
    "umt5": _text_to_text("UMT5"),
    "whisper": _speech_to_text("Whisper"),
    "speech_encoder_decoder": _speech_to_text("Speech", "SpeechEncoderDecoderModel"),
    "vision_encoder_decoder": Composite(
        _DESCRIBES, "VisionEncoderDecoderModel", (_encoder("Vision", IMAGE_ENCODER), _decoder("Vision"))
    ),
    "blip": Composite(
        _DESCRIBES,
        "BlipForConditionalGeneration",
        (
            Component("encoder", "image-feature-extraction", "BlipVisionEncoderWrapper", IMAGE_ENCODER),
            _decoder("Blip"),
        ),
    ),
    "altclip": _towers("AltCLIP"),
    "chinese_clip": _towers("ChineseCLIP"),
    "clip": _towers("CLIP", "WithProjection"),
    "metaclip_2": _towers("MetaClip2", "WithProjection"),
    "siglip": _towers("Siglip"),
    "siglip2": _towers("Siglip2"),
}


def same_spelling(model_type: str) -> str:
    """``vision-encoder-decoder`` and ``vision_encoder_decoder`` are the same architecture."""
    return model_type.lower().replace("-", "_")


def composite_of(model_type: str | None) -> Composite | None:
    """The composite architecture *model_type*; None if it is exported in one piece."""
    return None if model_type is None else COMPOSITES.get(same_spelling(model_type))


def chosen_components(model_type: str | None, task: str | None, model_class: str | None) -> tuple[Component, ...]:
    """The components that a recipe requests: all of them, one, or none if the model is exported in one piece.

    ``model_class`` names one component, or a class that is exported in one piece. Without it, a task of the whole model
    needs all components, and a task of one component needs that one. Without a task, all components are needed.
    """
    composite = composite_of(model_type)
    if composite is None:
        return ()
    if model_class is not None:
        return tuple(each for each in composite.components if each.class_name == model_class)
    if task is None or task in composite.tasks:
        return composite.components
    return tuple(each for each in composite.components if each.task == task)[:1]


def component_named(model_type: str, name: str) -> Component:
    """Return the component *name* of *model_type*.

    Raises:
        RecipeError: the model is not composite or has no such component.
    """
    composite = composite_of(model_type)
    if composite is None:
        raise RecipeError(f"A {model_type} model has no components, so there is none called {name!r}.")
    for each in composite.components:
        if each.name == name:
            return each
    names = ", ".join(each.name for each in composite.components)
    raise RecipeError(f"A {model_type} model has no component {name!r}.", advice=f"It has: {names}.")
