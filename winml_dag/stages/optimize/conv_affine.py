"""What follows a Conv channel by channel goes into its weights and bias.

conv_channel_affine_folding: a product, quotient, sum or difference with one number, or with one for each channel.
onnxruntime's basic level takes products and sums whose constant is the second operand, and few single numbers.

conv_add_batch_normalization_folding: a BatchNormalization behind a Conv and an Add of something that is no constant, as
in residual blocks: the Conv takes all of it, and the other summand its scale.

The new weights are written as nodes, which constant folding then computes: nobody here holds them.
"""

from __future__ import annotations

import onnx_ir as ir
from onnxscript.rewriter import MatchContext, RewriterContext
from onnxscript.rewriter.pattern import OpsetPatternBuilder, RewriteRuleClassBase, Var

from winml_dag.stages.optimize import OptimizeTarget
from winml_dag.stages.optimize.rewrite import Outcome, apply_rules, is_constant, known_shape, numbers, shape_constant


def _only_reader(conv: ir.Value) -> ir.Node | None:
    """The Conv behind the value *conv*, if its weights are constants and nobody else reads what it gives."""
    node = conv.producer()
    if node is None or node.op_type != "Conv" or node.domain or len(conv.uses()) != 1 or conv.is_graph_output():
        return None
    return node if all(_is_fixed(value) for value in node.inputs[1:] if value is not None) else None


def _is_fixed(value: ir.Value) -> bool:
    """Whether *value* is a constant, or computed from constants: by what one of these rules has put in already."""
    node = value.producer()
    return is_constant(value) or (node is not None and all(each and _is_fixed(each) for each in node.inputs))


def _by_channel(factor: ir.Value, weight: ir.Value | None) -> bool:
    """Whether the constant *factor* is one number, or one for each output channel of the Conv with *weight*."""
    shape, weights = known_shape(factor), known_shape(weight)
    if not is_constant(factor) or shape is None or weights is None or len(shape) > len(weights):
        return False
    channels = len(shape) - (len(weights) - 1)  # where the channels are in a value of as many dimensions, from the end
    return all(size == 1 or (place == channels and size == weights[0]) for place, size in enumerate(shape))


def _conv(op: RewriterContext, node: ir.Node, weight: ir.Value, bias: ir.Value | None) -> ir.Value:
    inputs = [node.inputs[0], weight, *([] if bias is None else [bias])]
    return op.Conv(*inputs, **{each.name: each for each in node.attributes.values()})


def _vector(op: RewriterContext, factor: ir.Value, channels: int) -> ir.Value:
    """*factor* as one number for each channel."""
    flat = op.Reshape(factor, shape_constant(op, (-1,)))
    return op.Expand(flat, shape_constant(op, (channels,)))


def _scaled_weight(op: RewriterContext, weight: ir.Value, scale: ir.Value) -> ir.Value:
    rank = len(known_shape(weight) or ())
    made = op.Mul(weight, op.Reshape(scale, shape_constant(op, (-1, *[1] * (rank - 1)))))
    made.shape, made.dtype = weight.shape, weight.dtype
    return made


# What a constant is turned by, so that a difference is a sum and a quotient a product.
_INVERSES = {"Sub": "Neg", "Div": "Reciprocal"}


class _Affine(RewriteRuleClassBase):  # type: ignore[misc]
    def __init__(self, operator: str, swapped: bool) -> None:
        super().__init__(f"ConvThen{operator}")
        self._operator = operator
        self._swapped = swapped

    def pattern(self, op: OpsetPatternBuilder, conv: Var, factor: Var) -> Var:
        operands = (factor, conv) if self._swapped else (conv, factor)
        return getattr(op, self._operator)(*operands)

    def check(self, context: MatchContext, conv: ir.Value, factor: ir.Value) -> bool:  # noqa: ARG002
        node = _only_reader(conv)
        return node is not None and _by_channel(factor, node.inputs[1])

    def rewrite(self, op: RewriterContext, conv: ir.Value, factor: ir.Value) -> ir.Value | None:
        node = conv.producer()
        weight = None if node is None else node.inputs[1]
        shape = known_shape(weight)
        if node is None or weight is None or shape is None:
            return None
        vector = _vector(op, factor, shape[0])
        if self._operator in _INVERSES:
            vector = getattr(op, _INVERSES[self._operator])(vector)
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        if self._operator in ("Add", "Sub"):
            return _conv(op, node, weight, vector if bias is None else op.Add(bias, vector))
        return _conv(op, node, _scaled_weight(op, weight, vector), None if bias is None else op.Mul(bias, vector))


class _Residual(RewriteRuleClassBase):  # type: ignore[misc]
    """BatchNormalization(Conv(x) + other)."""

    def __init__(self, swapped: bool) -> None:
        super().__init__()
        self._swapped = swapped

    def pattern(
        self, op: OpsetPatternBuilder, conv: Var, other: Var, scale: Var, bias: Var, mean: Var, variance: Var
    ) -> Var:
        total = op.Add(other, conv) if self._swapped else op.Add(conv, other)
        return op.BatchNormalization(total, scale, bias, mean, variance, _outputs=["normalized"])

    def check(
        self,
        context: MatchContext,  # noqa: ARG002
        conv: ir.Value,
        other: ir.Value,
        scale: ir.Value,
        bias: ir.Value,
        mean: ir.Value,
        variance: ir.Value,
        normalized: ir.Value,
    ) -> bool:
        node, result = _only_reader(conv), normalized.producer()
        if node is None or result is None or len(result.outputs) > 1 or known_shape(node.inputs[1]) is None:
            return False
        if known_shape(other) is None or known_shape(other) != known_shape(conv):
            return False
        return all(is_constant(value) for value in (scale, bias, mean, variance))

    def rewrite(
        self,
        op: RewriterContext,
        conv: ir.Value,
        other: ir.Value,
        scale: ir.Value,
        bias: ir.Value,
        mean: ir.Value,
        variance: ir.Value,
        normalized: ir.Value,
    ) -> ir.Value | None:
        node, last, spread = conv.producer(), normalized.producer(), numbers(variance)
        if node is None or last is None or spread is None or node.inputs[1] is None:
            return None
        epsilon = op.Constant(value=ir.tensor(spread.dtype.type(last.attributes.get_float("epsilon", 1e-5))))
        slope = op.Div(scale, op.Sqrt(op.Add(variance, epsilon)))
        shift = op.Sub(bias, op.Mul(mean, slope))
        own = node.inputs[2] if len(node.inputs) > 2 else None
        folded = _conv(
            op,
            node,
            _scaled_weight(op, node.inputs[1], slope),
            shift if own is None else op.Add(op.Mul(own, slope), shift),
        )
        rank = len(known_shape(conv) or ())
        return op.Add(folded, op.Mul(other, op.Reshape(slope, shape_constant(op, (-1, *[1] * (rank - 2))))))


def fold_affine(model: ir.Model, target: OptimizeTarget) -> Outcome:  # noqa: ARG001
    either_order = [_Affine.rule(name, swapped) for name in ("Mul", "Add") for swapped in (False, True)]
    return Outcome(apply_rules(model, [*either_order, *(_Affine.rule(name, swapped=False) for name in _INVERSES)]))


def fold_residual(model: ir.Model, target: OptimizeTarget) -> Outcome:  # noqa: ARG001
    return Outcome(apply_rules(model, [_Residual.rule(swapped) for swapped in (False, True)]))
