"""What is known about architectures: the components of composite models, tasks, and inner configurations.

A composite model is exported as components: an encoder and a decoder, or a text and an image tower. It is loaded once,
and each component becomes an ONNX model of its own, because a caller runs them at different times: the encoder once per
sentence, the decoder once per output token. Planning reads this table, so it imports nothing heavy; the PyTorch modules
are in :mod:`winml_dag.stages.export.subject`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from winml_dag.canonical import JsonValue
from winml_dag.errors import RecipeError

# The roles of components; stages.export.subject has a PyTorch module for each.
ENCODER = "encoder"
DECODER = "decoder"
TEXT_TOWER = "text tower"
IMAGE_TOWER = "image tower"
# What an encoder computes for its decoder.
STATES = "encoder_hidden_states"


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


@dataclass(frozen=True)
class Architecture:
    """What transformers does not say about an architecture; most need no row.

    Attributes:
        name: as transformers spells it.
        composite: how it is exported in several pieces; None if it is exported in one.
        generates: the task of its ``ForConditionalGeneration`` class; the name says only that it outputs text.
        tasks: the task of a class, by the task that the name of the class means in other architectures.
        parts: inner configurations for which transformers has no default, with the most common choice.
        based_on: of a built-in architecture (see ownmodels), the one of transformers whose configuration it has.
        tested: the tests export it and compare it with PyTorch; others usually work too.
    """

    name: str
    composite: Composite | None = None
    generates: str | None = None
    tasks: Mapping[str, str] = field(default_factory=dict)
    parts: Mapping[str, Mapping[str, JsonValue]] = field(default_factory=dict)
    based_on: str | None = None
    tested: bool = False


_TEXT_TO_TEXT, _TRANSCRIPTION = "text2text-generation", "automatic-speech-recognition"


def _encoder(prefix: str, task: str = "feature-extraction") -> Component:
    return Component("encoder", task, f"{prefix}EncoderWrapper", ENCODER)


def _decoder(prefix: str) -> Component:
    return Component("decoder", _TEXT_TO_TEXT, f"{prefix}DecoderWrapper", DECODER)


def _text_to_text(prefix: str, parent_class: str = "AutoModelForSeq2SeqLM") -> Composite:
    tasks = ("translation", "summarization", _TEXT_TO_TEXT, "table-question-answering")
    return Composite(tasks, parent_class, (_encoder(prefix), _decoder(prefix)))


def _speech_to_text(prefix: str, parent_class: str = "AutoModelForSpeechSeq2Seq") -> Composite:
    return Composite((_TRANSCRIPTION,), parent_class, (_encoder(prefix), _decoder(prefix)))


def _image_to_text(parent_class: str, encoder: str, decoder: str) -> Composite:
    components = (_encoder(encoder, "image-feature-extraction"), _decoder(decoder))
    return Composite(("image-to-text", "image-text-to-text"), parent_class, components)


def _towers(name: str, prefix: str, ending: str = "") -> Architecture:
    components = (
        Component("image-encoder", "image-feature-extraction", f"{prefix}VisionModel{ending}", IMAGE_TOWER),
        Component("text-encoder", "feature-extraction", f"{prefix}TextModel{ending}", TEXT_TOWER),
    )
    return Architecture(name, Composite(("zero-shot-image-classification",), f"{prefix}Model", components))


def same_spelling(model_type: str) -> str:
    """``vision-encoder-decoder`` and ``vision_encoder_decoder`` are the same architecture."""
    return model_type.lower().replace("-", "_")


def _parts(encoder: str, decoder: str) -> Mapping[str, Mapping[str, JsonValue]]:
    return {
        "encoder": {"model_type": encoder},
        "decoder": {"model_type": decoder, "is_decoder": True, "add_cross_attention": True},
    }


# Built-in: wav2vec2 with a head of its own.
EMOTION = "wav2vec2_emotion_regression"
_VISUAL_QUESTIONS = {"question-answering": "visual-question-answering"}
_DETECTION = {"object-detection": "zero-shot-object-detection"}
_TESTED = (
    *("audio-spectrogram-transformer", "bert", "clip_text_model", "clip_vision_model", "convnext", "deberta-v2"),
    *("dinov2", "distilbert", "electra", "gpt2", "layoutlm", "layoutlmv3", "mobilevit", "mpnet", "resnet", "roberta"),
    *("segformer", "swin", "vit", "vitpose", "wav2vec2", "xlm-roberta"),
)
_ROWS = (
    *(Architecture(name, tested=True) for name in _TESTED),
    # Texts to texts.
    Architecture("bart", _text_to_text("Bart"), _TEXT_TO_TEXT),
    Architecture("blenderbot", _text_to_text("Blenderbot"), _TEXT_TO_TEXT),
    Architecture("blenderbot-small", _text_to_text("BlenderbotSmall"), _TEXT_TO_TEXT),
    Architecture("encoder-decoder", _text_to_text("Text", "EncoderDecoderModel"), parts=_parts("bert", "bert")),
    Architecture("m2m_100", _text_to_text("M2M100"), "translation"),
    Architecture("marian", _text_to_text("Marian"), tested=True),
    Architecture("mbart", _text_to_text("MBart"), "translation"),
    Architecture("mt5", _text_to_text("MT5"), _TEXT_TO_TEXT),
    Architecture("mvp", _text_to_text("Mvp"), _TEXT_TO_TEXT),
    Architecture("pegasus", _text_to_text("Pegasus"), "summarization"),
    Architecture("plbart", _text_to_text("PLBart"), _TEXT_TO_TEXT),
    Architecture("t5", _text_to_text("T5"), _TEXT_TO_TEXT),
    Architecture("umt5", _text_to_text("UMT5"), _TEXT_TO_TEXT),
    # Speech to texts.
    Architecture("speech_to_text", generates=_TRANSCRIPTION),
    Architecture("whisper", _speech_to_text("Whisper"), _TRANSCRIPTION),
    Architecture(
        "speech-encoder-decoder",
        _speech_to_text("Speech", "SpeechEncoderDecoderModel"),
        parts=_parts("wav2vec2", "bart"),
    ),
    Architecture(EMOTION, based_on="wav2vec2", tested=True),
    # Images to texts.
    Architecture(
        "vision-encoder-decoder",
        _image_to_text("VisionEncoderDecoderModel", "Vision", "Vision"),
        parts=_parts("vit", "trocr"),
        tested=True,
    ),
    Architecture(
        "blip", _image_to_text("BlipForConditionalGeneration", "BlipVision", "Blip"), "image-to-text", _VISUAL_QUESTIONS
    ),
    Architecture("vilt", tasks=_VISUAL_QUESTIONS),
    # Of its image encoder: the rest cannot be a single graph.
    Architecture("unlimited-ocr", generates="feature-extraction", tested=True),
    # Texts with images.
    _towers("altclip", "AltCLIP"),
    _towers("chinese_clip", "ChineseCLIP"),
    _towers("clip", "CLIP", "WithProjection"),
    _towers("metaclip_2", "MetaClip2", "WithProjection"),
    _towers("siglip", "Siglip"),
    _towers("siglip2", "Siglip2"),
    # Objects that a text names.
    Architecture("grounding-dino", tasks=_DETECTION),
    Architecture("omdet-turbo", tasks=_DETECTION),
    Architecture("owlv2", tasks=_DETECTION, tested=True),
    Architecture("owlvit", tasks=_DETECTION, tested=True),
    # Tables.
    Architecture("tapas", tasks={"question-answering": "table-question-answering"}),
)
# By name, with underscores.
ARCHITECTURES: Mapping[str, Architecture] = {same_spelling(each.name): each for each in _ROWS}


def architecture(model_type: str | None) -> Architecture | None:
    """The row of *model_type*, in either spelling; None if there is none."""
    return None if model_type is None else ARCHITECTURES.get(same_spelling(model_type))


def composite_of(model_type: str | None) -> Composite | None:
    """The composite architecture *model_type*; None if it is exported in one piece."""
    row = architecture(model_type)
    return row.composite if row else None


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
