"""exp_positive_scale_folding: ``c * exp(x + b)`` becomes ``exp(x + (b + log c))`` for a constant b and a c above 0.

Without a constant that is added already there is nothing to gain: a Mul would become an Add.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter import MatchContext, RewriterContext
from onnxscript.rewriter.pattern import OpsetPatternBuilder, RewriteRuleClassBase, Var

from winml_dag.stages.optimize import OptimizeTarget
from winml_dag.stages.optimize.rewrite import Outcome, apply_rules, either, is_constant, numbers


class _Scaled(RewriteRuleClassBase):  # type: ignore[misc]
    def __init__(self, swapped: bool) -> None:
        super().__init__()
        self._swapped = swapped

    def pattern(self, op: OpsetPatternBuilder, x: Var, bias: Var, scale: Var) -> Var:
        grown = op.Exp(either(op.Add, x, bias))
        return op.Mul(scale, grown) if self._swapped else op.Mul(grown, scale)

    def check(self, context: MatchContext, x: ir.Value, bias: ir.Value, scale: ir.Value) -> bool:  # noqa: ARG002
        factor = numbers(scale)
        if factor is None or factor.size != 1 or not is_constant(bias) or is_constant(x) or bias.shape is None:
            return False
        # A factor of more dimensions than the bias would give the sum another shape.
        return bool(np.isfinite(factor).all() and (factor > 0).all() and factor.ndim <= len(bias.shape))

    def rewrite(self, op: RewriterContext, x: ir.Value, bias: ir.Value, scale: ir.Value) -> ir.Value | None:
        factor = numbers(scale)
        if factor is None:
            return None
        logarithm = op.Constant(value=ir.tensor(np.log(factor)))
        return op.Exp(op.Add(x, op.Add(bias, logarithm)))


def apply(model: ir.Model, target: OptimizeTarget) -> Outcome:  # noqa: ARG001
    return Outcome(apply_rules(model, [_Scaled.rule(swapped) for swapped in (False, True)]))
