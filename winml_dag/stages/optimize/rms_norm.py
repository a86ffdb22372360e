"""fuse_rmsnorm: a root mean square normalization that is spelled out becomes one operator.

From opset 23 on the standard has RMSNormalization. Before, x / sqrt(mean(x^2)) is LpNormalization times the root of the
number of elements, without the epsilon: relative to the result a difference of epsilon / (2 mean(x^2)), 5e-7 for an
epsilon of 1e-6 and values around 1, 1e-3 for embeddings around 0.02. A row of zeros stays one of zeros in both.
"""

from __future__ import annotations

import math

import onnx_ir as ir
from onnxscript.rewriter import MatchContext, RewriterContext
from onnxscript.rewriter.pattern import OpsetPatternBuilder, OrValue, RewriteRuleClassBase, Var

from winml_dag.stages.optimize import OptimizeTarget
from winml_dag.stages.optimize.rewrite import (
    Outcome,
    apply_rules,
    either,
    is_constant,
    keeps_rank,
    numbers,
    standard_opset,
)

STANDARD_SINCE = 23
_AXES_ARE_AN_INPUT_SINCE = 18
# Beyond, the epsilon is no guard against a division by zero but a part of the result.
_LARGEST_EPSILON = 1e-4


class _Normalized(RewriteRuleClassBase):  # type: ignore[misc]
    """x / sqrt(mean(x^2) + epsilon) * scale, over the last axis."""

    def __init__(self, swapped: bool, opset: int) -> None:
        super().__init__()
        self._swapped = swapped
        self._opset = opset

    def pattern(self, op: OpsetPatternBuilder, x: Var, epsilon: Var, scale: Var) -> Var:
        square = OrValue([op.Mul(x, x), op.Pow(x, 2)])
        if self._opset >= _AXES_ARE_AN_INPUT_SINCE:
            mean = op.ReduceMean(square, [-1], keepdims=1)
        else:
            mean = op.ReduceMean(square, axes=[-1], keepdims=1)
        root = op.Sqrt(either(op.Add, mean, epsilon))
        normalized = OrValue(
            [op.Div(x, root), either(op.Mul, x, op.Reciprocal(root)), either(op.Mul, x, op.Div(1.0, root))]
        )
        return op.Mul(scale, normalized) if self._swapped else op.Mul(normalized, scale)

    def check(self, context: MatchContext, x: ir.Value, epsilon: ir.Value, scale: ir.Value) -> bool:
        if (
            x.dtype != ir.DataType.FLOAT
            or not keeps_rank(context, x)
            or x.shape is None
            or not isinstance(x.shape[-1], int)
        ):
            return False
        guard = numbers(epsilon)
        if guard is None or guard.size != 1 or not 0 <= guard.item() <= _LARGEST_EPSILON:
            return False
        return is_constant(scale) and scale.shape is not None and tuple(scale.shape) == (x.shape[-1],)

    def rewrite(self, op: RewriterContext, x: ir.Value, epsilon: ir.Value, scale: ir.Value) -> ir.Value | None:
        guard = numbers(epsilon)
        if guard is None or x.shape is None:
            return None
        if self._opset >= STANDARD_SINCE:
            return op.RMSNormalization(x, scale, axis=-1, epsilon=guard.item())
        root = op.Constant(value_float=math.sqrt(int(x.shape[-1])))
        return op.Mul(op.LpNormalization(x, axis=-1, p=2), op.Mul(scale, root))


def apply(model: ir.Model, target: OptimizeTarget) -> Outcome:  # noqa: ARG001
    opset = standard_opset(model)
    return Outcome(apply_rules(model, [_Normalized.rule(swapped, opset) for swapped in (False, True)]))
