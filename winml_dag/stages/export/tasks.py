"""The tasks a model can be exported for: the Auto class that makes the model, and the outputs a task is about."""

from __future__ import annotations

from dataclasses import dataclass

from winml_dag.errors import StageError


@dataclass(frozen=True)
class Task:
    """``outputs`` are looked for in this order and those that the model has are exported; a recipe may name others."""

    name: str
    auto_class: str
    outputs: tuple[str, ...]


# The pooled output is left out on purpose: many checkpoints carry no weights for it, and what it means differs from one
# architecture to the next. A projection (CLIP) is what its model is for, so it comes first.
_FEATURES = ("text_embeds", "image_embeds", "last_hidden_state")

TASKS = {
    task.name: task
    for task in (
        Task("feature-extraction", "AutoModel", _FEATURES),
        Task("fill-mask", "AutoModelForMaskedLM", ("logits",)),
        Task("image-classification", "AutoModelForImageClassification", ("logits",)),
        Task("image-feature-extraction", "AutoModel", _FEATURES),
        Task("next-sentence-prediction", "AutoModelForNextSentencePrediction", ("logits",)),
        Task("question-answering", "AutoModelForQuestionAnswering", ("start_logits", "end_logits")),
        Task("sentence-similarity", "AutoModel", _FEATURES),
        Task("text-classification", "AutoModelForSequenceClassification", ("logits",)),
        Task("token-classification", "AutoModelForTokenClassification", ("logits",)),
        # Entailment of "this text is about <label>": the model is an ordinary classifier of pairs of sentences.
        Task("zero-shot-classification", "AutoModelForSequenceClassification", ("logits",)),
    )
}


def task_named(name: str) -> Task:
    """
    Raises:
        StageError: when there is no such task.
    """
    try:
        return TASKS[name]
    except KeyError:
        raise StageError(
            f"loader.task is {name!r}, which cannot be exported.",
            advice=f"Use one of: {', '.join(TASKS)}; or export the model yourself and build from the ONNX file.",
        ) from None
