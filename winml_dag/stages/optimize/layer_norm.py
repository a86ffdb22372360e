"""layer_norm_fusion: a layer normalization that is spelled out becomes LayerNormalization.

From opset 17 on onnxruntime's basic level fuses the usual form itself; this adds the one with Reciprocal, and the one
without bias. onnxscript's own rules do not know the axes attribute (opset 17), and take any Add after a
LayerNormalization for its bias, a residual connection too.
"""

from __future__ import annotations

import onnx_ir as ir
from onnxscript.rewriter import MatchContext, RewriterContext
from onnxscript.rewriter.pattern import OpsetPatternBuilder, OrValue, RewriteRuleClassBase, Var

from winml_dag.stages.optimize import OptimizeTarget
from winml_dag.stages.optimize.rewrite import (
    Outcome,
    apply_rules,
    count_sites,
    either,
    is_constant,
    keeps_rank,
    standard_opset,
)

STANDARD_SINCE = 17
AXES_ARE_AN_INPUT_SINCE = 18


def _fits_last_axis(parameter: ir.Value, x: ir.Value) -> bool:
    """Whether *parameter* is one constant number for each element of the last axis, as scale and bias have to be."""
    if not is_constant(parameter) or parameter.shape is None or x.shape is None or len(x.shape) == 0:
        return False
    size = x.shape[-1]
    return isinstance(size, int) and tuple(parameter.shape) == (size,)


class _Scaled(RewriteRuleClassBase):  # type: ignore[misc]
    """(x - mean) / sqrt(variance + epsilon) * scale, over the last axis."""

    def __init__(self, swapped: bool, axes_are_an_input: bool) -> None:
        super().__init__()
        self._swapped = swapped
        self._axes_are_an_input = axes_are_an_input

    def _mean(self, op: OpsetPatternBuilder, x: Var) -> Var:
        if self._axes_are_an_input:
            return op.ReduceMean(x, [-1], keepdims=1)
        return op.ReduceMean(x, axes=[-1], keepdims=1)

    def pattern(self, op: OpsetPatternBuilder, x: Var, epsilon: Var, scale: Var) -> Var:
        deviation = op.Sub(x, self._mean(op, x))
        variance = self._mean(op, OrValue([op.Mul(deviation, deviation), op.Pow(deviation, 2)]))
        root = op.Sqrt(either(op.Add, variance, epsilon))
        normalized = OrValue([op.Div(deviation, root), either(op.Mul, deviation, op.Reciprocal(root))])
        return op.Mul(scale, normalized) if self._swapped else op.Mul(normalized, scale)

    def check(self, context: MatchContext, x: ir.Value, epsilon: ir.Value, scale: ir.Value) -> bool:
        if x.dtype != ir.DataType.FLOAT or not is_constant(epsilon) or not _fits_last_axis(scale, x):
            return False
        return keeps_rank(context, x) and epsilon.const_value is not None and epsilon.const_value.size == 1

    def rewrite(self, op: RewriterContext, x: ir.Value, epsilon: ir.Value, scale: ir.Value) -> ir.Value | None:
        if epsilon.const_value is None:
            return None
        return op.LayerNormalization(x, scale, axis=-1, epsilon=epsilon.const_value.numpy().item())


class _Biased(RewriteRuleClassBase):  # type: ignore[misc]
    """The Add of a bias to a LayerNormalization that has none."""

    def __init__(self, swapped: bool) -> None:
        super().__init__()
        self._swapped = swapped

    def pattern(self, op: OpsetPatternBuilder, x: Var, scale: Var, bias: Var) -> Var:
        normalized = op.LayerNormalization(x, scale, _outputs=["normalized"])
        return op.Add(bias, normalized) if self._swapped else op.Add(normalized, bias)

    def check(
        self,
        context: MatchContext,  # noqa: ARG002
        x: ir.Value,
        scale: ir.Value,  # noqa: ARG002
        bias: ir.Value,
        normalized: ir.Value,
    ) -> bool:
        node = normalized.producer()
        return node is not None and node.attributes.get_int("axis", -1) == -1 and _fits_last_axis(bias, x)

    def rewrite(
        self, op: RewriterContext, x: ir.Value, scale: ir.Value, bias: ir.Value, normalized: ir.Value
    ) -> ir.Value | None:
        node = normalized.producer()
        if node is None:
            return None
        return op.LayerNormalization(x, scale, bias, axis=-1, epsilon=node.attributes.get_float("epsilon", 1e-5))


def apply(model: ir.Model, target: OptimizeTarget) -> Outcome:  # noqa: ARG001
    """Fuse, or leave the graph alone below opset 17, where no domain has the operator."""
    opset = standard_opset(model)
    scaled = [_Scaled.rule(swapped, opset >= AXES_ARE_AN_INPUT_SINCE) for swapped in (False, True)]
    if opset >= STANDARD_SINCE:
        return Outcome(apply_rules(model, [*scaled, *(_Biased.rule(swapped) for swapped in (False, True))]))
    sites = count_sites(model, scaled)
    left = f"{sites} stay: the standard has LayerNormalization since opset {STANDARD_SINCE}, the model has {opset}"
    return Outcome(0, left if sites else "")
