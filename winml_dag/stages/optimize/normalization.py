"""Rewrites that fuse an expanded normalization or activation into one operator."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import onnx_ir as ir
from onnxscript.rewriter import MatchContext, RewriterContext
from onnxscript.rewriter.pattern import OpsetPatternBuilder, OrValue, RewriteRule, Var

from winml_dag.stages.optimize import OptimizeTarget
from winml_dag.stages.optimize.rewriting import (
    Operand,
    Outcome,
    Rule,
    apply_rules,
    checked,
    count_sites,
    either,
    if_any,
    is_constant,
    keeps_rank,
    known_shape,
    number,
    numbers,
    shape_constant,
    standard_opset,
)

_AXES_ARE_AN_INPUT_SINCE = 18
_LAYER_NORMALIZATION_SINCE = 17
_RMS_NORMALIZATION_SINCE = 23
_GELU_SINCE = 20


def _stay(model: ir.Model, rules: Sequence[RewriteRule], operator: str, since: int, what: str = "") -> Outcome:
    """An outcome without changes that reports how many sites *rules* would change if the model had a newer opset."""
    why = f"stay: the standard has {operator} since opset {since}, the model has {standard_opset(model)}"
    return Outcome(0, if_any(count_sites(model, rules), f"{what}{why}"))


def _mean_over_last_axis(op: OpsetPatternBuilder, opset: int, x: Var) -> Var:
    if opset >= _AXES_ARE_AN_INPUT_SINCE:
        return op.ReduceMean(x, [-1], keepdims=1)
    return op.ReduceMean(x, axes=[-1], keepdims=1)


def _standardized(op: OpsetPatternBuilder, x: Var, epsilon: Var, mean: Callable[[Var, str], Var]) -> Var:
    """(x - mean) / sqrt(variance + epsilon), where *mean* makes the pattern of a mean, which it may name."""
    deviation = op.Sub(x, mean(x, "mean"))
    variance = mean(OrValue([op.Mul(deviation, deviation), op.Pow(deviation, 2)]), "variance")
    root = op.Sqrt(either(op.Add, variance, epsilon))
    return OrValue([op.Div(deviation, root), either(op.Mul, deviation, op.Reciprocal(root))])


def _fits_last_axis(parameter: ir.Value, x: ir.Value) -> bool:
    """Whether *parameter* is constant with one number per element of the last axis, as scale and bias must be."""
    if not is_constant(parameter) or parameter.shape is None or x.shape is None or len(x.shape) == 0:
        return False
    size = x.shape[-1]
    return isinstance(size, int) and tuple(parameter.shape) == (size,)


class _Scaled(Rule):
    """(x - mean) / sqrt(variance + epsilon) * scale, over the last axis."""

    def __init__(self, swapped: bool, opset: int) -> None:
        super().__init__(swapped)
        self._opset = opset

    def pattern(self, op: OpsetPatternBuilder, x: Var, epsilon: Var, scale: Var) -> Var:
        normalized = _standardized(op, x, epsilon, lambda value, _: _mean_over_last_axis(op, self._opset, value))
        return self.last(op.Mul, normalized, scale)

    def check(self, context: MatchContext, x: ir.Value, epsilon: ir.Value, scale: ir.Value) -> bool:
        if x.dtype != ir.DataType.FLOAT or not _fits_last_axis(scale, x):
            return False
        return keeps_rank(context, x) and number(epsilon) is not None

    def rewrite(self, op: RewriterContext, x: ir.Value, epsilon: ir.Value, scale: ir.Value) -> ir.Value:
        return op.LayerNormalization(x, scale, axis=-1, epsilon=number(epsilon))


class _Biased(Rule):
    """The Add of a bias to a LayerNormalization without one."""

    def pattern(self, op: OpsetPatternBuilder, x: Var, scale: Var, bias: Var) -> Var:
        return self.last(op.Add, op.LayerNormalization(x, scale, _outputs=["normalized"]), bias)

    def check(self, _context: MatchContext, x: ir.Value, bias: ir.Value, normalized: ir.Value, **_: ir.Value) -> bool:
        node = normalized.producer()
        return node is not None and node.attributes.get_int("axis", -1) == -1 and _fits_last_axis(bias, x)

    def rewrite(
        self, op: RewriterContext, x: ir.Value, scale: ir.Value, bias: ir.Value, normalized: ir.Value
    ) -> ir.Value:
        epsilon = checked(normalized.producer()).attributes.get_float("epsilon", 1e-5)
        return op.LayerNormalization(x, scale, bias, axis=-1, epsilon=epsilon)


def fuse_layer_norm(model: ir.Model, _: OptimizeTarget) -> Outcome:
    """Fuse a layer normalization over the last axis into LayerNormalization; below opset 17, which has none, it stays.

    From opset 17 on, onnxruntime's basic level fuses the usual form itself; this adds the form with Reciprocal and the
    one without bias. onnxscript's own rules do not support the axes attribute (opset 17), and treat any Add after a
    LayerNormalization as its bias, even a residual connection.
    """
    opset = standard_opset(model)
    scaled = _Scaled.both_orders(opset)
    if opset < _LAYER_NORMALIZATION_SINCE:
        return _stay(model, scaled, "LayerNormalization", _LAYER_NORMALIZATION_SINCE)
    return Outcome(apply_rules(model, [*scaled, *_Biased.both_orders()]))


def _axis(mean: ir.Value, rank: int) -> int | None:
    """The single axis, counted from the front, of the ReduceMean that produces *mean*."""
    node = mean.producer()
    if node is None or not node.attributes.get_int("keepdims", 1):
        return None
    axes = node.attributes.get_ints("axes", ())
    if not axes and len(node.inputs) > 1:
        given = numbers(node.inputs[1])
        axes = [] if given is None else [int(axis) for axis in given]
    return axes[0] % rank if len(axes) == 1 else None


def _is_along(parameter: ir.Value, axis: int, shape: tuple[int, ...]) -> bool:
    """Whether the constant *parameter* has one number per index of *axis*, and is constant along all other axes."""
    own = known_shape(parameter)
    if not is_constant(parameter) or own is None or len(own) > len(shape):
        return False
    place = axis - (len(shape) - len(own))
    return place >= 0 and all(size == (shape[axis] if at == place else 1) for at, size in enumerate(own))


class _AlongAnyAxis(Rule):
    """(x - mean) / sqrt(variance + epsilon) * scale, with or without + bias, over one axis that is not the last."""

    def __init__(self, swapped: bool, biased: bool) -> None:
        super().__init__(swapped)
        self._biased = biased

    def pattern(self, op: OpsetPatternBuilder, x: Var, epsilon: Var, scale: Var, bias: Var) -> Var:
        normalized = _standardized(
            op, x, epsilon, lambda value, name: op.ReduceMean(value, _allow_other_inputs=True, _outputs=[name])
        )
        if not self._biased:
            return self.last(op.Mul, normalized, scale)
        return self.last(op.Add, either(op.Mul, normalized, scale), bias)

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
        shape = known_shape(x)
        if shape is None or number(epsilon) is None or x.dtype != ir.DataType.FLOAT or not keeps_rank(context, x):
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
        bias: ir.Value | None = None,
        **_: ir.Value,
    ) -> ir.Value:
        shape = checked(known_shape(x))
        axis = checked(_axis(mean, len(shape)))
        order = [*(each for each in range(len(shape)) if each != axis), axis]
        back = [order.index(each) for each in range(len(shape))]
        flat = [op.Reshape(each, shape_constant(op, (shape[axis],))) for each in (scale, bias) if each is not None]
        turned = op.Transpose(x, perm=order)
        return op.Transpose(op.LayerNormalization(turned, *flat, axis=-1, epsilon=number(epsilon)), perm=back)


def fuse_layer_norm_of_any_axis(model: ir.Model, _: OptimizeTarget) -> Outcome:
    """Fuse a layer normalization over one axis that is not the last into LayerNormalization between two Transpose.

    This is the form of images with channels first. Below opset 17, which has no LayerNormalization, it stays.
    """
    biased, plain = _AlongAnyAxis.both_orders(True), _AlongAnyAxis.both_orders(False)
    if standard_opset(model) < _LAYER_NORMALIZATION_SINCE:
        return _stay(model, plain, "LayerNormalization", _LAYER_NORMALIZATION_SINCE)
    # First the form with bias, in the whole graph: the product before the bias comes first in node order.
    return Outcome(apply_rules(model, biased) + apply_rules(model, plain))


# A larger epsilon does not just prevent a division by zero; it affects the result.
_LARGEST_EPSILON = 1e-4


class _RootMeanSquare(Rule):
    """x / sqrt(mean(x^2) + epsilon) * scale, over the last axis."""

    def __init__(self, swapped: bool, opset: int) -> None:
        super().__init__(swapped)
        self._opset = opset

    def pattern(self, op: OpsetPatternBuilder, x: Var, epsilon: Var, scale: Var) -> Var:
        mean = _mean_over_last_axis(op, self._opset, OrValue([op.Mul(x, x), op.Pow(x, 2)]))
        root = op.Sqrt(either(op.Add, mean, epsilon))
        normalized = OrValue(
            [op.Div(x, root), either(op.Mul, x, op.Reciprocal(root)), either(op.Mul, x, op.Div(1.0, root))]
        )
        return self.last(op.Mul, normalized, scale)

    def check(self, context: MatchContext, x: ir.Value, epsilon: ir.Value, scale: ir.Value) -> bool:
        guard = number(epsilon)
        if x.dtype != ir.DataType.FLOAT or not keeps_rank(context, x) or guard is None:
            return False
        return 0 <= guard <= _LARGEST_EPSILON and _fits_last_axis(scale, x)

    def rewrite(self, op: RewriterContext, x: ir.Value, epsilon: ir.Value, scale: ir.Value) -> ir.Value:
        if self._opset >= _RMS_NORMALIZATION_SINCE:
            return op.RMSNormalization(x, scale, axis=-1, epsilon=number(epsilon))
        root = op.Constant(value_float=math.sqrt(int(checked(x.shape)[-1])))
        return op.Mul(op.LpNormalization(x, axis=-1, p=2), op.Mul(scale, root))


def fuse_rms_norm(model: ir.Model, _: OptimizeTarget) -> Outcome:
    """Fuse a root mean square normalization into one operator.

    From opset 23 on, the standard has RMSNormalization. Before, x / sqrt(mean(x^2)) is LpNormalization times the root
    of the number of elements, without the epsilon. The relative difference is epsilon / (2 mean(x^2)): 5e-7 for an
    epsilon of 1e-6 and values around 1, 1e-3 for embeddings around 0.02. A row of zeros stays zero.
    """
    return Outcome(apply_rules(model, _RootMeanSquare.both_orders(standard_opset(model))))


_SQRT_2 = math.sqrt(2)
_SQRT_2_OVER_PI = math.sqrt(2 / math.pi)
_CUBIC = 0.044715


def _erf(op: OpsetPatternBuilder, x: Var) -> Var:
    return op.Erf(OrValue([op.Div(x, _SQRT_2), either(op.Mul, x, 1 / _SQRT_2)]))


def _tanh(op: OpsetPatternBuilder, x: Var) -> Var:
    """tanh(sqrt(2/pi) * (x + 0.044715 x^3)), or the same with x factored out."""
    cube = OrValue([op.Pow(x, 3), either(op.Mul, op.Mul(x, x), x)])
    polynomial = either(op.Add, x, either(op.Mul, cube, _CUBIC))
    square = OrValue([either(op.Mul, op.Mul(x, x), _CUBIC), either(op.Mul, either(op.Mul, x, _CUBIC), x)])
    factored = either(op.Mul, either(op.Mul, x, _SQRT_2_OVER_PI), either(op.Add, square, 1.0))
    return op.Tanh(OrValue([either(op.Mul, polynomial, _SQRT_2_OVER_PI), factored]))


class _Gelu(Rule):
    """0.5 * x * (1 + f(x)), where *half* is the factor multiplied by 0.5, and f is erf, or tanh if *by_tanh*."""

    def __init__(self, swapped: bool, by_tanh: bool, half: str, standard: bool) -> None:
        super().__init__(swapped)
        self._by_tanh = by_tanh
        self._half = half
        self._standard = standard

    def pattern(self, op: OpsetPatternBuilder, x: Var) -> Var:
        shifted = either(op.Add, _tanh(op, x) if self._by_tanh else _erf(op, x), 1.0)
        factors: dict[str, tuple[Operand, Operand]] = {
            "x": (either(op.Mul, x, 0.5), shifted),
            "f": (x, either(op.Mul, shifted, 0.5)),
            "product": (either(op.Mul, x, shifted), 0.5),
        }
        return self.last(op.Mul, *factors[self._half])

    def check(self, _context: MatchContext, x: ir.Value) -> bool:
        return bool(x.dtype == ir.DataType.FLOAT)  # the type that onnxruntime's CPU kernels support

    def rewrite(self, op: RewriterContext, x: ir.Value) -> ir.Value:
        if self._standard:
            return op.Gelu(x, approximate="tanh" if self._by_tanh else "none")
        if self._by_tanh:
            return op.FastGelu(x, _domain="com.microsoft")
        return op.Gelu(x, _domain="com.microsoft")


def _fuse_gelu(forms: Sequence[bool], standard_only: bool, model: ir.Model, target: OptimizeTarget) -> Outcome:
    """*forms*: whether each form uses tanh (True) or Erf (False)."""
    standard = standard_opset(model) >= _GELU_SINCE
    rules = [
        rule
        for by_tanh in forms
        for half in ("x", "f", "product")
        for rule in _Gelu.both_orders(by_tanh, half, standard)
    ]
    if not standard and (standard_only or target.standard_domain_only):
        return _stay(model, rules, "Gelu", _GELU_SINCE, "GELU ")
    return Outcome(apply_rules(model, rules))


# A GELU becomes the standard's Gelu. Below opset 20 it becomes an operator of com.microsoft, or stays if the target
# supports none. From opset 20 on, onnxruntime's basic level fuses the usual Erf forms itself; this adds the others and
# the tanh form. onnxscript has such rules only for com.microsoft.
fuse_gelu = partial(_fuse_gelu, (False, True), False)
fuse_tanh_gelu = partial(_fuse_gelu, (True,), False)
fuse_erf_gelu_in_standard = partial(_fuse_gelu, (False,), True)


def approximate_gelu(model: ir.Model, _: OptimizeTarget) -> Outcome:
    """Compute Gelu with tanh instead of Erf; an operator stays in its domain."""
    changes = 0
    for graph in model.graphs():
        for node in graph:
            if (
                node.op_type == "Gelu"
                and not node.domain
                and node.attributes.get_string("approximate", "none") == "none"
            ):
                node.attributes["approximate"] = ir.AttrString("approximate", "tanh")
                changes += 1
            elif node.domain == "com.microsoft" and node.op_type in ("Gelu", "BiasGelu"):
                node.op_type = "FastGelu"
                changes += 1
    return Outcome(changes)
