"""Classification of whole texts and images: which class has the highest score."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import numpy as np

from winml_dag.errors import StageError
from winml_dag.explanation import explanation
from winml_dag.onnxmodel.compare import class_scores
from winml_dag.onnxmodel.feeds import InputSpec
from winml_dag.onnxmodel.inspect import TensorSpec
from winml_dag.stages.evaluate import TASKS
from winml_dag.stages.evaluate.metrics import Metric, macro_f1, share
from winml_dag.stages.evaluate.rows import chosen_numbers
from winml_dag.stages.samples import TABLES, kind_of
from winml_dag.stages.samples.arrays import labelled_npz
from winml_dag.stages.samples.processor import Processor
from winml_dag.stages.samples.read import read_samples
from winml_dag.stages.samples.samples import Array, Feed, Samples
from winml_dag.stages.samples.tables import chosen_rows, read_tables

# What all tasks have in common: samples whose answer is known, and what a model made of them.

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


# From a label as the data has it to the number of the class as the model has it.

_MAP = "Set eval.dataset.label_mapping (--label-mapping), such as {positive: 1}: a label of the data -> the class."
_MOST_NAMES = 12


@dataclass(frozen=True)
class Labels:
    """``mapping``: what the user says; ``names``: those that the model's config has, by class."""

    mapping: Mapping[str, int] | None
    names: Mapping[int, str]

    @classmethod
    def of(cls, mapping: Mapping[str, int] | None, processor: Path | None) -> Labels:
        """With the names in the ``config.json`` of the folder *processor*, if there is one."""
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
        """The class that *label* means; *where* says in a complaint whose label it is.

        Raises:
            StageError: for a label that is not known.
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
        """As the model's config has it, else as the user says; a class without a name is called by its number."""
        said = {} if self.mapping is None else {at: name for name, at in self.mapping.items()}
        return {**said, **self.names}.get(number, str(number))

    def _unknown(self, text: str, where: str, place: str, known: Sequence[str]) -> StageError:
        if not known:
            return StageError(f"The label {text!r} of {where} is no number, and the model has no names.", advice=_MAP)
        names = ", ".join(known[:_MOST_NAMES]) + (", ..." if len(known) > _MOST_NAMES else "")
        return StageError(f"The label {text!r} of {where} is not in {place}, which has: {names}.", advice=_MAP)


def _text(label: Any) -> str:
    """Numbers are numbers in whatever form a file has them: 1, 1.0, true and "1"."""
    if isinstance(label, bool):
        return str(int(label))
    if isinstance(label, float) and label.is_integer():
        return str(int(label))
    return str(label).strip()


_LABEL = "label"
# Of the samples of these numbers, whose label it is, and the label.
_Labels: TypeAlias = Callable[[Sequence[int]], Iterator[tuple[str, Any]]]
# The columns of outcomes.
_TRUTH, _FOUND, _RIGHT, _AMONG_FIVE = range(4)


