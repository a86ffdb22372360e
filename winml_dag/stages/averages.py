"""Rewrite AveragePool nodes with padding, which QNN computes wrongly in half precision when padding is excluded.

For a one-node model (1x24x56x56, a 3x3 window, padding 1) the SQNR is 5 dB when padding is excluded and 69 dB when it
is included (QNN SDK 2.51). The rewrite therefore includes padding and corrects the result with a Mul. QNN computes
integer averages correctly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import TypeVar, cast

from onnx import GraphProto, ModelProto, NodeProto, helper, shape_inference

from winml_dag.onnxmodel.protos import Naming

_Value = TypeVar("_Value", int, Sequence[int])


def count_padding(model: ModelProto) -> bool:
    """Rewrite in place each float AveragePool that excludes padding; return whether any was found.

    A node whose shape is unknown is not changed.
    """
    graph = model.graph
    makers = {name: node for node in graph.node for name in node.output}
    found = [
        node
        for node in graph.node
        if node.op_type == "AveragePool"
        and any(_attribute(node, "pads", ()))
        and not _attribute(node, "count_include_pad", 0)
        and not _attribute(node, "ceil_mode", 0)
        and makers.get(node.input[0], node).op_type != "DequantizeLinear"
    ]
    if not found:
        return False
    known = {value.name: value.type.tensor_type for value in shape_inference.infer_shapes(model).graph.value_info}
    known |= {value.name: value.type.tensor_type for value in (*graph.input, *graph.output)}
    naming, changed = Naming.of(graph), False
    for node in found:
        tensor = known.get(node.input[0])
        sizes = [] if tensor is None else [dim.dim_value for dim in tensor.shape.dim[2:]]
        if tensor is not None and sizes and all(sizes):
            _count(graph, node, sizes, tensor.elem_type, naming)
            changed = True
    return changed


def _count(graph: GraphProto, node: NodeProto, sizes: list[int], elem_type: int, naming: Naming) -> None:
    kernel = _attribute(node, "kernel_shape", ())
    rank = len(sizes)
    strides, dilations = (_attribute(node, name, (1,) * rank) for name in ("strides", "dilations"))
    pads = _attribute(node, "pads", ())
    inside = []
    for axis, size in enumerate(sizes):
        reach = dilations[axis] * (kernel[axis] - 1) + 1
        starts = range(-pads[axis], size + pads[axis + rank] - reach + 1, strides[axis])
        steps = range(0, reach, dilations[axis])
        inside.append([sum(0 <= start + step < size for step in steps) for start in starts])
    # A window that covers only padding has no average.
    factors = [math.prod(kernel) / max(1, math.prod(counts)) for counts in product(*inside)]
    output = node.output[0]
    at = next(index for index, each in enumerate(graph.node) if output in each.output)
    node.output[0], factor = naming.new(f"{output}_with_padding"), naming.new(f"{output}_padding_factor")
    graph.initializer.append(helper.make_tensor(factor, elem_type, [1, 1, *map(len, inside)], factors))
    corrected = helper.make_node("Mul", [node.output[0], factor], [output], naming.new(f"{node.name}/mul"))
    graph.node.insert(at + 1, corrected)
    kept = [each for each in node.attribute if each.name != "count_include_pad"]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute("count_include_pad", 1)])


def _attribute(node: NodeProto, name: str, otherwise: _Value) -> _Value:
    values = (helper.get_attribute_value(each) for each in node.attribute if each.name == name)
    return cast(_Value, next(values, otherwise))
