"""Runs a quantized model before it counts: without graph optimizations and with them, it has to give the same values.

onnxruntime fuses Q, DQ and what is between them into integer kernels. A scale of the wrong shape fails in the one form
and is never looked at in the other, and a fusion may compute something else. Either is wrong for somebody.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from winml_dag.errors import InputError, StageError
from winml_dag.explanation import explanation
from winml_dag.onnxmodel.feeds import model_inputs, random_feeds
from winml_dag.stages.float_model import open_session

_Array = NDArray[np.generic]

# Results of the two forms may differ by this part of their magnitude, and this many times what quantization changes.
# Of 54 sound models (9 networks of 20 to 100 layers in 6 precisions), those that differed most did so by 0.04 of their
# magnitude, where quantization changed 0.16 of it.
_APART = 0.1
_NOISES = 3.0

_ADVICE = "Leave what computes it out with quant.op_types_to_exclude or nodes_to_exclude, or use precision fp16."


@dataclass
class _Float:
    """The model that was quantized, and random values for its inputs."""

    path: Path
    feeds: Mapping[str, _Array]

    @cached_property
    def results(self) -> Sequence[_Array] | None:
        """None where it does not run on them: lengths may depend on each other, or integers be places in a table."""
        try:
            return _run(open_session(self.path, "the model"), self.feeds)
        except Exception:  # onnxruntime's errors have no base class of their own
            return None


def check_sound(quantized: Path, original: Path, what: str, *, optimized: bool) -> None:
    """Raise StageError unless the model *quantized* (in sentences: *what*) runs and is finite where *original* is;
    *optimized*: with graph optimizations too, and about the same values.

    Inputs are random. Where *original* does not run on such, or there are none (of texts), it need only load.
    """
    first = open_session(quantized, what)
    try:
        reference = _Float(original, next(random_feeds(model_inputs(original), seed=0, count=1)))
    except InputError:
        if optimized:
            open_session(quantized, f"{what} with graph optimizations", optimized=True)
        return
    names = [output.name for output in first.get_outputs()]
    results = _results(first, reference, what, names)
    del first  # one model in memory at a time
    if optimized:
        with_them = f"{what} with graph optimizations"
        others = _results(open_session(quantized, with_them, optimized=True), reference, with_them, names)
        if results is not None and others is not None:
            _compare(results, others, reference, what, names)


def _results(
    session: ort.InferenceSession, reference: _Float, what: str, names: Sequence[str]
) -> Sequence[_Array] | None:
    """None where the float model does not run either."""
    try:
        results = _run(session, reference.feeds)
    except Exception as error:  # onnxruntime's errors have no base class of their own
        if reference.results is None:
            return None
        raise StageError(
            f"onnxruntime loads {what}, but does not run it: {explanation(error)}.", advice=_ADVICE
        ) from error
    if all(np.isfinite(result).all() for result in results if result.dtype.kind == "f"):
        return results
    for name, result, expected in zip(names, results, reference.results or (), strict=False):
        if result.dtype.kind == "f" and (~np.isfinite(result) & np.isfinite(expected)).any():
            raise StageError(
                f"In {what}, output {name!r} has values that are infinite or no number where float32 has none.",
                advice="Keep the operators that overflow in float32: quant.fp16_op_block_list or nodes_to_exclude.",
            )
    return results


def _compare(
    results: Sequence[_Array], others: Sequence[_Array], reference: _Float, what: str, names: Sequence[str]
) -> None:
    for index, name in enumerate(names):
        one, other = results[index], others[index]
        if one.dtype.kind != "f" or one.shape != other.shape or not one.size:
            continue
        apart = _distance(one, other)
        if apart <= _APART * _distance(one) or reference.results is None:
            continue
        expected = reference.results[index]
        noise = min(_distance(one, expected), _distance(other, expected))
        if apart > _APART * _distance(expected) + _NOISES * noise:
            raise StageError(
                f"Graph optimizations of onnxruntime change output {name!r} of {what} by"
                f" {apart / _distance(expected):.0%} of its magnitude, which is more than quantization explains.",
                advice=_ADVICE,
            )


def _distance(one: _Array, other: _Array | float = 0.0) -> float:
    """Between what of both is finite: the root of the sum of squares."""
    difference = one.astype(np.float64) - np.asarray(other, np.float64)
    return float(np.linalg.norm(difference[np.isfinite(difference)]))


def _run(session: ort.InferenceSession, feeds: Mapping[str, _Array]) -> Sequence[_Array]:
    """The outputs for *feeds* in the types that the model takes; an empty array in place of what is no tensor."""
    half = {argument.name for argument in session.get_inputs() if argument.type == "tensor(float16)"}
    cast = {name: array.astype(np.float16) if name in half else array for name, array in feeds.items()}
    return [found if isinstance(found, np.ndarray) else np.empty(0) for found in session.run(None, cast)]
