"""Classification of words: the class with the highest score at the first token of each."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from winml_dag.errors import StageError
from winml_dag.stages.evaluate.cases import Case, Given, within
from winml_dag.stages.evaluate.metrics import Metric, entities, macro_f1_of_counts, ratio
from winml_dag.stages.evaluate.rows import RowTask
from winml_dag.stages.samples.arrays import fit
from winml_dag.stages.samples.samples import Array

# The tag that data sets give to a word without one.
_NO_TAG = -100
_NONE = -1
_ENTITY_TAG = re.compile(r"O|[BIES]-.+")
# The columns of outcomes; without entities, three for each class follow.
_RIGHT, _WORDS, _FOUND_RIGHTLY, _FOUND, _TRUE = range(5)


@dataclass(frozen=True)
class Tagged:
    """Words: the position of the first token of each, and their classes."""

    positions: Sequence[int]
    classes: Sequence[int]


class TokenClassification(RowTask):
    """Rows with a list of words and a list of tags.

    Skips words without a tag, padding, and words beyond the length that the model takes.
    """

    def __init__(self, given: Given) -> None:
        super().__init__(given)
        self._classes = given.classes()
        names = [given.labels.name(number) for number in range(self._classes)]
        self._has_entities = all(_ENTITY_TAG.fullmatch(name) for name in names)
        self.outputs = (given.scores().name,)

    @property
    def metrics(self) -> tuple[Metric, ...]:
        accuracy = ratio("token_accuracy", [_RIGHT], [_WORDS])
        if not self._has_entities:
            return accuracy, macro_f1_of_counts("token_macro_f1", _FOUND_RIGHTLY, self._classes)
        return (
            ratio("entity_f1", [_FOUND_RIGHTLY, _FOUND_RIGHTLY], [_FOUND, _TRUE]),
            ratio("entity_precision", [_FOUND_RIGHTLY], [_FOUND]),
            ratio("entity_recall", [_FOUND_RIGHTLY], [_TRUE]),
            accuracy,
        )

    def cases(self) -> Iterator[Case[Tagged]]:
        for number, row in self._rows():
            words, tags = _list(row["tokens"], number), _list(row["tags"], number)
            if len(words) != len(tags):
                raise StageError(f"Row {number} of the data has {len(words)} words and {len(tags)} tags.")
            encoded = self._given.processor.of_words([str(word) for word in words])
            first: dict[int, int] = {}
            for position, word in enumerate(encoded.word_of):
                if word is not None and tags[word] not in (_NO_TAG, str(_NO_TAG)):
                    first.setdefault(word, position)
            where = f"row {number}"
            classes = [within(self._given.labels.number(tags[word], where), self._classes, where) for word in first]
            yield Case((fit(encoded.arrays, self._given.inputs, where),), Tagged(list(first.values()), classes))

    def outcome(self, case: Case[Tagged], found: Sequence[Mapping[str, Array]]) -> Sequence[float]:
        scores = found[0][self.outputs[0]]
        if scores.ndim != 3 or scores.shape[::2] != (1, self._classes):
            raise StageError(
                f"Output {self.outputs[0]!r} has the shape {list(scores.shape)}, not scores of {self._classes} classes"
                " for each token of a text.",
                advice="Check the task (--task).",
            )
        true = np.asarray(case.truth.classes, np.int64)
        chosen = _best(scores[0, list(case.truth.positions)]) if true.size else true
        counted = [int((true == chosen).sum()), true.size]
        if self._has_entities:
            expected, got = (entities([self._tag(int(one)) for one in tags]) for tags in (true, chosen))
            return [*counted, len(expected & got), len(got), len(expected)]
        for one in range(self._classes):
            counted += [
                int(((true == one) & (chosen == one)).sum()),
                int((chosen == one).sum()),
                int((true == one).sum()),
            ]
        return counted

    def _tag(self, number: int) -> str:
        return "O" if number == _NONE else self._given.labels.name(number)


def _best(scores: Array) -> NDArray[np.int64]:
    """Return the class of each token; none for NaN scores, so they count as wrong."""
    chosen: NDArray[np.int64] = np.where(np.isnan(scores).any(-1), _NONE, scores.argmax(-1))
    return chosen


def _list(value: Any, number: int) -> Sequence[Any]:
    """Return a list; text files have words separated by blanks instead."""
    if isinstance(value, str):
        return value.split()
    if not isinstance(value, list | tuple):
        raise StageError(f"Row {number} of the data has {str(value)[:40]!r} where a list of words or tags should be.")
    return value
