"""Prepare a model for Q and DQ: avoid operators that are computed wrongly, and protect other values from outliers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper

from winml_dag.onnxmodel.graph import channel_axis
from winml_dag.onnxmodel.protos import (
    Naming,
    attributes_of,
    constant_tensors,
    read_inside,
    remove_items,
    replace_items,
    shapes_of,
)
from winml_dag.recipe.precision import SIXTEEN_BITS
from winml_dag.stages.quantize import NodeTypes, QuantizeFields
from winml_dag.stages.quantize.equalize import equalize
from winml_dag.stages.quantize.selection import override_types
from winml_dag.stages.ranges import Ranges, is_coarse, normalizations

# Additions of zero are removed before Q and DQ are inserted, because QNN removes them too, and a conversion with them.
#
# Models whose biases were never trained have biases of zeros. In float they do nothing. In QDQ, their sum has its own
# scale: for MatMul, Add and Relu, that of Relu's output. QNN drops an Add whose second operand is zero (2.51 does) and
# then uses the integers before it as those after it, ignoring their scale: with a Relu, this resulted in a cosine of
# 0.72 where the CPU has 0.9999.


_Shape = tuple[int | None, ...]

# Relative to the largest value of a sum: smaller values are lost to rounding in float32 already.
_NOTHING = 2.0**-24


def eliminate_zero_additions(
    graph: GraphProto, ranges: Ranges, taken: Callable[[NodeProto], bool], keep: Collection[str]
) -> int:
    """Remove additions of zero that are *taken* to be quantized from *graph*, and return how many there were.

    If a node must stay, because *keep* has its name or its sum is read outside of the graph's nodes, the zero becomes
    the first operand, which QNN does not drop.
    """
    constants = constant_tensors(graph)
    shapes = shapes_of(graph)
    read_elsewhere = {value.name for value in graph.output} | read_inside(graph.node)
    replaced: dict[str, str] = {}
    turned: set[str] = set()
    for node in graph.node:
        if not taken(node):
            continue
        data = _unchanged(node, constants, shapes, ranges)
        if data is None:
            continue
        if node.name in keep or node.output[0] in read_elsewhere:
            turned.add(node.output[0])
        else:
            # Its input may itself be a removed sum.
            replaced[node.output[0]] = replaced.get(data, data)
    _rewire(graph, replaced, turned, constants)
    return len(replaced) + len(turned)


def _unchanged(
    node: NodeProto, constants: Mapping[str, TensorProto], shapes: Mapping[str, _Shape], ranges: Ranges
) -> str | None:
    """Return the input that *node* outputs unchanged; None if it computes something."""
    for position in {"Add": (1, 0), "Sub": (1,)}.get(node.op_type, ()):
        data: str = node.input[1 - position]
        zero = constants.get(node.input[position])
        if zero is None or zero.data_type != TensorProto.FLOAT or data not in shapes:
            continue
        if _fits(tuple(zero.dims), shapes[data]) and _is_nothing(zero, ranges.bounds.get(node.output[0])):
            return data
    return None


def _fits(dims: tuple[int, ...], shape: _Shape) -> bool:
    """Return whether a sum with a constant of *dims* has the *shape* of the other operand."""
    behind = shape[len(shape) - len(dims) :]
    return len(dims) <= len(shape) and all(dim in (1, size) for dim, size in zip(dims, behind, strict=True))


def _is_nothing(zero: TensorProto, bounds: tuple[float, float] | None) -> bool:
    largest = 0.0 if bounds is None else max(abs(bounds[0]), abs(bounds[1]))
    return bool(np.abs(numpy_helper.to_array(zero)).max(initial=0.0) <= largest * _NOTHING)


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
    replace_items(graph.node, nodes)
    remove_items(graph.initializer, lambda tensor: tensor.name in unread)


# Selects nodes that compute with 16-bit activations although the others have 8 bits: those that 8 bits would ruin.
#
# They are the sums that a normalization reads, in which a few values widen the range so much that the others get only
# one or two steps; the nodes that compute such a sum, as long as their own steps are too coarse for it; and the
# normalization. There is no 8-bit alternative: a normalization mixes all channels, so they cannot be scaled
# individually before it, and the model needs the values that clipping would cut off (clipping to the least squared
# error makes it worse).


# They output their input at other positions.
_MOVING = frozenset({"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Identity"})
_ADDING = frozenset({"Add", "Sub"})
# Their results are as fine as their data, which is constant: the rows of a table.
_LOOKING_UP = frozenset({"Gather"})


def select_16bit_nodes(graph: GraphProto, ranges: Ranges, taken: Callable[[NodeProto], bool]) -> tuple[str, ...]:
    """Return the names of the *taken* nodes to compute with 16-bit activations, in graph order.

    Every node must have a name.
    """
    makers = {name: node for node in graph.node for name in node.output}
    chosen: set[str] = set()
    for each in normalizations(graph):
        source = each.source
        typical = ranges.typical.get(source)
        if typical is not None and is_coarse(ranges.bounds[source], typical):
            chosen.add(each.node.name)
            chosen.update(_behind(source, typical, makers, ranges))
    return tuple(node.name for node in graph.node if node.name in chosen and taken(node))


def _behind(source: str, typical: float, makers: Mapping[str, NodeProto], ranges: Ranges) -> Iterable[str]:
    """Yield the nodes that compute *source*, and their upstream nodes that are also too coarse.

    Those are nodes whose results are too coarse to be added to *source* in 8 bits.
    """
    pending, seen = [source], {source}
    while pending:
        node = makers.get(pending.pop())
        if node is None or node.op_type in _LOOKING_UP:
            continue
        yield node.name
        if node.op_type in _MOVING:
            behind = [node.input[0]]
        elif node.op_type in _ADDING:
            behind = [name for name in node.input if name in ranges.bounds and is_coarse(ranges.bounds[name], typical)]
        else:
            behind = []
        pending += [name for name in behind if name not in seen]
        seen.update(behind)


def _with_large_bias(
    graph: GraphProto,
    nodes: Iterable[NodeProto],
    ranges: Ranges,
    fields: QuantizeFields,
    types: Mapping[str, NodeTypes],
) -> Iterator[NodeProto]:
    """Yield the *nodes* whose bias exceeds int32 with 8-bit weights, if *types* say nothing about their weights.

    The scale of a bias is that of the input times that of the weight. A bias beyond int32 would silently be cut off;
    for symmetric weights, onnxruntime increases the scale of the affected channels.
    """
    constants = {tensor.name: tensor for tensor in graph.initializer}
    for node in nodes:
        own = types.get(node.name, NodeTypes(node.name))
        axis = channel_axis(node)
        if axis is None or len(node.input) < 3 or own.weight_type or not set(node.input[1:3]) <= constants.keys():
            continue
        weight, bias = (numpy_helper.to_array(constants[name]).astype(np.float64) for name in node.input[1:3])
        channels = np.moveaxis(weight, axis, 0).reshape(weight.shape[axis], -1)
        low, high = ranges.bounds[node.input[0]]
        activation_steps = 255 if (own.activation_type or fields.activation_type) in SIXTEEN_BITS else 65535
        step = (max(high, 0.0) - min(low, 0.0)) / activation_steps
        steps = (np.maximum(channels.max(1), 0) - np.minimum(channels.min(1), 0)) / 255
        if steps.size != bias.size:  # with groups
            steps = steps.max()
        # If either has no range at all, its scale is 1.
        scale = np.where(step * steps > 0, step * steps, np.inf)
        if (np.abs(bias.reshape(-1)) > np.iinfo(np.int32).max * scale).any():
            yield node


def divide_in_place_of_reciprocals(graph: GraphProto, taken: Callable[[NodeProto], bool]) -> None:
    """Replace each Reciprocal of *graph* that is *taken* to be quantized with a Div.

    QNN inserts a 1 with the type and scale of the input, clipped to the largest value of the input: outputs of a
    one-node model are 0.1 and 0.5 times what they should be if that value is 0.1 and 0.5 (QNN SDK 2.51). As the operand
    of a Div, the 1 has its own scale.
    """
    found = [node for node in graph.node if node.op_type == "Reciprocal" and taken(node)]
    if not found:
        return
    one = Naming.of(graph).new("one")
    graph.initializer.append(numpy_helper.from_array(np.array(1, np.float32), one))
    for node in found:
        division = helper.make_node("Div", [one, node.input[0]], list(node.output), node.name)
        division.metadata_props.extend(node.metadata_props)
        node.CopyFrom(division)


# From this opset on, Softmax has one axis; before, all from ``axis`` on, 1 by default.
_ONE_AXIS_SINCE = 13


def keep_softmax_in_float(graph: GraphProto, opset: int) -> list[NodeProto]:
    """Put an Abs, which changes nothing, behind each Softmax of *graph* that may be over one value; return both nodes.

    On the CPU, onnxruntime replaces a Softmax between DQ and Q, excluded or not, with an integer kernel that outputs 0
    for a single value (1.31): a transformer with an open length computes nonsense for one token.
    """
    shapes, naming = shapes_of(graph), Naming.of(graph)
    types = {value.name: value for value in (*graph.value_info, *graph.output)}
    kept = []
    for node in [node for node in graph.node if node.op_type == "Softmax"]:
        shape = shapes.get(node.input[0], (None,))
        axis = attributes_of(node).get("axis", -1 if opset >= _ONE_AXIS_SINCE else 1)
        sizes = shape[axis:] if opset < _ONE_AXIS_SINCE else shape[axis : axis + 1 or None]
        if all(sizes) and any(size != 1 for size in sizes):
            continue
        output = node.output[0]
        node.output[0] = naming.new(f"{output}_in_float")
        if output in types:
            value = graph.value_info.add()
            value.CopyFrom(types[output])
            value.name = node.output[0]
        same = helper.make_node("Abs", [node.output[0]], [output], naming.new(f"{node.name}_same"))
        graph.node.insert(next(at for at, each in enumerate(graph.node) if each is node) + 1, same)
        kept += [node, same]
    return kept


_FOUR_BITS = ("uint4", "int4")


@dataclass(frozen=True)
class Tamed:
    """What to quantize with after the preparation.

    Attributes:
        ranges: including those of changed tensors.
        types: of single nodes, by name.
        metrics: how many tensors were equalized, how many are outputs of nodes that compute with 16 bits to protect
            them, and how many additions of zero were removed.
    """

    ranges: Ranges
    types: dict[str, NodeTypes]
    metrics: Mapping[str, int]


def tame_outliers(
    graph: GraphProto,
    ranges: Ranges,
    fields: QuantizeFields,
    taken: Callable[[NodeProto], bool],
    *,
    mixes_widths: bool,
) -> Tamed:
    """Remove additions of zero from *graph*; for 8-bit activations, also equalize and choose types of single nodes.

    Nodes must have names; *taken*: whether one is to be quantized. ``fields.equalize`` false disables the last two,
    *mixes_widths* false only the types of nodes. Types that the config gives to a node are kept.
    """
    types = override_types(graph, fields.node_overrides or ())
    zeros = eliminate_zero_additions(graph, ranges, taken, keep=types)
    wide = SIXTEEN_BITS.get(str(fields.activation_type))
    equalized = kept_wide = 0
    if wide is not None and fields.equalize and ranges.typical:
        # Equalization moves range from activations to weights, and 4 bits have no room for it: the lowest cosine of
        # all-MiniLM-L6-v2 in w4a8 is 0.37 with it, and 0.85 without.
        if fields.weight_type not in _FOUR_BITS:
            ranges, equalized = equalize(graph, ranges, taken)
            types = override_types(graph, fields.node_overrides or ())  # patterns match the second normalizations too
        names = select_16bit_nodes(graph, ranges, taken) if mixes_widths else ()
        names = tuple(name for name in names if name not in types or types[name].activation_type is None)
        kept_wide = sum(name in ranges.bounds for node in graph.node if node.name in names for name in node.output)
        types |= {name: replace(types.get(name, NodeTypes(name)), activation_type=wide) for name in names}
    if fields.weight_type == "uint8":
        # Rare with 8-bit activations.
        types |= {
            node.name: replace(types.get(node.name, NodeTypes(node.name)), weight_type="int8")
            for node in _with_large_bias(graph, filter(taken, graph.node), ranges, fields, types)
        }
    metrics = {
        "equalized_tensors": equalized,
        "activations_kept_at_16_bits": kept_wide,
        "zero_additions_taken_out": zeros,
    }
    return Tamed(ranges, types, metrics)
