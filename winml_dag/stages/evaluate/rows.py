"""Tasks on labelled rows of tables: similarity of two texts, classification of words, answers to questions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from winml_dag.errors import StageError
from winml_dag.onnxmodel.inspect import TensorSpec
from winml_dag.stages.evaluate import TASKS
from winml_dag.stages.evaluate.cases import CHECK_TASK, Case, Given, Task
from winml_dag.stages.evaluate.metrics import (
    Metric,
    answer_f1,
    entities,
    exact_match,
    macro_f1_of_counts,
    mean,
    pearson,
    ratio,
    share,
    spearman,
)
from winml_dag.stages.samples import TABLES, kind_of
from winml_dag.stages.samples.arrays import fit
from winml_dag.stages.samples.samples import Array, Feed
from winml_dag.stages.samples.tables import chosen_rows, read_tables


class RowTask(Task):
    """A task whose samples are rows of tables, with a column for each of its roles."""

    kind = "dataset"

    def __init__(self, given: Given) -> None:
        """Raises StageError if the data is not of tables, or lacks a column."""
        super().__init__(given)
        task, files = str(given.fields.task), given.files()
        if any(kind_of(file.name) not in TABLES for file in files):
            raise StageError(
                f"Data for {task} is a table, and {files[0].name} is none.",
                advice="Give CSV, JSON lines or parquet with the columns " + ", ".join(TASKS[task]) + ".",
            )
        self._table = read_tables(files)
        if unknown := sorted(given.fields.columns_mapping.keys() - TASKS[task].keys()):
            raise StageError(
                f"eval.dataset.columns_mapping: {task} has nothing called {unknown[0]!r}.",
                advice=f"It has: {', '.join(TASKS[task])}.",
            )
        self._columns = {role: given.column_of(role, self._table.columns) for role in TASKS[task]}
        self.count = self._table.count

    def _rows(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield the chosen rows: the words for each in messages, and its values by role."""
        for number, row in chosen_rows(self._table, self.chosen, sorted(set(self._columns.values()))):
            yield f"row {number}", {role: row[column] for role, column in self._columns.items()}


# Similarity of two texts: the cosine of their embeddings, compared with human scores.

# Names of outputs that are an embedding of the whole text.
_EMBEDDINGS = ("sentence_embedding", "text_embeds", "embeddings")
_SCORE, _COSINE = range(2)


class FeatureSimilarity(RowTask):
    """Rows with two texts and a human similarity score, on any scale."""

    metrics: tuple[Metric, ...] = (spearman("spearman", _SCORE, _COSINE), pearson("pearson", _SCORE, _COSINE))

    def __init__(self, given: Given) -> None:
        super().__init__(given)
        self.outputs = (_output(given.outputs, given.fields.pooling),)

    def cases(self) -> Iterator[Case]:
        for where, row in self._rows():
            texts = (row["sentence1"], row["sentence2"])
            feeds = tuple(self.given.processor.feed({"text": text}, where) for text in texts)
            yield Case(feeds, partial(self._judge, _score(row["score"], where), feeds))

    def _judge(self, score: float, feeds: Sequence[Feed], found: Sequence[Mapping[str, Array]]) -> Sequence[float]:
        first, second = (
            _embedding(outputs[self.outputs[0]], feed, self.given.fields.pooling)
            for outputs, feed in zip(found, feeds, strict=True)
        )
        scale = float(np.linalg.norm(first) * np.linalg.norm(second))
        return score, float(first @ second) / scale if scale else 0.0


def _output(outputs: Sequence[TensorSpec], pooling: str | None) -> str:
    named = next((output for output in outputs if output.name in _EMBEDDINGS), None)
    of_tokens = next((output for output in outputs if len(output.shape) == 3), None)
    if pooling is not None and of_tokens is None:
        raise StageError(
            f"There is nothing to pool ({pooling}): the model has no output with an embedding of each token.",
            advice="Leave eval.pooling (--pooling) out.",
        )
    chosen = (of_tokens or named) if pooling is not None else (named or of_tokens)
    chosen = chosen or next((output for output in outputs if len(output.shape) == 2), None)
    if chosen is None:
        raise StageError(
            f"None of the model's outputs ({', '.join(output.name for output in outputs)}) is an embedding.",
            advice=CHECK_TASK,
        )
    return chosen.name


