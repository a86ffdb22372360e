"""Rewrites of attention blocks and their masks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnxscript.rewriter import MatchContext, RewriterContext
from onnxscript.rewriter.pattern import OpsetPatternBuilder, RewriteRuleClassBase, Var

from winml_dag.stages.mask_clamping import EXEMPT, Infinity
from winml_dag.stages.optimize import OptimizeTarget
from winml_dag.stages.optimize.rewriting import (
    Outcome,
    by_rules,
    constant,
    if_any,
    keeps_rank,
    known_shape,
    nodes_of,
    number,
    replace_each,
    standard_opset,
)

# -10000 is the smallest magnitude that models use for "minus infinity" (the first BERT). Positive constants of that
# size are ordinary (the base of rotary embeddings is 10000 to 1e8), hence the different threshold.
_INFINITY = Infinity(-1e4, 1e9)
_FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE})

# The fill value of a boolean mask: with -inf, a fully masked row would become NaN.
_HIDDEN = float(np.finfo(np.float32).min)

_SHAPE_HAS_START_SINCE = 15
_BEYOND = 2**31 - 1  # any rank


def clamp_constants(model: ir.Model, _: OptimizeTarget) -> Outcome:
    """Replace constants that represent infinity by numbers that a quantized tensor can hold.

    One change is one initializer or one attribute, including those in subgraphs. Static quantization already does this
    for values that are infinite in any model (:mod:`winml_dag.stages.mask_clamping`). This rewrite covers the whole
    model, and numbers such as -10000, which only someone who knows the model can distinguish from ordinary values. All
    huge values of one sign become the same number, so a graph that compares a mask with its fill value still works.
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
    # Another node shares it and needs the original value.
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
        values = _INFINITY.without(np.array([attribute.as_float()]))
        return None if values is None else ir.AttrFloat32(attribute.name, float(values[0]))
    if attribute.type == ir.AttributeType.FLOATS:
        values = _INFINITY.without(np.array(attribute.as_floats()))
        return None if values is None else ir.AttrFloat32s(attribute.name, values.tolist())
    return None


def _clamped(tensor: ir.TensorProtocol) -> NDArray[Any] | None:
    """The values with huge ones replaced; None if there are none."""
    return None if tensor.dtype not in _FLOATS else _INFINITY.without(tensor.numpy())


class _NanGuard(RewriteRuleClassBase):  # type: ignore[misc]
    """Remove the guards that replace NaN by 0 after a Softmax: ``Where(IsNaN(scores), 0, scores)``.

    Such a guard acts only on a row that is fully masked with -inf (0/0). With finite masks (:func:`clamp_constants`) it
    never acts, and a compiler without IsNaN splits the graph there.
    """

    def pattern(self, op: OpsetPatternBuilder, scores: Var, zero: Var) -> Var:
        return op.Where(op.IsNaN(scores), zero, scores)

    def check(self, context: MatchContext, scores: ir.Value, zero: ir.Value) -> bool:
        producer = scores.producer()
        if producer is None or producer.op_type != "Softmax" or not keeps_rank(context, scores):
            return False
        return number(zero) == 0

    def rewrite(self, op: RewriterContext, scores: ir.Value, **_: ir.Value) -> ir.Value:
        # The next pass of onnxruntime removes the Identity, unless its output is a graph output.
        return op.Identity(scores)


remove_nan_guards = by_rules(lambda: [_NanGuard.rule()])


def fuse_attention(model: ir.Model, _: OptimizeTarget) -> Outcome:
    """Fuse attention blocks with separate heads into com.microsoft MultiHeadAttention, using onnxscript's rules.

    These rules match what exporters write today. onnxruntime's AttentionFusion, which makes one Attention with the
    weights of all three projections, matches no exported BERT or ViT any more. The rules first turn scaled dot products
    into functions; onnxruntime's next pass inlines the functions that are not fused, which restores the original nodes.
    """
    # Imported here: this import alone takes as long as all other rewrites together.
    from onnxscript.rewriter.ort_fusions.mha import fuse_mha1, fuse_mha2
    from onnxscript.rewriter.ort_fusions.sdpa import fuse_sdpa
    from onnxscript.rewriter.ort_fusions.sdpa_via_mha import replace_sdpa_by_mha

    if any(
        node.inputs[0] is not None and node.inputs[0].dtype == ir.DataType.DOUBLE for node in nodes_of(model, "Softmax")
    ):
        return Outcome(0, "attention blocks in double precision stay: MultiHeadAttention has none")
    if any(_joins_heads(node) and None in _shapes_around(node) for node in nodes_of(model, "Reshape")):
        return Outcome(0, "attention blocks stay: the shapes behind them are not known")
    replace_each(model, "Reshape", _joined_in_three_dimensions)
    found = int(fuse_sdpa(model, apply_shape_inference=True))
    if not found:
        return Outcome(0)
    changes = int(fuse_mha1(model)) + int(fuse_mha2(model)) + int(replace_sdpa_by_mha(model))
    if standard_opset(model) < _SHAPE_HAS_START_SINCE:
        replace_each(model, "Shape", _sliced_shape)
    return Outcome(changes, if_any(found - changes, "attention blocks stay: their shapes are not known well enough"))


