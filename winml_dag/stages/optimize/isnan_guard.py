"""remove_isnan_in_attention_mask: ``Where(IsNaN(s), 0, s)`` after a Softmax becomes ``s``.

Such a guard acts only on a row that is masked as a whole with -inf (0/0). With finite masks (see
:mod:`~winml_dag.stages.optimize.clamp_constants`) it never does, and a compiler without IsNaN splits the graph there.
"""

from __future__ import annotations

import onnx_ir as ir
from onnxscript.rewriter import MatchContext, RewriterContext
from onnxscript.rewriter.pattern import OpsetPatternBuilder, RewriteRuleClassBase, Var

from winml_dag.stages.optimize import OptimizeTarget
from winml_dag.stages.optimize.rewrite import Outcome, apply_rules, is_constant, keeps_rank


class _Guard(RewriteRuleClassBase):  # type: ignore[misc]
    def pattern(self, op: OpsetPatternBuilder, scores: Var, zero: Var) -> Var:
        return op.Where(op.IsNaN(scores), zero, scores)

    def check(self, context: MatchContext, scores: ir.Value, zero: ir.Value) -> bool:
        producer = scores.producer()
        return (
            producer is not None
            and producer.op_type == "Softmax"
            and keeps_rank(context, scores)
            and is_constant(zero)
            and zero.const_value is not None
            and zero.const_value.size == 1
            and zero.const_value.numpy().item() == 0
        )

    def rewrite(self, op: RewriterContext, scores: ir.Value, zero: ir.Value) -> ir.Value:  # noqa: ARG002
        # The next pass of onnxruntime takes the Identity out, unless its output is one of the graph's.
        return op.Identity(scores)


def apply(model: ir.Model, target: OptimizeTarget) -> Outcome:  # noqa: ARG001
    return Outcome(apply_rules(model, [_Guard.rule()]))
