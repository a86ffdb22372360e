"""Prepare models for ahead-of-time compilation with onnxruntime: EPContext nodes, and weights that it can write.

:func:`wrap_context` builds an EPContext model around a binary that another tool has compiled.
:func:`put_out_inner_weights` prepares a model with branches or loops, of which onnxruntime drops the outermost graph's
weights; it keeps outputs of the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from pathlib import Path

from onnx import GraphProto, ModelProto, TensorProto, ValueInfoProto, helper

from winml_dag.errors import InputError
from winml_dag.onnxmodel.graph import Value
from winml_dag.onnxmodel.graphfile import read_model
from winml_dag.onnxmodel.protos import constant_tensors, distinct_names, graphs_inside, read_inside

_OPSET = 21
_IR_VERSION = 10
# onnxruntime keeps larger tensors in its own memory. Smaller ones stay where shape inference sees them.
_MOST_INLINE_BYTES = 127


@dataclass(frozen=True)
class Context:
    """A binary and its description for onnxruntime.

    Attributes:
        source: the full name of the execution provider that runs it.
        graph: the name of the graph in it.
        sdk_version: of the tool that compiled it.
    """

    binary: Path
    source: str
    graph: str
    sdk_version: str


def wrap_context(context: Context, model: Path, output: Path, *, embed: bool) -> None:
    """Write to *output* a model with the inputs and outputs of *model*, all computed by *context*.

    The binary is inside (*embed*), or must be next to *output*.

    Raises:
        InputError: *model* has an input or output that is not a tensor of a fixed shape.
    """
    graph = read_model(model).graph
    constants = {tensor.name for tensor in graph.initializers}
    inputs = [_value(model, value) for value in graph.inputs if value.name not in constants]
    outputs = [_value(model, value) for value in graph.outputs]
    node = helper.make_node(
        "EPContext",
        [value.name for value in inputs],
        [value.name for value in outputs],
        name=context.graph,
        domain="com.microsoft",
        embed_mode=int(embed),
        ep_cache_context=context.binary.read_bytes() if embed else context.binary.name.encode(),
        ep_sdk_version=context.sdk_version,
        main_context=1,
        partition_name=context.graph,
        source=context.source,
    )
    made = helper.make_model(
        helper.make_graph([node], context.graph, inputs, outputs),
        opset_imports=[helper.make_opsetid("", _OPSET), helper.make_opsetid("com.microsoft", 1)],
        ir_version=_IR_VERSION,
    )
    output.write_bytes(made.SerializeToString(deterministic=True))


def _value(model: Path, value: Value) -> ValueInfoProto:
    if not value.data_type or value.dims is None or not all(isinstance(dim, int) for dim in value.dims):
        raise InputError(f"{model}: {value.name!r} is not a tensor of a fixed shape, as a compiled model needs it.")
    return helper.make_tensor_value_info(value.name, value.data_type, value.dims)


def put_out_inner_weights(model: ModelProto) -> bool:
    """Move the weights inside If, Loop and Scan to the outermost graph of *model* and make them outputs.

    Works in place; returns whether any were found. External data stays where it is.
    """
    if not any(graphs_inside(model.graph.node)):
        return False
    distinct_names(model)
    graph = model.graph
    for inner in list(graphs_inside(graph.node)):
        _move_weights(inner, graph)
    shown = {value.name for value in (*graph.input, *graph.output)}
    read = read_inside(graph.node) - shown
    put_out = [(name, tensor) for name, tensor in constant_tensors(graph).items() if name in read]
    graph.output.extend(helper.make_tensor_value_info(name, each.data_type, list(each.dims)) for name, each in put_out)
    return bool(put_out)


def _move_weights(inner: GraphProto, outermost: GraphProto) -> None:
    # An output of a branch must be defined in it.
    put_out = {value.name for value in inner.output}
    for index, tensor in reversed(list(enumerate(inner.initializer))):
        if _is_large(tensor) and tensor.name not in put_out:
            outermost.initializer.append(tensor)
            del inner.initializer[index]
    constants = constant_tensors(inner)
    for index, node in reversed(list(enumerate(inner.node))):
        name = node.output[0] if node.op_type == "Constant" else ""
        if name in constants and _is_large(constants[name]) and name not in put_out:
            outermost.node.insert(0, node)
            del inner.node[index]


def _is_large(tensor: TensorProto) -> bool:
    # For types with fewer than 8 bits, too many are moved.
    size = helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    return bool(prod(tensor.dims) * size > _MOST_INLINE_BYTES)
