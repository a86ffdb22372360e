"""Rewrites of shapes and single operators into fewer operators, or into ones that more compilers support.

Each is exact except the cubic Resize, whose docstring says so.
"""

from __future__ import annotations

from itertools import accumulate, pairwise

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter import MatchContext, RewriterContext
from onnxscript.rewriter.pattern import OpsetPatternBuilder, OrValue, RewriteRuleClassBase, Var

from winml_dag.onnxmodel.graph import HIGH_RANK
from winml_dag.stages.optimize import OptimizeTarget
from winml_dag.stages.optimize.rewriting import (
    Outcome,
    Rule,
    by_rules,
    checked,
    constant,
    either,
    if_any,
    is_constant,
    known_shape,
    nodes_of,
    numbers,
    replace_each,
    shape_constant,
    standard_opset,
    static_shape,
)

_RESHAPES = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")


class _ReshapeChain(RewriteRuleClassBase):  # type: ignore[misc]
    """Merge a chain of Reshape, Flatten, Squeeze and Unsqueeze into one Reshape to the last shape.

    onnxruntime's basic level merges Reshape, Squeeze and Unsqueeze if all shapes are known; this adds Flatten, and
    shapes with one unknown dimension (a free batch size). Chains whose inner values have other readers stay.
    """

    def __init__(self, last: str) -> None:
        super().__init__()
        self._last = last

    def pattern(self, op: OpsetPatternBuilder, x: Var) -> Var:
        # The second input is a shape or axes; Flatten has none, nor do Squeeze and Unsqueeze before opset 13.
        first = OrValue([getattr(op, name)(x, _allow_other_inputs=True) for name in _RESHAPES])
        return getattr(op, self._last)(first, _allow_other_inputs=True, _outputs=["result"])

    def check(self, _context: MatchContext, result: ir.Value, **_: ir.Value) -> bool:
        return static_shape(result) is not None

    def rewrite(self, op: RewriterContext, x: ir.Value, result: ir.Value) -> ir.Value:
        return op.Reshape(x, shape_constant(op, static_shape(result)))


merge_reshapes = by_rules(lambda: [_ReshapeChain.rule(last) for last in _RESHAPES])


class _ReshapeTransposeReshape(RewriteRuleClassBase):  # type: ignore[misc]
    """Lower the rank of a Reshape, Transpose and Reshape in which some axes stay together.

    Windows of an image are cut out in six dimensions, ``(1, 8, 7, 8, 7, 96)``; compilers for NPUs support four or five.
    Axes that are adjacent before and after the Transpose count as one, and axes of size 1 do not count.
    """

    def pattern(self, op: OpsetPatternBuilder, x: Var, first: Var, last: Var) -> Var:
        turned = op.Transpose(op.Reshape(x, first, _outputs=["split"]), _outputs=["turned"])
        return op.Reshape(turned, last, _outputs=["joined"])

    def check(self, _context: MatchContext, split: ir.Value, turned: ir.Value, joined: ir.Value, **_: ir.Value) -> bool:
        shape = known_shape(split)
        if shape is None or 0 in shape or len(shape) < HIGH_RANK or known_shape(joined) is None:
            return False
        return len(merged_axes(shape, _order(turned, len(shape)))[0]) < len(shape)

    def rewrite(
        self, op: RewriterContext, x: ir.Value, split: ir.Value, turned: ir.Value, joined: ir.Value, **_: ir.Value
    ) -> ir.Value:
        shape = checked(known_shape(split))
        fewer, order = merged_axes(shape, _order(turned, len(shape)))
        moved = op.Transpose(op.Reshape(x, shape_constant(op, fewer)), perm=order)
        return op.Reshape(moved, shape_constant(op, known_shape(joined)))


def _order(turned: ir.Value, rank: int) -> tuple[int, ...]:
    node = turned.producer()
    reverse = tuple(reversed(range(rank)))
    return reverse if node is None else tuple(node.attributes.get_ints("perm", reverse))


