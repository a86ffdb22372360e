"""What is done to a model before Q and DQ are inserted: additions of zero are taken out, and the few huge values are
tamed, so that integers hold the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from onnx import GraphProto, NodeProto

from winml_dag.recipe.precision import SIXTEEN_BITS
from winml_dag.stages.quantize import NodeTypes, QuantizeFields
from winml_dag.stages.quantize.equalize import equalize
from winml_dag.stages.quantize.selection import override_types, select
from winml_dag.stages.quantize.wide import wide_nodes, with_large_bias
from winml_dag.stages.quantize.zeros import take_out_zero_additions
from winml_dag.stages.ranges import Ranges

_FOUR_BITS = ("uint4", "int4")


@dataclass(frozen=True)
class Tamed:
    """What to quantize by from here on.

    Attributes:
        ranges: with those of tensors that were changed.
        fields: with the types of single nodes.
        equalized_tensors: how many were equalized.
        activations_kept_at_16_bits: how many are made by nodes that compute with 16 bits.
        zero_additions: how many of them were taken out.
    """

    ranges: Ranges
    fields: QuantizeFields
    equalized_tensors: int = 0
    activations_kept_at_16_bits: int = 0
    zero_additions: int = 0


def tame_outliers(graphs: Sequence[GraphProto], ranges: Ranges, fields: QuantizeFields, *, mixes_widths: bool) -> Tamed:
    """Take additions of zero out of *graphs* (see :func:`take_out_zero_additions`), whose nodes must have names; where
    *fields* ask for 8 bits, equalize them and decide types of single nodes.

    ``fields.equalize`` false leaves all as it is, *mixes_widths* false the types of nodes. Types that the config gives
    to a node stay.
    """
    selection = select(graphs[0], fields)

    def taken(node: NodeProto) -> bool:
        return selection.takes(node.op_type) and node.name not in selection.nodes

    theirs = override_types(graphs[0], fields.node_overrides or ())
    zeros = take_out_zero_additions(graphs, ranges, taken, keep=frozenset(theirs))
    tamed = _tame(graphs, ranges, fields, taken, mixes_widths)
    roomy = _with_room_for_biases(graphs[0], tamed.ranges, tamed.fields, taken)
    return replace(tamed, fields=roomy, zero_additions=zeros)


def _tame(
    graphs: Sequence[GraphProto],
    ranges: Ranges,
    fields: QuantizeFields,
    taken: Callable[[NodeProto], bool],
    mixes_widths: bool,
) -> Tamed:
    wide = SIXTEEN_BITS.get(str(fields.activation_type))
    if wide is None:
        return Tamed(ranges, fields)
    if not fields.equalize or not ranges.typical:
        return Tamed(ranges, fields)
    # What equalizing takes from activations it puts into weights, and 4 bits have no room for it: the lowest cosine of
    # all-MiniLM-L6-v2 in w4a8 is 0.37 with it, and 0.85 without.
    narrow = fields.weight_type in _FOUR_BITS
    after, equalized = (ranges, 0) if narrow else equalize(graphs, ranges, taken)
    if not mixes_widths:
        return Tamed(after, fields, equalized)
    theirs = override_types(graphs[0], fields.node_overrides or ())
    names = [
        name
        for name in wide_nodes(graphs[0], after, taken)
        if name not in theirs or theirs[name].activation_type is None
    ]
    ours = [NodeTypes(name, theirs[name].weight_type if name in theirs else None, wide) for name in names]
    if not ours:
        return Tamed(after, fields, equalized)
    makes = sum(name in after.bounds for node in graphs[0].node if node.name in names for name in node.output)
    # Ours are names, which beat patterns, and take the place of what the config says of the same name.
    others = tuple(each for each in fields.node_overrides or () if each.nodes not in names)
    return Tamed(after, replace(fields, node_overrides=(*others, *ours)), equalized, makes)


def _with_room_for_biases(
    graph: GraphProto, ranges: Ranges, fields: QuantizeFields, taken: Callable[[NodeProto], bool]
) -> QuantizeFields:
    """*fields* with signed weights for those nodes whose bias unsigned ones leave no room for, which is rare with 8-bit
    activations. Weights that the config gives to a node stay.
    """
    if fields.weight_type != "uint8":
        return fields
    types = override_types(graph, fields.node_overrides or ())
    same = NodeTypes("")
    steps = {
        node.name: 255
        if (types.get(node.name, same).activation_type or fields.activation_type) in SIXTEEN_BITS
        else 65535
        for node in graph.node
        if taken(node) and types.get(node.name, same).weight_type is None
    }
    signed = with_large_bias(graph, steps, ranges)
    ours = tuple(NodeTypes(name, "int8", types.get(name, same).activation_type) for name in steps if name in signed)
    if not ours:
        return fields
    others = tuple(each for each in fields.node_overrides or () if each.nodes not in signed)
    return replace(fields, node_overrides=(*others, *ours))
