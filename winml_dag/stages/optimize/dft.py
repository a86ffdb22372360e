"""dft_to_matmul: a discrete Fourier transform of known length becomes products with constant matrices.

X[k] = sum over n of x[n] (cos(2 pi k n / N) - i sin(2 pi k n / N)): for compilers that have no DFT. It takes N^2 steps
in place of N log N; at the few hundred samples of a window of speech that is little.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from winml_dag.stages.optimize import OptimizeTarget
from winml_dag.stages.optimize.rewrite import Outcome, constant, known_shape, nodes_of, numbers, replace_node

_AXIS_IS_AN_INPUT_SINCE = 20
_LONGEST = 4096


def apply(model: ir.Model, target: OptimizeTarget) -> Outcome:  # noqa: ARG001
    nodes = nodes_of(model, "DFT")
    changes = sum(_spell_out(node) for node in nodes)
    left = len(nodes) - changes
    return Outcome(
        changes, f"{left} DFT stay: their length or axis is not known, or is over {_LONGEST}" if left else ""
    )


def _axis(node: ir.Node, rank: int) -> int | None:
    """The axis counted from the front; None when it is computed."""
    if "axis" in node.attributes:
        axis: int | None = node.attributes.get_int("axis", 1)
    elif len(node.inputs) > 2 and node.inputs[2] is not None:
        given = numbers(node.inputs[2])
        axis = None if given is None else int(given.item())
    else:
        axis = -2 if (node.version or _AXIS_IS_AN_INPUT_SINCE) >= _AXIS_IS_AN_INPUT_SINCE else 1
    return None if axis is None else axis % rank


def _spell_out(node: ir.Node) -> bool:
    x, shape = node.inputs[0], known_shape(node.inputs[0])
    if x is None or shape is None or x.dtype != ir.DataType.FLOAT or len(shape) < 3:
        return False
    axis = _axis(node, len(shape))
    length = numbers(node.inputs[1]) if len(node.inputs) > 1 and node.inputs[1] is not None else None
    if axis is None or axis == len(shape) - 1 or shape[axis] > _LONGEST:
        return False
    if len(node.inputs) > 1 and node.inputs[1] is not None and (length is None or length.item() != shape[axis]):
        return False
    one_sided, inverse = node.attributes.get_int("onesided", 0), node.attributes.get_int("inverse", 0)
    if one_sided and inverse:
        return False
    cosine, sine = _matrices(shape[axis], one_sided=bool(one_sided), inverse=bool(inverse))
    tape = ir.tape.Tape()
    replace_node(node, tape, [_transformed(tape, x, shape, axis, cosine, sine)])
    return True


def _matrices(length: int, *, one_sided: bool, inverse: bool) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    frequencies = length // 2 + 1 if one_sided else length
    # Angles by whole numbers: k n / N of thousands would lose digits.
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

    def part(number: int) -> ir.Value:
        bounds = [constant(tape, [each], ir.DataType.INT64) for each in (number, number + 1)]
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