def merged_axes(shape: tuple[int, ...], order: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return shape and order of a Transpose of *shape* by *order* with as few axes as possible."""
    kept = [axis for axis in order if shape[axis] != 1] or [order[0]]
    groups: list[list[int]] = []
    place = {axis: number for number, axis in enumerate(sorted(kept))}
    for axis in kept:
        if groups and place[axis] == place[groups[-1][-1]] + 1:
            groups[-1].append(axis)
        else:
            groups.append([axis])
    sizes = {group[0]: 1 for group in groups}
    for group in groups:
        for axis in group:
            sizes[group[0]] *= shape[axis]
    first = sorted(sizes)
    return tuple(sizes[axis] for axis in first), tuple(first.index(group[0]) for group in groups)


lower_rank_of_transpose = by_rules(lambda: [_ReshapeTransposeReshape.rule()])

_SLICE_BOUNDS_ARE_INPUTS_SINCE = 10


def split_to_slices(model: ir.Model, _: OptimizeTarget) -> Outcome:
    """Replace a Split with known sizes by one Slice for each output that has a reader.

    For compilers that support Slice but not Split, or no Split into unequal sizes.
    """
    opset = standard_opset(model)
    if opset < _SLICE_BOUNDS_ARE_INPUTS_SINCE:
        why = f"Slice is another operator before opset {_SLICE_BOUNDS_ARE_INPUTS_SINCE}, and the model has {opset}"
        return Outcome(0, if_any(len(nodes_of(model, "Split")), f"Split stay: {why}"))
    return replace_each(model, "Split", _slices)


def _slices(node: ir.Node, tape: ir.tape.Tape) -> list[ir.Value] | None:
    x, axis = node.inputs[0], node.attributes.get_int("axis", 0)
    sizes = _split_sizes(node, axis)
    if x is None or sizes is None:
        return None
    ends = [0, *accumulate(sizes)]
    bounds = [constant(tape, [end], ir.DataType.INT64) for end in ends]
    along = constant(tape, [axis], ir.DataType.INT64)
    return [tape.op("Slice", [x, *pair, along]) for pair in pairwise(bounds)]


def _split_sizes(node: ir.Node, axis: int) -> list[int] | None:
    if len(node.inputs) > 1 and node.inputs[1] is not None:
        given = numbers(node.inputs[1])
        return None if given is None else [int(size) for size in given]
    if written := node.attributes.get_ints("split", ()):  # before opset 13
        return list(written)
    shape = known_shape(node.inputs[0])
    if shape is None:
        return None
    parts, whole = len(node.outputs), shape[axis]
    size = -(-whole // parts)  # the last output is smaller
    return [*[size] * (parts - 1), whole - size * (parts - 1)]


def remove_slices_of_concat(model: ir.Model, _: OptimizeTarget) -> Outcome:
    """Replace a Slice that selects exactly one input of a Concat by that input.

    onnxruntime has a transformer of this name for three particular nodes of one model. Once the Concat has no reader,
    the next pass of onnxruntime removes it.
    """
    return replace_each(model, "Slice", _part_of_concat)


def _part_of_concat(node: ir.Node, tape: ir.tape.Tape) -> list[ir.Value] | None:
    whole = node.inputs[0]
    concat = None if whole is None else whole.producer()
    if concat is None or concat.op_type != "Concat" or concat.domain:
        return None
    shapes = [known_shape(part) for part in concat.inputs]
    bounds = _slice_bounds(node)
    if None in shapes or bounds is None:
        return None
    start, end, axis, step = bounds
    rank = len(shapes[0] or ())
    along = concat.attributes.get_int("axis", 0) % rank
    if axis % rank != along or step != 1:
        return None
    ends = [0, *accumulate((shape or ())[along] for shape in shapes)]
    taken = slice(start, end).indices(ends[-1])[:2]
    parts = [part for part, bounds in zip(concat.inputs, pairwise(ends), strict=True) if taken == bounds]
    return [tape.op("Identity", parts[:1])] if parts and parts[0] is not None else None


def _slice_bounds(node: ir.Node) -> tuple[int, int, int, int] | None:
    """Start, end, axis and step of a Slice along one axis; None if they are computed, or are attributes."""
    given: list[int | None] = []
    for value in node.inputs[1:]:
        found = numbers(value)
        if value is not None and (found is None or found.size != 1):
            return None
        given.append(None if found is None else int(found.item()))
    start, end, axis, step = (*given, None, None, None, None)[:4]
    if start is None or end is None:
        return None  # attributes, before opset 10
    return start, end, axis or 0, 1 if step is None else step


class _ScaledExp(Rule):
    """Rewrite ``c * exp(x + b)`` as ``exp(x + (b + log c))`` for a constant b and a positive c.

    Without an existing Add of a constant nothing is gained: a Mul would become an Add.
    """

    def pattern(self, op: OpsetPatternBuilder, x: Var, bias: Var, scale: Var) -> Var:
        return self.last(op.Mul, op.Exp(either(op.Add, x, bias)), scale)

    def check(self, _context: MatchContext, x: ir.Value, bias: ir.Value, scale: ir.Value) -> bool:
        factor = numbers(scale)
        if factor is None or factor.size != 1 or not is_constant(bias) or is_constant(x) or bias.shape is None:
            return False
        # A factor with more dimensions than the bias would change the shape of the sum.
        return bool(np.isfinite(factor).all() and (factor > 0).all() and factor.ndim <= len(bias.shape))

    def rewrite(self, op: RewriterContext, x: ir.Value, bias: ir.Value, scale: ir.Value) -> ir.Value:
        logarithm = op.Constant(value=ir.tensor(np.log(checked(numbers(scale)))))
        return op.Exp(op.Add(x, op.Add(bias, logarithm)))


fold_scale_into_exp = by_rules(_ScaledExp.both_orders)


def prelu_to_relu(model: ir.Model, _: OptimizeTarget) -> Outcome:
    """Replace a PRelu with constant slope by Relu(x) - slope * Relu(-x)."""
    return replace_each(model, "PRelu", _expanded_prelu)


def _expanded_prelu(node: ir.Node, tape: ir.tape.Tape) -> list[ir.Value] | None:
    x, slope = node.inputs
    factors = numbers(slope)
    if x is None or slope is None or factors is None or factors.dtype.kind != "f" or not np.isfinite(factors).all():
        return None
    below = tape.op("Mul", [slope, tape.op("Relu", [tape.op("Neg", [x])])])
    return [tape.op("Sub", [tape.op("Relu", [x]), below])]


# Above this size, checking every element of a GatherND costs more than it saves.
_LARGEST_TABLE = 4_000_000


def gather_nd_to_reshape(model: ir.Model, _: OptimizeTarget) -> Outcome:
    """Replace a GatherND that takes all elements in order by a Reshape."""
    return replace_each(model, "GatherND", _reshape_of_all)


def _reshape_of_all(node: ir.Node, tape: ir.tape.Tape) -> list[ir.Value] | None:
    data, shape, positions = node.inputs[0], known_shape(node.inputs[0]), numbers(node.inputs[1])
    if data is None or shape is None or positions is None or node.attributes.get_int("batch_dims", 0):
        return None
    size = int(np.prod(shape))
    if size > _LARGEST_TABLE or positions.shape[-1] > len(shape):
        return None
    taken = np.arange(size).reshape(shape)[tuple(np.moveaxis(positions, -1, 0))]
    if not np.array_equal(taken.ravel(), np.arange(size)):
        return None
    return [tape.op("Reshape", [data, constant(tape, taken.shape, ir.DataType.INT64)])]


_EMPTY_MAY_BE_LEFT_OUT_SINCE = 13


def omit_empty_resize_inputs(model: ir.Model, _: OptimizeTarget) -> Outcome:
    """Omit the empty roi and scales of a Resize."""
    changes = 0
    opset, nodes = standard_opset(model), nodes_of(model, "Resize")
    if opset < _EMPTY_MAY_BE_LEFT_OUT_SINCE:
        why = f"they may leave inputs out since opset {_EMPTY_MAY_BE_LEFT_OUT_SINCE}, the model has {opset}"
        return Outcome(0, if_any(len(nodes), f"Resize stay: {why}"))
    for node in nodes:
        empty = [index for index in (1, 2) if len(node.inputs) > index and known_shape(node.inputs[index]) == (0,)]
        for index in empty:
            node.replace_input_with(index, None)
        changes += bool(empty)
    return Outcome(changes)


def asymmetric_resize(model: ir.Model, _: OptimizeTarget) -> Outcome:
    """Use asymmetric coordinates in a nearest Resize by integer factors, where the result is the same."""
    changes = 0
    for node in nodes_of(model, "Resize"):
        attributes = node.attributes
        nearest = attributes.get_string("mode", "nearest") == "nearest"
        down = attributes.get_string("nearest_mode", "round_prefer_floor") == "floor"
        mode = attributes.get_string("coordinate_transformation_mode", "half_pixel")
        if nearest and down and mode == "tf_half_pixel_for_nn" and _grows_by_whole_numbers(node):
            attributes["coordinate_transformation_mode"] = ir.AttrString("coordinate_transformation_mode", "asymmetric")
            changes += 1
    return Outcome(changes)


def _grows_by_whole_numbers(node: ir.Node) -> bool:
    """Whether the Resize scales by integers: floor((i + 0.5) / s) is floor(i / s) for every integer s."""
    before, after = known_shape(node.inputs[0]), known_shape(node.outputs[0])
    if before is None or after is None or not all(b and a % b == 0 for b, a in zip(before, after, strict=True)):
        return False
    scales = node.inputs[2] if len(node.inputs) > 2 else None
    if scales is None or known_shape(scales) == (0,):
        return True
    # A size may be an integer where its scale is not: 3 by 2.3 is 6, in steps of 2.3.
    factors = numbers(scales)
    return factors is not None and bool((factors % 1 == 0).all())


def linear_resize(model: ir.Model, _: OptimizeTarget) -> Outcome:
    """Make a cubic Resize linear. The values change: the image becomes softer."""
    changes = 0
    for node in nodes_of(model, "Resize"):
        attributes = node.attributes
        special = attributes.get_int("exclude_outside", 0) or attributes.get_int("antialias", 0)
        if attributes.get_string("mode", "nearest") == "cubic" and not special:
            attributes["mode"] = ir.AttrString("mode", "linear")
            attributes.pop("cubic_coeff_a", None)
            changes += 1
    return Outcome(changes)
