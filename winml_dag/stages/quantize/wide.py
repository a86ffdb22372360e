"""Which nodes compute with 16-bit activations although the others have 8 bits: those that 8 bits would ruin.

They are the sums that a normalization reads, where a few values stretch the range so far that the others are left with
a step or two; with what makes such a sum, as far as its own steps are too coarse for the sum; and the normalization.
Nothing in 8 bits does instead: a normalization mixes all channels, so they cannot be scaled one by one before it, and
what is cut off is what the model needs (clipping to the least squared error makes it worse).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto, numpy_helper

from winml_dag.stages.normalizations import is_coarse, normalizations
from winml_dag.stages.ranges import Ranges

# What they make is what they are given, at other places.
_MOVING = frozenset({"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Identity"})
_ADDING = frozenset({"Add", "Sub"})
# Their results are as fine as their data, which is constant: the rows of a table.
_LOOKING_UP = frozenset({"Gather"})

_CHANNEL_AXIS = {"Gemm": 1, "Conv": 0, "ConvTranspose": 1}


def wide_nodes(graph: GraphProto, ranges: Ranges, taken: Callable[[NodeProto], bool]) -> tuple[str, ...]:
    """Names of the nodes to compute with 16-bit activations, in the graph's order; of those that are *taken*.

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
    """The nodes that make *source*, and those behind them whose results are too coarse to be added to it in 8 bits."""
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


def with_large_bias(graph: GraphProto, activation_steps: Mapping[str, int], ranges: Ranges) -> frozenset[str]:
    """Those nodes whose bias is beyond int32 with 8-bit weights; of *activation_steps*, by name, and so many steps.

    The scale of a bias is that of the input times that of the weight. What is beyond int32 would be cut off, silently;
    with symmetric weights, onnxruntime makes their scale larger for the channels concerned.
    """
    constants = {tensor.name: tensor for tensor in graph.initializer}
    return frozenset(
        node.name
        for node in graph.node
        if node.name in activation_steps and _overflows(node, activation_steps[node.name], constants, ranges)
    )


def _overflows(node: NodeProto, activation_steps: int, constants: Mapping[str, TensorProto], ranges: Ranges) -> bool:
    axis = _CHANNEL_AXIS.get(node.op_type)
    if axis is None or len(node.input) < 3 or not set(node.input[1:3]) <= constants.keys():
        return False
    if any(attribute.name == "transB" and attribute.i for attribute in node.attribute):
        axis = 0
    weight, bias = (numpy_helper.to_array(constants[name]).astype(np.float64) for name in node.input[1:3])
    channels = np.moveaxis(weight, axis, 0).reshape(weight.shape[axis], -1)
    low, high = ranges.bounds[node.input[0]]
    step = (max(high, 0.0) - min(low, 0.0)) / activation_steps
    steps = (np.maximum(channels.max(1), 0) - np.minimum(channels.min(1), 0)) / 255
    if steps.size != bias.size:  # of groups
        steps = steps.max()
    # Where either has no range at all, its scale is 1.
    scale = np.where(step * steps > 0, step * steps, np.inf)
    return bool((np.abs(bias.reshape(-1)) > np.iinfo(np.int32).max * scale).any())
