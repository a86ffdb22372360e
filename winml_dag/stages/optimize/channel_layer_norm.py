"""layernormalization_singlelayernorm: a layer normalization over one axis that is not the last, as pictures with their
channels first have it, becomes LayerNormalization between two Transpose.
"""

from __future__ import annotations

import onnx_ir as ir
from onnxscript.rewriter import MatchContext, RewriterContext
from onnxscript.rewriter.pattern import OpsetPatternBuilder, OrValue, RewriteRule, RewriteRuleClassBase, Var

from winml_dag.stages.optimize import OptimizeTarget
from winml_dag.stages.optimize.layer_norm import STANDARD_SINCE
from winml_dag.stages.optimize.rewrite import (
    Outcome,
    apply_rules,
    count_sites,
    either,
    is_constant,
    keeps_rank,
    known_shape,
    numbers,
    shape_constant,
    standard_opset,
)


def _axis(mean: ir.Value, rank: int) -> int | None:
    """The one axis, counted from the front, of the ReduceMean behind *mean*."""
    node = mean.producer()
    if node is None or not node.attributes.get_int("keepdims", 1):
        return None
    axes = node.attributes.get_ints("axes", ())
    if not axes and len(node.inputs) > 1:
        given = numbers(node.inputs[1])
        axes = [] if given is None else [int(axis) for axis in given]
    return axes[0] % rank if len(axes) == 1 else None


def _is_along(parameter: ir.Value, axis: int, shape: tuple[int, ...]) -> bool:
    """Whether the constant *parameter* has one number for each place on *axis*, and is the same everywhere else."""
    own = known_shape(parameter)
    if not is_constant(parameter) or own is None or len(own) > len(shape):
        return False
    place = axis - (len(shape) - len(own))
    return place >= 0 and all(size == (shape[axis] if at == place else 1) for at, size in enumerate(own))


class _Normalized(RewriteRuleClassBase):  # type: ignore[misc]
    def __init__(self, swapped: bool, biased: bool) -> None:
        super().__init__()
        self._swapped = swapped
        self._biased = biased

    def _scaled(self, op: OpsetPatternBuilder, x: Var, epsilon: Var, scale: Var) -> tuple[Var, Var]:
        deviation = op.Sub(x, op.ReduceMean(x, _allow_other_inputs=True, _outputs=["mean"]))
        square = OrValue([op.Mul(deviation, deviation), op.Pow(deviation, 2)])
        variance = op.ReduceMean(square, _allow_other_inputs=True, _outputs=["variance"])
        root = op.Sqrt(either(op.Add, variance, epsilon))
        return OrValue([op.Div(deviation, root), either(op.Mul, deviation, op.Reciprocal(root))]), scale

    def pattern(self, op: OpsetPatternBuilder, x: Var, epsilon: Var, scale: Var, bias: Var) -> Var:
        one, other = self._scaled(op, x, epsilon, scale)
        if not self._biased:
            return op.Mul(other, one) if self._swapped else op.Mul(one, other)
        product = either(op.Mul, one, other)
        return op.Add(bias, product) if self._swapped else op.Add(product, bias)

    def check(
        self,
        context: MatchContext,
        x: ir.Value,
        epsilon: ir.Value,
        scale: ir.Value,
        mean: ir.Value,
        variance: ir.Value,
        bias: ir.Value | None = None,
    ) -> bool:
        shape, guard = known_shape(x), numbers(epsilon)
        if shape is None or guard is None or guard.size != 1 or x.dtype != ir.DataType.FLOAT:
            return False
        if not keeps_rank(context, x):
            return False
        axis = _axis(mean, len(shape))
        if axis is None or axis == len(shape) - 1 or axis != _axis(variance, len(shape)):
            return False
        return _is_along(scale, axis, shape) and (bias is None or _is_along(bias, axis, shape))

    def rewrite(
        self,
        op: RewriterContext,
        x: ir.Value,
        epsilon: ir.Value,
        scale: ir.Value,
        mean: ir.Value,
        variance: ir.Value,  # noqa: ARG002
        bias: ir.Value | None = None,
    ) -> ir.Value | None:
        shape, guard = known_shape(x), numbers(epsilon)
        axis = None if shape is None else _axis(mean, len(shape))
        if shape is None or guard is None or axis is None:
            return None
        order = [*(each for each in range(len(shape)) if each != axis), axis]
        back = [order.index(each) for each in range(len(shape))]
        flat = [op.Reshape(each, shape_constant(op, (shape[axis],))) for each in (scale, bias) if each is not None]
        turned = op.Transpose(x, perm=order)
        return op.Transpose(op.LayerNormalization(turned, *flat, axis=-1, epsilon=guard.item()), perm=back)


def apply(model: ir.Model, target: OptimizeTarget) -> Outcome:  # noqa: ARG001
    """Fuse, or leave the graph alone below opset 17, where no domain has the operator."""
    # A bias is looked for in the whole graph first: the product before it comes first in the order of nodes.
    biased, plain = ([_Normalized.rule(swapped, with_bias) for swapped in (False, True)] for with_bias in (True, False))
    opset = standard_opset(model)
    if opset >= STANDARD_SINCE:
        return Outcome(apply_rules(model, biased) + apply_rules(model, plain))
    return _left(model, plain, opset)


def _left(model: ir.Model, rules: list[RewriteRule], opset: int) -> Outcome:
    sites = count_sites(model, rules)
    left = f"{sites} stay: the standard has LayerNormalization since opset {STANDARD_SINCE}, the model has {opset}"
    return Outcome(0, left if sites else "")
