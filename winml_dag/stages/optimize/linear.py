"""Rewrites of convolutions and matrix products.

New weights are written as nodes, which constant folding then computes, so they are not held in memory here.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnxscript.rewriter import MatchContext, RewriterContext
from onnxscript.rewriter.pattern import OpsetPatternBuilder, RewriteRule, Var

from winml_dag.stages.optimize import OptimizeTarget
from winml_dag.stages.optimize.rewriting import (
    Outcome,
    Rule,
    by_rules,
    checked,
    constant,
    is_constant,
    known_shape,
    number,
    numbers,
    replace_each,
    shape_constant,
    static_shape,
)


def _foldable_conv(value: ir.Value) -> ir.Node | None:
    """The Conv that produces *value*, if its weights are constants and nothing else reads its result."""
    node = value.producer()
    if node is None or node.op_type != "Conv" or node.domain or len(value.uses()) != 1 or value.is_graph_output():
        return None
    return node if all(_is_fixed(each) for each in node.inputs[1:] if each is not None) else None


def _is_fixed(value: ir.Value) -> bool:
    """Whether *value* is a constant or computed from constants by nodes that one of these rules may have inserted."""
    node = value.producer()
    return is_constant(value) or (node is not None and all(each and _is_fixed(each) for each in node.inputs))


def _is_by_channel(factor: ir.Value, weight: ir.Value | None) -> bool:
    """Whether the constant *factor* is one number, or one per output channel of the Conv with *weight*."""
    shape, weights = known_shape(factor), known_shape(weight)
    if not is_constant(factor) or shape is None or weights is None or len(shape) > len(weights):
        return False
    channels = len(shape) - (len(weights) - 1)  # the channel axis, which comes second in the result of a Conv
    return all(size == 1 or (place == channels and size == weights[0]) for place, size in enumerate(shape))


def _conv(op: RewriterContext, node: ir.Node, weight: ir.Value, bias: ir.Value | None) -> ir.Value:
    inputs = [node.inputs[0], weight, *([] if bias is None else [bias])]
    return op.Conv(*inputs, **{each.name: each for each in node.attributes.values()})


def _scaled_weight(op: RewriterContext, weight: ir.Value, scale: ir.Value) -> ir.Value:
    rank = len(known_shape(weight) or ())
    made = op.Mul(weight, op.Reshape(scale, shape_constant(op, (-1, *[1] * (rank - 1)))))
    made.shape, made.dtype = weight.shape, weight.dtype
    return made


# The operation on a constant that turns a difference into a sum, and a quotient into a product.
_INVERSES = {"Sub": "Neg", "Div": "Reciprocal"}


class _Affine(Rule):
    """Fold a product, quotient, sum or difference of a Conv with a constant into its weights and bias.

    The constant is one number, or one per channel. onnxruntime's basic level folds products and sums whose constant is
    the second operand, and few single numbers.
    """

    def __init__(self, swapped: bool, operator: str) -> None:
        super().__init__(swapped)
        self._operator = operator

    def pattern(self, op: OpsetPatternBuilder, conv: Var, factor: Var) -> Var:
        return self.last(getattr(op, self._operator), conv, factor)

    def check(self, _context: MatchContext, conv: ir.Value, factor: ir.Value) -> bool:
        node = _foldable_conv(conv)
        return node is not None and _is_by_channel(factor, node.inputs[1])

    def rewrite(self, op: RewriterContext, conv: ir.Value, factor: ir.Value) -> ir.Value:
        node = checked(conv.producer())
        weight = checked(node.inputs[1])
        # One number for each channel.
        flat = op.Reshape(factor, shape_constant(op, (-1,)))
        vector = op.Expand(flat, shape_constant(op, checked(known_shape(weight))[:1]))
        if self._operator in _INVERSES:
            vector = getattr(op, _INVERSES[self._operator])(vector)
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        if self._operator in ("Add", "Sub"):
            return _conv(op, node, weight, vector if bias is None else op.Add(bias, vector))
        return _conv(op, node, _scaled_weight(op, weight, vector), None if bias is None else op.Mul(bias, vector))


@by_rules
def fold_affine_into_conv() -> list[RewriteRule]:
    commutative = [rule for name in ("Mul", "Add") for rule in _Affine.both_orders(name)]
    return [*commutative, *(_Affine.rule(False, name) for name in _INVERSES)]


class _BatchNormOfSum(Rule):
    """Fold the BatchNormalization of a Conv plus a non-constant, as in residual blocks, into the Conv.

    The other summand is multiplied by the scale.
    """

    def pattern(
        self, op: OpsetPatternBuilder, conv: Var, other: Var, scale: Var, bias: Var, mean: Var, variance: Var
    ) -> Var:
        total = self.last(op.Add, conv, other)
        return op.BatchNormalization(total, scale, bias, mean, variance, _outputs=["normalized"])

    def check(
        self, _context: MatchContext, conv: ir.Value, other: ir.Value, normalized: ir.Value, **parameters: ir.Value
    ) -> bool:
        node, result = _foldable_conv(conv), normalized.producer()
        if node is None or result is None or len(result.outputs) > 1 or known_shape(node.inputs[1]) is None:
            return False
        if known_shape(other) is None or known_shape(other) != known_shape(conv):
            return False
        return all(is_constant(value) for value in parameters.values())

    def rewrite(
        self,
        op: RewriterContext,
        conv: ir.Value,
        other: ir.Value,
        scale: ir.Value,
        bias: ir.Value,
        mean: ir.Value,
        variance: ir.Value,
        normalized: ir.Value,
    ) -> ir.Value:
        node, last = checked(conv.producer()), checked(normalized.producer())
        number_type = checked(numbers(variance)).dtype.type
        epsilon = op.Constant(value=ir.tensor(number_type(last.attributes.get_float("epsilon", 1e-5))))
        slope = op.Div(scale, op.Sqrt(op.Add(variance, epsilon)))
        shift = op.Sub(bias, op.Mul(mean, slope))
        own = node.inputs[2] if len(node.inputs) > 2 else None
        folded = _conv(
            op,
            node,
            _scaled_weight(op, checked(node.inputs[1]), slope),
            shift if own is None else op.Add(op.Mul(own, slope), shift),
        )
        rank = len(known_shape(conv) or ())
        return op.Add(folded, op.Mul(other, op.Reshape(slope, shape_constant(op, (-1, *[1] * (rank - 2))))))


fold_batch_norm_of_sum_into_conv = by_rules(_BatchNormOfSum.both_orders)


class _Linear(Rule):
    """x W + b, where x has *rank* dimensions."""

    def __init__(self, swapped: bool, rank: int) -> None:
        super().__init__(swapped)
        self._rank = rank

    def pattern(self, op: OpsetPatternBuilder, x: Var, weight: Var, bias: Var) -> Var:
        return self.last(op.Add, op.MatMul(x, weight), bias)

    def check(self, _context: MatchContext, x: ir.Value, weight: ir.Value, bias: ir.Value) -> bool:
        shape, weights = known_shape(x), known_shape(weight)
        if shape is None or weights is None or x.dtype != ir.DataType.FLOAT:
            return False
        constants = is_constant(weight) and is_constant(bias)
        return constants and len(shape) == self._rank and len(weights) == 2 and known_shape(bias) == (weights[1],)

    def rewrite(self, op: RewriterContext, x: ir.Value, weight: ir.Value, bias: ir.Value) -> ir.Value:
        shape = checked(known_shape(x))
        inner, outer = checked(known_shape(weight))
        kernel = op.Reshape(op.Transpose(weight, perm=(1, 0)), shape_constant(op, (outer, inner, 1, 1)))
        if self._rank == 2:
            image = op.Reshape(x, shape_constant(op, (*shape, 1, 1)))
            return op.Reshape(op.Conv(image, kernel, bias), shape_constant(op, (shape[0], outer)))
        # Channels come second; the other dimensions are height and width.
        image = x if self._rank == 4 else op.Reshape(x, shape_constant(op, (*shape[:-1], 1, inner)))
        made = op.Conv(op.Transpose(image, perm=(0, 3, 1, 2)), kernel, bias)
        back = op.Transpose(made, perm=(0, 2, 3, 1))
        return back if self._rank == 4 else op.Reshape(back, shape_constant(op, (*shape[:-1], outer)))


# MatMul and Add of a constant bias become a Conv with 1x1 kernels, which some NPUs run faster than a fully connected
# layer. Each rewrite handles inputs of that number of dimensions.
linear_2d_to_conv = by_rules(partial(_Linear.both_orders, 2))
linear_3d_to_conv = by_rules(partial(_Linear.both_orders, 3))
linear_4d_to_conv = by_rules(partial(_Linear.both_orders, 4))


class _LinearToGemm(Rule):
    """Fuse MatMul and Add of a constant bias into Gemm, with a Reshape on both sides above two dimensions.

    onnxruntime's basic level does this too, except in attention blocks, which it keeps for a fusion that is never run
    here, and with a free batch size. A product and its bias in one operator are quantized once: all-MiniLM-L6-v2 in
    w8a8 has a mean cosine to float32 of 0.83 without any Gemm, 0.86 with those of the basic level, 0.87 with all.
    onnxscript's rule covers two dimensions only and does not check the bias.
    """

    def pattern(self, op: OpsetPatternBuilder, x: Var, weight: Var, bias: Var) -> Var:
        return self.last(op.Add, op.MatMul(x, weight), bias, _outputs=["result"])

    def check(self, _context: MatchContext, x: ir.Value, weight: ir.Value, bias: ir.Value, result: ir.Value) -> bool:
        if not (is_constant(weight) and is_constant(bias)) or weight.shape is None or bias.shape is None:
            return False
        if x.dtype != ir.DataType.FLOAT or x.shape is None or len(x.shape) < 2 or len(weight.shape) != 2:
            return False
        # The bias must be a row vector, one number per output: any other Add may change the shape of the product.
        return tuple(bias.shape) == (weight.shape[1],) and (len(x.shape) == 2 or static_shape(result) is not None)

    def rewrite(self, op: RewriterContext, x: ir.Value, weight: ir.Value, bias: ir.Value, result: ir.Value) -> ir.Value:
        if len(checked(x.shape)) == 2:
            return op.Gemm(x, weight, bias)
        rows = op.Reshape(x, shape_constant(op, (-1, int(checked(weight.shape)[0]))))
        return op.Reshape(op.Gemm(rows, weight, bias), shape_constant(op, static_shape(result)))


linear_to_gemm = by_rules(_LinearToGemm.both_orders)

_DFT_AXIS_IS_AN_INPUT_SINCE = 20
_LONGEST_DFT = 4096


def dft_to_matmul(model: ir.Model, _: OptimizeTarget) -> Outcome:
    """Expand a discrete Fourier transform of known length into products with constant matrices.

    X[k] = sum over n of x[n] (cos(2 pi k n / N) - i sin(2 pi k n / N)). For compilers without DFT. It takes N^2 steps
    instead of N log N, which is little for a speech window of a few hundred samples.
    """
    stay = f"DFT stay: their length or axis is not known, or is over {_LONGEST_DFT}"
    return replace_each(model, "DFT", _expanded_dft, stay)


def _dft_axis(node: ir.Node, rank: int) -> int | None:
    """The axis counted from the front; None if it is computed."""
    if "axis" in node.attributes:
        axis: float | None = node.attributes.get_int("axis", 1)
    elif len(node.inputs) > 2 and node.inputs[2] is not None:
        axis = number(node.inputs[2])
    else:
        axis = -2 if (node.version or _DFT_AXIS_IS_AN_INPUT_SINCE) >= _DFT_AXIS_IS_AN_INPUT_SINCE else 1
    return None if axis is None else int(axis) % rank


def _expanded_dft(node: ir.Node, tape: ir.tape.Tape) -> list[ir.Value] | None:
    x, shape = node.inputs[0], known_shape(node.inputs[0])
    if x is None or shape is None or x.dtype != ir.DataType.FLOAT or len(shape) < 3:
        return None
    axis = _dft_axis(node, len(shape))
    if axis is None or axis == len(shape) - 1 or shape[axis] > _LONGEST_DFT:
        return None
    if len(node.inputs) > 1 and node.inputs[1] is not None and number(node.inputs[1]) != shape[axis]:
        return None
    one_sided, inverse = node.attributes.get_int("onesided", 0), node.attributes.get_int("inverse", 0)
    if one_sided and inverse:
        return None
    cosine, sine = _dft_matrices(shape[axis], one_sided=bool(one_sided), inverse=bool(inverse))
    return [_transformed(tape, x, shape, axis, cosine, sine)]


def _dft_matrices(length: int, *, one_sided: bool, inverse: bool) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    frequencies = length // 2 + 1 if one_sided else length
    # Reduce the angles as integers: k n / N in the thousands would lose digits.
    turns = np.outer(np.arange(length), np.arange(frequencies)) % length
    angle = 2 * np.pi * turns / length
    scale = 1 / length if inverse else 1.0
    sign = 1.0 if inverse else -1.0
    return (np.cos(angle) * scale).astype(np.float32), (sign * np.sin(angle) * scale).astype(np.float32)


def _transformed(
    tape: ir.tape.Tape,
    x: ir.Value,
    shape: tuple[int, ...],
    axis: int,
    cosine: NDArray[np.float32],
    sine: NDArray[np.float32],
) -> ir.Value:
    rank = len(shape)
    last = constant(tape, [-1], ir.DataType.INT64)
    to_end = [*(each for each in range(rank - 1) if each != axis), axis]
    back = [to_end.index(each) for each in range(rank - 1)]
    real_matrix, imaginary_matrix = (constant(tape, each, ir.DataType.FLOAT) for each in (cosine, sine))

    def turned(value: ir.Value, order: list[int]) -> ir.Value:
        return value if order == sorted(order) else tape.op("Transpose", [value], {"perm": order})

    def part(index: int) -> ir.Value:
        """The real (0) or imaginary (1) part of *x*, with the transformed axis last."""
        bounds = [constant(tape, [each], ir.DataType.INT64) for each in (index, index + 1)]
        only = x if shape[-1] == 1 else tape.op("Slice", [x, *bounds, last])
        return turned(tape.op("Squeeze", [only, last]), to_end)

    real = part(0)
    by_real, by_imaginary = tape.op("MatMul", [real, real_matrix]), tape.op("MatMul", [real, imaginary_matrix])
    if shape[-1] == 2:
        imaginary = part(1)
        by_real = tape.op("Sub", [by_real, tape.op("MatMul", [imaginary, imaginary_matrix])])
        by_imaginary = tape.op("Add", [by_imaginary, tape.op("MatMul", [imaginary, real_matrix])])
    parts = [tape.op("Unsqueeze", [turned(each, back), last]) for each in (by_real, by_imaginary)]
    return tape.op("Concat", parts, {"axis": -1})