def _embedding(output: Array, feed: Feed, pooling: str | None) -> NDArray[np.float64]:
    """Return the embedding of one text: for token embeddings the first one, or the mean without padding."""
    values: NDArray[np.float64] = output.astype(np.float64)[0]
    if values.ndim > 1:
        weights = np.ones(len(values)) if (mask := feed.get("attention_mask")) is None else mask[0].astype(np.float64)
        values = values[0] if pooling == "cls" else weights @ values / max(float(weights.sum()), 1.0)
    return values


def _score(value: Any, where: str) -> float:
    try:
        score = float(value)
    except (TypeError, ValueError):
        score = float("nan")
    if not np.isfinite(score):
        raise StageError(
            f"{where.capitalize()} of the data has {str(value)[:40]!r} where a score should be, which is a number."
        )
    return score


# Classification of words: the class with the highest score at the first token of each.

# The tag that data sets give to a word without one.
_NO_TAG = -100
_NONE = -1
_ENTITY_TAG = re.compile(r"O|[BIES]-.+")
# The columns of outcomes; without entities, three for each class follow.
_RIGHT, _WORDS, _FOUND_RIGHTLY, _FOUND, _TRUE = range(5)


class TokenClassification(RowTask):
    """Rows with a list of words and a list of tags.

    Skips words without a tag, padding, and words beyond the length that the model takes.
    """

    def __init__(self, given: Given) -> None:
        super().__init__(given)
        self._classes = given.classes()
        self._names = [given.labels.name(number) for number in range(self._classes)]
        self._has_entities = all(_ENTITY_TAG.fullmatch(name) for name in self._names)
        self.outputs = (given.scores().name,)
        accuracy = ratio("token_accuracy", [_RIGHT], [_WORDS])
        if self._has_entities:
            self.metrics = (
                ratio("entity_f1", [_FOUND_RIGHTLY, _FOUND_RIGHTLY], [_FOUND, _TRUE]),
                ratio("entity_precision", [_FOUND_RIGHTLY], [_FOUND]),
                ratio("entity_recall", [_FOUND_RIGHTLY], [_TRUE]),
                accuracy,
            )
        else:
            self.metrics = (accuracy, macro_f1_of_counts("token_macro_f1", _FOUND_RIGHTLY, self._classes))

    def cases(self) -> Iterator[Case]:
        for where, row in self._rows():
            words, tags = _list(row["tokens"], where), _list(row["tags"], where)
            if len(words) != len(tags):
                raise StageError(f"{where.capitalize()} of the data has {len(words)} words and {len(tags)} tags.")
            encoded = self.given.processor.of_words([str(word) for word in words])
            first: dict[int, int] = {}
            for position, word in enumerate(encoded.of):
                if word is not None and tags[word] not in (_NO_TAG, str(_NO_TAG)):
                    first.setdefault(word, position)
            true = np.array([self.given.true_class(tags[word], self._classes, where) for word in first], np.int64)
            feed = fit(encoded.arrays, self.given.inputs, where)
            yield Case((feed,), partial(self._judge, true, list(first.values())))

    def _judge(
        self, true: NDArray[np.int64], positions: Sequence[int], found: Sequence[Mapping[str, Array]]
    ) -> Sequence[float]:
        scores = found[0][self.outputs[0]]
        if scores.ndim != 3 or scores.shape[::2] != (1, self._classes):
            raise StageError(
                f"Output {self.outputs[0]!r} has the shape {list(scores.shape)}, not scores of {self._classes} classes"
                " for each token of a text.",
                advice=CHECK_TASK,
            )
        best = scores[0, list(positions)] if true.size else np.zeros((0, self._classes))
        # None for NaN scores, so they count as wrong.
        chosen = np.where(np.isnan(best).any(-1), _NONE, best.argmax(-1))
        counted = [int((true == chosen).sum()), true.size]
        if self._has_entities:
            names = {**dict(enumerate(self._names)), _NONE: "O"}
            expected, got = (entities([names[int(one)] for one in tags]) for tags in (true, chosen))
            return [*counted, len(expected & got), len(got), len(expected)]
        for one in range(self._classes):
            is_true, is_chosen = true == one, chosen == one
            counted += [int((is_true & is_chosen).sum()), int(is_chosen.sum()), int(is_true.sum())]
        return counted


