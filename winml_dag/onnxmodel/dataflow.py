"""How values flow through a graph: which nodes compute and read them, which are constant, and their types.

No tensor data is read, so the size of the model does not matter. :class:`Dataflow` does not enter subgraphs (of If and
Loop); what they read of the outer graph counts as read. :func:`index_bounds` enters them and determines which integers
a model's inputs can take: random ones make an intact model fail, as an index beyond its table or a shape that does not
fit.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path

from winml_dag.onnxmodel.graph import (
    Graph,
    Model,
    Node,
    Tensor,
    Value,
    all_graphs,
    dtype_name,
    integer_of,
    struct_letter,
)
from winml_dag.onnxmodel.graphfile import read_model

Numbers = tuple[int | float, ...]


@dataclass(frozen=True)
class Dataflow:
    """A graph of *model*, which was read with its values: the main one, or a subgraph (*inside*)."""

    model: Model
    inside: Graph | None = None

    @property
    def graph(self) -> Graph:
        return self.inside or self.model.graph

    @property
    def nodes(self) -> tuple[Node, ...]:
        return self.graph.nodes

    @cached_property
    def makers(self) -> Mapping[str, Node]:
        """The node that computes a value, by name of the value."""
        return {name: node for node in self.nodes for name in node.outputs if name}

    @cached_property
    def readers(self) -> Mapping[str, tuple[Node, ...]]:
        """The nodes that read a value, by name of the value; each once."""
        found: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in dict.fromkeys((*node.inputs, *_read_inside(node))):
                if name:
                    found.setdefault(name, []).append(node)
        return {name: tuple(nodes) for name, nodes in found.items()}

    @cached_property
    def outputs(self) -> frozenset[str]:
        """The names of the graph's outputs."""
        return frozenset(value.name for value in self.graph.outputs)

    @cached_property
    def constants(self) -> Mapping[str, Tensor]:
        """Constants, by the name under which nodes read them.

        These are initializers, outputs of Constant nodes, and Identity nodes of either, which exporters write for each
        further use of equal weights. An initializer that is among the inputs does not count: the user may feed another
        value.
        """
        fed = {value.name for value in self.graph.inputs}
        found = {tensor.name: tensor for tensor in self.graph.initializers if tensor.name not in fed}
        for node in self.nodes:
            if node.op_type == "Constant" and node.outputs:
                found.update((node.outputs[0], tensor) for tensor in _given(node))
            elif node.op_type == "Identity" and node.inputs and node.inputs[0] in found:
                found[node.outputs[0]] = found[node.inputs[0]]
        return found

    @cached_property
    def _values(self) -> Mapping[str, Value]:
        graph = self.graph
        return {value.name: value for value in (*graph.values, *graph.inputs, *graph.outputs)}

    def dtype(self, name: str) -> str:
        """Return the type of the value *name*; empty if the file does not have it."""
        tensor, value = self.constants.get(name), self._values.get(name)
        data_type = tensor.data_type if tensor is not None else 0 if value is None else value.data_type
        return dtype_name(data_type) if data_type else ""

    def dims(self, name: str) -> tuple[int | None, ...] | None:
        """Return the dimensions of the value *name*: None for an unknown rank, and within it for an open size."""
        if (tensor := self.constants.get(name)) is not None:
            return tensor.dims
        value = self._values.get(name)
        if value is None or value.dims is None or not value.data_type:
            return None
        return tuple(dim if isinstance(dim, int) and dim >= 0 else None for dim in value.dims)

    def numbers(self, name: str) -> Numbers | None:
        """Return the numbers of a constant if they are few and in the file itself; None for other values."""
        if (tensor := self.constants.get(name)) is None:
            return None
        count = prod(tensor.dims)
        letter = struct_letter(tensor.data_type)
        if tensor.integers and len(tensor.integers) == count and letter not in ("e", ""):
            return tensor.integers
        if not letter or not count or len(tensor.plain) != count * struct.calcsize(letter):
            return None
        return struct.unpack(f"<{count}{letter}", tensor.plain)


