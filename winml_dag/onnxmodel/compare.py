"""Compare a candidate's outputs with the reference's, by values and by chosen classes.

Outputs are compared at once, or in chunks if they do not fit into memory. Two classifiers can agree at a low cosine and
disagree at a high one, so :func:`top` counts decisions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from winml_dag.errors import StageError
from winml_dag.onnxmodel.graph import MASK_MAGNITUDE


@dataclass(frozen=True)
class OutputComparison:
    """One output of the candidate compared with the reference's.

    Attributes:
        cosine: 1 for the same direction. Two zero outputs are the same (1), one zero output is not (0); a NaN or an
            infinity that the reference does not have results in 0.
        sqnr_db: signal to quantization noise; infinite if equal, minus infinity if there is noise but no signal.
        max_abs_error: infinite with a NaN or an infinity that the reference does not have.
        nan_count, inf_count: elements that are so only in the candidate.
        scale: the minimum factor between these values and the reference's: 1 as long as noise alone may explain the
            difference; None if the two are too dissimilar.
    """

    name: str
    shape: tuple[int, ...]
    cosine: float
    sqnr_db: float
    max_abs_error: float
    nan_count: int
    inf_count: int
    scale: float | None = 1.0
    largest: float = 0.0


@dataclass(frozen=True)
class Sums:
    """Sums from which two outputs are compared; the sums of chunks add up to those of the whole.

    Energies (sums of squares) and the product (of expected and found values) are of values divided by the largest of
    their kind: squares of very small or large numbers would leave the range of floats.
    """

    count: int = 0
    largest_expected: float = 0.0
    largest_found: float = 0.0
    largest_noise: float = 0.0
    expected_energy: float = 0.0
    found_energy: float = 0.0
    noise_energy: float = 0.0
    product: float = 0.0
    nan_count: int = 0
    inf_count: int = 0

    def __add__(self, other: Sums) -> Sums:
        expected = max(self.largest_expected, other.largest_expected)
        found = max(self.largest_found, other.largest_found)
        noise = max(self.largest_noise, other.largest_noise)
        mine = (_part(self.largest_expected, expected), _part(self.largest_found, found))
        theirs = (_part(other.largest_expected, expected), _part(other.largest_found, found))
        return Sums(
            self.count + other.count,
            expected,
            found,
            noise,
            self.expected_energy * mine[0] ** 2 + other.expected_energy * theirs[0] ** 2,
            self.found_energy * mine[1] ** 2 + other.found_energy * theirs[1] ** 2,
            self.noise_energy * _part(self.largest_noise, noise) ** 2
            + other.noise_energy * _part(other.largest_noise, noise) ** 2,
            self.product * mine[0] * mine[1] + other.product * theirs[0] * theirs[1],
            self.nan_count + other.nan_count,
            self.inf_count + other.inf_count,
        )

    def comparison(self, name: str, shape: tuple[int, ...]) -> OutputComparison:
        if self.nan_count or self.inf_count:
            return OutputComparison(name, shape, 0.0, -math.inf, math.inf, self.nan_count, self.inf_count, None)
        cosine = self._cosine()
        scale, largest = self._scale(cosine), self.largest_expected
        return OutputComparison(name, shape, cosine, self._sqnr_db(), self.largest_noise, 0, 0, scale, largest)

    def _cosine(self) -> float:
        if self.largest_noise == 0:
            return 1.0
        if self.largest_expected == 0 or self.largest_found == 0:
            return 0.0
        return float(np.clip(self.product / math.sqrt(self.expected_energy * self.found_energy), -1.0, 1.0))

    def _scale(self, cosine: float) -> float | None:
        """Return the gain closer to 1 of the two regressions, or 1 if it lies between them. The true gain is in
        between.

        Additive noise makes the values longer by 1 / cosine, and noise that replaces some of them (clipping) shortens
        the rest by the cosine: neither is a wrong scale.
        """
        if self.largest_noise == 0:
            return 1.0
        if cosine <= 0:
            return None
        ratio = math.sqrt(self.found_energy / self.expected_energy) * (self.largest_found / self.largest_expected)
        if ratio * cosine > 1:
            return ratio * cosine
        return min(ratio / cosine, 1.0)

    def _sqnr_db(self) -> float:
        if self.largest_noise == 0:
            return math.inf
        if self.largest_expected == 0:
            return -math.inf
        ratio = self.expected_energy / self.noise_energy
        return 10 * math.log10(ratio) + 20 * (math.log10(self.largest_expected) - math.log10(self.largest_noise))


def _part(largest: float, of: float) -> float:
    return largest / of if of else 0.0


def sums_of(reference: NDArray[np.generic], candidate: NDArray[np.generic], name: str) -> Sums:
    """Compute the sums that compare values of the output *name*.

    An element that the reference masks (infinite, or beyond :data:`MASK_MAGNITUDE`) counts as the most extreme of its
    unmasked elements, on both sides: a candidate that masks it less strongly is correct, one that does not mask it is
    wrong. Elements that are NaN in the reference are skipped.

    Raises:
        StageError: the shape or the kind of values differs.
    """
    if reference.shape != candidate.shape:
        raise StageError(
            f"Output {name!r} has shape {list(candidate.shape)}, but the reference's is {list(reference.shape)}."
        )
    for values in (reference, candidate):
        if values.dtype.kind not in "fiub":
            raise StageError(f"Output {name!r} has values of type {values.dtype}, which cannot be compared as numbers.")
    expected, found = reference.astype(np.float64).ravel(), candidate.astype(np.float64).ravel()
    known = ~np.isnan(expected)  # the rest cannot be compared
    expected, found = expected[known], found[known]
    masked = np.abs(expected) > MASK_MAGNITUDE
    if masked.any():
        free = expected[~masked]
        low, high = (free.min(), free.max()) if free.size else (0.0, 0.0)
        expected = np.clip(expected, low, high)
        found = np.where(masked, np.clip(found, low, high), found)
    nan_count = int(np.isnan(found).sum())
    inf_count = int(np.isinf(found).sum())
    if nan_count or inf_count:
        return Sums(reference.size, nan_count=nan_count, inf_count=inf_count)
    noise = found - expected
    expected, largest_expected = _scaled(expected)
    found, largest_found = _scaled(found)
    noise, largest_noise = _scaled(noise)
    return Sums(
        reference.size,
        largest_expected,
        largest_found,
        largest_noise,
        expected_energy=float(expected @ expected),
        found_energy=float(found @ found),
        noise_energy=float(noise @ noise),
        product=float(expected @ found),
    )


def _scaled(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
    """Return *values* divided by the largest magnitude, and that magnitude."""
    largest = float(np.abs(values).max(initial=0.0))
    return (values / largest if largest else values), largest


_SCORES = "logits"


@dataclass(frozen=True)
class Agreement:
    """In ``agreed`` of ``of`` decisions the class with the highest score was the same."""

    agreed: int
    of: int


def class_scores(names: Sequence[str], *, classifies: bool) -> frozenset[str]:
    """Return which of the outputs *names* are class scores: those called logits, else the first one of a classifier.

    Positions of an answer (``start_logits``) count too: the decision is then which position wins.
    """
    found = frozenset(name for name in names if name == _SCORES or name.endswith(f"_{_SCORES}"))
    return found or frozenset(names[:1] if classifies else ())


def top(most: int, reference: NDArray[np.generic], candidate: NDArray[np.generic]) -> Agreement | None:
    """Count how often the best class of the reference is among the *most* best of the candidate, of the same shape.

    The classes are the last axis, or of four axes the second: scores of pixels. If several classes of the reference
    share the highest score, any of them is correct. Decisions with NaN in the reference are skipped; those with NaN in
    the candidate are wrong. Returns None if there are no more than *most* classes.
    """
    if reference.ndim == 0 or reference.dtype.kind != "f" or candidate.dtype.kind != "f":
        return None
    axis = 1 if reference.ndim == 4 else -1
    if reference.shape[axis] <= most:
        return None
    expected, found = np.moveaxis(reference, axis, -1), np.moveaxis(candidate, axis, -1)
    known = ~np.isnan(expected).any(axis=-1)
    best = expected.max(axis=-1, keepdims=True)
    chosen = (
        found.argmax(axis=-1, keepdims=True)
        if most == 1
        else np.argpartition(-found.astype(np.float64), most)[..., :most]
    )
    right = (np.take_along_axis(expected, chosen, axis=-1) == best).any(axis=-1)
    # Sorting would treat NaN as a choice.
    decided = ~np.isnan(found).any(axis=-1)
    return Agreement(int((right & known & decided).sum()), int(known.sum()))
