"""Run a model on samples: one by one, or in batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from winml_dag.errors import StageError
from winml_dag.explanation import explanation
from winml_dag.onnxmodel.feeds import InputSpec, model_inputs
from winml_dag.stages.samples.samples import Array, Feed

if TYPE_CHECKING:
    import onnxruntime


def run_model(session: onnxruntime.InferenceSession, names: Sequence[str], feed: Feed) -> list[Array]:
    """Return the outputs *names* for *feed*, with its floats converted to the model's float type.

    A float16 model takes float16 where the model that it was made from takes float32.

    Raises:
        StageError: the inputs have other names, or the model does not run.
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

        With *whole*, all that a model with a fixed batch takes is one sample.

        Raises:
            StageError: the model cannot take *wanted* samples at once.
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

    def of_one(self, inputs: Sequence[InputSpec]) -> list[InputSpec]:
        """Return the input specs of a single sample of a batch."""
        if not self.is_fixed:
            return list(inputs)
        return [replace(spec, shape=(1, *spec.shape[1:])) for spec in inputs]

    def run(
        self, session: onnxruntime.InferenceSession, names: Sequence[str], feeds: Sequence[Feed]
    ) -> Iterator[list[Array]]:
        """Yield the outputs *names* for each of *feeds*.

        A batch contains only samples of one shape; a batch that is too small for the model is padded with its last
        sample.

        Raises:
            StageError: as :func:`run_model`, and for an output that has no row for each sample.
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
