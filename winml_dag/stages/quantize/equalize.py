"""Equalization: scale the channels of a normalization's output to similar sizes; the matrices that read it compensate.

A normalization multiplies each channel by a constant anyway, so dividing there costs nothing; the rows of the matrices
are multiplied instead. Each takes half of the factor (Xiao et al., "SmoothQuant", with alpha 0.5): 8-bit weights with
one large row would be no better. If other nodes read the tensor too, such as the residual of a BERT, the normalization
is duplicated for the matrices. A Mul after it would also be one more node, but it would read values that are already
rounded (worst cosine of MiniLM's pooled embeddings 0.974 with a Mul, 0.981 with two normalizations).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, NodeProto, TensorProto, ValueInfoProto, numpy_helper

from winml_dag.onnxmodel.protos import attributes_of, read_inside, readers_of, replace_items
from winml_dag.stages.ranges import Normalization, Ranges, is_coarse, normalizations

_Array = NDArray[np.float64]

# Relative to the largest channel and the largest row: smaller ones, padding for example, count as this large.
_LEAST = 1e-4


@dataclass(frozen=True)
class _Reader:
    """A matrix after a normalization: the node that reads the tensor (a Reshape, or the MatMul itself) and the matrix.

    ``across``: the axis of the matrix that corresponds to the tensor's channels.
    """

    entry: str
    reshaped: str | None
    matrix: str
    across: int


@dataclass(frozen=True)
class _Equalization:
    """``divisors``: by channel. ``alone``: nothing but *readers* reads the tensor."""

    normalization: Normalization
    readers: Sequence[_Reader]
    divisors: _Array
    alone: bool


def equalize(graph: GraphProto, ranges: Ranges, taken: Callable[[NodeProto], bool]) -> tuple[Ranges, int]:
    """Equalize outputs for which 8 bits are too coarse, of the normalizations that are *taken* to be quantized.

    Returns the new ranges and how many tensors were equalized.
    """
    found = _equalizations(graph, ranges, taken)
    bounds = dict(ranges.bounds)
    for each in found:
        low, high = (np.array(ends) / each.divisors for ends in ranges.channels[each.normalization.output])
        after = (float(np.float32(low.min())), float(np.float32(high.max())))
        bounds[_name(each)] = after
        bounds.update({reader.reshaped: after for reader in each.readers if reader.reshaped})
        _scale_matrices(graph, each)
        _rewire(graph, each)
    return replace(ranges, bounds=bounds), len(found)


def _equalizations(graph: GraphProto, ranges: Ranges, taken: Callable[[NodeProto], bool]) -> list[_Equalization]:
    constants = {tensor.name: tensor for tensor in graph.initializer}
    uses = readers_of(graph.node)
    # Also what subgraphs read: their inputs must not change.
    outputs = {value.name for value in graph.output} | read_inside(graph.node)
    found = []
    for each in normalizations(graph):
        name = each.output
        if (
            not taken(each.node)
            or name not in ranges.channels
            or not is_coarse(ranges.bounds[name], ranges.typical[name])
        ):
            continue
        candidates = [_reader(node, name, uses, constants, outputs) for node in uses.get(name, ())]
        readers = [reader for reader in candidates if reader is not None]
        width = constants[each.scale].dims[0]
        if not readers or any(constants[reader.matrix].dims[reader.across] != width for reader in readers):
            continue
        divisors = _divisors(ranges.channels[name], [(constants[r.matrix], r.across) for r in readers])
        alone = len(readers) == len(candidates) and name not in outputs
        found.append(_Equalization(each, readers, divisors, alone))
    return found


def _reader(
    node: NodeProto,
    tensor: str,
    uses: Mapping[str, Sequence[NodeProto]],
    constants: Mapping[str, TensorProto],
    outputs: set[str],
) -> _Reader | None:
    """Return *node*, or the node after it if it is a Reshape, as the reader of its own matrix; None otherwise."""
    matmul, data = node, tensor
    if node.op_type == "Reshape" and node.input[0] == tensor:
        data = node.output[0]
        if len(uses.get(data, ())) != 1 or data in outputs:
            return None
        matmul = uses[data][0]
    if matmul.op_type not in ("MatMul", "Gemm") or matmul.input[0] != data or list(matmul.input).count(data) != 1:
        return None
    flags = attributes_of(matmul)
    matrix = constants.get(matmul.input[1])
    if matrix is None or len(matrix.dims) != 2 or flags.get("transA"):
        return None
    if len(uses[matrix.name]) != 1 or matrix.name in outputs:
        return None
    reshaped = data if matmul is not node else None
    return _Reader(node.output[0], reshaped, matrix.name, 1 if flags.get("transB") else 0)


def _divisors(channels: tuple[Sequence[float], Sequence[float]], matrices: Sequence[tuple[TensorProto, int]]) -> _Array:
    """Return each channel's divisor: the root of its magnitude over the root of its rows' magnitude; 1 in the mean."""
    values = np.maximum(*(np.abs(np.array(ends, np.float64)) for ends in channels))
    magnitudes = [(np.abs(numpy_helper.to_array(tensor).astype(np.float64)), across) for tensor, across in matrices]
    rows = np.max([values.max(axis=1 - across) for values, across in magnitudes], axis=0)
    logarithms = (np.log(_at_least(values)) - np.log(_at_least(rows))) / 2
    # Powers of two: dividing by them is exact, so the float model is bit-identical.
    divisors: _Array = np.exp2(np.round((logarithms - logarithms.mean()) / np.log(2)))
    return divisors


def _at_least(values: _Array) -> _Array:
    least = values.max() * _LEAST
    return np.maximum(values, least) if least > 0 else np.ones_like(values)


def _name(each: _Equalization) -> str:
    return f"{each.normalization.output}_equalized"


def _scale_matrices(graph: GraphProto, each: _Equalization) -> None:
    constants = {tensor.name: tensor for tensor in graph.initializer}
    for reader in each.readers:
        tensor = constants[reader.matrix]
        values = numpy_helper.to_array(tensor)
        factors = each.divisors.astype(np.float32)
        scaled = values * (factors[:, None] if reader.across == 0 else factors)
        tensor.CopyFrom(numpy_helper.from_array(scaled, tensor.name))


def _rewire(graph: GraphProto, each: _Equalization) -> None:
    """Add the equalized normalization to *graph*, and connect its matrices to it."""
    nodes = list(graph.node)
    index = next(i for i, node in enumerate(nodes) if each.normalization.output in node.output)
    own = deepcopy(nodes[index])
    if not each.alone:
        own.name = f"{own.name}_equalized"
    # Only the first output: the others are training statistics.
    own.output[:] = [_name(each)]
    constants = {tensor.name: tensor for tensor in graph.initializer}
    factors = each.divisors.astype(np.float32)
    # One constant may be the scale of two normalizations, which are equalized differently.
    for name in filter(None, dict.fromkeys(own.input[1:])):
        divided = numpy_helper.to_array(constants[name]) / factors
        graph.initializer.append(numpy_helper.from_array(divided, f"{name}_for_{_name(each)}"))
    own.input[1:] = [name and f"{name}_for_{_name(each)}" for name in own.input[1:]]
    nodes[index if each.alone else index + 1 : index + 1] = [own]
    entries = {reader.entry for reader in each.readers}
    for reader in nodes:
        if reader.output and reader.output[0] in entries:
            reader.input[0] = _name(each)
    replace_items(graph.node, nodes)
    value = next(v for v in (*graph.value_info, *graph.output) if v.name == each.normalization.output)
    graph.value_info.append(ValueInfoProto(name=_name(each), type=value.type))
