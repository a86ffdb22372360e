"""Weights of branches and loop bodies, in a form that onnxruntime can write into a compiled model.

onnxruntime drops weights of the outermost graph from a compiled model when no node there reads them, though a branch
does, and refuses to write inner weights that it keeps as memory of its own. It keeps what is an output of the model.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper

from winml_dag.onnxmodel.scopes import distinct_names
from winml_dag.onnxmodel.subgraphs import graphs_inside, read_inside

# onnxruntime keeps a tensor of more bytes as memory of its own. Smaller ones stay where shape inference sees them.
_MOST_INLINE_BYTES = 127


def put_out_inner_weights(model: ModelProto) -> bool:
    """Move the weights inside If, Loop and Scan to the outermost graph of *model*, in place, and make outputs of all
    that are read inside. Returns whether there are any; external data stays where it is.
    """
    if not any(graphs_inside(model.graph.node)):
        return False
    distinct_names(model)
    graph = model.graph
    for inner in list(graphs_inside(graph.node)):
        _move_weights(inner, graph)
    shown = {value.name for value in (*graph.input, *graph.output)}
    read = read_inside(graph.node) - shown
    put_out = [(name, tensor) for name, tensor in _weights(graph) if name in read]
    graph.output.extend(helper.make_tensor_value_info(name, each.data_type, list(each.dims)) for name, each in put_out)
    return bool(put_out)


def _move_weights(inner: GraphProto, outermost: GraphProto) -> None:
    # What a branch puts out must be made in it.
    put_out = {value.name for value in inner.output}
    for place, tensor in reversed(list(enumerate(inner.initializer))):
        if _is_large(tensor) and tensor.name not in put_out:
            outermost.initializer.append(tensor)
            del inner.initializer[place]
    for place, node in reversed(list(enumerate(inner.node))):
        constant = _constant(node)
        if constant is not None and _is_large(constant) and node.output[0] not in put_out:
            outermost.node.insert(0, node)
            del inner.node[place]


def _weights(graph: GraphProto) -> Iterator[tuple[str, TensorProto]]:
    yield from ((tensor.name, tensor) for tensor in graph.initializer)
    for node in graph.node:
        if (tensor := _constant(node)) is not None:
            yield node.output[0], tensor


def _constant(node: NodeProto) -> TensorProto | None:
    if node.op_type != "Constant":
        return None
    return next((attribute.t for attribute in node.attribute if attribute.name == "value"), None)


def _is_large(tensor: TensorProto) -> bool:
    # Of a type with fewer than 8 bits, one too many is moved.
    size = helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    return bool(prod(tensor.dims) * size > _MOST_INLINE_BYTES)
