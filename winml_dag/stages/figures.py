"""Metrics of each output of a model compared with the reference: over all samples, of the worst sample, and by class.

Padding positions of a text are excluded: nothing reads them, and in a short text they would be most of an output.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from winml_dag.canonical import JsonObject
from winml_dag.onnxmodel.compare import Agreement, OutputComparison, Sums, sums_of, top
from winml_dag.stages.quality import Quality

Array = NDArray[np.generic]
Feed = Mapping[str, Array]


@dataclass(frozen=True)
class OutputFigures:
    """The metrics of one output.

    Attributes:
        read: over all values that are read, of all samples at once.
        whole: over all values; it differs from ``read`` if there is padding.
        cosine_min: the lowest cosine of a single sample; None if an output is a single number, whose cosine is only its
            sign.
        top1: how often the best class is the same; None if the output has no class scores.
        top5: how often the reference's best class is among the best five; None also if there are at most five classes.
        exact: how many values are the same; None for an output of floats, which rarely are.
        floor: the error up to which values count as the same; None if every error counts.
    """

    read: OutputComparison
    whole: OutputComparison
    cosine_min: float | None
    top1: Agreement | None
    top5: Agreement | None = None
    exact: Agreement | None = None
    floor: float | None = None

    def below(self, floor: float) -> OutputFigures:
        """Return a copy in which errors up to *floor*, which includes all of them, count as none."""
        same = OutputComparison(self.read.name, self.read.shape, 1.0, math.inf, self.read.max_abs_error, 0, 0)
        return replace(self, read=same, cosine_min=None if self.cosine_min is None else 1.0, floor=floor)

    @property
    def is_single(self) -> bool:
        """Whether it is a single float, whose cosine is only its sign."""
        return self.cosine_min is None and self.exact is None

    @property
    def relative_error(self) -> float | None:
        """The relative error of all samples' values at once; None if the output has a cosine."""
        return 10 ** (-self.read.sqnr_db / 20) if self.is_single else None

    @property
    def scale(self) -> float | None:
        """The scale; None for integers, which may be class ids, and for values without similarity."""
        return None if self.read.scale is None or self.exact is not None else round(self.read.scale, 3)

    @property
    def cosine(self) -> float:
        """The cosine, rounded like the values below to digits that are the same on other processors."""
        return round(self.read.cosine, 5)

    @property
    def lowest_cosine(self) -> float | None:
        return None if self.cosine_min is None else round(self.cosine_min, 5)

    @property
    def sqnr_db(self) -> float | None:
        """The SQNR; None if it is infinite, which JSON cannot represent: without noise, or without a signal."""
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
            "scale": self.scale,
            "max_abs_error": self.max_abs_error,
            **({} if self.floor is None else {"floor": float(f"{self.floor:.2g}")}),
            **decisions,
        }


def measure(
    names: Sequence[str],
    feeds: Sequence[Feed],
    reference: Sequence[Sequence[Array]],
    candidate: Sequence[Sequence[Array]],
    scores: Collection[str],
) -> tuple[OutputFigures, ...]:
    """Return the metrics of the outputs *names*.

    Both models' values are by sample, then by output, and have equal shapes. *scores*: outputs whose values are class
    scores.
    """
    outputs = [Measuring(name, is_scores=name in scores) for name in names]
    for feed, expected, found in zip(feeds, reference, candidate, strict=True):
        for output, wanted, got in zip(outputs, expected, found, strict=True):
            output.add(feed, wanted, got)
    return tuple(output.figures() for output in outputs)


def quality(figures: Sequence[OutputFigures], *, samples: int, data: str, held_out: bool | None) -> Quality:
    """Return the metrics of a whole model: those of its worst output, and the decisions of all outputs."""
    worst = min(figures, key=_likeness)
    decisions = _sum(output.top1 for output in figures)
    return Quality(
        output=worst.read.name,
        cosine=worst.cosine,
        cosine_min=worst.lowest_cosine,
        sqnr_db=worst.sqnr_db,
        scale=worst.scale,
        max_abs_error=worst.max_abs_error,
        top1_agreed=None if decisions is None else decisions.agreed,
        top1_of=None if decisions is None else decisions.of,
        samples=samples,
        data=data,
        held_out=held_out,
    )


def _likeness(output: OutputFigures) -> float:
    """Return 1 for the reference's own values, less for a lower cosine and for errors that a cosine does not show."""
    if output.relative_error is not None:
        return 1 - min(output.relative_error, 2.0) ** 2 / 2  # the cosine for such an error; see bounds.scale_tolerance
    scale = output.read.scale if output.exact is None else None
    return output.read.cosine if scale is None else output.read.cosine * min(scale, 1 / scale)


def _sum(decisions: Iterable[Agreement | None]) -> Agreement | None:
    known = [decision for decision in decisions if decision is not None]
    return Agreement(sum(one.agreed for one in known), sum(one.of for one in known)) if known else None


class Measuring:
    """Accumulates the metrics of one output sample by sample; holds only sums, whatever the number of samples.

    *is_scores*: its values are class scores.
    """

    def __init__(self, name: str, *, is_scores: bool) -> None:
        self._name, self._is_scores = name, is_scores
        self._read = self._whole = Sums()
        self._lowest: float | None = 1.0
        self._top1: list[Agreement | None] = []
        self._top5: list[Agreement | None] = []
        self._exact: list[Agreement | None] = []

    def add(self, feed: Feed, expected: Array, found: Array) -> None:
        """Add one sample: the inputs, and both models' values.

        Raises:
            StageError: the shape or the kind of values differs.
        """
        whole = read = sums_of(expected, found, self._name)
        keep = _not_padding(feed, expected.shape)
        if keep is not None:
            expected, found = expected[keep], found[keep]
            read = sums_of(expected, found, self._name)
        self._whole += whole
        self._read += read
        alone = read.comparison(self._name, expected.shape).cosine if expected.size > 1 else None
        self._lowest = None if self._lowest is None or alone is None else min(self._lowest, alone)
        if self._is_scores:
            self._top1.append(top(1, expected, found))
            self._top5.append(top(5, expected, found))
        if expected.dtype.kind != "f":
            self._exact.append(Agreement(int((expected == found).sum()), expected.size))

    def figures(self) -> OutputFigures:
        # Flat, because an output's shape may depend on the sample (number of detections).
        read, whole = (sums.comparison(self._name, (sums.count,)) for sums in (self._read, self._whole))
        return OutputFigures(read, whole, self._lowest, _sum(self._top1), _sum(self._top5), _sum(self._exact))


def _not_padding(feed: Feed, shape: tuple[int, ...]) -> NDArray[np.bool_] | None:
    """Return which positions of an output of that *shape* are not padding; None if it has no text positions.

    An output with text positions has the two axes of the attention mask followed by at least one more: an output with
    only batch and feature axes could have the same lengths by chance. If a decoder has a text of its own, the mask may
    not be that of the output.
    """
    mask = feed.get("attention_mask")
    if mask is None or len(shape) < 3 or shape[:2] != mask.shape or "decoder_input_ids" in feed:
        return None
    keep = mask != 0
    return keep if keep.any() else None
