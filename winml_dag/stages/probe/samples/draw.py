"""One random draw: the numbers, shapes and types that make one use of an operator, always the same for one seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
T = TypeVar("T")

# What a table is measured with, and other sizes for whoever holds it against the provider.
SIZES = (1, 2, 3, 4, 6, 8, 16)
OTHER_SIZES = (1, 2, 3, 5, 7, 9, 12, 20)

_FLOATS = (("float32", 14), ("float16", 3), ("float64", 1))
_INTEGERS = (("int32", 3), ("int64", 3), ("uint8", 1), ("int8", 1), ("uint32", 0.3), ("int16", 0.3), ("uint64", 0.3))
TYPES: Mapping[str, tuple[tuple[str, float], ...]] = {
    "float": _FLOATS,
    "number": (*_FLOATS, *_INTEGERS),
    "any": (*_FLOATS, *_INTEGERS, ("bool", 2)),
    **{kind: ((kind, 1),) for kind, _ in (*_FLOATS, *_INTEGERS, ("bool", 2))},
}


@dataclass
class Draft:
    """A use of an operator whose type, opset and constants are still to be drawn.

    Attributes:
        inputs: float32 stands for the type that is drawn, unless the input is in ``keeps``.
        types: a key of ``TYPES``: a group of them, or one.
        opsets: the least and the most in which it is written so.
        constants: inputs that are mostly constant; ``weights``: inputs that are so about every other time.
        quantizes: whether it may stand between conversions.
    """

    op_type: str
    inputs: list[Array | None]
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1
    domain: str = ""
    types: str = "float"
    opsets: tuple[int, int] = (7, 99)
    constants: frozenset[int] = frozenset()
    weights: frozenset[int] = frozenset()
    keeps: frozenset[int] = frozenset()
    quantizes: bool = True


class Draw:
    """Draws from *seed*; sizes are of *sizes*."""

    def __init__(self, seed: int, sizes: Sequence[int] = SIZES) -> None:
        self._random = random.Random(seed)
        self._numbers = np.random.default_rng(seed)
        self._sizes = sizes

    def chance(self, share: float) -> bool:
        return self._random.random() < share

    def choice(self, values: Sequence[T]) -> T:
        return self._random.choice(values)

    def weighted(self, values: Sequence[tuple[T, float]]) -> T:
        return self._random.choices([value for value, _ in values], [weight for _, weight in values])[0]

    def integer(self, least: int, most: int) -> int:
        return self._random.randint(least, most)

    def number(self, least: float, most: float) -> float:
        return round(self._random.uniform(least, most), 3)

    def shuffled(self, values: Sequence[T]) -> list[T]:
        return self._random.sample(list(values), len(values))

    def some(self, values: Sequence[T], least: int = 1) -> list[T]:
        """A few of *values*, in their order."""
        chosen = self._random.sample(range(len(values)), self._random.randint(min(least, len(values)), len(values)))
        return [values[number] for number in sorted(chosen)]

    def size(self) -> int:
        return self.choice(self._sizes)

    def rank(self, least: int = 1, most: int = 5) -> int:
        """Mostly 2 to 4, as in real models."""
        ranks = range(least, most + 1)
        return self.weighted([(rank, 3.0 if rank in (2, 3, 4) else 1.0) for rank in ranks])

    def shape(self, least: int = 1, most: int = 5) -> tuple[int, ...]:
        rank = self.rank(least, most)
        first = 1 if self.chance(0.6) else self.size()
        # Not too many numbers: it is types and ranks that count.
        sizes = [self.size() if axis < 4 else self.choice((1, 2, 3)) for axis in range(rank)]
        return (first, *sizes[1:]) if rank > 1 else tuple(sizes)

    def floats(self, shape: Sequence[int], least: float = -2.0, most: float = 2.0) -> Array:
        return np.asarray(self._numbers.uniform(least, most, tuple(shape)), np.float32)

    def integers(self, shape: Sequence[int], least: int, most: int, kind: str = "int64") -> Array:
        """From *least* to *most*, which is among them."""
        return np.asarray(self._numbers.integers(least, most + 1, tuple(shape)), kind)

    def truths(self, shape: Sequence[int]) -> Array:
        return np.asarray(self._numbers.integers(0, 2, tuple(shape)), np.bool_)

    def index_type(self) -> str:
        return self.weighted([("int64", 4.0), ("int32", 1.0)])

    def axis(self, rank: int) -> int:
        """Any axis, often the last, and counted from either end."""
        axis = rank - 1 if self.chance(0.4) else self.integer(0, rank - 1)
        return axis - rank if self.chance(0.5) else axis


Maker = Callable[[Draw], Draft]


def indices(*values: int) -> Array:
    """Sizes or axes, as operators take them."""
    return np.asarray(values, np.int64)
