"""Conversions between integers that QNN loses: those at additions of zero.

QNN 2.51 drops an Add whose second operand is zero and takes the integers before it for those behind it. Where these
have another scale or zero point, the result is another one than the model says: with the one of a Relu behind it, the
cosine to it is 0.72.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from math import prod
from pathlib import Path

from winml_dag.onnxmodel.dtypes import byte_size
from winml_dag.onnxmodel.graph import Node, Tensor
from winml_dag.onnxmodel.wire import File

_Read = Callable[[str], bytes | None]


def lost_conversions(path: Path, nodes: Sequence[Node], constants: Mapping[str, Tensor]) -> list[str]:
    """The names of additions of zero, in a QDQ model as read from *path*, whose result has a scale of its own."""
    makers = {name: node for node in nodes for name in node.outputs}
    quantizers = {name: node for node in nodes if node.op_type == "QuantizeLinear" for name in node.inputs[:1]}
    with path.open("rb") as handle:
        file = File(handle, handle.seek(0, 2))

        def read(name: str) -> bytes | None:
            tensor = constants.get(name)
            return None if tensor is None else _bytes(file, tensor)

        additions = (node for node in nodes if node.op_type == "Add" and len(node.inputs) == 2 and node.outputs)
        return [node.name or node.outputs[0] for node in additions if _is_lost(node, makers, quantizers, read)]


def _is_lost(node: Node, makers: Mapping[str, Node], quantizers: Mapping[str, Node], read: _Read) -> bool:
    before, zero = (makers.get(name) for name in node.inputs)
    behind = quantizers.get(node.outputs[0])
    if before is None or zero is None or behind is None:
        return False
    if before.op_type != "DequantizeLinear" or zero.op_type != "DequantizeLinear" or not _is_zero(zero, read):
        return False
    return any(one != other for one, other in zip(_encoding(before, read), _encoding(behind, read), strict=True))


def _is_zero(node: Node, read: _Read) -> bool:
    """Whether *node* gives zeros only: all its integers are the zero point."""
    values = read(node.inputs[0]) if node.inputs else None
    point = read(node.inputs[2]) if len(node.inputs) > 2 else b"\0"
    if not values or not point:
        return False
    return values == point * (len(values) // len(point))


def _encoding(node: Node, read: _Read) -> Iterator[bytes | str]:
    """Scale and zero point; by name where their numbers lie elsewhere."""
    for position in (1, 2):
        name = node.inputs[position] if len(node.inputs) > position else ""
        yield (read(name) or name) if name else b"\0"


def _bytes(file: File, tensor: Tensor) -> bytes | None:
    size = byte_size(tensor.data_type, tensor.dims)
    count = prod(tensor.dims)
    if tensor.integers and len(tensor.integers) == count and size % count == 0:
        with suppress(OverflowError):  # a number that its type cannot hold
            return b"".join(number.to_bytes(size // count, "little", signed=number < 0) for number in tensor.integers)
    if tensor.values_at is None or tensor.values_at[1] - tensor.values_at[0] != size:
        return None
    return bytes(file.read(*tensor.values_at))