def _given(node: Node) -> Iterable[Tensor]:
    """Yield the tensor of a Constant node, whichever of its attributes has it."""
    for attribute in node.attributes:
        yield from attribute.tensors
        if attribute.name == "value_int" and attribute.integer is not None:
            yield Tensor("", 7, (), 8, None, None, (attribute.integer,))
        elif attribute.name == "value_ints":
            yield Tensor("", 7, (len(attribute.integers),), 0, None, None, attribute.integers)
        elif attribute.name == "value_float" and attribute.number is not None:
            yield Tensor("", 1, (), 4, None, None, (), struct.pack("<f", attribute.number))
        elif attribute.name == "value_floats":
            count = len(attribute.numbers)
            yield Tensor("", 1, (count,), 0, None, None, (), struct.pack(f"<{count}f", *attribute.numbers))


def _read_inside(node: Node) -> Iterable[str]:
    """Yield names that subgraphs of *node* read; includes those of their own values, which does no harm."""
    return (name for attribute in node.attributes for graph in attribute.graphs for name in _read_by(graph))


def _read_by(graph: Graph) -> Iterable[str]:
    for node in graph.nodes:
        yield from node.inputs
        yield from _read_inside(node)
    yield from (value.name for value in graph.outputs)


# Operators that pass on the integers of their first input unchanged.
_PASSING = frozenset(
    {"Identity", "Cast", "Squeeze", "Unsqueeze", "Reshape", "Flatten", "Transpose", "Expand", "Tile", "Slice", "Split"}
    | {"Gather", "GatherElements", "GatherND", "Pad"}
)
_CUTTING = frozenset({"Clip", "Min", "Max", "Mod"})
# By operator and input, integers that are valid whatever the other inputs are, and that keep the result small.
_FIXED = {
    **{(kind, 1): (1, 1) for kind in ("Expand", "Tile")},
    **{(kind, 1): (0, 0) for kind in ("Squeeze", "Unsqueeze", "CumSum", "Trilu", "Pad")},
    **{(f"Reduce{kind}", 1): (0, 0) for kind in ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare")},
    ("Range", 0): (0, 0),
    ("Range", 1): (1, 8),
    ("Range", 2): (1, 1),
    ("Slice", 1): (0, 0),
    ("Slice", 3): (0, 0),
    ("Slice", 4): (1, 1),
    ("ConstantOfShape", 0): (1, 8),
    ("Loop", 0): (1, 8),
    ("Resize", 3): (1, 8),
}
# EmbedLayerNormalization: for each input of ids (words, segments, positions) the input with the table they index.
_TABLES = {0: 2, 1: 4, 8: 3}


@dataclass(frozen=True)
class Bounds:
    """Integers from ``low`` to ``high``, both included."""

    low: float = -math.inf
    high: float = math.inf

    def both(self, other: Bounds) -> Bounds:
        return Bounds(max(self.low, other.low), min(self.high, other.high))


def index_bounds(path: Path, names: Iterable[str]) -> Mapping[str, Bounds]:
    """Return bounds for those of the inputs *names* of the model *path* that its graph limits.

    Open sizes count as 1, as for random inputs.

    Raises:
        InputError: as :func:`~winml_dag.onnxmodel.graphfile.read_model`.
    """
    model = read_model(path, values=True)
    # One graph with what all of them have: names of values are distinct across subgraphs.
    parts = ("nodes", "initializers", "inputs", "outputs", "values")
    graphs = list(all_graphs(model))
    flat = Graph("", *(tuple(each for graph in graphs for each in getattr(graph, part)) for part in parts))
    limits = _Limits(Dataflow(model, flat))
    found = {name: limits.bounds(name) for name in names}
    return {name: bounds for name, bounds in found.items() if bounds != Bounds()}


class _Limits:
    """What the readers of values in *flow* require of them."""

    def __init__(self, flow: Dataflow) -> None:
        self._flow = flow
        self._known: dict[str, Bounds] = {}

    def bounds(self, name: str) -> Bounds:
        """Return the bounds of the value *name* that all its readers, direct and indirect, require."""
        if name not in self._known:
            self._known[name] = found = Bounds()  # stops the recursion in a cyclic graph
            for node in self._flow.readers.get(name, ()):
                for at, read in enumerate(node.inputs):
                    found = found.both(self._needed(node, at)) if read == name else found
            self._known[name] = found
        return self._known[name]

    def _needed(self, node: Node, at: int) -> Bounds:
        needed = self._looked_up(node, at)
        if needed is not None:
            return needed
        if fixed := _FIXED.get((node.op_type, at)):
            return Bounds(*fixed)
        if (at == 0 and node.op_type in _PASSING) or node.op_type == "Concat":
            found = Bounds()
            for made in node.outputs:
                found = found.both(self.bounds(made))
            return found
        if node.op_type in ("Add", "Sub", "Mul") and (constant := self._flow.numbers(node.inputs[1 - at])):
            return _moved(node.op_type, at, self.bounds(node.outputs[0]), constant)
        if node.op_type in _CUTTING and at == 0:
            after, (low, high) = self.bounds(node.outputs[0]), self._cut(node)
            # Values beyond a limit become the limit, so the limit has to be valid.
            return Bounds(
                -math.inf if after.low <= low <= after.high else after.low,
                math.inf if after.low <= high <= after.high else after.high,
            )
        return Bounds()

    def _cut(self, node: Node) -> tuple[float, float]:
        numbers = [self._flow.numbers(name) or () for name in node.inputs[1:]]
        first, second = (numbers[at][0] if at < len(numbers) and numbers[at] else None for at in (0, 1))
        if node.op_type == "Mod":
            return (0, abs(first) - 1) if first else (-math.inf, math.inf)
        low, high = {"Clip": (first, second), "Max": (first, None), "Min": (None, first)}[node.op_type]
        return -math.inf if low is None else low, math.inf if high is None else high

    def _looked_up(self, node: Node, at: int) -> Bounds | None:
        """Return the bounds if the input *at* of *node* depends on the size of an input."""
        kind, data = node.op_type, self._flow.dims(node.inputs[0])
        if kind in ("Gather", "GatherElements", "Scatter", "ScatterElements") and at == 1:
            return _size(data, integer_of(node, "axis", 0), last=True)
        if kind == "ArrayFeatureExtractor" and at == 1:
            return _size(data, -1, last=True)
        if kind in ("GatherND", "ScatterND") and at == 1:
            indices, batch = self._flow.dims(node.inputs[1]), integer_of(node, "batch_dims", 0)
            parts = data[batch : batch + (indices[-1] or 0)] if data and indices else ()
            return Bounds(0, min((size or 1 for size in parts), default=1) - 1)
        if kind == "OneHot" and at == 0:
            depth = self._flow.numbers(node.inputs[1])
            return Bounds(0, depth[0] - 1 if depth else 0)
        if kind == "EmbedLayerNormalization" and at in _TABLES:
            return _size(self._flow.dims(node.inputs[_TABLES[at]]), 0, last=True)
        if kind == "Reshape" and at == 1:
            # 0 keeps a size, -1 takes the rest.
            return Bounds(-1, -1) if self._flow.dims(node.inputs[1]) == (1,) else Bounds(0, 0)
        if kind == "TopK" and at == 1:
            return _size(data, integer_of(node, "axis", -1))
        if kind == "Slice" and at == 2:
            return Bounds(1, min((size or 1 for size in data or ()), default=1))
        if kind == "ReverseSequence" and at == 1:
            return _size(data, integer_of(node, "time_axis", 0))
        return _size(data, 0) if kind in ("LSTM", "GRU", "RNN") and at == 4 else None


def _size(dims: Sequence[int | None] | None, axis: int, *, last: bool = False) -> Bounds:
    """Return 1 to the size of *axis*, or with *last* the indices from 0."""
    known = dims is not None and -len(dims) <= axis < len(dims)
    size = (dims[axis] if dims is not None and known else None) or 1
    return Bounds(0, size - 1) if last else Bounds(1, size)


def _moved(op_type: str, at: int, after: Bounds, constant: Sequence[float]) -> Bounds:
    """Return the bounds of the input *at* for which *op_type* with *constant* results in *after*."""
    low, high = min(constant), max(constant)
    if op_type == "Add":
        return Bounds(after.low - low, after.high - high)
    if op_type == "Sub":
        return Bounds(after.low + high, after.high + low) if at == 0 else Bounds(high - after.high, low - after.low)
    return Bounds(after.low / low, after.high / high) if low > 0 else Bounds()
