"""What a model has to keep to pass validate: the bounds of a build, those of its precision where it names none, and the
sentence for one that is not kept.

Light on purpose: a plan needs the table, and must not wait for what measures.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from winml_dag.canonical import JsonObject

if TYPE_CHECKING:
    from winml_dag.stages.figures import OutputFigures

# The cosine between all of an output's values and the float model's, over all samples, below which a model is taken to
# be broken rather than less exact. What was measured on 3 samples, on the CPU, the lowest of both providers' rules (cpu
# and qnn): the lowest of random BERT, ViT and ResNet; a real sentence encoder of 22 M parameters on sentences; the same
# calibrated and measured on random tokens.
#   fp16    0.99999 1.0     1.0        w16a16  0.99999 0.99998 0.99996    w8a32   0.9998  0.9998  0.999
#   w8a16   0.9994  0.987   0.944      w16a8   0.959   0.989   0.959      w8a8    0.952   0.974   0.913
#   dynamic 0.9996  0.981   0.917      w4a32   0.898   0.956   0.836      w4a16   0.898   0.925   0.764
#   w4a8    0.921   0.904   0.732
# An attention mask of -3.4e38 that was quantized along gives the encoder 0.65 for w8a16 and about 0.4 for w8a8. So the
# bounds of these two lie between sound and broken models; the others are below the lowest value seen, with a margin.
# fp32 is no tighter than fp16: an NPU computes both in half precision. A model that is between its bound and what its
# precision usually has (USUAL_COSINE) passes, and its user is told.
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

# Of a model that came quantized and is held against itself on another provider. Integers that are rounded otherwise
# leave 0.9998 of the encoder in w8a16, 0.98 in w8a8, and 0.76 in w8a8 throughout, of which random tokens leave 0.54.
AS_IT_IS = "as it is"
_AS_IT_IS_COSINE = 0.6

# Hardly less noise than signal: at a cosine of 0.6, values of the right scale have 1 dB.
MINIMUM_SQNR_DB = 0.5

# A relative error of the scale below this is not reported.
REPORTED_SCALE_ERROR = 0.01

# The relative size of an error that is one of rounding, by the bits of a precision: of the values that an output is
# computed from. See :mod:`winml_dag.stages.magnitude`.
_ROUNDING: Mapping[int, float] = {4: 2**-3, 8: 2**-6, 16: 2**-9, 32: 2**-18}


def minimum_cosine(precision: str) -> float:
    """The bound for a model in *precision*."""
    return MINIMUM_COSINE.get(precision, _AS_IT_IS_COSINE)


def rounding(precision: str, *, in_half: bool) -> float:
    """The relative size of rounding errors in *precision*; *in_half*: where fp32 may be computed in float16."""
    if precision == "fp32":
        return _ROUNDING[16 if in_half else 32]
    bits = 16 if precision in ("fp16", "w16a16") else 4 if precision.startswith("w4") else 8
    return _ROUNDING[bits]


def scale_tolerance(cosine: float) -> float:
    """The relative error of values that have the right length and this *cosine*; infinite where that asks for nothing.

    The scale of an output may be wrong by as much: w8a8, whose bound is 0.8, fails from 1.63 times on. The scale of a
    good model is hardly wrong at all. Measured on a sentence encoder of 22 M parameters (calibrated on sentences) on
    sentences, and on random tokens for which its ranges are not made: w8a16 1.00 and 1.08; w16a8 1.00 and 1.10; w8a8
    1.00 and 1.06, also where every activation has 8 bits (cosine 0.84 and 0.70); dynamic, w4a32, w4a16, w4a8 1.00 and
    1.00. A QNN model with a wrong scale behind Reciprocal or a dropped addition of zero is 2 to 10 times off.
    """
    return math.sqrt(2 * (1 - cosine)) if cosine > 0 else math.inf


def too_large_or_small(scale: float) -> str:
    """``values are 4 times too small``"""
    return f"values are {max(scale, 1 / scale):.3g} times too {'large' if scale > 1 else 'small'}"


@dataclass(frozen=True)
class Bounds:
    """What each output has to keep; None is not checked.

    Attributes:
        min_cosine: of the angle to the reference's values; and by :func:`scale_tolerance` of their scale, which an
            angle does not see, and of the relative error of single numbers, which have none.
        min_sqnr_db: signal to quantization noise.
        max_abs_error: the largest difference of a single value.
        min_top1_agreement: the part of decisions with the same best class; of outputs that are scores of classes.
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
        """These, with those of *precision*: of the cosine where none is given, of the noise where neither is."""
        if self.min_cosine is not None:
            return self
        least = MINIMUM_SQNR_DB if self.min_sqnr_db is None else self.min_sqnr_db
        return replace(self, min_cosine=minimum_cosine(precision), min_sqnr_db=least)

    def broken_by(self, output: OutputFigures) -> Iterator[tuple[str, str]]:
        """For each bound that *output* does not keep: its name, and words for the figure and the bound."""
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
    """As :meth:`Bounds.broken_by`, of a cosine of *least*."""
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
