"""static_split_to_slice: a Split with known sizes becomes one Slice for each of its parts that somebody reads.

For compilers that take Slice where they take no Split, or no Split of unequal parts.
"""

from __future__ import annotations

from itertools import accumulate

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

_BOUNDS_ARE_INPUTS_SINCE = 10


def apply(model: ir.Model, target: OptimizeTarget) -> Outcome:  # noqa: ARG001
    opset, nodes = standard_opset(model), nodes_of(model, "Split")
    if opset < _BOUNDS_ARE_INPUTS_SINCE:
        left = f"{len(nodes)} Split stay: Slice is another operator before opset {_BOUNDS_ARE_INPUTS_SINCE}"
        return Outcome(0, f"{left}, and the model has {opset}" if nodes else "")
    return Outcome(sum(_spell_out(node) for node in nodes))


def _spell_out(node: ir.Node) -> bool:
    x, axis = node.inputs[0], node.attributes.get_int("axis", 0)
    sizes = _sizes(node, axis)
    if x is None or sizes is None:
        return False
    ends = [0, *accumulate(sizes)]
    tape = ir.tape.Tape()
    bounds = [constant(tape, [end], ir.DataType.INT64) for end in ends]
    along = constant(tape, [axis], ir.DataType.INT64)
    parts = [tape.op("Slice", [x, bounds[place], bounds[place + 1], along]) for place in range(len(sizes))]
    replace_node(node, tape, parts)
    return True


def _sizes(node: ir.Node, axis: int) -> list[int] | None:
    if len(node.inputs) > 1 and node.inputs[1] is not None:
        given = numbers(node.inputs[1])
        return None if given is None else [int(size) for size in given]
    if written := node.attributes.get_ints("split", ()):  # before opset 13
        return list(written)
    shape = known_shape(node.inputs[0])
    if shape is None:
        return None
    parts, whole = len(node.outputs), shape[axis]
    size = -(-whole // parts)  # the last part is the smaller one
    return [*[size] * (parts - 1), whole - size * (parts - 1)]
