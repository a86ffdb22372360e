"""Classification of whole texts and images: which class has the highest score."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from winml_dag.errors import StageError
from winml_dag.stages.evaluate import TASKS
from winml_dag.stages.evaluate.cases import Case, Given, within
from winml_dag.stages.evaluate.metrics import Metric, macro_f1, share
from winml_dag.stages.evaluate.rows import chosen_numbers
from winml_dag.stages.samples import TABLES, kind_of
from winml_dag.stages.samples.read import read_samples
from winml_dag.stages.samples.samples import Array
from winml_dag.stages.samples.tables import chosen_rows, read_tables

_LABEL = "label"
# The columns of outcomes.
_TRUTH, _FOUND, _RIGHT, _AMONG_FIVE = range(4)


class Classification:
    """Rows of a table with a label, or images in folders that are called by their class."""

    def __init__(self, given: Given) -> None:
        self._given = given
        self._files = sorted(path for path in given.data.rglob("*") if path.is_file())
        self._is_table = all(kind_of(path.name) in TABLES for path in self._files)
        columns = read_tables(self._files).columns if self._is_table else ()
        self._label = _label_column(given, columns) if self._is_table else ""
        self._samples = read_samples(
            given.data, given.inputs, given.processor.folder, _inputs_from(given, columns) if self._is_table else {}
        )
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
        for feed, (where, label) in zip(self._samples.read(self.chosen), self._labels(), strict=True):
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

    def _labels(self) -> Iterator[tuple[str, Any]]:
        """Whose label it is, and the label, of those that were chosen."""
        if self._is_table:
            for number, row in chosen_rows(read_tables(self._files), self.chosen, [self._label]):
                if row[self._label] is None or row[self._label] == "":
                    raise StageError(f"Column {self._label!r} has no value in row {number}.", advice="Take it away.")
                yield f"row {number}", row[self._label]
            return
        for number in self.chosen:
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
