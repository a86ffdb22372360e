"""The thresholds that a model must meet in validate, their defaults for each precision, and the failure messages.

This module imports nothing heavy: planning needs the table and must not wait for the measurement code.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from winml_dag.canonical import JsonObject

if TYPE_CHECKING:
    from winml_dag.stages.figures import OutputFigures

# The minimum cosine between all values of an output and the float model's, over all samples. Below it, a model counts
# as broken rather than imprecise. Measured on 3 samples, on the CPU, lowest of both providers' rules (cpu and qnn). The
# three columns: lowest of random BERT, ViT and ResNet; a real sentence encoder of 22 M parameters on sentences; the
# same encoder calibrated and measured on random tokens.
#   fp16    0.99999 1.0     1.0        w16a16  0.99999 0.99998 0.99996    w8a32   0.9998  0.9998  0.999
#   w8a16   0.9994  0.987   0.944      w16a8   0.959   0.989   0.959      w8a8    0.952   0.974   0.913
#   dynamic 0.9996  0.981   0.917      w4a32   0.898   0.956   0.836      w4a16   0.898   0.925   0.764
#   w4a8    0.921   0.904   0.732
# An attention mask of -3.4e38 that is included in quantization lowers the encoder to 0.65 for w8a16 and about 0.4 for
# w8a8. The thresholds of these two precisions lie between intact and broken models; the others are below the lowest
# measured value, with a margin. fp32 is no stricter than fp16 because an NPU computes both in half precision. A model
# between its threshold and what is usual for its precision (USUAL_COSINE) passes with a warning.
MINIMUM_COSINE: Mapping[str, float] = {
    "fp32": 0.999,
    "fp16": 0.999,
    "w16a16": 0.99,
    "w8a32": 0.95,
    "w8a16": 0.85,
    "w16a8": 0.8,
    "w8a8": 0.8,
    "dynamic": 0.8,
    "w4a32": 0.7,
    "w4a16": 0.6,
    "w4a8": 0.6,
}

# For a model that was already quantized and is compared with itself on another provider. Different rounding of integers
# leaves the encoder at 0.9998 in w8a16, 0.98 in w8a8, and 0.76 in w8a8 throughout (0.54 on random tokens).
AS_IT_IS = "as it is"
_AS_IT_IS_COSINE = 0.6

# Barely less noise than signal: at a cosine of 0.6, values of the right scale have 1 dB.
MINIMUM_SQNR_DB = 0.5

# A smaller relative error of the scale is not reported.
REPORTED_SCALE_ERROR = 0.01

# Relative size of a rounding error by bits of precision, relative to the values that an output is computed from. See
# :mod:`winml_dag.stages.magnitude`.
_ROUNDING: Mapping[int, float] = {4: 2**-3, 8: 2**-6, 16: 2**-9, 32: 2**-18}


def minimum_cosine(precision: str) -> float:
    """Return the minimum cosine for a model in *precision*."""
    return MINIMUM_COSINE.get(precision, _AS_IT_IS_COSINE)


def rounding(precision: str, *, in_half: bool) -> float:
    """Return the relative size of rounding errors in *precision*; *in_half*: fp32 may be computed in float16."""
    if precision == "fp32":
        return _ROUNDING[16 if in_half else 32]
    bits = 16 if precision in ("fp16", "w16a16") else 4 if precision.startswith("w4") else 8
    return _ROUNDING[bits]


def scale_tolerance(cosine: float) -> float:
    """Return the relative error of values that have the right length and this *cosine*; infinite if that is no limit.

    The scale of an output may be wrong by the same amount: w8a8, whose minimum is 0.8, fails from 1.63 times. The scale
    of a good model is almost exact. Measured on a sentence encoder of 22 M parameters (calibrated on sentences), on
    sentences and on random tokens outside its ranges: w8a16 1.00 and 1.08; w16a8 1.00 and 1.10; w8a8 1.00 and 1.06,
    also with 8 bits for every activation (cosine 0.84 and 0.70); dynamic, w4a32, w4a16, w4a8 1.00 and 1.00. A QNN model
    with a wrong scale after Reciprocal or a dropped addition of zero is off by a factor of 2 to 10.
    """
    return math.sqrt(2 * (1 - cosine)) if cosine > 0 else math.inf


def too_large_or_small(scale: float) -> str:
    """``values are 4 times too small``"""
    return f"values are {max(scale, 1 / scale):.3g} times too {'large' if scale > 1 else 'small'}"


@dataclass(frozen=True)
class Bounds:
    """The thresholds for each output; None disables a check.

    Attributes:
        min_cosine: cosine to the reference's values. It also limits the error of their scale (see
            :func:`scale_tolerance`), which a cosine does not show, and the relative error of single numbers, which have
            no cosine.
        min_sqnr_db: signal to quantization noise.
        max_abs_error: the largest difference of a single value.
        min_top1_agreement: the fraction of decisions with the same best class, for outputs that are class scores.
    """

    min_cosine: float | None = None
    min_sqnr_db: float | None = None
    max_abs_error: float | None = None
    min_top1_agreement: float | None = None

    def to_json(self) -> JsonObject:
        return {
            "min_cosine": self.min_cosine,
            "min_sqnr_db": self.min_sqnr_db,
            "max_abs_error": self.max_abs_error,
            "min_top1_agreement": self.min_top1_agreement,
        }

    def completed(self, precision: str) -> Bounds:
        """Return these thresholds with the defaults of *precision* filled in.

        The default minimum cosine applies if none is given, the default minimum SQNR if neither is given.
        """
        if self.min_cosine is not None:
            return self
        least = MINIMUM_SQNR_DB if self.min_sqnr_db is None else self.min_sqnr_db
        return replace(self, min_cosine=minimum_cosine(precision), min_sqnr_db=least)

    def broken_by(self, output: OutputFigures) -> Iterator[tuple[str, str]]:
        """Yield the name of each threshold that *output* does not meet, with a text that has value and limit."""
        read = output.read
        if self.min_cosine is not None:
            yield from _far(output, self.min_cosine)
        if self.min_sqnr_db is not None and read.sqnr_db < self.min_sqnr_db:
            yield (
                "min_sqnr_db",
                f"signal to noise {read.sqnr_db:.4g} dB, below validate.min_sqnr_db of {self.min_sqnr_db:.4g}",
            )
        if self.max_abs_error is not None and read.max_abs_error > self.max_abs_error:
            yield (
                "max_abs_error",
                f"largest error {read.max_abs_error:.4g}, above validate.max_abs_error of {self.max_abs_error:.4g}",
            )
        decisions, least = output.top1, self.min_top1_agreement
        if least is not None and decisions is not None and decisions.agreed < least * decisions.of:
            yield (
                "min_top1_agreement",
                f"the same best class in {decisions.agreed} of {decisions.of} decisions, below"
                f" validate.min_top1_agreement of {least:.4g}",
            )


def _far(output: OutputFigures, least: float) -> Iterator[tuple[str, str]]:
    """Check a minimum cosine of *least*; yields the same as :meth:`Bounds.broken_by`."""
    allowed, scale = scale_tolerance(least), output.scale
    if output.relative_error is not None:
        if output.relative_error > allowed:
            words = f"error {output.relative_error:.3g} times as large as the values, which are single numbers"
            yield "min_cosine", f"{words}; validate.min_cosine of {least:.7g} allows {allowed:.3g}"
        return
    if output.read.cosine < least:
        yield "min_cosine", f"cosine {output.read.cosine:.7g}, below validate.min_cosine of {least:.7g}"
    if scale is not None and max(scale, 1 / scale) > 1 + max(allowed, REPORTED_SCALE_ERROR):
        allows = f"where validate.min_cosine of {least:.7g} allows {1 + allowed:.3g} times"
        yield "scale", f"{too_large_or_small(scale)}, {allows}"