class Classification:
    """Rows of a table with a label, arrays of the model's inputs with one of labels, or images in folders that are
    called by their class.
    """

    def __init__(self, given: Given) -> None:
        self._given = given
        self._files = sorted(path for path in given.data.rglob("*") if path.is_file())
        kinds = {kind_of(path.name) for path in self._files}
        if kinds <= {*TABLES}:
            self._samples, self._labels = self._rows()
        elif kinds <= {"npz", "npy"}:
            self._samples, self._labels = self._arrays()
        else:
            self._samples = read_samples(given.data, given.inputs, given.processor.folder)
            self._labels = self._folders
        self._classes = given.classes()
        self.outputs = (given.scores().name,)
        self.chosen = chosen_numbers(self._samples.count, given.most, given.seed)
        self.kind, self.count = self._samples.kind, self._samples.count

    @property
    def metrics(self) -> tuple[Metric, ...]:
        accuracy = share("accuracy", _RIGHT)
        if self._given.task == "text-classification":
            return accuracy, macro_f1("macro_f1", _TRUTH, _FOUND)
        return (accuracy, share("top5_accuracy", _AMONG_FIVE)) if self._classes > 5 else (accuracy,)

    def cases(self) -> Iterator[Case[int]]:
        for feed, (where, label) in zip(self._samples.read(self.chosen), self._labels(self.chosen), strict=True):
            number = self._given.labels.number(label, where)
            yield Case((feed,), within(number, self._classes, where))

    def outcome(self, case: Case[int], found: Sequence[Mapping[str, Array]]) -> Sequence[float]:
        scores = found[0][self.outputs[0]]
        if scores.shape != (1, self._classes):
            raise StageError(
                f"Output {self.outputs[0]!r} has the shape {list(scores.shape)}, not scores of"
                f" {self._classes} classes for one sample.",
                advice="Check the task (--task).",
            )
        values = scores[0].astype(np.float64)
        # Without numbers there is no choice, and every choice would be wrong.
        chosen = -1 if np.isnan(values).any() else int(values.argmax())
        better = int((values > values[case.truth]).sum()) if chosen >= 0 else self._classes
        return case.truth, chosen, chosen == case.truth, better < 5

    def _rows(self) -> tuple[Samples, _Labels]:
        given, columns = self._given, read_tables(self._files).columns
        column = _label_column(given, columns)

        def labels(numbers: Sequence[int]) -> Iterator[tuple[str, Any]]:
            for number, row in chosen_rows(read_tables(self._files), numbers, [column]):
                if row[column] is None or row[column] == "":
                    raise StageError(f"Column {column!r} has no value in row {number}.", advice="Take it away.")
                yield f"row {number}", row[column]

        return read_samples(given.data, given.inputs, given.processor.folder, _inputs_from(given, columns)), labels

    def _arrays(self) -> tuple[Samples, _Labels]:
        given = self._given
        if [kind_of(file.name) for file in self._files] != ["npz"]:
            raise StageError(
                f"{self._files[0].name} has no labels: of arrays, only one .npz file can have them.",
                advice="Save all arrays and one of labels in one file: numpy.savez(FILE, INPUT=..., label=...).",
            )
        samples, read = labelled_npz(self._files[0], given.inputs, lambda names: _label_column(given, names))
        return samples, lambda numbers: (
            (f"sample {number}", label) for number, label in zip(numbers, read(numbers), strict=True)
        )

    def _folders(self, numbers: Sequence[int]) -> Iterator[tuple[str, Any]]:
        for number in numbers:
            file = self._files[number].relative_to(self._given.data)
            if file.parent == Path():
                raise StageError(
                    f"The image {file} has no label: it lies in no folder that is called by its class.",
                    advice="Put the images of each class into a folder of its own, or give a table.",
                )
            yield f"the image {file.as_posix()}", file.parent.name


def _label_column(given: Given, columns: Sequence[str]) -> str:
    usual = (given.columns[_LABEL],) if _LABEL in given.columns else TASKS[given.task][_LABEL]
    found = next((name for name in usual if name in columns), None)
    if found is None:
        raise StageError(
            f"The data has no column {' or '.join(usual)}, which tells the class; it has: {', '.join(columns)}.",
            advice="Set eval.dataset.columns_mapping (--column label=COLUMN).",
        )
    return found


def _inputs_from(given: Given, columns: Sequence[str]) -> Mapping[str, str]:
    """Which column is what: as the user says; else inputs of the model by their names, or the text or image by a usual
    one.
    """
    said = {role: column for role, column in given.columns.items() if role != _LABEL}
    inputs = {spec.name for spec in given.inputs}
    if inputs & {*said, *columns}:
        return said
    usual = {role: next((name for name in names if name in columns), "") for role, names in TASKS[given.task].items()}
    return {**{role: name for role, name in usual.items() if name and role != _LABEL}, **said}
