"""The quality of a quantized model: what validate measured against the float model, as one value and as a sentence.

This module imports nothing heavy: short builds read it from records without importing the measurement code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from winml_dag.canonical import JsonObject, JsonValue
from winml_dag.stages.bounds import REPORTED_SCALE_ERROR, scale_tolerance, too_large_or_small

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
        try:
            return cls(
                output=str(value["output"]),
                cosine=_number(value["cosine"]),
                cosine_min=_number_or_none(value["cosine_min"]),
                sqnr_db=_number_or_none(value["sqnr_db"]),
                max_abs_error=_number(value["max_abs_error"]),
                top1_agreed=_count_or_none(value["top1_agreed"]),
                top1_of=_count_or_none(value["top1_of"]),
                samples=int(_number(value["samples"])),
                data=str(value["data"]),
                held_out=value["held_out"] if isinstance(value["held_out"], bool) else None,
                scale=_number_or_none(value.get("scale")),
            )
        except (KeyError, TypeError):
            return None

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


def _number(value: JsonValue) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is no number")
    return value


def _number_or_none(value: JsonValue) -> float | None:
    return None if value is None else _number(value)


def _count_or_none(value: JsonValue) -> int | None:
    return None if value is None else int(_number(value))
