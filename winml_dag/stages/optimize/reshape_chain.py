"""reshape_mergedreshape: a chain of Reshape, Flatten, Squeeze and Unsqueeze becomes one Reshape to the last shape.

onnxruntime's basic level merges Reshape, Squeeze and Unsqueeze when all shapes are known; this adds Flatten and shapes
with one unknown dimension (a free batch size). Chains whose inner values somebody else reads stay.
"""

from __future__ import annotations

import onnx_ir as ir
from onnxscript.rewriter import MatchContext, RewriterContext
from onnxscript.rewriter.pattern import OpsetPatternBuilder, OrValue, RewriteRuleClassBase, Var

from winml_dag.stages.optimize import OptimizeTarget
from winml_dag.stages.optimize.rewrite import Outcome, apply_rules, shape_constant, static_shape

_RESHAPES = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")


class _Chain(RewriteRuleClassBase):  # type: ignore[misc]
    def __init__(self, last: str) -> None:
        super().__init__(f"ReshapeThen{last}")
        self._last = last

    def pattern(self, op: OpsetPatternBuilder, x: Var) -> Var:
        # The second input is a shape or axes; Flatten has none, nor have Squeeze and Unsqueeze of old.
        first = OrValue([getattr(op, name)(x, _allow_other_inputs=True) for name in _RESHAPES])
        return getattr(op, self._last)(first, _allow_other_inputs=True, _outputs=["merged"])

    def check(self, context: MatchContext, x: ir.Value, merged: ir.Value) -> bool:  # noqa: ARG002
        return static_shape(merged) is not None

    def rewrite(self, op: RewriterContext, x: ir.Value, merged: ir.Value) -> ir.Value:
        return op.Reshape(x, shape_constant(op, static_shape(merged)))


def apply(model: ir.Model, target: OptimizeTarget) -> Outcome:  # noqa: ARG001
    return Outcome(apply_rules(model, [_Chain.rule(last) for last in _RESHAPES]))
