"""attention_expandedattention: the standard's Attention (opset 23) spelled out in MatMul, Add and Softmax.

For compilers that do not know the operator, and for quantize, which sees only what is spelled out. The scale goes onto
both factors, as the standard says, so that neither overflows in half precision.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from winml_dag.stages.optimize import OptimizeTarget
from winml_dag.stages.optimize.rewrite import Outcome, constant, known_shape, nodes_of, replace_node

# A mask of truth values hides with this: -inf would make a row that is hidden as a whole NaN.
_HIDDEN = float(np.finfo(np.float32).min)


def apply(model: ir.Model, target: OptimizeTarget) -> Outcome:  # noqa: ARG001
    """Those with a cache of keys and values, a causal mask, a cap on the scores, or three dimensions stay."""
    nodes = nodes_of(model, "Attention")
    changes = sum(_spell_out(node) for node in nodes)
    left = len(nodes) - changes
    return Outcome(changes, f"{left} Attention stay: they have a cache, a causal mask or other shapes" if left else "")


def _spell_out(node: ir.Node) -> bool:
    query, key, value, mask, *cache = (*node.inputs, *[None] * 6)[:6]
    attributes = node.attributes
    plain = not any(cache) and not attributes.get_int("is_causal", 0) and not attributes.get_float("softcap", 0.0)
    shapes = [known_shape(each) for each in (query, key, value)]
    if not plain or len(node.outputs) != 1 or query is None or key is None or value is None or None in shapes:
        return False
    if any(len(shape or ()) != 4 for shape in shapes) or len({(shape or ())[1] for shape in shapes}) != 1:
        return False
    if query.dtype != ir.DataType.FLOAT or (mask is not None and mask.dtype is None):
        return False
    scale = attributes.get_float("scale", 0.0) or 1 / math.sqrt((shapes[0] or ())[3])
    tape = ir.tape.Tape()
    root = constant(tape, math.sqrt(scale), ir.DataType.FLOAT)
    turned = tape.op("Transpose", [tape.op("Mul", [key, root])], {"perm": [0, 1, 3, 2]})
    scores = tape.op("MatMul", [tape.op("Mul", [query, root]), turned])
    if mask is not None:
        scores = tape.op("Add", [scores, _added(tape, mask)])
    weights = tape.op("Softmax", [scores], {"axis": -1})
    if mask is not None and mask.dtype == ir.DataType.BOOL:
        # Of a row that is hidden as a whole, Softmax makes equal shares, and Attention nothing.
        weights = tape.op("Where", [mask, weights, constant(tape, 0.0, ir.DataType.FLOAT)])
    replace_node(node, tape, [tape.op("MatMul", [weights, value])])
    return True


def _added(tape: ir.tape.Tape, mask: ir.Value) -> ir.Value:
    if mask.dtype != ir.DataType.BOOL:
        return mask
    shown = constant(tape, 0.0, ir.DataType.FLOAT)
    return tape.op("Where", [mask, shown, constant(tape, _HIDDEN, ir.DataType.FLOAT)])
