"""What all tasks have in common: samples with known answers, and the model's results for them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from winml_dag.errors import StageError
from winml_dag.explanation import explanation
from winml_dag.onnxmodel.compare import class_scores
from winml_dag.onnxmodel.feeds import InputSpec
from winml_dag.onnxmodel.inspect import TensorSpec
from winml_dag.stages.evaluate.metrics import Metric
from winml_dag.stages.samples.processor import Processor
from winml_dag.stages.samples.samples import Array, Feed

# Maps a label in the data to the number of the model's class.

_MAP = "Set eval.dataset.label_mapping (--label-mapping), such as {positive: 1}: a label of the data -> the class."
_MOST_NAMES = 12


@dataclass(frozen=True)
class Labels:
    """``mapping``: given by the user; ``names``: those in the model's config, by class."""

    mapping: Mapping[str, int] | None
    names: Mapping[int, str]

    @classmethod
    def of(cls, mapping: Mapping[str, int] | None, processor: Path | None) -> Labels:
        """Use the names in the ``config.json`` of the folder *processor*, if it exists."""
        config = None if processor is None else processor / "config.json"
        if config is None or not config.is_file():
            return cls(mapping, {})
        try:
            id2label = json.loads(config.read_text(encoding="utf-8")).get("id2label") or {}
            return cls(mapping, {int(number): str(name) for number, name in id2label.items()})
        except (ValueError, AttributeError) as error:
            raise StageError(
                f"The config.json of the model has no id2label that can be read: {explanation(error)}."
            ) from error

    def number(self, label: Any, where: str) -> int:
        """Return the class that *label* means; *where* names the sample in messages.

        Raises:
            StageError: the label is unknown.
        """
        text = _text(label)
        if self.mapping is not None:
            if text not in self.mapping:
                raise self._unknown(text, where, "label_mapping", list(self.mapping))
            return self.mapping[text]
        by_name = {name: number for number, name in self.names.items()}
        folded = {name.casefold(): number for number, name in self.names.items()}
        if text in by_name:
            return by_name[text]
        if text.casefold() in folded:
            return folded[text.casefold()]
        if text.removeprefix("-").isdecimal():
            return int(text)
        raise self._unknown(text, where, "the model's config.json", list(by_name))

    def name(self, number: int) -> str:
        """Return the name in the model's config, else the user's; a class without a name has its number."""
        said = {} if self.mapping is None else {at: name for name, at in self.mapping.items()}
        return {**said, **self.names}.get(number, str(number))

    def _unknown(self, text: str, where: str, place: str, known: Sequence[str]) -> StageError:
        if not known:
            return StageError(
                f"The label {text!r} of {where} is not a number, and the model has no names.", advice=_MAP
            )
        names = ", ".join(known[:_MOST_NAMES]) + (", ..." if len(known) > _MOST_NAMES else "")
        return StageError(f"The label {text!r} of {where} is not in {place}, which has: {names}.", advice=_MAP)


def _text(label: Any) -> str:
    """Normalize numbers, which files write in different forms: 1, 1.0, true and "1"."""
    if isinstance(label, bool):
        return str(int(label))
    if isinstance(label, float) and label.is_integer():
        return str(int(label))
    return str(label).strip()


T = TypeVar("T")


@dataclass(frozen=True)
class Case(Generic[T]):
    """One sample: what to feed to the model, one after the other, and the expected result."""

    feeds: tuple[Feed, ...]
    truth: T


class Task(Protocol[T]):
    """A task on the chosen samples.

    ``kind``: of data, as calibrate names it. ``count``: how many samples exist, ``chosen``: which are used;
    ``outputs``: the model outputs that are evaluated.
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
        """Return the values that the metrics count for *case*; *found* has the outputs by name for each feed."""
        ...


@dataclass(frozen=True)
class Given:
    """The arguments of a task.

    Attributes:
        task: its name.
        data: the folder with the samples.
        processor: tokenizer and image processor, and ``inputs``: those of one sample of the model.
        outputs: of the model.
        columns: the columns by role, as given by the user.
        labels: the classes by their names.
        most, seed: how many samples, and the seed that selects them.
        pooling: of token embeddings.
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
        """Return the output with class scores: the one called logits, else the first one."""
        named = class_scores([output.name for output in self.outputs], classifies=True)
        return next(output for output in self.outputs if output.name in named)

    def classes(self) -> int:
        """Return how many classes the model distinguishes.

        Raises:
            StageError: neither the model nor its config has the number.
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
    """Return *number* if it is one of *classes*. Raises StageError otherwise."""
    if not 0 <= number < classes:
        raise StageError(
            f"The label of {where} is class {number}, and the model has {classes} classes, from 0 on.",
            advice="Set eval.dataset.label_mapping (--label-mapping): a label of the data -> the class.",
        )
    return number
