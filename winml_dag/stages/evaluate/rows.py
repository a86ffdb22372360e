"""Tasks on labelled rows of tables, and the similarity of two texts, which is one."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from winml_dag.errors import StageError
from winml_dag.onnxmodel.inspect import TensorSpec
from winml_dag.stages.evaluate import TASKS
from winml_dag.stages.evaluate.cases import Case, Given
from winml_dag.stages.evaluate.metrics import Metric, pearson, spearman
from winml_dag.stages.samples import TABLES, kind_of
from winml_dag.stages.samples.samples import Array, Feed
from winml_dag.stages.samples.tables import chosen_rows, read_tables


class RowTask:
    """A task whose samples are rows of tables, with a column for each of its roles."""

    kind = "dataset"

    def __init__(self, given: Given) -> None:
        """Raises StageError if the data is not of tables, or lacks a column."""
        self._given = given
        roles = TASKS[given.task]
        files = sorted(path for path in given.data.rglob("*") if path.is_file())
        if any(kind_of(file.name) not in TABLES for file in files):
            raise StageError(
                f"Data for {given.task} is a table, and {files[0].name} is none.",
                advice="Give CSV, JSON lines or parquet with the columns " + ", ".join(roles) + ".",
            )
        self._table = read_tables(files)
        self._columns = dict(_columns(self._table.columns, given.task, roles, given.columns))
        self.count = self._table.count
        self.chosen = chosen_numbers(self.count, given.most, given.seed)

    def _rows(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yield the chosen rows: each with its number, and its values by role.

        Raises:
            StageError: a value is missing, or a file cannot be read.
        """
        for number, row in chosen_rows(self._table, self.chosen, sorted(set(self._columns.values()))):
            for column in self._columns.values():
                if row[column] is None:
                    raise StageError(f"Column {column!r} has no value in row {number}.", advice="Take that row away.")
            yield number, {role: row[column] for role, column in self._columns.items()}


def _columns(
    there: Sequence[str], task: str, wanted: Mapping[str, Sequence[str]], mapping: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    if unknown := sorted(mapping.keys() - wanted.keys()):
        raise StageError(
            f"eval.dataset.columns_mapping: {task} has nothing called {unknown[0]!r}.",
            advice=f"It has: {', '.join(wanted)}.",
        )
    for role, names in wanted.items():
        usual = (mapping[role],) if role in mapping else names
        column = next((name for name in usual if name in there), None)
        if column is None:
            raise StageError(
                f"The data has no column {' or '.join(usual)}, and {task} needs one ({role}); it has: "
                f"{', '.join(there)}.",
                advice=f"Set eval.dataset.columns_mapping (--column {role}=COLUMN).",
            )
        yield role, column


def chosen_numbers(count: int, most: int, seed: int | None) -> Sequence[int]:
    """Return *most* of *count* numbers, ascending: the first ones, or a random selection with *seed*."""
    if seed is None or most >= count:
        return range(min(most, count))
    return sorted(random.Random(seed).sample(range(count), most))


# Similarity of two texts: the cosine of their embeddings, compared with human scores.

# Names of outputs that are an embedding of the whole text.
_EMBEDDINGS = ("sentence_embedding", "text_embeds", "embeddings")
_SCORE, _COSINE = range(2)


class FeatureSimilarity(RowTask):
    """Rows with two texts and a human similarity score, on any scale."""

    metrics: tuple[Metric, ...] = (spearman("spearman", _SCORE, _COSINE), pearson("pearson", _SCORE, _COSINE))

    def __init__(self, given: Given) -> None:
        super().__init__(given)
        self.outputs = (_output(given.outputs, given.pooling),)

    def cases(self) -> Iterator[Case[float]]:
        for number, row in self._rows():
            texts = (row["sentence1"], row["sentence2"])
            feeds = tuple(self._given.processor.feed({"text": text}, f"row {number}") for text in texts)
            yield Case(feeds, _score(row["score"], number))

    def outcome(self, case: Case[float], found: Sequence[Mapping[str, Array]]) -> Sequence[float]:
        first, second = (
            _embedding(outputs[self.outputs[0]], feed, self._given.pooling)
            for outputs, feed in zip(found, case.feeds, strict=True)
        )
        scale = float(np.linalg.norm(first) * np.linalg.norm(second))
        return case.truth, float(first @ second) / scale if scale else 0.0


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
            advice="Check the task (--task).",
        )
    return chosen.name


def _embedding(output: Array, feed: Feed, pooling: str | None) -> NDArray[np.float64]:
    """Return the embedding of one text: for token embeddings the first one, or the mean without padding."""
    values: NDArray[np.float64] = output.astype(np.float64)[0]
    if values.ndim == 1:
        return values
    if pooling == "cls":
        first: NDArray[np.float64] = values[0]
        return first
    mask = feed.get("attention_mask")
    weights = np.ones(len(values)) if mask is None else mask[0].astype(np.float64)
    pooled: NDArray[np.float64] = weights @ values / max(float(weights.sum()), 1.0)
    return pooled


def _score(value: Any, number: int) -> float:
    try:
        score = float(value)
    except (TypeError, ValueError):
        score = float("nan")
    if not np.isfinite(score):
        raise StageError(
            f"Row {number} of the data has {str(value)[:40]!r} where a score should be, which is a number."
        )
    return score
