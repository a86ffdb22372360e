"""evaluate: how good a model is, on labelled samples, or beside another model on the same inputs.

This is the declaration; the work is in :mod:`winml_dag.stages.evaluate.evaluation`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from winml_dag.engine.stage import InputSlot, Memory, Stage
from winml_dag.ep.availability import RunTarget
from winml_dag.stages import artifact_types

REPORT_FILE = "evaluation.json"

# By task, the roles of the data's columns and their usual names; the first name is the role's own.
TASKS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "text-classification": {"text": ("text", "sentence"), "label": ("label", "labels")},
    "image-classification": {"image": ("image", "img"), "label": ("label", "labels", "fine_label")},
    "token-classification": {"tokens": ("tokens", "words"), "tags": ("tags", "ner_tags", "pos_tags", "labels")},
    "question-answering": {"question": ("question",), "context": ("context",), "answers": ("answers", "answer")},
    "feature-similarity": {
        "sentence1": ("sentence1", "text1", "sentence_A", "set1"),
        "sentence2": ("sentence2", "text2", "sentence_B", "set2"),
        "score": ("score", "similarity_score", "label", "relatedness_score"),
    },
}
# The metrics of each task, the most informative first. token-classification has the first four if tags name entities
# (B-PER, I-PER, O), otherwise the last two.
METRICS: Mapping[str, tuple[str, ...]] = {
    "text-classification": ("accuracy", "macro_f1"),
    "image-classification": ("accuracy", "top5_accuracy"),
    "token-classification": ("entity_f1", "entity_precision", "entity_recall", "token_accuracy", "token_macro_f1"),
    "question-answering": ("exact_match", "f1"),
    "feature-similarity": ("spearman", "pearson"),
}

# The task that models of these tasks are usually evaluated on.
EVALUATED_AS: Mapping[str, str] = {
    "feature-extraction": "feature-similarity",
    "sentence-similarity": "feature-similarity",
}


@dataclass(frozen=True)
class EvaluateFields:
    """What evaluate reads.

    Attributes:
        mode: ``onnx`` for a task on labelled data, ``compare`` to compare the outputs with a reference's.
        task: a key of :data:`TASKS`; None in compare, which does not use it.
        samples: the maximum number.
        seed: selects the samples, or generates random inputs; None for the first samples.
        columns_mapping: the column of a table for each role; empty for columns with usual names.
        label_mapping: the model's class by the label in the data; None to use the names that the model has.
        batch_size: how many samples go at once into a model with a free batch axis.
        pooling: how to combine token embeddings to the embedding of a text (mean, cls).
        classifies: in compare, whether the first output has class scores, whatever its name.
    """

    mode: str
    task: str | None = None
    samples: int = 100
    seed: int | None = None
    columns_mapping: Mapping[str, str] = field(default_factory=dict)
    label_mapping: Mapping[str, int] | None = None
    batch_size: int = 1
    pooling: str | None = None
    classifies: bool = False


@dataclass(frozen=True)
class EvaluateConfig:
    eval: EvaluateFields
    target: RunTarget


EVALUATE = Stage(
    name="evaluate",
    version=2,
    work="winml_dag.stages.evaluate.evaluation:run",
    config="winml_dag.stages.evaluate:EvaluateConfig",
    inputs={
        "model": InputSlot(artifact_types.ANY_MODEL),
        "reference": InputSlot(artifact_types.ANY_MODEL - {artifact_types.COMPILED_MODEL}, required=False),
        "data": InputSlot(frozenset({artifact_types.CALIBRATION_DATA}), required=False),
        "processor": InputSlot(frozenset({artifact_types.PROCESSOR_FOLDER}), required=False),
    },
    outputs={"report": artifact_types.EVALUATION},
    packages=("onnxruntime", "onnx", "numpy"),
    memory=Memory(250 << 20, 2.5),
)
