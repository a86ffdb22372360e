"""The graph of an ONNX file as values: operators, inputs, outputs, and tensors without their data.

Also the facts of the ONNX standard that its readers share: element types, quantizing operators, weights and their
channels, masks. This module must not import onnx or numpy, because planning reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

# The key in a node's metadata for the PyTorch module that it computes a part of; it is winml-cli's.
TAG_KEY = "winml.hierarchy.tag"
# The standard's domain is written as "" or, less often, by this name.
STANDARD_DOMAIN = "ai.onnx"
QDQ = ("QuantizeLinear", "DequantizeLinear")
# Operators that multiply with a matrix of weights, their input 1, by the axis of the weights' output channels. For Gemm
# it is that of an untransposed matrix (see :func:`channel_axis`).
CHANNEL_AXES = {"Conv": 0, "ConvTranspose": 1, "MatMul": 1, "Gemm": 1}
# Operators on integers, with the indices of their constant weights: those that quantize activations themselves, those
# between quantized activations, and those on blocks of weights.
DYNAMIC_WEIGHTS = {
    "MatMulInteger": (1,),
    "MatMulIntegerToFloat": (1,),
    "ConvInteger": (1,),
    "ConvIntegerToFloat": (1,),
    "DynamicQuantizeMatMul": (1,),
    "DynamicQuantizeLSTM": (1, 2),
}
OPERATOR_WEIGHTS = {"QLinearConv": (3,), "QLinearMatMul": (3,), "QGemm": (3,), "QAttention": (1,)}
BLOCK_OPERATORS = ("MatMulNBits", "GatherBlockQuantized")
INTEGER_OPERATORS = frozenset({*QDQ, *DYNAMIC_WEIGHTS, *OPERATOR_WEIGHTS, *BLOCK_OPERATORS, "QEmbedLayerNormalization"})
HIGH_RANK = 5  # providers do not support a Transpose of this many axes
# Attention masks contain -inf or the lowest float (-3.4e38) for "never choose this". No measured quantity is this
# large: a constant of at least this magnitude means infinity.
MASK_MAGNITUDE = 1e30

# By the number in the file: the name of an element type, which is numpy's or ml_dtypes' (``np.dtype(name)`` works for
# those that numpy has), the bits of one element, and its letter in ``struct``.
_TYPES: dict[int, tuple[str, int, str]] = {
    1: ("float32", 32, "f"),
    2: ("uint8", 8, "B"),
    3: ("int8", 8, "b"),
    4: ("uint16", 16, "H"),
    5: ("int16", 16, "h"),
    6: ("int32", 32, "i"),
    7: ("int64", 64, "q"),
    8: ("string", 0, ""),
    9: ("bool", 8, "?"),
    10: ("float16", 16, "e"),
    11: ("float64", 64, "d"),
    12: ("uint32", 32, "I"),
    13: ("uint64", 64, "Q"),
    14: ("complex64", 64, ""),
    15: ("complex128", 128, ""),
    16: ("bfloat16", 16, ""),
    17: ("float8_e4m3fn", 8, ""),
    18: ("float8_e4m3fnuz", 8, ""),
    19: ("float8_e5m2", 8, ""),
    20: ("float8_e5m2fnuz", 8, ""),
    21: ("uint4", 4, ""),
    22: ("int4", 4, ""),
    23: ("float4_e2m1fn", 4, ""),
    24: ("float8_e8m0fnu", 8, ""),
    25: ("uint2", 2, ""),
    26: ("int2", 2, ""),
}


@dataclass(frozen=True, slots=True)
class Tensor:
    """A constant of the graph.

    ``stored_bytes`` are in the file itself; ``external`` is its location otherwise, or None. ``values_at``: start and
    end in the file if its numbers are plain little-endian bytes; else None. ``integers``: its numbers, if they are few
    and written as integers. ``plain``: their little-endian bytes, if they are few and in the file itself in that form.
    """

    name: str
    data_type: int
    dims: tuple[int, ...]
    stored_bytes: int
    external: dict[str, str] | None
    values_at: tuple[int, int] | None = None
    integers: tuple[int, ...] = ()
    plain: bytes = b""


@dataclass(frozen=True, slots=True)
class Attribute:
    """What is used of an attribute.

    ``content`` is None if there is no text, or one too long to be a name. ``number``, ``integers``, ``numbers`` and
    ``texts``: its float, or its list of integers, of floats, of short texts; a list with more members than any operator
    of the standard has is empty.
    """

    name: str
    integer: int | None
    content: bytes | None
    content_bytes: int
    tensors: tuple[Tensor, ...]
    graphs: tuple[Graph, ...]
    number: float | None = None
    integers: tuple[int, ...] = ()
    numbers: tuple[float, ...] = ()
    texts: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Node:
    """A node of a graph; ``domain`` is empty for the ONNX standard, ``tag`` if the module is unknown."""

    op_type: str
    domain: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: tuple[Attribute, ...]
    tag: str = ""


@dataclass(frozen=True, slots=True)
class NodeName:
    """A node as users see it: its operator, with the domain if that is not the standard's, and its name or output."""

    operator: str
    name: str

    @classmethod
    def of(cls, node: Node | NodeProto) -> NodeName:
        outputs = node.outputs if isinstance(node, Node) else node.output
        return cls(operator_of(node), node.name or next(iter(outputs), ""))

    def __str__(self) -> str:
        return f"{self.name} ({self.operator})"


