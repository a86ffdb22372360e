"""Whether the exported model computes what the PyTorch model computes, on seeded random inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from numpy.typing import NDArray
from torch.nn import Module

from winml_dag.errors import StageError
from winml_dag.explanation import explanation
from winml_dag.onnxmodel.compare import MASK_MAGNITUDE, compare
from winml_dag.stages.export.outputs import OutputChoice, call_model

Arrays = Mapping[str, NDArray[np.generic]]

# Correct exports in float32 were seen to differ by up to 1e-5 of the largest output; a wrong one is off by far more.
LEAST_COSINE = 0.9999
MOST_DIFFERENCE = 1e-3
# A layer norm of nearly constant features magnifies rounding: OWL-ViT with random weights differs by 1.3e-3 of the
# largest output in a few places, as PyTorch does from itself in double precision. All places together say that it is
# rounding: noise 60 dB below the signal.
ROUNDING_SQNR_DB = 60.0
MOST_ROUNDING = 1e-2


@dataclass(frozen=True)
class Agreement:
    """The worst over all inputs and outputs. ``cosine`` is 1.0 for the same direction; the difference is absolute."""

    max_abs_difference: float
    cosine: float


def pytorch_outputs(
    model: Module, feeds: Sequence[Arrays], outputs: Sequence[OutputChoice], constants: Mapping[str, torch.Tensor]
) -> tuple[Arrays, ...]:
    """What the PyTorch model answers to each of *feeds* and *constants*, by the names of the exported outputs.

    Raises:
        StageError: when it cannot take them.
    """
    answers = []
    for feed in feeds:
        with torch.no_grad():
            tensors = {name: torch.from_numpy(array) for name, array in feed.items()}
            produced = call_model(model, {**tensors, **constants})
        answers.append({choice.name: produced[choice.attribute].numpy() for choice in outputs})
    return tuple(answers)


def onnx_outputs(path: Path, feeds: Sequence[Arrays], names: Sequence[str]) -> tuple[Arrays, ...]:
    """What ONNX Runtime on the CPU answers to each of *feeds*.

    Raises:
        StageError: when the model cannot be loaded or run.
    """
    try:
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        return tuple(dict(zip(names, session.run(list(names), dict(feed)), strict=True)) for feed in feeds)
    except Exception as error:  # ONNX Runtime's errors share no base class of their own
        raise StageError(f"The exported model does not run: {explanation(error)}.") from error


def agreement(expected: Sequence[Arrays], found: Sequence[Arrays]) -> Agreement:
    """
    Raises:
        StageError: when an output differs in shape, is NaN, or is beyond :data:`LEAST_COSINE` or
            :data:`MOST_DIFFERENCE` (relative to the largest magnitude in the expected output), or
            :data:`MOST_ROUNDING` where all of it together is no more noise than :data:`ROUNDING_SQNR_DB`.
    """
    difference, cosine = 0.0, 1.0
    for right, ours in zip(expected, found, strict=True):
        for each in compare(list(right.values()), list(ours.values()), list(right)):
            scale = _scale(each.name, right[each.name])
            most = MOST_ROUNDING if each.sqnr_db >= ROUNDING_SQNR_DB else MOST_DIFFERENCE
            if each.max_abs_error > most * scale or each.cosine < LEAST_COSINE:
                raise StageError(
                    f"The exported model differs from PyTorch in {each.name!r}: by up to {each.max_abs_error:.3g} "
                    f"where values reach {scale:.3g}, cosine {each.cosine:.6f}.",
                    advice="Set export.dynamo to choose the other exporter.",
                )
            difference, cosine = max(difference, each.max_abs_error), min(cosine, each.cosine)
    return Agreement(difference, cosine)


def _scale(name: str, values: NDArray[np.generic]) -> float:
    """The largest magnitude of what is not masked."""
    magnitudes = np.abs(values.astype(np.float64))
    if np.isnan(magnitudes).any():
        raise StageError(f"The PyTorch model itself gives NaN in {name!r}, so the export cannot be checked.")
    return float(magnitudes[magnitudes < MASK_MAGNITUDE].max(initial=0.0))
