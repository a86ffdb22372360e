"""What all tasks have in common: samples whose answer is known, and what a model made of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from winml_dag.errors import StageError
from winml_dag.onnxmodel.compare import class_scores
from winml_dag.onnxmodel.feeds import InputSpec
from winml_dag.onnxmodel.inspect import TensorSpec
from winml_dag.stages.evaluate.labels import Labels
from winml_dag.stages.evaluate.metrics import Metric
from winml_dag.stages.samples.processor import Processor
from winml_dag.stages.samples.samples import Array, Feed

T = TypeVar("T")


@dataclass(frozen=True)
class Case(Generic[T]):
    """One sample: what goes into the model, one after the other, and what should come of it."""

    feeds: tuple[Feed, ...]
    truth: T


class Task(Protocol[T]):
    """A task on the samples that were chosen.

    ``kind``: of data, as calibrate has it. ``count``: how many samples there are, ``chosen``: which are used;
    ``outputs``: what of the model is looked at.
    """

    @property
    def kind(self) -> str: ...
    @property
    def count(self) -> int: ...
    @property
    def chosen(self) -> Sequence[int]: ...
    @property
    def outputs(self) -> tuple[str, ...]: ...
    @property
    def metrics(self) -> tuple[Metric, ...]: ...

    def cases(self) -> Iterator[Case[T]]: ...

    def outcome(self, case: Case[T], found: Sequence[Mapping[str, Array]]) -> Sequence[float]:
        """What the metrics count of *case*, for whose feeds a model gave *found*: outputs by name."""
        ...


@dataclass(frozen=True)
class Given:
    """What a task is made from.

    Attributes:
        task: its name.
        data: the folder with the samples.
        processor: tokenizer and image processor, and ``inputs``: those of one sample of the model.
        outputs: of the model.
        columns: which column is what, by the user's word.
        labels: the classes by their names.
        most, seed: how many samples, and of the choice of them.
        pooling: of embeddings of tokens.
    """

    task: str
    data: Path
    processor: Processor
    inputs: Sequence[InputSpec]
    outputs: Sequence[TensorSpec]
    columns: Mapping[str, str]
    labels: Labels
    most: int
    seed: int | None
    pooling: str | None

    def scores(self) -> TensorSpec:
        """The output with the scores of classes: what is called logits, else the first one."""
        named = class_scores([output.name for output in self.outputs], classifies=True)
        return next(output for output in self.outputs if output.name in named)

    def classes(self) -> int:
        """How many classes the model tells apart.

        Raises:
            StageError: when neither the model nor its config says.
        """
        scores = self.scores()
        last = scores.shape[-1] if scores.shape else None
        classes = last if isinstance(last, int) else len(self.labels.names)
        if classes < 2:
            raise StageError(
                f"Output {scores.name!r} has the shape {list(scores.shape)}, and {self.task} needs scores of two"
                " classes or more.",
                advice="Check the task (--task).",
            )
        return classes


def within(number: int, classes: int, where: str) -> int:
    """*number*, which has to be one of *classes*. Raises StageError when it is none."""
    if not 0 <= number < classes:
        raise StageError(
            f"The label of {where} is class {number}, and the model has {classes} classes, from 0 on.",
            advice="Set eval.dataset.label_mapping (--label-mapping): a label of the data -> the class.",
        )
    return number
