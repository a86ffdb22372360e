"""Types of single nodes that differ from the default, as tensor overrides for onnxruntime's quantizer.

A tensor has the type of the node that computes it. If a node that reads it computes in another type, a conversion is
inserted, so that every node has one type on all sides, as QNN requires.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeAlias

from onnx import GraphProto, NodeProto, TensorProto
from onnxruntime.quantization import QuantType

from winml_dag.errors import StageError
from winml_dag.onnxmodel.graph import CHANNEL_AXES, channel_axis
from winml_dag.onnxmodel.protos import Naming, attributes_of, graphs_of, read_inside, readers_of
from winml_dag.stages.float_model import float_tensors
from winml_dag.stages.quantize import NodeTypes
from winml_dag.stages.quantize.coverage import DATA_INPUTS

# onnxruntime's format: by tensor, a list with one object of type, axis, symmetry and conversion.
TensorOverrides: TypeAlias = dict[str, list[dict[str, Any]]]

INTEGER_TYPES = {
    "uint8": QuantType.QUInt8,
    "int8": QuantType.QInt8,
    "uint16": QuantType.QUInt16,
    "int16": QuantType.QInt16,
}
# onnxruntime has no 4-bit activations.
WEIGHT_TYPES = {**INTEGER_TYPES, "int4": QuantType.QInt4, "uint4": QuantType.QUInt4}
SIGNED = (QuantType.QInt4, QuantType.QInt8, QuantType.QInt16)

_SCALED = frozenset({"LayerNormalization", "InstanceNormalization", "BatchNormalization"})
# Operators with constants that become int32 next to data and weight, or stay unchanged.
_BIASED = frozenset({*CHANNEL_AXES, *_SCALED}) - {"MatMul"}


def name_nodes(graph: GraphProto) -> None:
    """Give every node, in subgraphs too, a unique name, because tools identify nodes by name."""
    naming = Naming.of(graph)
    seen: set[str] = set()
    nodes = (node for each in graphs_of(graph) for node in each.node)
    for index, node in enumerate(nodes):
        if not node.name or node.name in seen:
            node.name = naming.new(node.name or f"{node.op_type}_of_node_{index}")
        seen.add(node.name)


def own_constants(graph: GraphProto, use: Callable[[NodeProto, int], Hashable], *, inside: bool = False) -> None:
    """Split constants that several inputs read, so that all inputs that read one have the same *use*.

    onnxruntime's quantizer gives a constant one type and one scale, whatever reads it. *use* gets a node and the index
    of its input; None means a use that leaves the constant in float, as being an output does. Reading it in a subgraph
    does so too, unless *inside* is set: then nodes and constants of subgraphs are treated like all others.
    """
    graphs = list(graphs_of(graph)) if inside else [graph]
    constants = {t.name: (each, t) for each in graphs for t in each.initializer if t.data_type == TensorProto.FLOAT}
    outside = {value.name for each in graphs for value in each.output}
    if not inside:
        outside |= read_inside(graph.node)
    naming = Naming.of(graph)
    owned: dict[str, dict[Hashable, str]] = {name: {None: name} for name in outside}
    for node in (node for each in graphs for node in each.node):
        for position, name in enumerate(node.input):
            if name not in constants:
                continue
            by_use = owned.setdefault(name, {})
            wanted = use(node, position)
            if wanted not in by_use and by_use:
                holder, tensor = constants[name]
                own = holder.initializer.add()
                own.CopyFrom(tensor)
                own.name = naming.new(f"{name}_of_{node.name}_{position}")
                by_use[wanted] = own.name
            node.input[position] = by_use.setdefault(wanted, name)


def use_of(node: NodeProto, position: int) -> Hashable:
    """Return what onnxruntime's quantizer would use this input for if it is constant; for :func:`own_constants`."""
    if position == 2 and node.op_type in _BIASED:
        return "bias", node.name
    if position >= DATA_INPUTS.get(node.op_type, position + 1):
        return None
    if position == 1 and node.op_type in _BIASED | CHANNEL_AXES.keys():
        ((_, axis),) = weights_of(node)
        return "weight", axis
    return "left" if node.op_type == "MatMul" else "data"


def activation_overrides(graph: GraphProto, types: Mapping[str, QuantType], default: QuantType) -> TensorOverrides:
    """Return overrides so that the nodes of *types* (by name) compute with those activations, others with *default*.

    Constants that are combined with an activation, as in Add, have its type.

    Raises:
        StageError: a tensor would be needed in three types.
    """
    makers = {name: node for node in graph.node for name in node.output}
    readers = readers_of(graph.node)
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
    constants = {tensor.name for tensor in graph.initializer}
    for node in graph.node:
        if node.name in types and node.op_type not in _BIASED | CHANNEL_AXES.keys():
            overrides |= {name: [{"quant_type": types[node.name]}] for name in node.input if name in constants}
    return overrides


def whole_tensors(graph: GraphProto, weight_type: QuantType) -> TensorOverrides:
    """Return overrides for weights that onnxruntime would scale along an axis that is not their channels'.

    Such weights get one scale. onnxruntime uses axis 1 for every constant of MatMul, even on the left or with more than
    two axes, for which no integer kernel takes several scales. It also uses axis 1 for ConvTranspose, which with groups
    has only some of the channels that the bias has. The bias of a LayerNormalization over several axes has no channels.
    """
    constants = {tensor.name: len(tensor.dims) for tensor in graph.initializer if tensor.data_type == TensorProto.FLOAT}

    def has_other_channels(node: NodeProto, position: int) -> bool:
        if node.op_type == "MatMul":
            return position == 0 or constants[node.input[1]] != 2
        if node.op_type == "LayerNormalization":
            return position == 1 and constants[node.input[1]] > 1
        return node.op_type == "ConvTranspose" and position == 1 and attributes_of(node).get("group", 1) > 1

    return {
        name: [{"quant_type": weight_type}]
        for node in graph.node
        for position, name in enumerate(node.input[:2])
        if name in constants and has_other_channels(node, position)
    }


def weights_of(node: NodeProto) -> Sequence[tuple[str, int | None]]:
    """Return the names of the weights of *node*, each with the axis of its channels; None for a vector."""
    if node.op_type in _SCALED:
        return [(node.input[1], None)]
    axis = channel_axis(node)
    return [] if axis is None else [(node.input[1], axis)]


def node_overrides(
    graph: GraphProto,
    types: Mapping[str, NodeTypes],
    activation_type: QuantType,
    weight_symmetric: bool | None,
    *,
    per_channel: bool,
) -> TensorOverrides:
    """Return the tensor overrides that the *types* of single nodes, by name, result in for *graph*."""
    if not types:
        return {}
    activations = {name: INTEGER_TYPES[of.activation_type] for name, of in types.items() if of.activation_type}
    weights = {name: WEIGHT_TYPES[of.weight_type] for name, of in types.items() if of.weight_type}
    constants = {tensor.name: tensor for tensor in graph.initializer}
    overrides = activation_overrides(graph, activations, activation_type)
    for node in graph.node:
        if (weight_type := weights.get(node.name)) is None:
            continue
        symmetric = weight_type in SIGNED if weight_symmetric is None else weight_symmetric
        for name, axis in weights_of(node):
            if name in constants:
                override: dict[str, Any] = {"quant_type": weight_type, "symmetric": symmetric}
                if per_channel and axis is not None and len(constants[name].dims) > axis:
                    override["axis"] = axis
                overrides[name] = [override]
    return overrides
