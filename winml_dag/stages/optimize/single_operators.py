"""One operator in the words of others that more compilers take: PRelu, GatherND, Resize.

Each is exact, but for the cubic Resize, which says so.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from winml_dag.stages.optimize import OptimizeTarget
from winml_dag.stages.optimize.rewrite import (
    Outcome,
    constant,
    known_shape,
    nodes_of,
    numbers,
    replace_node,
    standard_opset,
)

# Above, following every element of a GatherND would take longer than it saves.
_LARGEST_TABLE = 4_000_000
_EMPTY_MAY_BE_LEFT_OUT_SINCE = 13


def prelu_to_relu(model: ir.Model, target: OptimizeTarget) -> Outcome:  # noqa: ARG001
    return Outcome(sum(_spell_out_prelu(node) for node in nodes_of(model, "PRelu")))


def _spell_out_prelu(node: ir.Node) -> bool:
    x, slope = node.inputs
    factors = numbers(slope)
    if x is None or slope is None or factors is None or factors.dtype.kind != "f" or not np.isfinite(factors).all():
        return False
    tape = ir.tape.Tape()
    below = tape.op("Mul", [slope, tape.op("Relu", [tape.op("Neg", [x])])])
    replace_node(node, tape, [tape.op("Sub", [tape.op("Relu", [x]), below])])
    return True


def gather_nd_to_reshape(model: ir.Model, target: OptimizeTarget) -> Outcome:  # noqa: ARG001
    return Outcome(sum(_reshape_instead(node) for node in nodes_of(model, "GatherND")))


def _reshape_instead(node: ir.Node) -> bool:
    data, shape, places = node.inputs[0], known_shape(node.inputs[0]), numbers(node.inputs[1])
    if data is None or shape is None or places is None or node.attributes.get_int("batch_dims", 0):
        return False
    size = int(np.prod(shape))
    if size > _LARGEST_TABLE or places.shape[-1] > len(shape):
        return False
    taken = np.arange(size).reshape(shape)[tuple(np.moveaxis(places, -1, 0))]
    if not np.array_equal(taken.ravel(), np.arange(size)):
        return False
    tape = ir.tape.Tape()
    replace_node(node, tape, [tape.op("Reshape", [data, constant(tape, taken.shape, ir.DataType.INT64)])])
    return True


def omit_empty_resize_inputs(model: ir.Model, target: OptimizeTarget) -> Outcome:  # noqa: ARG001
    changes = 0
    opset, nodes = standard_opset(model), nodes_of(model, "Resize")
    if opset < _EMPTY_MAY_BE_LEFT_OUT_SINCE:
        left = f"{len(nodes)} Resize stay: they may leave inputs out since opset {_EMPTY_MAY_BE_LEFT_OUT_SINCE}"
        return Outcome(0, f"{left}, the model has {opset}" if nodes else "")
    for node in nodes:
        empty = [place for place in (1, 2) if _is_empty(node, place)]
        for place in empty:
            node.replace_input_with(place, None)
        changes += bool(empty)
    return Outcome(changes)


def _is_empty(node: ir.Node, place: int) -> bool:
    value = node.inputs[place] if place < len(node.inputs) else None
    return value is not None and known_shape(value) == (0,)


def asymmetric_resize(model: ir.Model, target: OptimizeTarget) -> Outcome:  # noqa: ARG001
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
    """floor((i + 0.5) / s) is floor(i / s) for every whole s."""
    before, after = known_shape(node.inputs[0]), known_shape(node.outputs[0])
    if before is None or after is None or not all(b and a % b == 0 for b, a in zip(before, after, strict=True)):
        return False
    scales = node.inputs[2] if len(node.inputs) > 2 else None
    if scales is None or known_shape(scales) == (0,):
        return True
    # A size may be whole where its scale is not: 3 by 2.3 is 6, in steps of 2.3.
    factors = numbers(scales)
    return factors is not None and bool((factors % 1 == 0).all())


def linear_resize(model: ir.Model, target: OptimizeTarget) -> Outcome:  # noqa: ARG001
    changes = 0
    for node in nodes_of(model, "Resize"):
        attributes = node.attributes
        special = attributes.get_int("exclude_outside", 0) or attributes.get_int("antialias", 0)
        if attributes.get_string("mode", "nearest") == "cubic" and not special:
            attributes["mode"] = ir.AttrString("mode", "linear")
            attributes.pop("cubic_coeff_a", None)
            changes += 1
    return Outcome(changes)
