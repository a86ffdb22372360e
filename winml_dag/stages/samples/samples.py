"""Samples: data to run a model on, generated on each iteration, so that memory holds one at a time."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeAlias, cast, get_args

import numpy as np
import xxhash
from numpy.typing import NDArray

from winml_dag.errors import StageError
from winml_dag.onnxmodel.feeds import Distribution, random_feed
from winml_dag.onnxmodel.inspect import TensorSpec
from winml_dag.stages.quality import RANDOM

Array: TypeAlias = NDArray[np.generic]
Feed: TypeAlias = Mapping[str, Array]


@dataclass(frozen=True)
class Samples:
    """A selection of the samples of one source.

    ``numbers``: the indices, ascending; ``read`` yields the feeds of the given numbers. ``kind``: npz, npy, text,
    images, dataset or random. Some samples at the end of a source are held out for validation, at most half of them,
    and calibration uses the others. So a model is never validated on what its ranges come from, unless there is only
    one sample.
    """

    kind: str
    numbers: Sequence[int]
    read: Callable[[Sequence[int]], Iterator[Feed]]

    @classmethod
    def one_by_one(cls, kind: str, count: int, make: Callable[[int], Feed]) -> Samples:
        return cls(kind, range(count), lambda numbers: map(make, numbers))

    @property
    def count(self) -> int:
        return len(self.numbers)

    def __iter__(self) -> Iterator[Feed]:
        return self.read(self.numbers)

    def choose(self, numbers: Sequence[int]) -> Samples:
        return replace(self, numbers=numbers)

    def to_calibrate(self, count: int, keep_back: int, seed: int | None = None) -> Samples:
        """Return *count* samples after *keep_back* are held out for validation: the first, or a selection by *seed*."""
        left = self.count - self._kept_back(keep_back)
        return self.choose([self.numbers[at] for at in chosen_numbers(left, count, seed)])

    def held_out(self, keep_back: int) -> Samples:
        """Return the samples that :meth:`to_calibrate` holds out; the only sample if there is no other."""
        return self.choose(self.numbers[-max(1, self._kept_back(keep_back)) :])

    def _kept_back(self, wanted: int) -> int:
        return min(wanted, self.count // 2)


def chosen_numbers(count: int, most: int, seed: int | None) -> Sequence[int]:
    """Return *most* of *count* numbers: the first ones, or a random selection with *seed*.

    They are ascending, because files are read from front to back.
    """
    if seed is None or most >= count:
        return range(min(most, count))
    return sorted(random.Random(seed).sample(range(count), most))


def random_samples(
    inputs: Sequence[TensorSpec], count: int, seed: int, distribution: str, purpose: str = ""
) -> Samples:
    """Return random values within each input's range; another *purpose* results in others for the same seed.

    Raises:
        StageError: the distribution is unknown.
    """
    known = get_args(Distribution)
    if distribution not in known:
        raise StageError(f"Unknown distribution {distribution!r}.", advice=f"Known are: {', '.join(known)}.")
    chosen = cast(Distribution, distribution)
    return Samples.one_by_one(RANDOM, count, lambda number: random_feed(inputs, f"{seed}{purpose}", number, chosen))


@contextmanager
def failures_explained(kind: str, give: str = "validate.input_data or quant.calibration_data") -> Iterator[None]:
    """Explain a model's failure on samples of this *kind*: if they are random, that is the likely reason.

    The advice has *give*, the fields that take real data.
    """
    try:
        yield
    except StageError as error:
        if kind != RANDOM:
            raise
        raise StageError(
            error.message,
            advice=f"Its inputs were random, which is the likely reason: give real ones ({give}), or say in"
            " export.input_tensors what it needs: a shape where sizes are open, a value_range for bounded values.",
        ) from error


class Fed:
    """Observes *samples*: iterating over ``samples`` computes their ``digest`` and the time to create them.

    The ``digest`` is of the arrays of one pass; it is the same for the same arrays in the same order, whatever files
    they came from. Over all passes: ``each``, the digests of single samples, and ``seconds``, the time to create them.
    """

    def __init__(self, samples: Samples) -> None:
        self.samples = replace(samples, read=self._read)
        self._given = samples
        self._hash = xxhash.xxh3_128()
        self.each: dict[str, None] = {}
        self.seconds = 0.0

    @property
    def digest(self) -> str:
        return f"xxh3-128:{self._hash.hexdigest()}"

    def _read(self, numbers: Sequence[int]) -> Iterator[Feed]:
        self._hash = digest = xxhash.xxh3_128()
        feeds = self._given.read(numbers)
        while True:
            started = time.perf_counter()
            feed = next(feeds, None)
            alone = xxhash.xxh3_128()
            for name, array in sorted((feed or {}).items()):
                digest.update(f"{name}\0{array.dtype.str}\0{array.shape}\0".encode())
                data = np.ascontiguousarray(array).tobytes()
                digest.update(data)
                # Without the shape: an additional batch axis does not make it another sample.
                alone.update(f"{name}\0{array.dtype.str}\0".encode())
                alone.update(data)
            self.seconds += time.perf_counter() - started
            if feed is None:
                return
            self.each[alone.hexdigest()] = None
            yield feed
