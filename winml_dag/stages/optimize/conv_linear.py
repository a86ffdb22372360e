"""matmuladd_conv2d4d, -3d and -2d: MatMul and Add of a constant bias become a Conv with kernels of 1x1.

Some NPUs run a Conv faster than a fully connected layer. Each of the three is for inputs of as many dimensions. The
weight is turned by nodes, which constant folding computes.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir
from onnxscript.rewriter import MatchContext, RewriterContext
from onnxscript.rewriter.pattern import OpsetPatternBuilder, RewriteRuleClassBase, Var

from winml_dag.stages.optimize import OptimizeTarget
from winml_dag.stages.optimize.rewrite import Outcome, apply_rules, is_constant, known_shape, shape_constant


class _Linear(RewriteRuleClassBase):  # type: ignore[misc]
    def __init__(self, rank: int, swapped: bool) -> None:
        super().__init__(f"Linear{rank}d")
        self._rank = rank
        self._swapped = swapped

    def pattern(self, op: OpsetPatternBuilder, x: Var, weight: Var, bias: Var) -> Var:
        product = op.MatMul(x, weight)
        return op.Add(bias, product) if self._swapped else op.Add(product, bias)

    def check(self, context: MatchContext, x: ir.Value, weight: ir.Value, bias: ir.Value) -> bool:  # noqa: ARG002
        shape, weights = known_shape(x), known_shape(weight)
        if shape is None or weights is None or x.dtype != ir.DataType.FLOAT:
            return False
        constants = is_constant(weight) and is_constant(bias)
        return constants and len(shape) == self._rank and len(weights) == 2 and known_shape(bias) == (weights[1],)

    def rewrite(self, op: RewriterContext, x: ir.Value, weight: ir.Value, bias: ir.Value) -> ir.Value | None:
        shape, weights = known_shape(x), known_shape(weight)
        if shape is None or weights is None:
            return None
        inner, outer = weights
        kernel = op.Reshape(op.Transpose(weight, perm=(1, 0)), shape_constant(op, (outer, inner, 1, 1)))
        if self._rank == 2:
            picture = op.Reshape(x, shape_constant(op, (*shape, 1, 1)))
            return op.Reshape(op.Conv(picture, kernel, bias), shape_constant(op, (shape[0], outer)))
        # Channels go second; what there is of other dimensions is height and width.
        picture = x if self._rank == 4 else op.Reshape(x, shape_constant(op, (*shape[:-1], 1, inner)))
        made = op.Conv(op.Transpose(picture, perm=(0, 3, 1, 2)), kernel, bias)
        back = op.Transpose(made, perm=(0, 2, 3, 1))
        return back if self._rank == 4 else op.Reshape(back, shape_constant(op, (*shape[:-1], outer)))


def of_rank(rank: int) -> Callable[[ir.Model, OptimizeTarget], Outcome]:
    def apply(model: ir.Model, target: OptimizeTarget) -> Outcome:  # noqa: ARG001
        return Outcome(apply_rules(model, [_Linear.rule(rank, swapped) for swapped in (False, True)]))

    return apply