def _joins_heads(node: ir.Node) -> bool:
    """Whether the Reshape *node* joins heads to other than three dimensions."""
    heads = node.inputs[0].producer() if node.inputs[0] is not None else None
    if heads is None or heads.op_type != "Transpose":
        return False
    joined = node.outputs[0].shape
    return list(heads.attributes.get_ints("perm", ())) == [0, 2, 1, 3] and (joined is None or len(joined) not in (3, 4))


def _shapes_around(node: ir.Node) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
    return known_shape(node.inputs[0]), known_shape(node.outputs[0])


def _joined_in_three_dimensions(node: ir.Node, tape: ir.tape.Tape) -> list[ir.Value] | None:
    """If the Reshape *node* joins heads, join them to three dimensions first.

    onnxscript's rules assume that any Reshape after the heads goes to three dimensions, but onnxruntime has merged it
    with the Reshape to two dimensions for a Gemm, as in GPT-2. Reshapes that are not fused are merged again.
    """
    before, after = _shapes_around(node)
    if not _joins_heads(node) or before is None or after is None:
        return None
    three = constant(tape, (*before[:2], before[2] * before[3]), ir.DataType.INT64)
    together = tape.op("Reshape", [node.inputs[0], three])
    return [tape.op("Reshape", [together, constant(tape, after, ir.DataType.INT64)])]


def _sliced_shape(node: ir.Node, tape: ir.tape.Tape) -> list[ir.Value] | None:
    """Replace a Shape with start and end, which onnxscript's rules use in any opset; before 15 that takes a Slice."""
    if not {"start", "end"}.intersection(node.attributes):
        return None
    bounds = node.attributes.get_int("start", 0), node.attributes.get_int("end", _BEYOND)
    start, end = (constant(tape, [each], ir.DataType.INT64) for each in bounds)
    return [tape.op("Slice", [tape.op("Shape", [node.inputs[0]]), start, end])]


def expand_attention(model: ir.Model, _: OptimizeTarget) -> Outcome:
    """Expand the standard's Attention (opset 23) into MatMul, Add and Softmax.

    For compilers without the operator, and for quantize, which cannot see inside it. Attention with a cache of keys and
    values, a causal mask, a cap on the scores, or three dimensions stays.
    """
    stay = "Attention stay: they have a cache, a causal mask or other shapes"
    return replace_each(model, "Attention", _expanded_attention, stay)


def _expanded_attention(node: ir.Node, tape: ir.tape.Tape) -> list[ir.Value] | None:
    query, key, value, mask, *cache = (*node.inputs, *[None] * 6)[:6]
    attributes = node.attributes
    plain = not any(cache) and not attributes.get_int("is_causal", 0) and not attributes.get_float("softcap", 0.0)
    shapes = [known_shape(each) for each in (query, key, value)]
    if not plain or len(node.outputs) != 1 or query is None or key is None or value is None or None in shapes:
        return None
    if any(len(shape or ()) != 4 for shape in shapes) or len({(shape or ())[1] for shape in shapes}) != 1:
        return None
    if query.dtype != ir.DataType.FLOAT or (mask is not None and mask.dtype is None):
        return None
    scale = attributes.get_float("scale", 0.0) or 1 / math.sqrt((shapes[0] or ())[3])
    # Scale both factors, as the standard specifies, so that neither overflows in half precision.
    root = constant(tape, math.sqrt(scale), ir.DataType.FLOAT)
    turned = tape.op("Transpose", [tape.op("Mul", [key, root])], {"perm": [0, 1, 3, 2]})
    scores = tape.op("MatMul", [tape.op("Mul", [query, root]), turned])
    if mask is not None:
        scores = tape.op("Add", [scores, _additive_mask(tape, mask)])
    weights = tape.op("Softmax", [scores], {"axis": -1})
    if mask is not None and mask.dtype == ir.DataType.BOOL:
        # In a fully masked row, Softmax gives equal weights and Attention gives zeros.
        weights = tape.op("Where", [mask, weights, constant(tape, 0.0, ir.DataType.FLOAT)])
    return [tape.op("MatMul", [weights, value])]


def _additive_mask(tape: ir.tape.Tape, mask: ir.Value) -> ir.Value:
    if mask.dtype != ir.DataType.BOOL:
        return mask
    shown = constant(tape, 0.0, ir.DataType.FLOAT)
    return tape.op("Where", [mask, shown, constant(tape, _HIDDEN, ir.DataType.FLOAT)])
