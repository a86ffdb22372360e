"""What is known about an architecture: its configuration in transformers, and the exporter that suits it."""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Iterable, Mapping
from typing import Any

import transformers
from transformers import CONFIG_MAPPING, PreTrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES as MASKED

from winml_dag.canonical import JsonValue
from winml_dag.errors import StageError
from winml_dag.explanation import explanation
from winml_dag.stages.export.components import composite_of, same_spelling

# Architectures that the tests export and compare with PyTorch; others usually work too.
TESTED = (
    "audio-spectrogram-transformer",
    "bert",
    "clip_text_model",
    "clip_vision_model",
    "convnext",
    "deberta-v2",
    "dinov2",
    "distilbert",
    "electra",
    "gpt2",
    "layoutlm",
    "layoutlmv3",
    "marian",
    "mobilevit",
    "mpnet",
    "owlv2",
    "owlvit",
    "resnet",
    "roberta",
    "segformer",
    "swin",
    "unlimited-ocr",
    "vision-encoder-decoder",
    "vit",
    "vitpose",
    "wav2vec2",
    "wav2vec2_emotion_regression",
    "xlm-roberta",
)

# Built-in architectures (see ownmodels), each with the transformers architecture whose configuration it has.
EMOTION = "wav2vec2_emotion_regression"
BASED_ON = {EMOTION: "wav2vec2"}

# Configuration parts for which transformers has no default, with the most common choice.
_PARTS: Mapping[str, Mapping[str, Mapping[str, JsonValue]]] = {
    "encoder_decoder": {
        "encoder": {"model_type": "bert"},
        "decoder": {"model_type": "bert", "is_decoder": True, "add_cross_attention": True},
    },
    "speech_encoder_decoder": {
        "encoder": {"model_type": "wav2vec2"},
        "decoder": {"model_type": "bart", "is_decoder": True, "add_cross_attention": True},
    },
    "vision_encoder_decoder": {
        "encoder": {"model_type": "vit"},
        "decoder": {"model_type": "trocr", "is_decoder": True, "add_cross_attention": True},
    },
}

TORCHSCRIPT = "torchscript"
DYNAMO = "dynamo"


def exporter_for(model_type: str) -> str:
    """The exporter that works best for *model_type*.

    Decoder language models use dynamo: TorchScript's graphs for them are twice as long. TorchScript is better for all
    others: dynamo builds the padding mask of BERT with a GatherND on booleans, which the QNN execution provider leaves
    to the CPU, so the compiled model splits into two partitions instead of one.
    """
    # Encoders that may also be decoders (BERT) are in both lists; decoders of composite models are in the first.
    decodes = model_type in CAUSAL and model_type not in MASKED and composite_of(model_type) is None
    return DYNAMO if decodes else TORCHSCRIPT


def transformers_name(model_type: str) -> str | None:
    """The transformers name of *model_type*, spelled with ``-`` or ``_``; None if transformers does not have it."""
    wanted = BASED_ON.get(same_spelling(model_type), model_type)
    if wanted in CONFIG_MAPPING:
        return wanted
    return next((name for name in CONFIG_MAPPING if same_spelling(name) == same_spelling(wanted)), None)


def is_known(model_type: str) -> bool:
    return transformers_name(model_type) is not None


def configuration_class(model_type: str) -> type[PreTrainedConfig]:
    """Return the configuration class of *model_type*.

    Raises:
        StageError: transformers has no such architecture.
    """
    name = transformers_name(model_type)
    if name is None:
        raise StageError(
            f"loader.model_type is {model_type!r}, which this version of transformers does not have."
            f"{did_you_mean(model_type, CONFIG_MAPPING.keys())}",
            advice=f"Tested are: {', '.join(TESTED)}.",
        )
    found: type[PreTrainedConfig] = CONFIG_MAPPING[name]
    return found


def configuration(model_type: str, overrides: Mapping[str, JsonValue]) -> PreTrainedConfig:
    """The configuration of *model_type* with *overrides*.

    transformers keeps an unknown name as an attribute that nothing reads, so a typo would give the standard model.
    Therefore this checks names, including those in the parts of a composite configuration. A part of variable
    architecture (a backbone, an encoder) has the default architecture unless it sets ``model_type``.

    Raises:
        StageError: the architecture or a name is unknown, or a value does not fit.
    """
    made_by = configuration_class(model_type)
    _check_names(made_by, overrides, "loader.random_weights.config")
    parts = _PARTS.get(same_spelling(model_type), {})
    try:
        completed = {**parts, **overrides}
        for name, usual in parts.items():
            completed[name] = {**usual, **_mapping(overrides.get(name))}
        for name, part in getattr(made_by, "sub_configs", {}).items():
            given = completed.get(name)
            if isinstance(given, Mapping) and part.__name__ == "AutoConfig" and "model_type" not in given:
                usual_type = getattr(getattr(made_by(), name), "model_type", None)
                completed[name] = {**given, "model_type": usual_type}
        return made_by(**completed)
    except Exception as error:  # a validation error of any class, or an arithmetic error inside it
        raise StageError(
            f"loader.random_weights.config does not fit {made_by.__name__}: {explanation(error)}."
        ) from error


def _mapping(value: JsonValue) -> Mapping[str, JsonValue]:
    return value if isinstance(value, Mapping) else {}


def named_class(class_name: str, model_type: str) -> Any:
    """The class *class_name* of transformers, or of the module that defines the architecture."""
    found = getattr(transformers, class_name, None)
    if found is not None:
        return found
    module = CONFIG_MAPPING[model_type].__module__.replace(".configuration_", ".modeling_")
    return getattr(importlib.import_module(module), class_name, None)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A sentence with the closest known names, or an empty text."""
    near = difflib.get_close_matches(name, list(known), n=3)
    return f" Did you mean {' or '.join(repr(each) for each in near)}?" if near else ""


def _check_names(made_by: type[Any], overrides: Mapping[str, JsonValue], path: str) -> None:
    known = _names(made_by) | {"model_type"}
    for name, value in overrides.items():
        if name not in known:
            raise StageError(f"{path}.{name} is not a field of {made_by.__name__}.{did_you_mean(name, known)}")
        part = getattr(made_by, "sub_configs", {}).get(name)
        if isinstance(value, Mapping) and part is not None and part.__name__ != "AutoConfig":
            _check_names(part, value, f"{path}.{name}")


def _names(made_by: type[Any]) -> set[str]:
    """The fields of a configuration class, whether declared as a dataclass or in ``__init__``."""
    names = {"num_labels", *made_by.attribute_map, *getattr(made_by, "__dataclass_fields__", {})}
    for base in made_by.__mro__:
        if "__init__" in base.__dict__:
            parameters = inspect.signature(base.__dict__["__init__"]).parameters.values()
            names |= {each.name for each in parameters if each.kind is not each.VAR_KEYWORD}
    # Settings of the class, not of a model.
    return {name for name in names if not name.startswith(("_", "base_")) and name not in {"self", "model_type"}}
