"""Random draws of one use of an operator, reproducible from a seed.

A maker draws the numbers, shapes and attributes of one operator: a :class:`Draft`. :func:`settle` then draws its type,
its opset, which inputs are constant, and which sizes are open. Invalid ONNX is rejected, since no model contains it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import onnx
from onnx import TensorProto, shape_inference

from winml_dag.ep.support.case import Quantized
from winml_dag.stages.probe.attempt import run_on_cpu
from winml_dag.stages.probe.cases import stays_float, takes_channels, weights_of
from winml_dag.stages.probe.onenode import Array, OneNode

T = TypeVar("T")

# The sizes that tables are measured with, and other sizes to test a table against the provider.
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
    """A use of an operator whose type, opset and constants are not drawn yet.

    Attributes:
        inputs: float32 means the type that is drawn, unless the input is in ``keeps``.
        types: a key of ``TYPES``: a group of types, or one type.
        opsets: the first and last opset that has this form.
        constants: inputs that are usually constant; ``weights``: inputs that are constant about half the time.
        quantizes: whether it may be placed between conversions.
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
    """Draws from *seed*, with sizes from *sizes*."""

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
        """A random subset of *values*, in order."""
        chosen = self._random.sample(range(len(values)), self._random.randint(min(least, len(values)), len(values)))
        return [values[number] for number in sorted(chosen)]

    def size(self) -> int:
        return self.choice(self._sizes)

    def rank(self, least: int = 1, most: int = 5) -> int:
        """Usually 2 to 4, as in real models."""
        ranks = range(least, most + 1)
        return self.weighted([(rank, 3.0 if rank in (2, 3, 4) else 1.0) for rank in ranks])

    def shape(self, least: int = 1, most: int = 5) -> tuple[int, ...]:
        rank = self.rank(least, most)
        first = 1 if self.chance(0.6) else self.size()
        # Keep tensors small: types and ranks matter, not sizes.
        sizes = [self.size() if axis < 4 else self.choice((1, 2, 3)) for axis in range(rank)]
        return (first, *sizes[1:]) if rank > 1 else tuple(sizes)

    def floats(self, shape: Sequence[int], least: float = -2.0, most: float = 2.0) -> Array:
        return np.asarray(self._numbers.uniform(least, most, tuple(shape)), np.float32)

    def integers(self, shape: Sequence[int], least: int, most: int, kind: str = "int64") -> Array:
        """From *least* to *most*, inclusive."""
        return np.asarray(self._numbers.integers(least, most + 1, tuple(shape)), kind)

    def truths(self, shape: Sequence[int]) -> Array:
        return np.asarray(self._numbers.integers(0, 2, tuple(shape)), np.bool_)

    def index_type(self) -> str:
        return self.weighted([("int64", 4.0), ("int32", 1.0)])

    def axis(self, rank: int) -> int:
        """Any axis, often the last, counted from either end."""
        axis = rank - 1 if self.chance(0.4) else self.integer(0, rank - 1)
        return axis - rank if self.chance(0.5) else axis


Maker = Callable[[Draw], Draft]


def indices(*values: int) -> Array:
    """Sizes or axes, as operators take them."""
    return np.asarray(values, np.int64)


# Exporters usually write 17 and 18, and 21 for 16-bit integers.
_OPSETS = {7: 0.4, 8: 0.2, 9: 0.4, 10: 0.3, 11: 1.0, 12: 1.0, 13: 2.0, 14: 1.5, 15: 1.0, 16: 1.0, 17: 4.0, 18: 3.0,
           19: 1.0, 20: 2.0, 21: 3.0, 22: 1.0, 23: 1.5, 24: 0.7, 25: 0.3}  # fmt: skip
INTEGERS = (
    (Quantized("uint8", "uint8"), 3.0),
    (Quantized("uint16", "uint8"), 3.0),
    (Quantized("uint8", "uint8", True), 1.5),
    (Quantized("uint16", "uint8", True), 1.5),
    (Quantized("uint8", "int8"), 1.0),
    (Quantized("uint16", "int8"), 1.0),
    (Quantized("uint8", "int8", True), 2.0),
    (Quantized("uint16", "int8", True), 2.0),
    (Quantized("uint16", "int16"), 2.0),
    (Quantized("int8", "int8"), 1.0),
    (Quantized("int8", "int8", True), 0.5),
    (Quantized("uint16", "int4", True), 0.7),
    (Quantized("int16", "int16"), 0.5),
)
# Operators of onnxruntime in the standard domain, which has no schema for them.
_NO_SCHEMA = frozenset({"SimplifiedLayerNormalization"})
_MOST_OPEN_AXES = 2
QUANTIZES_FROM = 10
_CHANNELS_FROM = 13


