"""Run a model on samples, one by one or in batches, alone or side by side with its reference.

Collects metrics of its outputs, and non-finite values.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from winml_dag.engine.exchange import OnProgress, no_progress
from winml_dag.errors import StageError
from winml_dag.explanation import explanation
from winml_dag.onnxmodel.feeds import model_inputs
from winml_dag.onnxmodel.inspect import TensorSpec
from winml_dag.stages.figures import Measuring, OutputFigures
from winml_dag.stages.samples.samples import Array, Feed, Samples, failures_explained

if TYPE_CHECKING:
    import onnxruntime

_OVERFLOW = "Half precision overflows beyond 65504: try optim.clamp_constant_values, or a quantized precision."


def run_model(session: onnxruntime.InferenceSession, names: Sequence[str], feed: Feed) -> list[Array]:
    """Return the outputs *names* for *feed*, with its floats converted to the model's float type.

    A float16 model takes float16 where the model that it was made from takes float32. Raises StageError if the inputs
    have other names, or the model does not run.
    """
    dtypes = {spec.name: spec.dtype for spec in model_inputs(session)}
    if dtypes.keys() != feed.keys():
        raise StageError(
            f"The model has the inputs {', '.join(sorted(dtypes))}, but its reference has {', '.join(sorted(feed))}."
        )
    try:
        values: list[Array] = session.run(
            list(names), {name: value.astype(dtypes[name], copy=False) for name, value in feed.items()}
        )
    except Exception as error:
        raise StageError(f"The model loads but does not run: {explanation(error)}.") from error
    return values


@dataclass(frozen=True)
class Batching:
    """How many samples go into a model at once.

    ``size`` is fixed by the model, or chosen if its first axes are free. It is 1 for a model without such an axis,
    whose inputs are one sample.
    """

    size: int
    is_fixed: bool

    @classmethod
    def of(cls, session: onnxruntime.InferenceSession, wanted: int, *, whole: bool) -> Batching:
        """Determine the batch size from the inputs and outputs of *session*.

        With *whole*, all that a model with a fixed batch takes is one sample. Raises StageError if the model cannot
        take *wanted* samples at once.
        """
        inputs = [spec.shape[0] if spec.shape else None for spec in model_inputs(session)]
        outputs = [output.shape[0] if output.shape else None for output in session.get_outputs()]
        first = inputs[0] if inputs else None
        together = all(size == first for size in inputs)
        if isinstance(first, int) and together and all(size == first for size in outputs) and not whole:
            if wanted not in (1, first):
                raise StageError(
                    f"The model takes {first} at once, and a batch of {wanted} was asked for.",
                    advice="Leave --batch-size out, or export the model with a dynamic batch axis.",
                )
            return cls(first, is_fixed=True)
        if wanted > 1 and not all(isinstance(size, str) for size in inputs):
            raise StageError(
                f"A batch of {wanted} was asked for, and the model's inputs have no free first axis.",
                advice="Leave --batch-size out, or export the model with a dynamic batch axis.",
            )
        return cls(wanted, is_fixed=False)

    def of_one(self, inputs: Sequence[TensorSpec]) -> list[TensorSpec]:
        """Return the input specs of a single sample of a batch."""
        if not self.is_fixed:
            return list(inputs)
        return [replace(spec, shape=(1, *spec.shape[1:])) for spec in inputs]

    def run(
        self, session: onnxruntime.InferenceSession, names: Sequence[str], feeds: Sequence[Feed]
    ) -> Iterator[list[Array]]:
        """Yield the outputs *names* for each of *feeds*.

        A batch contains only samples of one shape; a batch that is too small for the model is padded with its last
        sample. Raises StageError as :func:`run_model`, and for an output that has no row for each sample.
        """
        begin = 0
        while begin < len(feeds):
            together = self._alike(feeds[begin : begin + self.size])
            yield from self._run_together(session, names, together)
            begin += len(together)

    def _alike(self, feeds: Sequence[Feed]) -> Sequence[Feed]:
        """Return the leading feeds that have one shape."""
        shapes = [{name: array.shape for name, array in feed.items()} for feed in feeds]
        return feeds[: next((at for at, shape in enumerate(shapes) if shape != shapes[0]), len(feeds))]

    def _run_together(
        self, session: onnxruntime.InferenceSession, names: Sequence[str], feeds: Sequence[Feed]
    ) -> Iterator[list[Array]]:
        if self.size == 1:
            yield run_model(session, names, feeds[0])
            return
        rows = [*feeds, *([feeds[-1]] * (self.size - len(feeds) if self.is_fixed else 0))]
        outputs = run_model(session, names, {name: np.concatenate([row[name] for row in rows]) for name in rows[0]})
        for name, output in zip(names, outputs, strict=True):
            if output.ndim == 0 or output.shape[0] != len(rows):
                raise StageError(
                    f"Output {name!r} of {len(rows)} samples has the shape {list(output.shape)}: not one for each.",
                    advice="Evaluate without --batch-size.",
                )
        for at in range(len(feeds)):
            yield [output[at : at + 1] for output in outputs]


@dataclass(frozen=True)
class Odd:
    """How many values of an output are NaN or infinite."""

    nan: int = 0
    infinite: int = 0

    @classmethod
    def of(cls, values: Array) -> Odd:
        if values.dtype.kind != "f":
            return cls()
        return cls(int(np.isnan(values).sum()), int(np.isinf(values).sum()))

    def __add__(self, other: Odd) -> Odd:
        return Odd(self.nan + other.nan, self.infinite + other.infinite)

    def __bool__(self) -> bool:
        return bool(self.nan or self.infinite)

    def __str__(self) -> str:
        return f"{self.nan} NaN and {self.infinite} infinite values"


@dataclass(frozen=True)
class Measured:
    """Metrics of every output, and the non-finite values of the reference and of the model by output."""

    outputs: tuple[OutputFigures, ...]
    reference: dict[str, Odd]
    found: dict[str, Odd]

    def require_numbers(self, words: str) -> None:
        """Raise StageError for NaN and infinities from either model; *words* describe the inputs.

        Infinities in the reference alone are allowed: integers cannot hold them, so a quantized model has a number
        instead of a mask. At least one value must remain to compare.
        """
        for output in self.outputs:
            whole, (count,) = output.whole, output.whole.shape
            found, reference = self.found[whole.name], self.reference[whole.name]
            own = Odd(whole.nan_count, whole.inf_count) or (Odd() if reference else found)
            if own:
                raise StageError(
                    f"Output {whole.name!r} has {own} on {words} where the reference has numbers.", advice=_OVERFLOW
                )
            if found or reference.nan or (count and reference.infinite == count):
                raise StageError(
                    f"Output {whole.name!r} of the float model has {reference} on {words}. That is the model as it was"
                    " before anything was done to it, on the CPU.",
                    advice="Give inputs that make sense to it (validate.input_data). If it has them on those too,"
                    " repair the model; if they are intended, --no-validate builds it as it is.",
                )

    def warnings(self, words: str) -> Iterator[str]:
        """Yield a message for each output that is infinite only in the reference."""
        for name, odd in self.reference.items():
            if odd:
                yield (
                    f"Output {name!r} of the float model has {odd} on {words}, and of the result it has none: what is"
                    " infinite counts as the largest number."
                )


def threads_of_each() -> int:
    """Return the threads of each of two sessions on the CPU that run side by side."""
    usable = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return max(1, usable // 2)


class Pair:
    """Sessions of a model and its reference, which have the outputs *names* and take *batch_size* samples at once.

    *give*: the recipe fields that take real data, for messages.
    """

    def __init__(
        self,
        reference: onnxruntime.InferenceSession,
        candidate: onnxruntime.InferenceSession,
        batch_size: int = 1,
        give: str = "validate.input_data or quant.calibration_data",
    ) -> None:
        """Raises StageError if their output names differ."""
        expected, found = _names(reference), _names(candidate)
        if set(expected) != set(found):
            raise StageError(
                f"The model has the outputs {', '.join(found)}, but its reference has {', '.join(expected)}."
            )
        self.names = expected
        self._reference = reference
        self._candidate = candidate
        self._batching = Batching(batch_size, is_fixed=False)
        self._give = give

    def leave_out_random(self, feed: Feed) -> list[str]:
        """Exclude the outputs that differ when the reference itself runs again; return their names.

        Raises StageError if the reference does not run.
        """
        once, again = (run_model(self._reference, self.names, feed) for _ in range(2))
        pairs = zip(self.names, once, again, strict=True)
        differing = [name for name, first, second in pairs if _tensor(name, first).tobytes() != second.tobytes()]
        self.names = [name for name in self.names if name not in differing]
        return differing

    def measure(self, feeds: Samples, scores: Collection[str], progress: OnProgress = no_progress) -> Measured:
        """Run both models. *scores*: outputs whose values are class scores.

        Raises StageError if one of them does not run, or an output has another shape or kind of values.
        """
        outputs = [Measuring(name, is_scores=name in scores) for name in self.names]
        reference, candidate = ({name: Odd() for name in self.names} for _ in range(2))
        for feed, expected, found in self._side_by_side(feeds, progress):
            for name, output, wanted, got in zip(self.names, outputs, expected, found, strict=True):
                _require_alike(name, wanted, got)
                reference[name] += Odd.of(wanted)
                candidate[name] += Odd.of(got)
                output.add(feed, wanted, got)
        progress(feeds.count, feeds.count, "samples")
        return Measured(tuple(output.figures() for output in outputs), reference, candidate)

    def _side_by_side(
        self, feeds: Samples, progress: OnProgress
    ) -> Iterator[tuple[Feed, Sequence[Array], Sequence[Array]]]:
        """Yield each of *feeds* with the outputs of both models, which run at the same time."""
        done, left = 0, iter(feeds)
        with ThreadPoolExecutor(1) as aside:
            while chunk := list(islice(left, self._batching.size)):
                progress(done, feeds.count, "samples")
                running = aside.submit(self._run, self._candidate, chunk)
                with failures_explained(feeds.kind, self._give):
                    of_reference = self._run(self._reference, chunk)
                # The inputs are good enough for the reference, so a failure here has another reason.
                yield from zip(chunk, of_reference, running.result(), strict=True)
                done += len(chunk)

    def _run(self, session: onnxruntime.InferenceSession, chunk: Sequence[Feed]) -> list[list[Array]]:
        return list(self._batching.run(session, self.names, chunk))


def run_alone(
    session: onnxruntime.InferenceSession, feeds: Samples, words: str, progress: OnProgress = no_progress
) -> None:
    """Run a model that has no reference on *feeds*, which *words* describe.

    Raises StageError if the model does not run, or outputs NaN or infinities.
    """
    names = _names(session)
    for done, feed in enumerate(feeds):
        progress(done, feeds.count, "samples")
        with failures_explained(feeds.kind):
            outputs = run_model(session, names, feed)
        for name, values in zip(names, outputs, strict=True):
            if odd := Odd.of(_tensor(name, values)):
                raise StageError(
                    f"Output {name!r} has {odd} on {words}, and there is no reference that has them too.",
                    advice="Give inputs that make sense to the model (validate.input_data), or the model that it was"
                    " made from as the reference.",
                )
    progress(feeds.count, feeds.count, "samples")


def ones(sample: Feed) -> Samples:
    """Return one sample like *sample* with every float set to 1.

    Integers are unchanged, because the valid ones are not known.
    """
    return Samples.one_by_one(
        "ones", 1, lambda _: {name: np.ones_like(v) if v.dtype.kind == "f" else v for name, v in sample.items()}
    )


def _names(session: onnxruntime.InferenceSession) -> list[str]:
    return [output.name for output in session.get_outputs()]


def _require_alike(name: str, expected: Array, found: Array) -> None:
    # float16 for float32 is a result of quantization; numbers for booleans are a different output.
    if (_tensor(name, expected).dtype.kind == "f") != (_tensor(name, found).dtype.kind == "f"):
        raise StageError(
            f"Output {name!r} of the model has values of type {found.dtype}, but its reference's are {expected.dtype}."
        )


def _tensor(name: str, value: Array) -> Array:
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "fiub":
        kind = f"values of type {value.dtype}" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"
        raise StageError(
            f"Output {name!r} is {kind}, and only tensors of numbers can be compared.",
            advice="Leave that output out of the model, or build without validate (validate.enabled: false).",
        )
    return value
