"""highdimRTR_lowdimRTR: Reshape, Transpose and Reshape with fewer axes, where some of them stay together.

Windows of a picture are cut out in six dimensions, ``(1, 8, 7, 8, 7, 96)``; compilers for NPUs take four or five.
Axes that are neighbours before and after the Transpose count as one, and those of size 1 not at all.
"""

from __future__ import annotations

import onnx_ir as ir
from onnxscript.rewriter import MatchContext, RewriterContext
from onnxscript.rewriter.pattern import OpsetPatternBuilder, RewriteRuleClassBase, Var

from winml_dag.stages.optimize import OptimizeTarget
from winml_dag.stages.optimize.merged_axes import FROM_RANK, merged
from winml_dag.stages.optimize.rewrite import Outcome, apply_rules, known_shape, shape_constant


class _Chain(RewriteRuleClassBase):  # type: ignore[misc]
    def pattern(self, op: OpsetPatternBuilder, x: Var, first: Var, last: Var) -> Var:
        turned = op.Transpose(op.Reshape(x, first, _outputs=["split"]), _outputs=["turned"])
        return op.Reshape(turned, last, _outputs=["joined"])

    def check(
        self,
        context: MatchContext,  # noqa: ARG002
        x: ir.Value,  # noqa: ARG002
        first: ir.Value,  # noqa: ARG002
        last: ir.Value,  # noqa: ARG002
        split: ir.Value,
        turned: ir.Value,
        joined: ir.Value,
    ) -> bool:
        shape = known_shape(split)
        if shape is None or 0 in shape or len(shape) < FROM_RANK or known_shape(joined) is None:
            return False
        return len(merged(shape, _order(turned, len(shape)))[0]) < len(shape)

    def rewrite(
        self,
        op: RewriterContext,
        x: ir.Value,
        first: ir.Value,  # noqa: ARG002
        last: ir.Value,  # noqa: ARG002
        split: ir.Value,
        turned: ir.Value,
        joined: ir.Value,
    ) -> ir.Value | None:
        shape = known_shape(split)
        if shape is None:
            return None
        fewer, order = merged(shape, _order(turned, len(shape)))
        moved = op.Transpose(op.Reshape(x, shape_constant(op, fewer)), perm=order)
        return op.Reshape(moved, shape_constant(op, known_shape(joined)))


def _order(turned: ir.Value, rank: int) -> tuple[int, ...]:
    node = turned.producer()
    reverse = tuple(reversed(range(rank)))
    return reverse if node is None else tuple(node.attributes.get_ints("perm", reverse))


def apply(model: ir.Model, target: OptimizeTarget) -> Outcome:  # noqa: ARG001
    return Outcome(apply_rules(model, [_Chain.rule()]))
