"""Classification of whole texts and images: the class with the highest score."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from winml_dag.errors import StageError
from winml_dag.stages.evaluate import TASKS
from winml_dag.stages.evaluate.cases import CHECK_TASK, Case, Given, Task
from winml_dag.stages.evaluate.metrics import macro_f1, share
from winml_dag.stages.samples import TABLES, kind_of
from winml_dag.stages.samples.arrays import labelled_npz
from winml_dag.stages.samples.read import read_samples
from winml_dag.stages.samples.samples import Array, Samples
from winml_dag.stages.samples.tables import chosen_rows, read_tables

_LABEL = "label"
# For samples of these numbers, a description of the sample and its label.
_Labels: TypeAlias = Callable[[Sequence[int]], Iterator[tuple[str, Any]]]
# The columns of outcomes.
_TRUTH, _FOUND, _RIGHT, _AMONG_FIVE = range(4)


class Classification(Task):
    """Rows of a table with a label, arrays of inputs with one of labels, or images in folders named after classes."""

    def __init__(self, given: Given) -> None:
        super().__init__(given)
        self._files = given.files()
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
        self.kind, self.count = self._samples.kind, self._samples.count
        accuracy = share("accuracy", _RIGHT)
        if given.fields.task == "text-classification":
            self.metrics = (accuracy, macro_f1("macro_f1", _TRUTH, _FOUND))
        else:
            self.metrics = (accuracy, share("top5_accuracy", _AMONG_FIVE)) if self._classes > 5 else (accuracy,)

    def cases(self) -> Iterator[Case]:
        for feed, (where, label) in zip(self._samples.read(self.chosen), self._labels(self.chosen), strict=True):
            yield Case((feed,), partial(self._judge, self.given.true_class(label, self._classes, where)))

    def _judge(self, truth: int, found: Sequence[Mapping[str, Array]]) -> Sequence[float]:
        scores = found[0][self.outputs[0]]
        if scores.shape != (1, self._classes):
            raise StageError(
                f"Output {self.outputs[0]!r} has the shape {list(scores.shape)}, not scores of"
                f" {self._classes} classes for one sample.",
                advice=CHECK_TASK,
            )
        values = scores[0].astype(np.float64)
        # NaN permits no choice; it counts as wrong.
        chosen = -1 if np.isnan(values).any() else int(values.argmax())
        better = int((values > values[truth]).sum()) if chosen >= 0 else self._classes
        return truth, chosen, chosen == truth, better < 5

    def _rows(self) -> tuple[Samples, _Labels]:
        given, columns = self.given, read_tables(self._files).columns
        column = given.column_of(_LABEL, columns)

        def labels(numbers: Sequence[int]) -> Iterator[tuple[str, Any]]:
            for number, row in chosen_rows(read_tables(self._files), numbers, [column]):
                yield f"row {number}", row[column]

        return read_samples(given.data, given.inputs, given.processor.folder, _inputs_from(given, columns)), labels

    def _arrays(self) -> tuple[Samples, _Labels]:
        given = self.given
        if [kind_of(file.name) for file in self._files] != ["npz"]:
            raise StageError(
                f"{self._files[0].name} has no labels: of arrays, only one .npz file can have them.",
                advice="Save all arrays and one of labels in one file: numpy.savez(FILE, INPUT=..., label=...).",
            )
        samples, read = labelled_npz(self._files[0], given.inputs, lambda names: given.column_of(_LABEL, names))
        return samples, lambda numbers: (
            (f"sample {number}", label) for number, label in zip(numbers, read(numbers), strict=True)
        )

    def _folders(self, numbers: Sequence[int]) -> Iterator[tuple[str, Any]]:
        for number in numbers:
            file = self._files[number].relative_to(self.given.data)
            if file.parent == Path():
                raise StageError(
                    f"The image {file} has no label: it lies in no folder that is called by its class.",
                    advice="Put the images of each class into a folder of its own, or give a table.",
                )
            yield f"the image {file.as_posix()}", file.parent.name


def _inputs_from(given: Given, columns: Sequence[str]) -> Mapping[str, str]:
    """Return the columns by role: as given by the user; else by the names of model inputs, or by a usual name."""
    mapping = {role: column for role, column in given.fields.columns_mapping.items() if role != _LABEL}
    if {spec.name for spec in given.inputs} & {*mapping, *columns}:
        return mapping
    roles = {role: names for role, names in TASKS[str(given.fields.task)].items() if role != _LABEL}
    usual = {role: name for role, names in roles.items() for name in reversed(names) if name in columns}
    return {**usual, **mapping}
