"""concat_slice_elimination: a Slice that takes just one part of a Concat becomes that part.

onnxruntime has a transformer of this name for three particular nodes of one model.
"""

from __future__ import annotations

from itertools import accumulate, pairwise

import onnx_ir as ir

from winml_dag.stages.optimize import OptimizeTarget
from winml_dag.stages.optimize.rewrite import Outcome, known_shape, nodes_of, numbers, replace_node


def apply(model: ir.Model, target: OptimizeTarget) -> Outcome:  # noqa: ARG001
    """The Concat goes with the next pass of onnxruntime, when nobody reads it any more."""
    return Outcome(sum(_take_the_part(node) for node in nodes_of(model, "Slice")))


def _take_the_part(node: ir.Node) -> bool:
    whole = node.inputs[0]
    concat = None if whole is None else whole.producer()
    if concat is None or concat.op_type != "Concat" or concat.domain:
        return False
    shapes = [known_shape(part) for part in concat.inputs]
    bounds = _numbers(node)
    if None in shapes or bounds is None:
        return False
    start, end, axis, step = bounds
    rank = len(shapes[0] or ())
    along = concat.attributes.get_int("axis", 0) % rank
    if axis % rank != along or step != 1:
        return False
    ends = [0, *accumulate((shape or ())[along] for shape in shapes)]
    taken = slice(start, end).indices(ends[-1])[:2]
    for part, places in zip(concat.inputs, pairwise(ends), strict=True):
        if part is not None and taken == places:
            tape = ir.tape.Tape()
            replace_node(node, tape, [tape.op("Identity", [part])])
            return True
    return False


def _numbers(node: ir.Node) -> tuple[int, int, int, int] | None:
    """Start, end, axis and step of a Slice along one axis; None where they are computed."""
    given = [None if value is None else numbers(value) for value in node.inputs[1:]]
    if any(
        value is not None and (each is None or each.size != 1)
        for value, each in zip(node.inputs[1:], given, strict=True)
    ):
        return None
    start, end, axis, step = (*(None if each is None else int(each.item()) for each in given), None, None, None, None)[
        :4
    ]
    if start is None or end is None:
        return None  # attributes, before opset 10
    return start, end, axis or 0, 1 if step is None else step