class InvalidError(Exception):
    """The sample is not a valid ONNX model."""


def settle(draft: Draft, draw: Draw) -> OneNode:
    """Draw the rest of *draft*: its type, opset, constants and open sizes.

    Raises:
        InvalidError: ONNX does not allow the result.
    """
    opset = 1
    if not draft.domain:
        least, most = draft.opsets
        possible = [(opset, weight) for opset, weight in _OPSETS.items() if least <= opset <= most]
        if not possible:
            raise InvalidError
        opset = draw.weighted(possible)
    kind = draw.weighted(TYPES[draft.types])
    inputs = [_typed(array, kind) if number not in draft.keeps else array for number, array in enumerate(draft.inputs)]
    while inputs and inputs[-1] is None:
        inputs.pop()
    constants = {number for number in draft.constants if draw.chance(0.93)}
    constants |= {number for number in draft.weights if draw.chance(0.5)}
    return finish(
        OneNode(
            draft.op_type,
            opset,
            tuple(inputs),
            (TensorProto.FLOAT,) * draft.outputs,
            draft.domain,
            draft.attributes,
            frozenset(number for number in constants if number < len(inputs) and inputs[number] is not None),
        ),
        draw,
        quantizes=draft.quantizes and kind == "float32",
    )


def finish(node: OneNode, draw: Draw, *, quantizes: bool) -> OneNode:
    """Return *node* with its output types, sometimes with open sizes, and often quantized if *quantizes*.

    Raises:
        InvalidError: ONNX does not allow the result.
    """
    node = with_output_types(node)
    if draw.chance(0.08):
        node = replace(node, open_axes=_open_axes(node, draw))
    if quantizes and node.opset >= QUANTIZES_FROM and draw.chance(0.5):
        return quantized(node, draw.weighted(INTEGERS))
    return node


def with_output_types(node: OneNode) -> OneNode:
    """Return *node* with inferred output types; without a schema, all have the type of the first input.

    Raises:
        InvalidError: ONNX does not allow the result.
    """
    first = next((array for array in node.inputs if array is not None), None)
    if node.domain == "com.microsoft" or node.op_type in _NO_SCHEMA:
        kind = TensorProto.FLOAT if first is None else onnx.helper.np_dtype_to_tensor_dtype(first.dtype)
        return replace(node, output_types=tuple(kind for _ in node.output_types))
    model = node.model()
    for output in model.graph.output:
        output.ClearField("type")
    try:
        inferred = shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
        found = tuple(output.type.tensor_type.elem_type for output in inferred.graph.output)
        if not all(found):
            raise InvalidError
        for output in inferred.graph.output:
            output.type.tensor_type.shape.SetInParent()  # required; unknown if it depends on numbers
        onnx.checker.check_model(inferred)
    except (shape_inference.InferenceError, onnx.checker.ValidationError, TypeError, ValueError) as error:
        raise InvalidError from error
    return replace(node, output_types=found)


def quantized(node: OneNode, types: Quantized) -> OneNode:
    """Put *node* between conversions to *types* where it has floats; unchanged if it has none."""
    floats = [
        number
        for number, array in enumerate(node.inputs)
        if array is not None and array.dtype == np.float32 and not stays_float(node.op_type, number)
    ]
    if not floats or set(floats) <= node.constants:
        return node
    weights = [number for number in weights_of(node.op_type) if number in node.constants]
    per_channel = types.per_channel and takes_channels(node.op_type) and node.opset >= _CHANNELS_FROM
    per_channel = per_channel and any(_rank(node.inputs, number) > 1 for number in weights)
    types = Quantized(types.activations, types.weights if weights else "", per_channel)
    results = run_on_cpu(node.model().SerializeToString(), node.feeds())
    return replace(node, quantized=types).with_ranges(results or ())


def _rank(inputs: Sequence[Array | None], number: int) -> int:
    array = inputs[number]
    return 0 if array is None else array.ndim


def _typed(array: Array | None, kind: str) -> Array | None:
    if array is None or array.dtype != np.float32:
        return array
    if kind in ("float32", "float16", "float64"):
        return array.astype(kind)
    if kind == "bool":
        return np.asarray(array > 0)
    return np.asarray(np.round(np.abs(array) if kind.startswith("u") else array), kind)


def _open_axes(node: OneNode, draw: Draw) -> frozenset[tuple[int, int]]:
    axes = [
        (number, axis)
        for number, array in enumerate(node.inputs)
        if array is not None and number not in node.constants
        for axis in range(array.ndim)
    ]
    return frozenset(draw.some(axes)[:_MOST_OPEN_AXES]) if axes else frozenset()
