"""matmul_add_fusion: MatMul and Add of a constant bias become Gemm.

onnxruntime's basic level does this by itself, with a Reshape on both sides above two dimensions, but not in attention
blocks, which it keeps for a fusion that we never run, nor with a free batch size; this does the rest in the same form.
 A product and its bias as one operator are quantized once: all-MiniLM-L6-v2 in w8a8 has a mean cosine to float32
of 0.83 without any Gemm, 0.86 with those of the basic level, 0.87 with all. onnxscript's rule is for two dimensions
only and does not look at the bias.
"""

from __future__ import annotations

import onnx_ir as ir
from onnxscript.rewriter import MatchContext, RewriterContext
from onnxscript.rewriter.pattern import OpsetPatternBuilder, RewriteRuleClassBase, Var

from winml_dag.stages.optimize import OptimizeTarget
from winml_dag.stages.optimize.rewrite import Outcome, apply_rules, is_constant, shape_constant, static_shape


class _MatMulAdd(RewriteRuleClassBase):  # type: ignore[misc]
    def __init__(self, swapped: bool) -> None:
        super().__init__()
        self._swapped = swapped

    def pattern(self, op: OpsetPatternBuilder, x: Var, weight: Var, bias: Var) -> Var:
        product = op.MatMul(x, weight)
        return op.Add(*((bias, product) if self._swapped else (product, bias)), _outputs=["result"])

    def check(
        self,
        context: MatchContext,  # noqa: ARG002
        x: ir.Value,
        weight: ir.Value,
        bias: ir.Value,
        result: ir.Value,
    ) -> bool:
        if not (is_constant(weight) and is_constant(bias)) or weight.shape is None or bias.shape is None:
            return False
        if x.dtype != ir.DataType.FLOAT or x.shape is None or len(x.shape) < 2 or len(weight.shape) != 2:
            return False
        # The bias of a row vector for each output: any other Add may change the shape of the product.
        return tuple(bias.shape) == (weight.shape[1],) and (len(x.shape) == 2 or static_shape(result) is not None)

    def rewrite(
        self, op: RewriterContext, x: ir.Value, weight: ir.Value, bias: ir.Value, result: ir.Value
    ) -> ir.Value | None:
        if x.shape is None or weight.shape is None:
            return None
        if len(x.shape) == 2:
            return op.Gemm(x, weight, bias)
        rows = op.Reshape(x, shape_constant(op, (-1, int(weight.shape[0]))))
        return op.Reshape(op.Gemm(rows, weight, bias), shape_constant(op, static_shape(result)))


def apply(model: ir.Model, target: OptimizeTarget) -> Outcome:  # noqa: ARG001
    return Outcome(apply_rules(model, [_MatMulAdd.rule(swapped) for swapped in (False, True)]))
