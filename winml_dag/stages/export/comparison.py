"""Runs the model in PyTorch and in ONNX Runtime on seeded random inputs, and compares the outputs.

An exporter may silently fix an axis at its size during tracing. Therefore the models are compared at several sizes of
their dynamic axes, and output shapes are the observed ones, not those that the exporter writes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from onnx import ValueInfoProto, helper
from torch import Tensor
from torch.nn import Module

from winml_dag.ep.session import open_session
from winml_dag.errors import StageError
from winml_dag.onnxmodel.compare import sums_of
from winml_dag.onnxmodel.feeds import random_feeds
from winml_dag.onnxmodel.graph import MASK_MAGNITUDE
from winml_dag.stages.export.inputs import ModelInput, Shape, named_axes
from winml_dag.stages.export.subject import call_model
from winml_dag.stages.pair import run_model

Arrays = Mapping[str, NDArray[np.generic]]
Sizes = Mapping[str, int]

_RUNS = 3

# Correct float32 exports differ by up to 1e-5 of the largest output; a wrong one is off by far more.
LEAST_COSINE = 0.9999
MOST_DIFFERENCE = 1e-3
# A layer norm of nearly constant features amplifies rounding: OWL-ViT with random weights differs by 1.3e-3 of the
# largest output at a few positions, as PyTorch differs from itself in double precision. The SQNR over all positions
# shows that it is rounding: noise 60 dB below the signal.
ROUNDING_SQNR_DB = 60.0
MOST_ROUNDING = 1e-2

# The first run is the traced one: 2, because torch.export treats a size of 1 as a constant.
_BATCH_SIZES = (2, 1, 3)


def sizes_by_run(inputs: Sequence[ModelInput]) -> tuple[Sizes, ...]:
    """The size of every dynamic axis, by name, in each of three runs; no two runs have the same sizes.

    A batch (axis 0) is 2, 1 and 3. Any other axis has its default size and, in one later run, half of it: most models
    support half an image or text. Without a dynamic axis there are two runs, which differ in their values only.
    """
    usual: dict[str, int] = {}
    batches: set[str] = set()
    for each in inputs:
        for axis, name in enumerate(each.shape):
            if isinstance(name, str):
                usual.setdefault(name, max(2, each.sizes[axis]))
                if axis == 0:
                    batches.add(name)
    halved_in = {name: 1 + number % (_RUNS - 1) for number, name in enumerate(n for n in usual if n not in batches)}
    return tuple(
        {
            name: _BATCH_SIZES[run] if name in batches else size // 2 if halved_in[name] == run else size
            for name, size in usual.items()
        }
        for run in range(_RUNS if usual else 2)
    )


def random_feed(inputs: Sequence[ModelInput], sizes: Sizes, seed: int) -> Arrays:
    """Random arrays for *inputs*, with dynamic axes of the given *sizes*."""
    specs = [
        replace(each, shape=tuple(sizes[size] if isinstance(size, str) else size for size in each.shape))
        for each in inputs
    ]
    return next(random_feeds(specs, seed, 1))


def tensors_of(feed: Arrays) -> dict[str, Tensor]:
    return {name: torch.from_numpy(array) for name, array in feed.items()}


def output_shape(
    tensor: str, seen: Sequence[tuple[int, ...]], sizes: Sequence[Sizes], dynamic_axes: Mapping[str, Mapping[str, str]]
) -> Shape:
    """The shape of the output *tensor*, from the shapes *seen* in the runs with *sizes*.

    An axis that changed gets the name of the dynamic axis that changed in the same way, or else a new name; names in
    the recipe win.

    Raises:
        StageError: the recipe names an axis that did not change.
    """
    named = named_axes(tensor, seen[0], dynamic_axes)
    shape: list[int | str] = []
    for axis, asked in enumerate(named):
        over_runs = [each[axis] for each in seen]
        changed = len(set(over_runs)) > 1
        if isinstance(asked, str) and not changed:
            raise StageError(
                f"export.dynamic_axes.{tensor}.{axis} is {asked!r}, but this axis always has the size {over_runs[0]}."
            )
        like = next((name for name in sizes[0] if [run[name] for run in sizes] == over_runs), f"{tensor}_axis_{axis}")
        shape.append(asked if isinstance(asked, str) else like if changed else over_runs[0])
    return tuple(shape)


def set_shape(value: ValueInfoProto, shape: Shape) -> None:
    """Set the observed shape on an input or output of a graph."""
    value.type.CopyFrom(helper.make_tensor_type_proto(value.type.tensor_type.elem_type, shape))


def pytorch_outputs(
    model: Module, feeds: Sequence[Arrays], outputs: Mapping[str, str], constants: Mapping[str, Tensor]
) -> tuple[Arrays, ...]:
    """The PyTorch model's *outputs* for each of *feeds* with *constants*, by the names of the exported outputs.

    Raises:
        StageError: the model cannot run on them.
    """
    answers = []
    for feed in feeds:
        with torch.no_grad():
            produced = call_model(model, {**tensors_of(feed), **constants})
        answers.append({name: produced[own].numpy() for name, own in outputs.items()})
    return tuple(answers)


def onnx_outputs(path: Path, feeds: Sequence[Arrays], names: Sequence[str]) -> tuple[Arrays, ...]:
    """ONNX Runtime's outputs on the CPU for each of *feeds*.

    Raises:
        StageError: the model cannot be loaded or run.
    """
    session = open_session(path, "the exported model", optimized=True)
    return tuple(dict(zip(names, run_model(session, names, feed), strict=True)) for feed in feeds)


def agreement(expected: Sequence[Arrays], found: Sequence[Arrays]) -> tuple[float, float]:
    """Return the largest absolute difference over all outputs, and the lowest cosine.

    Raises:
        StageError: an output differs in shape, is NaN, or exceeds :data:`LEAST_COSINE` or :data:`MOST_DIFFERENCE`
            (relative to the largest magnitude in the expected output). The limit is :data:`MOST_ROUNDING` if the noise
            over the whole output is below :data:`ROUNDING_SQNR_DB`.
    """
    difference, cosine = 0.0, 1.0
    for right, ours in zip(expected, found, strict=True):
        for name, wanted in right.items():
            each = sums_of(wanted, ours[name], name).comparison(name, wanted.shape)
            scale = _scale(name, wanted)
            most = MOST_ROUNDING if each.sqnr_db >= ROUNDING_SQNR_DB else MOST_DIFFERENCE
            if each.max_abs_error > most * scale or each.cosine < LEAST_COSINE:
                raise StageError(
                    f"The exported model differs from PyTorch in {name!r}: by up to {each.max_abs_error:.3g} "
                    f"where values reach {scale:.3g}, cosine {each.cosine:.6f}.",
                    advice="Set export.dynamo to choose the other exporter.",
                )
            difference, cosine = max(difference, each.max_abs_error), min(cosine, each.cosine)
    return difference, cosine


def _scale(name: str, values: NDArray[np.generic]) -> float:
    """The largest magnitude of unmasked values."""
    magnitudes = np.abs(values.astype(np.float64))
    if np.isnan(magnitudes).any():
        raise StageError(f"The PyTorch model itself gives NaN in {name!r}, so the export cannot be checked.")
    return float(magnitudes[magnitudes < MASK_MAGNITUDE].max(initial=0.0))
