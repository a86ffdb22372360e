"""The quality of a quantized model: what validate measured against the float model, as one value and as a sentence.

This module also has the thresholds that a model must meet in validate, and their defaults for each precision. It
imports nothing heavy: planning and short builds use it without importing the measurement code.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from winml_dag.canonical import JsonObject, JsonValue

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
MOST_NOISE = 2**-12


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
    """Return the relative error of values that have the right length and this *cosine*; infinite without a bound.

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
        return asdict(self)

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


RANDOM = "random"

# The cosine from which a model of a precision is usually as useful as its float model, by name of the precision. A
# lower value above validate's threshold is not broken, but no user would call it good.
USUAL_COSINE: Mapping[str, float] = {
    "fp16": 0.999,
    "w16a16": 0.999,
    "w8a32": 0.99,
    "w8a16": 0.98,
    "w16a8": 0.95,
    "w8a8": 0.95,
    "dynamic": 0.95,
    "w4a32": 0.95,
    "w4a16": 0.95,
    "w4a8": 0.95,
}
# The best class must be the same in at least this fraction of decisions, if there are at least this many.
_FEWEST_DECISIONS = 10
_USUAL_AGREEMENT = 0.9

# The precision to try if one is not good enough for a model.
_HIGHER: Mapping[str, str] = {
    "w4a8": "w4a16",
    "w4a16": "w8a16",
    "w4a32": "fp16",
    "dynamic": "fp16",
    "w8a8": "w8a16",
    "w16a8": "w16a16",
    "w8a16": "w16a16",
    "w8a32": "fp16",
    "w16a16": "fp16",
}


# The values that JSON has for a field of the type.
_JSON_TYPES: Mapping[str, set[type]] = {
    "str": {str},
    "float": {int, float},
    "int": {int},
    "bool": {bool},
    "None": {type(None)},
}


@dataclass(frozen=True)
class Quality:
    """The output that differs most from the float model's by cosine and scale, and how often the best class agrees.

    Attributes:
        output: its name.
        cosine: over all of its values of all samples.
        cosine_min: the lowest of a single sample, which a mean hides; None for an output of single numbers.
        sqnr_db: signal to quantization noise; None if there is no noise.
        scale: the minimum factor between these values and the float model's; 1 if it may be noise alone, None if there
            is nothing to measure, and in records of older versions.
        max_abs_error: the largest difference of a value.
        top1_agreed, top1_of: in how many of how many decisions the class with the highest score is the same, over all
            outputs with class scores; None if there are none.
        samples: how many inputs were run.
        data: their kind, as calibrate names it (text, npz, random).
        held_out: whether calibration has used none of them; None if unknown.
    """

    output: str
    cosine: float
    cosine_min: float | None
    sqnr_db: float | None
    max_abs_error: float
    top1_agreed: int | None
    top1_of: int | None
    samples: int
    data: str
    held_out: bool | None
    scale: float | None = None

    def to_json(self) -> JsonObject:
        return asdict(self)

    @classmethod
    def from_json(cls, value: JsonValue) -> Quality | None:
        """Parse the JSON of :meth:`to_json`; None if malformed, because a record may come from somebody's cache."""
        if not isinstance(value, Mapping):
            return None
        found: dict[str, Any] = {each.name: value.get(each.name) for each in fields(cls)}
        types = {each.name: str(each.type).split(" | ") for each in fields(cls)}
        fits = all(any(type(found[name]) in _JSON_TYPES[kind] for kind in types[name]) for name in found)
        return cls(**found) if fits else None

    def shortfall(self, precision: str) -> str | None:
        """Return why the model is worse than usual for *precision*; None if it is not."""
        usual = USUAL_COSINE.get(precision)
        if usual is not None and self.cosine < usual:
            return f"cosine {self.cosine:.5f}, where {precision} usually has {usual:g} and more"
        if usual is not None and self._off > scale_tolerance(usual):
            most = f"where {precision} is usually off by {scale_tolerance(usual):.0%} at most"
            return f"{too_large_or_small(self.scale or 1)}, {most}"
        agreed, decisions = self.top1_agreed or 0, self.top1_of or 0
        if self.data != RANDOM and decisions >= _FEWEST_DECISIONS and agreed < _USUAL_AGREEMENT * decisions:
            return f"the best class is another one in {decisions - agreed} of {decisions} decisions"
        return None

    @property
    def _off(self) -> float:
        scale = self.scale or 1.0
        return max(scale, 1 / scale) - 1

    def sentence(self) -> str:
        """``cosine 0.99941, SQNR 31.2 dB, largest error 0.02 (logits), top-1 3 of 3, on 3 held-out samples (text)``"""
        parts = [f"cosine {self.cosine:.5f}"]
        if self.sqnr_db is not None:
            parts.append(f"SQNR {self.sqnr_db:.1f} dB")
        if self.scale is not None and self._off >= REPORTED_SCALE_ERROR:
            parts.append(too_large_or_small(self.scale))
        parts.append(f"largest error {self.max_abs_error:.2g} ({self.output})")
        if self.top1_of:
            parts.append(f"top-1 {self.top1_agreed} of {self.top1_of}")
        return f"{', '.join(parts)}, on {self._samples()}"

    def _samples(self) -> str:
        noun = "sample" if self.samples == 1 else "samples"
        if self.data == RANDOM:
            return f"{self.samples} random {noun}"
        if self.held_out:
            return f"{self.samples} held-out {noun} ({self.data})"
        seen = "may have seen" if self.held_out is None else "has seen too"
        return f"{self.samples} {noun} ({self.data}) that calibration {seen}"


def what_to_try(precision: str, *, calibrated_on: str | None, measured_on: str) -> str:
    """Return the end of a message about a model that falls short.

    Both arguments are kinds of data; *calibrated_on* is None if nothing was calibrated.
    """
    tries = []
    if calibrated_on == RANDOM:
        tries.append("calibrate on real data (quant.calibration_data)")
    elif measured_on == RANDOM:
        tries.append("measure on real data (quant.calibration_data)")
    if higher := _HIGHER.get(precision):
        tries.append(f"use the precision {higher}")
    if calibrated_on is not None:
        tries.append("leave the worst nodes in float (winml-dag quantize --sensitivity ranks them)")
    return f"To try: {'; '.join(tries)}." if tries else ""
