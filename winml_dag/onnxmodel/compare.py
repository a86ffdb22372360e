"""How far a candidate's outputs are from the reference's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from winml_dag.canonical import JsonObject
from winml_dag.errors import StageError

# Models write "never choose this" as -inf or as the lowest float (-3.4e38). No measured quantity is that large.
MASK_MAGNITUDE = 1e30


@dataclass(frozen=True)
class OutputComparison:
    """One output of the candidate against the reference's.

    Attributes:
        cosine: 1 for the same direction. Two zero outputs are the same (1), one zero output is not (0); a NaN or an
            infinity that the reference does not have makes it 0.
        sqnr_db: signal to quantization noise; infinite when equal, minus infinity when there is noise but no signal.
        max_abs_error: infinite with a NaN or an infinity that the reference does not have.
        nan_count, inf_count: elements that are so in the candidate only.
    """

    name: str
    shape: tuple[int, ...]
    cosine: float
    sqnr_db: float
    max_abs_error: float
    nan_count: int
    inf_count: int

    def to_json(self) -> JsonObject:
        """JSON has no infinity: it becomes null."""
        return {
            "name": self.name,
            "shape": list(self.shape),
            "cosine": self.cosine,
            "sqnr_db": self.sqnr_db if np.isfinite(self.sqnr_db) else None,
            "max_abs_error": self.max_abs_error if np.isfinite(self.max_abs_error) else None,
            "nan_count": self.nan_count,
            "inf_count": self.inf_count,
        }


def compare(
    reference: Sequence[NDArray[np.generic]], candidate: Sequence[NDArray[np.generic]], names: Sequence[str]
) -> tuple[OutputComparison, ...]:
    """Compare output by output.

    An element that the reference masks (infinite, or beyond :data:`MASK_MAGNITUDE`) counts as the most extreme of its
    unmasked elements, on both sides: a candidate that masks it less strongly is right, one that does not mask it is
    wrong. An element that is NaN in the reference is left out.

    Raises:
        StageError: when the number of outputs, a shape or the kind of values differs.
    """
    if not len(reference) == len(candidate) == len(names):
        raise StageError(f"The reference has {len(reference)} outputs, the candidate {len(candidate)}.")
    return tuple(
        _compare(expected, found, name) for expected, found, name in zip(reference, candidate, names, strict=True)
    )


def _compare(reference: NDArray[np.generic], candidate: NDArray[np.generic], name: str) -> OutputComparison:
    if reference.shape != candidate.shape:
        raise StageError(
            f"Output {name!r} has shape {list(candidate.shape)}, but the reference's is {list(reference.shape)}."
        )
    for values in (reference, candidate):
        if values.dtype.kind not in "fiub":
            raise StageError(f"Output {name!r} has values of type {values.dtype}, which cannot be compared as numbers.")
    expected, found = reference.astype(np.float64).ravel(), candidate.astype(np.float64).ravel()
    known = ~np.isnan(expected)  # nothing can be said about the rest
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
        return OutputComparison(name, reference.shape, 0.0, -np.inf, np.inf, nan_count, inf_count)
    noise = found - expected
    max_abs_error = float(np.abs(noise).max(initial=0.0))
    return OutputComparison(
        name, reference.shape, _cosine(expected, found), _sqnr_db(expected, noise), max_abs_error, 0, 0
    )


def _cosine(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    if np.array_equal(a, b):
        return 1.0
    largest_a, largest_b = np.abs(a).max(), np.abs(b).max()
    if largest_a == 0 or largest_b == 0:
        return 0.0
    a, b = a / largest_a, b / largest_b  # squares of very small or large numbers would leave the range of floats
    return float(np.clip(a @ b / np.sqrt((a @ a) * (b @ b)), -1.0, 1.0))


def _sqnr_db(signal: NDArray[np.float64], noise: NDArray[np.float64]) -> float:
    largest_noise = np.abs(noise).max(initial=0.0)
    if largest_noise == 0:
        return float("inf")
    largest_signal = np.abs(signal).max(initial=0.0)
    if largest_signal == 0:
        return -float("inf")
    signal, noise = signal / largest_signal, noise / largest_noise
    ratio = (signal @ signal) / (noise @ noise)
    return float(10 * np.log10(ratio) + 20 * (np.log10(largest_signal) - np.log10(largest_noise)))
