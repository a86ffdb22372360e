"""clamp_constant_values: constants that stand for infinity become numbers that a quantized tensor can hold.

Static quantization does that by itself with what is infinite in any model (:mod:`winml_dag.stages.infinity`). This is
for the whole model, and for numbers such as -10000 too, which only who knows the model can tell from others.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from winml_dag.stages.infinity import EXEMPT, Infinity
from winml_dag.stages.optimize import OptimizeTarget
from winml_dag.stages.optimize.rewrite import Outcome

# -10000 is the smallest magnitude that models use for "minus infinity" (the first BERT). Positive constants of that
# size are ordinary (the base of rotary embeddings is 10000 to 1e8), hence the other threshold.
_INFINITY = Infinity(-1e4, 1e9)

_FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE})


def apply(model: ir.Model, target: OptimizeTarget) -> Outcome:  # noqa: ARG001
    """Clamp initializers and attributes, in subgraphs too; a change is one tensor or one attribute.

    All huge values of one sign become the same number, so a graph that compares a mask with its fill value still works.
    """
    changes = 0
    for graph in model.graphs():
        changes += sum(_clamp_initializer(value) for value in list(graph.initializers.values()))
        changes += sum(_clamp_attributes(node) for node in graph if node.op_type not in EXEMPT)
    return Outcome(changes)


def _clamp_initializer(value: ir.Value) -> int:
    tensor, graph = value.const_value, value.graph
    uses = [use for use in value.uses() if use.node.op_type not in EXEMPT]
    if tensor is None or graph is None or not uses or value.is_graph_input() or value.is_graph_output():
        return 0
    clamped = _clamped(tensor)
    if clamped is None:
        return 0
    if len(uses) == len(value.uses()):
        value.const_value = ir.tensor(clamped, name=value.name)
        return 1
    # Shared with a node that must keep it as it is.
    name = f"{value.name}_clamped"
    copy = ir.Value(name=name, shape=value.shape, type=value.type, const_value=ir.tensor(clamped, name=name))
    graph.register_initializer(copy)
    for use in uses:
        use.node.replace_input_with(use.idx, copy)
    return 1


def _clamp_attributes(node: ir.Node) -> int:
    changes = 0
    for attribute in list(node.attributes.values()):
        replacement = _clamped_attribute(attribute)
        if replacement is not None:
            node.attributes[attribute.name] = replacement
            changes += 1
    return changes


def _clamped_attribute(attribute: ir.Attr) -> ir.Attr | None:
    if attribute.is_ref():
        return None
    if attribute.type == ir.AttributeType.TENSOR:
        clamped = _clamped(attribute.as_tensor())
        return None if clamped is None else ir.AttrTensor(attribute.name, ir.tensor(clamped))
    if attribute.type == ir.AttributeType.FLOAT:
        number = _INFINITY.without(np.array([attribute.as_float()]))
        return None if number is None else ir.AttrFloat32(attribute.name, float(number[0]))
    if attribute.type == ir.AttributeType.FLOATS:
        numbers = _INFINITY.without(np.array(attribute.as_floats()))
        return None if numbers is None else ir.AttrFloat32s(attribute.name, numbers.tolist())
    return None


def _clamped(tensor: ir.TensorProtocol) -> NDArray[Any] | None:
    """The values with the huge ones replaced; None when there are none."""
    return None if tensor.dtype not in _FLOATS else _INFINITY.without(tensor.numpy())
