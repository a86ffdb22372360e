"""Additions of zero are taken out before Q and DQ go in, since QNN takes them out as well, and a conversion with them.

A bias of zeros is in every model whose biases were never trained. In float it does nothing. In QDQ, its sum has a scale
of its own: of MatMul, Add and Relu, that of what Relu leaves. QNN drops an Add whose second operand is zero (2.51 does)
and then takes the integers before it for those behind it, in spite of their scale: with a Relu, a cosine of 0.72 where
the CPU has 0.9999.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto, ValueInfoProto, numpy_helper

from winml_dag.onnxmodel.constants import constant_tensors
from winml_dag.onnxmodel.subgraphs import read_inside
from winml_dag.stages.ranges import Ranges

_Shape = tuple[int | str, ...]

# Of the largest value of a sum: what is smaller is rounded away in float32 already.
_NOTHING = 2.0**-24


def take_out_zero_additions(
    graphs: Sequence[GraphProto], ranges: Ranges, taken: Callable[[NodeProto], bool], keep: frozenset[str]
) -> int:
    """Take additions of zero that are *taken* to be quantized out of *graphs*, and return how many there were.

    The first of *graphs* is the model with its weights; the others are the same, and may be without large ones. Where a
    node has to stay, because *keep* has its name or its sum is read outside of the graph's nodes, the zero becomes the
    first operand, which QNN leaves alone.
    """
    constants = constant_tensors(graphs[0])
    shapes = _shapes(graphs[0])
    read_elsewhere = {value.name for value in graphs[0].output} | read_inside(graphs[0].node)
    replaced: dict[str, str] = {}
    turned: set[str] = set()
    for node in graphs[0].node:
        if not taken(node):
            continue
        data = _unchanged(node, constants, shapes, ranges)
        if data is None:
            continue
        if node.name in keep or node.output[0] in read_elsewhere:
            turned.add(node.output[0])
        else:
            # What it adds to may be such a sum itself.
            replaced[node.output[0]] = replaced.get(data, data)
    for graph in graphs:
        _rewire(graph, replaced, turned, constants)
    return len(replaced) + len(turned)


def _unchanged(
    node: NodeProto, constants: Mapping[str, TensorProto], shapes: Mapping[str, _Shape], ranges: Ranges
) -> str | None:
    """What *node* puts out as it is; None when it does more than that."""
    for position in {"Add": (1, 0), "Sub": (1,)}.get(node.op_type, ()):
        data: str = node.input[1 - position]
        zero = constants.get(node.input[position])
        if zero is None or zero.data_type != TensorProto.FLOAT or data not in shapes:
            continue
        if _fits(tuple(zero.dims), shapes[data]) and _is_nothing(zero, ranges.bounds.get(node.output[0])):
            return data
    return None


def _fits(dims: tuple[int, ...], shape: _Shape) -> bool:
    """Whether a sum with a constant of *dims* has the *shape* of the other operand."""
    behind = shape[len(shape) - len(dims) :]
    return len(dims) <= len(shape) and all(dim in (1, size) for dim, size in zip(dims, behind, strict=True))


def _is_nothing(zero: TensorProto, bounds: tuple[float, float] | None) -> bool:
    largest = 0.0 if bounds is None else max(abs(bounds[0]), abs(bounds[1]))
    return bool(np.abs(numpy_helper.to_array(zero)).max(initial=0.0) <= largest * _NOTHING)


def _shapes(graph: GraphProto) -> dict[str, _Shape]:
    values = (*graph.input, *graph.value_info, *graph.output)
    return {value.name: _shape(value) for value in values if value.type.tensor_type.HasField("shape")}


def _shape(value: ValueInfoProto) -> _Shape:
    return tuple(dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim)


def _rewire(graph: GraphProto, replaced: Mapping[str, str], turned: set[str], constants: Collection[str]) -> None:
    gone = [node for node in graph.node if node.output and node.output[0] in replaced]
    nodes = [node for node in graph.node if not (node.output and node.output[0] in replaced)]
    for node in nodes:
        for position, name in enumerate(node.input):
            node.input[position] = replaced.get(name, name)
        if node.op_type == "Add" and node.output[0] in turned:
            node.input[0], node.input[1] = sorted(node.input, key=lambda name: name not in constants)
    read = {name for node in nodes for name in node.input} | read_inside(graph.node)
    unread = {name for node in gone for name in node.input if name in constants} - read
    nodes = [node for node in nodes if not (node.op_type == "Constant" and node.output[0] in unread)]
    del graph.node[:]
    graph.node.extend(nodes)
    # By their places: to find one by value, all before it would be compared, gigabytes maybe.
    for place in reversed([place for place, tensor in enumerate(graph.initializer) if tensor.name in unread]):
        del graph.initializer[place]
