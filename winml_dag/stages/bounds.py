"""What a model has to keep to pass validate: the bounds of a build, those of its precision where it names none, and the
sentence for one that is not kept.

Light on purpose: a plan needs the table, and must not wait for what measures.
"""

from __future__ import annotations

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

# A cosine does not see a result that is twice as large as it should be, whose noise is as large as the signal: 0 dB. At
# a cosine of 0.6, results of the right size have 1 dB.
MINIMUM_SQNR_DB = 0.5


def minimum_cosine(precision: str) -> float:
    """The bound for a model in *precision*."""
    return MINIMUM_COSINE.get(precision, _AS_IT_IS_COSINE)


@dataclass(frozen=True)
class Bounds:
    """What each output has to keep; None is not checked.

    Attributes:
        min_cosine: of the angle to the reference's values.
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
        if self.min_cosine is not None and read.cosine < self.min_cosine:
            yield "min_cosine", f"cosine {read.cosine:.7g}, below validate.min_cosine of {self.min_cosine:.7g}"
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
