"""Types of single nodes that differ from those of the rest: what onnxruntime's quantizer is told of their tensors.

A tensor has the type of the node that makes it. Where a node that reads it computes in another one, a conversion goes
between the two, so that every node has one type on all sides, as QNN demands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from onnx import GraphProto, NodeProto
from onnxruntime.quantization import QuantType

from winml_dag.errors import StageError
from winml_dag.stages.float_model import float_tensors

# As onnxruntime has it: by tensor, a list with one object of type, axis, symmetry and conversion.
TensorOverrides: TypeAlias = dict[str, list[dict[str, Any]]]

# Where an operator's constant is a weight, and the axis of its channels. None: a vector.
_WEIGHTS = {"Conv": (1, 0), "ConvTranspose": (1, 1), "MatMul": (1, 1), "Gemm": (1, 1)}
_SCALED = frozenset({"LayerNormalization", "InstanceNormalization", "BatchNormalization"})
# Constants that become int32 beside data and weight, or stay as they are.
_BIASED = frozenset({*_WEIGHTS, *_SCALED}) - {"MatMul"}


def name_nodes(graph: GraphProto) -> None:
    """Give a name to every node that has none: a conversion knows its readers by name."""
    for index, node in enumerate(graph.node):
        if not node.name:
            node.name = f"{node.op_type}_of_node_{index}"


def own_constants(graph: GraphProto, nodes: Mapping[str, object]) -> None:
    """Give each of *nodes* (by name) constants that nobody else reads, since a constant has one type."""
    constants = {tensor.name: tensor for tensor in graph.initializer}
    readers: dict[str, int] = {}
    for node in graph.node:
        for name in node.input:
            readers[name] = readers.get(name, 0) + 1
    for node in graph.node:
        if node.name not in nodes:
            continue
        for position, name in enumerate(node.input):
            if name in constants and readers[name] > 1:
                own = graph.initializer.add()
                own.CopyFrom(constants[name])
                own.name = f"{name}_of_{node.name}_{position}"
                node.input[position] = own.name
                readers[name] -= 1


def activation_overrides(graph: GraphProto, types: Mapping[str, QuantType], default: QuantType) -> TensorOverrides:
    """What makes the nodes of *types* (by name) compute with activations of those types, and all others of *default*.

    Raises:
        StageError: when a tensor would be needed in three types.
    """
    makers = {name: node for node in graph.node for name in node.output}
    readers: dict[str, list[NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    overrides: TensorOverrides = {}
    for tensor in sorted(float_tensors(graph)):
        wanted = {node.name: types.get(node.name, default) for node in readers.get(tensor, ())}
        if tensor in makers:
            made = types.get(makers[tensor].name, default)
        else:
            made = next(iter(wanted.values())) if len(set(wanted.values())) == 1 else default
        others = {name for name, quant_type in wanted.items() if quant_type is not made}
        if not others:
            if made is not default:
                overrides[tensor] = [{"quant_type": made}]
            continue
        converted = {wanted[name] for name in others}
        if len(converted) > 1:
            raise StageError(
                f"quant.node_overrides: {tensor!r} would be needed in {len(converted) + 1} types.",
                advice="Give the nodes that read it one activation_type.",
            )
        overrides[tensor] = [{"quant_type": made, "convert": {"quant_type": converted.pop(), "recv_nodes": others}}]
    return overrides | _constants_beside(graph, types)


def _constants_beside(graph: GraphProto, types: Mapping[str, QuantType]) -> TensorOverrides:
    """Constants that meet an activation, as in Add, have its type."""
    constants = {tensor.name for tensor in graph.initializer}
    return {
        name: [{"quant_type": types[node.name]}]
        for node in graph.node
        if node.name in types and node.op_type not in _BIASED | _WEIGHTS.keys()
        for name in node.input
        if name in constants
    }


def weight_overrides(
    graph: GraphProto, types: Mapping[str, tuple[QuantType, bool]], *, per_channel: bool
) -> TensorOverrides:
    """What gives the weights of the nodes of *types* (by name) those types, each with whether it is symmetric."""
    constants = {tensor.name: tensor for tensor in graph.initializer}
    overrides: TensorOverrides = {}
    for node in graph.node:
        if node.name not in types:
            continue
        quant_type, symmetric = types[node.name]
        for name, axis in weights_of(node):
            if name in constants:
                override: dict[str, Any] = {"quant_type": quant_type, "symmetric": symmetric}
                if per_channel and axis is not None and len(constants[name].dims) > axis:
                    override["axis"] = axis
                overrides[name] = [override]
    return overrides


def weights_of(node: NodeProto) -> Sequence[tuple[str, int | None]]:
    """Names of the weights of *node*, each with the axis of its channels."""
    if node.op_type in _SCALED:
        return [(node.input[1], None)]
    if node.op_type not in _WEIGHTS:
        return []
    position, axis = _WEIGHTS[node.op_type]
    if node.op_type == "Gemm" and any(attribute.name == "transB" and attribute.i for attribute in node.attribute):
        axis = 0
    return [(node.input[position], axis)]
