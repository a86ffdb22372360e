"""What is measured of each output of a model against the reference's: over all samples, of the worst one, by class.

Positions that only pad a text are left out: nobody reads them, and in a short text they would be most of an output.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from winml_dag.canonical import JsonObject
from winml_dag.onnxmodel.compare import OutputComparison, compare
from winml_dag.onnxmodel.top1 import Agreement, top1
from winml_dag.stages.quality import Quality

Array = NDArray[np.generic]
Feed = Mapping[str, Array]


@dataclass(frozen=True)
class OutputFigures:
    """One output.

    Attributes:
        read: over all values that are read, of all samples at once.
        whole: over all values there are; it differs from ``read`` where there is padding.
        cosine_min: the lowest cosine of a single sample; None when an output is a single number, whose cosine tells
            nothing but its sign.
        top1: how often the best class is the same; None when the output has no scores of classes.
    """

    read: OutputComparison
    whole: OutputComparison
    cosine_min: float | None
    top1: Agreement | None

    @property
    def cosine(self) -> float:
        """This and the others below are rounded to digits that another processor would give as well."""
        return round(self.read.cosine, 5)

    @property
    def lowest_cosine(self) -> float | None:
        return None if self.cosine_min is None else round(self.cosine_min, 5)

    @property
    def sqnr_db(self) -> float | None:
        """None where the ratio is infinite, which JSON cannot say: without noise, or without a signal."""
        return round(self.read.sqnr_db, 1) if math.isfinite(self.read.sqnr_db) else None

    @property
    def max_abs_error(self) -> float:
        return float(f"{self.read.max_abs_error:.2g}")

    def to_json(self) -> JsonObject:
        decisions = {} if self.top1 is None else {"top1_agreed": self.top1.agreed, "top1_of": self.top1.of}
        return {
            "cosine": self.cosine,
            "cosine_min": self.lowest_cosine,
            "sqnr_db": self.sqnr_db,
            "max_abs_error": self.max_abs_error,
            **decisions,
        }


def measure(
    names: Sequence[str],
    feeds: Sequence[Feed],
    reference: Sequence[Sequence[Array]],
    candidate: Sequence[Sequence[Array]],
    scores: Collection[str],
) -> tuple[OutputFigures, ...]:
    """The figures of the outputs *names*; both models' values are by sample, then by output, and of equal shapes.

    *scores*: outputs whose values are scores of classes.
    """
    expected, found = list(zip(*reference, strict=True)), list(zip(*candidate, strict=True))
    return tuple(
        _measure(name, feeds, wanted, got, is_scores=name in scores)
        for name, wanted, got in zip(names, expected, found, strict=True)
    )


def quality(figures: Sequence[OutputFigures], *, samples: int, data: str, held_out: bool) -> Quality:
    """The figures of a whole model: those of its worst output, and the decisions of all."""
    worst = min(figures, key=lambda output: output.read.cosine)
    decisions = _sum(output.top1 for output in figures)
    return Quality(
        output=worst.read.name,
        cosine=worst.cosine,
        cosine_min=worst.lowest_cosine,
        sqnr_db=worst.sqnr_db,
        max_abs_error=worst.max_abs_error,
        top1_agreed=None if decisions is None else decisions.agreed,
        top1_of=None if decisions is None else decisions.of,
        samples=samples,
        data=data,
        held_out=held_out,
    )


def _sum(decisions: Iterable[Agreement | None]) -> Agreement | None:
    known = [decision for decision in decisions if decision is not None]
    return Agreement(sum(one.agreed for one in known), sum(one.of for one in known)) if known else None


def _measure(
    name: str, feeds: Sequence[Feed], reference: Sequence[Array], candidate: Sequence[Array], *, is_scores: bool
) -> OutputFigures:
    whole = _together(name, reference, candidate)
    kept = [_not_padding(feed, value.shape) for feed, value in zip(feeds, reference, strict=True)]
    if any(keep is not None for keep in kept):
        reference, candidate = _kept(reference, kept), _kept(candidate, kept)
        read = _together(name, reference, candidate)
    else:
        read = whole
    pairs = list(zip(reference, candidate, strict=True))
    alone = [compare([wanted], [got], [name])[0].cosine for wanted, got in pairs if wanted.size > 1]
    lowest = min(alone) if len(alone) == len(pairs) else None
    return OutputFigures(read, whole, lowest, _sum(top1(*pair) for pair in pairs) if is_scores else None)


def _together(name: str, reference: Sequence[Array], candidate: Sequence[Array]) -> OutputComparison:
    """Flat, since an output's shape may depend on the sample (detections found)."""
    expected, found = (np.concatenate([value.ravel() for value in values]) for values in (reference, candidate))
    return compare([expected], [found], [name])[0]


def _not_padding(feed: Feed, shape: tuple[int, ...]) -> NDArray[np.bool_] | None:
    """Which positions of an output of that *shape* are no padding; None when the output has no positions of a text.

    Such an output has the two axes of the attention mask, and one or more behind them: the axes of an output with two
    only, batch and features, could have the same lengths by chance. Where a decoder has a text of its own, the mask is
    not known to be that of the output.
    """
    mask = feed.get("attention_mask")
    if mask is None or len(shape) < 3 or shape[:2] != mask.shape or "decoder_input_ids" in feed:
        return None
    keep = mask != 0
    return keep if keep.any() else None


def _kept(values: Sequence[Array], kept: Sequence[NDArray[np.bool_] | None]) -> list[Array]:
    return [value if keep is None else value[keep] for value, keep in zip(values, kept, strict=True)]
