"""How good a quantized model is: what validate measured against the float model, as one value with a sentence.

Light on purpose: builds that have little to do read it from records, without what measures it being imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from winml_dag.canonical import JsonObject, JsonValue

RANDOM = "random"


@dataclass(frozen=True)
class Quality:
    """The output that is farthest from the float model's by cosine, and how often the best class is the same.

    Attributes:
        output: its name.
        cosine: over all of its values of all samples.
        cosine_min: the lowest of a single sample, which a mean hides; None for an output of single numbers.
        sqnr_db: signal to quantization noise; None when there is no noise.
        max_abs_error: the largest difference of a value.
        top1_agreed, top1_of: in how many of how many decisions the class with the highest score is the same, over all
            outputs that are scores of classes; None where there are none.
        samples: how many inputs were run.
        data: their kind, as calibrate has it (text, npz, random).
        held_out: whether calibration has seen none of them.
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
    held_out: bool

    def to_json(self) -> JsonObject:
        return asdict(self)

    @classmethod
    def from_json(cls, value: JsonValue) -> Quality | None:
        """None for what :meth:`to_json` did not write: a record may come from a cache that somebody else filled."""
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
                held_out=value["held_out"] is True,
            )
        except (KeyError, TypeError):
            return None

    def sentence(self) -> str:
        """``cosine 0.99941, SQNR 31.2 dB, largest error 0.02 (logits), top-1 3 of 3, on 3 held-out samples (text)``"""
        parts = [f"cosine {self.cosine:.5f}"]
        if self.sqnr_db is not None:
            parts.append(f"SQNR {self.sqnr_db:.1f} dB")
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
        return f"{self.samples} {noun} ({self.data}) that calibration has seen too"


def _number(value: JsonValue) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is no number")
    return value


def _number_or_none(value: JsonValue) -> float | None:
    return None if value is None else _number(value)


def _count_or_none(value: JsonValue) -> int | None:
    return None if value is None else int(_number(value))