def operator_of(node: Node | NodeProto) -> str:
    return f"{node.domain}/{node.op_type}" if node.domain else node.op_type


@dataclass(frozen=True, slots=True)
class Value:
    """A value and its type. ``data_type`` is 0 for a non-tensor; ``dims`` is None if the rank is unknown."""

    name: str
    data_type: int
    dims: tuple[int | str | None, ...] | None


@dataclass(frozen=True, slots=True)
class Graph:
    """A graph or subgraph. A sparse initializer counts as two tensors, its values and its indices.

    ``values``: what the file has about values between its nodes; only if requested from :func:`read_model`.
    """

    name: str
    nodes: tuple[Node, ...]
    initializers: tuple[Tensor, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    values: tuple[Value, ...] = ()


@dataclass(frozen=True, slots=True)
class Function:
    """A function of the model: an operator composed of others."""

    name: str
    domain: str
    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Model:
    """An ONNX file without its tensor data; ``domain``, ``version`` and ``description`` are set by its producer."""

    ir_version: int
    producer_name: str
    producer_version: str
    opsets: dict[str, int]
    metadata: dict[str, str]
    graph: Graph
    functions: tuple[Function, ...]
    domain: str = ""
    version: int = 0
    description: str = ""

    @property
    def producer(self) -> str:
        """Name and version, if known."""
        return f"{self.producer_name} {self.producer_version}".strip()


def all_nodes(model: Model) -> list[Node]:
    """Return the nodes of the graph, of its subgraphs, and of function bodies."""
    bodies = [graph.nodes for graph in all_graphs(model)] + [function.nodes for function in model.functions]
    return [node for body in bodies for node in body]


def all_tensors(model: Model, nodes: Iterable[Node]) -> list[Tensor]:
    """Return the constants of all graphs and of *nodes*, which are all of the model's."""
    tensors = [tensor for graph in all_graphs(model) for tensor in graph.initializers]
    tensors.extend(tensor for node in nodes for attribute in node.attributes for tensor in attribute.tensors)
    return tensors


def constants_of(model: Model, nodes: Iterable[Node]) -> dict[str, Tensor]:
    """Return all constants by the name under which *nodes*, all of the model's, read them: a Constant by its output."""
    found = {tensor.name: tensor for tensor in all_tensors(model, nodes)}
    for node in nodes:
        if node.op_type == "Constant" and node.outputs:
            found.update((node.outputs[0], tensor) for attribute in node.attributes for tensor in attribute.tensors)
    return found


def attribute_of(node: Node, name: str) -> Attribute | None:
    return next((attribute for attribute in node.attributes if attribute.name == name), None)


def integer_of(node: Node, name: str, default: int = 0) -> int:
    found = attribute_of(node, name)
    return default if found is None or found.integer is None else found.integer


def integers_of(node: Node, name: str) -> tuple[int, ...]:
    found = attribute_of(node, name)
    return () if found is None else found.integers


def all_graphs(model: Model) -> Iterator[Graph]:
    """Yield the graph, its subgraphs, and those of function bodies."""
    yield model.graph
    for nodes in (model.graph.nodes, *(function.nodes for function in model.functions)):
        yield from _subgraphs(nodes)


def _subgraphs(nodes: Iterable[Node]) -> Iterator[Graph]:
    """Yield all subgraphs of the nodes, recursively."""
    for node in nodes:
        for attribute in node.attributes:
            for graph in attribute.graphs:
                yield graph
                yield from _subgraphs(graph.nodes)


def dtype_name(data_type: int) -> str:
    """Return ``"float32"`` for 1, and ``"type 99"`` for a number unknown to this version."""
    return _TYPES[data_type][0] if data_type in _TYPES else f"type {data_type}"


def bit_width(name: str) -> int:
    """Return the bits of one element of the type *name*; 0 for texts and for names that are not types."""
    return next((bits for known, bits, _ in _TYPES.values() if known == name), 0)


def byte_size(data_type: int, dims: Iterable[int]) -> int:
    """Return the bytes of a tensor's data, sub-byte types packed; 0 for texts and for types of unknown size."""
    bits = _TYPES[data_type][1] if data_type in _TYPES else 0
    return (prod(dims) * bits + 7) // 8


def struct_letter(data_type: int) -> str:
    """Return the letter with which ``struct`` reads one element; empty for a type that it cannot read."""
    return _TYPES[data_type][2] if data_type in _TYPES else ""


def channel_axis(node: NodeProto) -> int | None:
    """Return the axis of output channels in the weights (input 1) of *node*; None if it has no such weights."""
    if node.op_type == "Gemm" and any(attribute.name == "transB" and attribute.i for attribute in node.attribute):
        return 0
    return CHANNEL_AXES.get(node.op_type)


def standard_opset(model: ModelProto) -> int:
    """Return the version of the ONNX standard that *model* imports; 0 if it imports none."""
    return next((entry.version for entry in model.opset_import if entry.domain in ("", STANDARD_DOMAIN)), 0)
