"""What all tasks have in common: samples with known answers, and the model's results for them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from winml_dag.errors import StageError
from winml_dag.explanation import explanation
from winml_dag.onnxmodel.compare import class_scores
from winml_dag.onnxmodel.inspect import TensorSpec
from winml_dag.stages.evaluate import TASKS, EvaluateFields
from winml_dag.stages.evaluate.metrics import Metric
from winml_dag.stages.samples.processor import Processor
from winml_dag.stages.samples.samples import Array, Feed, chosen_numbers

_MAP = "Set eval.dataset.label_mapping (--label-mapping), such as {positive: 1}: a label of the data -> the class."
_MOST_NAMES = 12
CHECK_TASK = "Check the task (--task)."


@dataclass(frozen=True)
class Labels:
    """Maps labels in the data to classes. ``mapping``: of the user; ``names``: of the model's config, by class."""

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

        Raises StageError if the label is unknown.
        """
        # Files write numbers in different forms: 1, 1.0, true and "1".
        is_whole = isinstance(label, bool) or (isinstance(label, float) and label.is_integer())
        text = str(int(label) if is_whole else label).strip()
        names = {name: number for number, name in self.names.items()}
        known = names if self.mapping is None else self.mapping
        if text in known:
            return known[text]
        if self.mapping is None:
            folded = {name.casefold(): number for name, number in names.items()}
            if text.casefold() in folded:
                return folded[text.casefold()]
            if text.removeprefix("-").isdecimal():
                return int(text)
        if not known:
            raise StageError(f"The label {text!r} of {where} is not a number, and the model has no names.", advice=_MAP)
        some = [*list(known)[:_MOST_NAMES], *(["..."] if len(known) > _MOST_NAMES else [])]
        place = "the model's config.json" if self.mapping is None else "label_mapping"
        raise StageError(f"The label {text!r} of {where} is not in {place}, which has: {', '.join(some)}.", advice=_MAP)

    def name(self, number: int) -> str:
        """Return the name in the model's config, else the user's; a class without a name has its number."""
        of_mapping = {} if self.mapping is None else {at: name for name, at in self.mapping.items()}
        return {**of_mapping, **self.names}.get(number, str(number))


@dataclass(frozen=True)
class Given:
    """The arguments of a task.

    Attributes:
        data: the folder with the samples.
        processor: tokenizer and image processor, and ``inputs``: those of one sample of the model.
        outputs: of the model.
        labels: the classes by their names.
    """

    fields: EvaluateFields
    data: Path
    processor: Processor
    inputs: Sequence[TensorSpec]
    outputs: Sequence[TensorSpec]
    labels: Labels

    def files(self) -> list[Path]:
        return sorted(path for path in self.data.rglob("*") if path.is_file())

    def column_of(self, role: str, there: Sequence[str]) -> str:
        """Return which of the columns *there* has *role* in the task. Raises StageError if there is none."""
        mapping, task = self.fields.columns_mapping, str(self.fields.task)
        usual = (mapping[role],) if role in mapping else TASKS[task][role]
        if (column := next((name for name in usual if name in there), None)) is None:
            raise StageError(
                f"The data has no column {' or '.join(usual)}, and {task} needs one ({role}); it has: "
                f"{', '.join(there)}.",
                advice=f"Set eval.dataset.columns_mapping (--column {role}=COLUMN).",
            )
        return column

    def scores(self) -> TensorSpec:
        """Return the output with class scores: the one called logits, else the first one."""
        named = class_scores([output.name for output in self.outputs], classifies=True)
        return next(output for output in self.outputs if output.name in named)

    def classes(self) -> int:
        """Return how many classes the model distinguishes.

        Raises StageError if neither the model nor its config has the number.
        """
        scores = self.scores()
        last = scores.shape[-1] if scores.shape else None
        classes = last if isinstance(last, int) else len(self.labels.names)
        if classes < 2:
            raise StageError(
                f"Output {scores.name!r} has the shape {list(scores.shape)}, and {self.fields.task} needs scores of two"
                " classes or more.",
                advice=CHECK_TASK,
            )
        return classes

    def true_class(self, label: Any, classes: int, where: str) -> int:
        """Return the one of *classes* that *label* means. Raises StageError if there is none."""
        number = self.labels.number(label, where)
        if not 0 <= number < classes:
            raise StageError(
                f"The label of {where} is class {number}, and the model has {classes} classes, from 0 on.",
                advice="Set eval.dataset.label_mapping (--label-mapping): a label of the data -> the class.",
            )
        return number


@dataclass(frozen=True)
class Case:
    """One sample: what to feed to the model, one after the other, and ``judge``, which compares with what is known.

    *judge* takes the outputs by name for each feed, and returns the values that the task's metrics count.
    """

    feeds: tuple[Feed, ...]
    judge: Callable[[Sequence[Mapping[str, Array]]], Sequence[float]]


class Task:
    """A task on the chosen samples.

    ``kind``: of data, as calibrate names it. ``count``: how many samples exist, ``chosen``: which are used;
    ``outputs``: the model outputs that are evaluated.
    """

    kind: str
    count: int
    outputs: tuple[str, ...]
    metrics: tuple[Metric, ...]

    def __init__(self, given: Given) -> None:
        self.given = given

    @property
    def chosen(self) -> Sequence[int]:
        return chosen_numbers(self.count, self.given.fields.samples, self.given.fields.seed)

    def cases(self) -> Iterator[Case]:
        raise NotImplementedError
