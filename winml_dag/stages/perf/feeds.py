"""The inputs that a model is measured on, made before anything is measured, each of as many samples as a batch has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np

from winml_dag.engine.stage import Workspace
from winml_dag.onnxmodel.feeds import InputSpec, random_feeds
from winml_dag.stages.perf import PerfFields
from winml_dag.stages.samples.read import read_samples
from winml_dag.stages.samples.samples import Feed

# Those of more would fill memory.
MOST_FEEDS = 32


def make_feeds(inputs: Sequence[InputSpec], fields: PerfFields, workspace: Workspace) -> list[Feed]:
    """Of the stage's input ``data`` as many as there are, at most MOST_FEEDS; without it a random one.

    Raises:
        StageError: for data that does not fit the model's inputs.
    """
    batch = (fields.batch_size or 1) if takes_any_batch(inputs) else 1
    if workspace.has("data"):
        samples: Iterator[Feed] = iter(read_samples(workspace.inputs["data"], inputs, None))
        found = list(islice(samples, MOST_FEEDS * batch))
    else:
        assert fields.seed is not None
        found = list(random_feeds([of_size(spec, fields.sizes) for spec in inputs], fields.seed, batch))
    return in_batches(found, batch)


def of_size(spec: InputSpec, sizes: Mapping[str, int]) -> InputSpec:
    """*spec* with *sizes* for the axes of these names; the first axis is the batch's."""
    later = (sizes.get(size, size) if isinstance(size, str) else size for size in spec.shape[1:])
    return replace(spec, shape=(*spec.shape[:1], *later))


def in_batches(samples: Sequence[Feed], size: int) -> list[Feed]:
    """*samples* put together, *size* at a time. Fewer than a batch has are used more than once; those that are left
    over are not used.
    """
    if size == 1:
        return list(samples)
    count = max(1, len(samples) // size)
    rows = [[samples[(first + at) % len(samples)] for at in range(size)] for first in range(0, count * size, size)]
    # A single number is for all samples at once.
    return [
        {name: np.concatenate([one[name] for one in row]) if first.ndim else first for name, first in row[0].items()}
        for row in rows
    ]


def takes_any_batch(inputs: Sequence[InputSpec]) -> bool:
    """Whether an input leaves its first axis open."""
    return any(isinstance(spec.shape[0], str) for spec in inputs if spec.shape)


def batch_size_of(inputs: Sequence[InputSpec], feed: Feed, given: int | None) -> int:
    """How many samples one inference is of: the size in *feed* of the first axis where that is a batch, else 1.

    It is a batch where it has the size that was *given* as one, where all *inputs* leave it open under one name, and
    where an open one is called so. A fixed first axis alone tells nothing: it may be the 80 bands of a spectrogram.
    """
    if given is not None and inputs and all(array.shape[:1] == (given,) for array in feed.values()):
        return given
    first = {spec.name: spec.shape[0] for spec in inputs if spec.shape}
    is_common = len(first) == len(inputs) and len(set(first.values())) == 1
    found = {
        feed[name].shape[0]
        for name, size in first.items()
        if isinstance(size, str) and (is_common or "batch" in size.lower())
    }
    return found.pop() if len(found) == 1 else 1
