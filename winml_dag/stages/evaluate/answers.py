"""Questions whose answer is part of a text: the span from the best first token to the best last token."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from winml_dag.errors import StageError
from winml_dag.stages.evaluate.cases import Case, Given
from winml_dag.stages.evaluate.metrics import Metric, answer_f1, exact_match, mean, share
from winml_dag.stages.evaluate.rows import RowTask
from winml_dag.stages.samples.arrays import fit
from winml_dag.stages.samples.samples import Array

# The usual limit for evaluation on SQuAD; longer spans are rarely answers.
_LONGEST_TOKENS = 30
_EXACT, _F1 = range(2)


@dataclass(frozen=True)
class Question:
    """A question to answer.

    ``spans``: for each window, the characters of ``context`` by position. ``answers``: the correct ones, none for a
    question that the text does not answer.
    """

    context: str
    spans: Sequence[Sequence[tuple[int, int] | None]]
    answers: Sequence[str]


class QuestionAnswering(RowTask):
    """Rows with a question, its context and answers.

    A context that is too long for the model is split into overlapping windows.
    """

    metrics: tuple[Metric, ...] = (share("exact_match", _EXACT), mean("f1", _F1))

    def __init__(self, given: Given) -> None:
        super().__init__(given)
        self.outputs = _outputs([output.name for output in given.outputs])
        # The model can give no answer only if the data has questions without one.
        self._may_be_none = any(not _answers(row["answers"], number) for number, row in self._rows())

    def cases(self) -> Iterator[Case[Question]]:
        for number, row in self._rows():
            context = str(row["context"])
            windows = self._given.processor.of_question(str(row["question"]).strip(), context)
            feeds = tuple(fit(window.arrays, self._given.inputs, f"row {number}") for window in windows)
            spans = [window.spans for window in windows]
            yield Case(feeds, Question(context, spans, _answers(row["answers"], number)))

    def outcome(self, case: Case[Question], found: Sequence[Mapping[str, Array]]) -> Sequence[float]:
        question = case.truth
        best, answer, none = -np.inf, "", np.inf
        for spans, outputs in zip(question.spans, found, strict=True):
            first, last = (self._scores(outputs[name], len(spans), name) for name in self.outputs)
            if np.isnan(first).any() or np.isnan(last).any():
                return 0.0, 0.0  # not even that there is no answer, which may be correct
            none = min(none, first[0] + last[0])
            score, begin, end = _best(first, last, spans)
            if score > best:
                best, answer = score, question.context[begin:end]
        if self._may_be_none and none > best:
            answer = ""
        truths = question.answers or [""]
        return exact_match(answer, truths), answer_f1(answer, truths)

    def _scores(self, output: Array, length: int, name: str) -> NDArray[np.float64]:
        if output.shape != (1, length):
            raise StageError(
                f"Output {name!r} has the shape {list(output.shape)}, not a score for each of {length} positions.",
                advice="Check the task (--task).",
            )
        scores: NDArray[np.float64] = output[0].astype(np.float64)
        return scores


def _outputs(names: Sequence[str]) -> tuple[str, str]:
    if {"start_logits", "end_logits"} <= set(names):
        return "start_logits", "end_logits"
    if len(names) < 2:
        raise StageError(
            f"question-answering needs scores of where an answer begins and ends, and the model has the output"
            f" {', '.join(names)} alone.",
            advice="Check the task (--task).",
        )
    return names[0], names[1]


def _best(
    first: NDArray[np.float64], last: NDArray[np.float64], spans: Sequence[tuple[int, int] | None]
) -> tuple[float, int, int]:
    """Return the best score of a span of the context, and its characters; minus infinity if there is none."""
    inside = np.array([span is not None for span in spans])
    length = len(spans)
    distance = np.arange(length)[None, :] - np.arange(length)[:, None]
    allowed = (distance >= 0) & (distance < _LONGEST_TOKENS) & inside[:, None] & inside[None, :]
    scores = np.where(allowed, np.nan_to_num(first[:, None] + last[None, :], nan=-np.inf), -np.inf)
    begin, end = np.unravel_index(int(scores.argmax()), scores.shape)
    at_begin, at_end = spans[int(begin)], spans[int(end)]
    if at_begin is None or at_end is None:
        return -np.inf, 0, 0
    return float(scores[begin, end]), at_begin[0], at_end[1]


def _answers(value: Any, number: int) -> Sequence[str]:
    """Parse the formats of common data sets: texts with their positions, a list of texts, or one text."""
    if isinstance(value, Mapping):
        value = value.get("text")
    if isinstance(value, str):
        return [value] if value else []
    if isinstance(value, list | tuple) and all(isinstance(one, str) for one in value):
        return list(value)
    raise StageError(
        f"Row {number} of the data has no answers that can be read: {str(value)[:60]!r}.",
        advice='Give a text, a list of texts, or {"text": [...]} as SQuAD has it.',
    )