def _list(value: Any, where: str) -> Sequence[Any]:
    """Return a list; text files have words separated by blanks instead."""
    if isinstance(value, str):
        return value.split()
    if not isinstance(value, list | tuple):
        raise StageError(
            f"{where.capitalize()} of the data has {str(value)[:40]!r} where a list of words or tags should be."
        )
    return value


# Questions whose answer is part of a text: the span from the best first token to the best last token.

# The usual limit for evaluation on SQuAD; longer spans are rarely answers.
_LONGEST_TOKENS = 30
# The columns of outcomes.
_EXACT, _F1 = range(2)
# The characters of a context by position, if any.
Spans: TypeAlias = Sequence[tuple[int, int] | None]


class QuestionAnswering(RowTask):
    """Rows with a question, its context and answers.

    A context that is too long for the model is split into overlapping windows.
    """

    metrics: tuple[Metric, ...] = (share("exact_match", _EXACT), mean("f1", _F1))

    def __init__(self, given: Given) -> None:
        super().__init__(given)
        self.outputs = _outputs([output.name for output in given.outputs])
        # The model can give no answer only if the data has questions without one.
        self._may_be_none = any(not _answers(row["answers"], where) for where, row in self._rows())

    def cases(self) -> Iterator[Case]:
        for where, row in self._rows():
            context = str(row["context"])
            windows = self.given.processor.of_question(str(row["question"]).strip(), context)
            feeds = tuple(fit(window.arrays, self.given.inputs, where) for window in windows)
            spans = [window.of for window in windows]
            yield Case(feeds, partial(self._judge, context, spans, _answers(row["answers"], where) or [""]))

    def _judge(
        self, context: str, spans: Sequence[Spans], answers: Sequence[str], found: Sequence[Mapping[str, Array]]
    ) -> Sequence[float]:
        best, answer, none = -np.inf, "", np.inf
        for window, outputs in zip(spans, found, strict=True):
            first, last = (self._scores(outputs[name], len(window), name) for name in self.outputs)
            if np.isnan(first).any() or np.isnan(last).any():
                return 0.0, 0.0  # not even that there is no answer, which may be correct
            none = min(none, first[0] + last[0])
            score, begin, end = _best_span(first, last, window)
            if score > best:
                best, answer = score, context[begin:end]
        if self._may_be_none and none > best:
            answer = ""
        return exact_match(answer, answers), answer_f1(answer, answers)

    def _scores(self, output: Array, length: int, name: str) -> NDArray[np.float64]:
        if output.shape != (1, length):
            raise StageError(
                f"Output {name!r} has the shape {list(output.shape)}, not a score for each of {length} positions.",
                advice=CHECK_TASK,
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
            advice=CHECK_TASK,
        )
    return names[0], names[1]


def _best_span(first: NDArray[np.float64], last: NDArray[np.float64], spans: Spans) -> tuple[float, int, int]:
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


def _answers(value: Any, where: str) -> Sequence[str]:
    """Parse the formats of common data sets: texts with their positions, a list of texts, or one text."""
    if isinstance(value, Mapping):
        value = value.get("text")
    if isinstance(value, str):
        return [value] if value else []
    if isinstance(value, list | tuple) and all(isinstance(one, str) for one in value):
        return list(value)
    raise StageError(
        f"{where.capitalize()} of the data has no answers that can be read: {str(value)[:60]!r}.",
        advice='Give a text, a list of texts, or {"text": [...]} as SQuAD has it.',
    )
