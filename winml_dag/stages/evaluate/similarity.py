"""Similarity of two texts: the cosine of their embeddings, beside what people say of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from winml_dag.errors import StageError
from winml_dag.onnxmodel.inspect import TensorSpec
from winml_dag.stages.evaluate import TASKS
from winml_dag.stages.evaluate.cases import Case, Given
from winml_dag.stages.evaluate.metrics import Metric, pearson, spearman
from winml_dag.stages.evaluate.rows import chosen_numbers, rows_of
from winml_dag.stages.samples.samples import Array, Feed
from winml_dag.stages.samples.text import encoded

# Outputs that are an embedding of the whole text by their name.
_EMBEDDINGS = ("sentence_embedding", "text_embeds", "embeddings")
_SCORE, _COSINE = range(2)


class FeatureSimilarity:
    """Rows with two texts, and how similar they are by people's word, on any scale."""

    kind = "dataset"
    metrics: tuple[Metric, ...] = (spearman("spearman", _SCORE, _COSINE), pearson("pearson", _SCORE, _COSINE))

    def __init__(self, given: Given) -> None:
        self._given = given
        self._rows = rows_of(given.data, given.task, TASKS[given.task], given.columns)
        self.outputs = (_output(given.outputs, given.pooling),)
        self.count = self._rows.table.count
        self.chosen = chosen_numbers(self.count, given.most, given.seed)

    def cases(self) -> Iterator[Case[float]]:
        for number, row in self._rows(self.chosen):
            feeds = tuple(
                encoded(self._given.processor, self._given.inputs, str(row[role]))
                for role in ("sentence1", "sentence2")
            )
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
    """Of one text. Of its tokens' embeddings the first one, or the mean of those that are no padding."""
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
