"""Facts of the ONNX standard in one table: element types, quantizing operators, weights and their channels, masks.

This module must not import onnx or numpy, because planning reads it.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

# The standard's domain is written as "" or, less often, by this name.
STANDARD_DOMAIN = "ai.onnx"
QDQ = ("QuantizeLinear", "DequantizeLinear")
# Operators that multiply with a matrix of weights, their input 1, by the axis of the weights' output channels. For Gemm
# it is that of an untransposed matrix (see :func:`channel_axis`).
CHANNEL_AXES = {"Conv": 0, "ConvTranspose": 1, "MatMul": 1, "Gemm": 1}
HIGH_RANK = 5  # providers do not support a Transpose of this many axes
# Attention masks contain -inf or the lowest float (-3.4e38) for "never choose this". No measured quantity is this
# large: a constant of at least this magnitude means infinity.
MASK_MAGNITUDE = 1e30

# By the number in the file: the name of an element type, which is numpy's or ml_dtypes' (``np.dtype(name)`` works for
# those that numpy has), the bits of one element, and its letter in ``struct``.
_TYPES: dict[int, tuple[str, int, str]] = {
    1: ("float32", 32, "f"),
    2: ("uint8", 8, "B"),
    3: ("int8", 8, "b"),
    4: ("uint16", 16, "H"),
    5: ("int16", 16, "h"),
    6: ("int32", 32, "i"),
    7: ("int64", 64, "q"),
    8: ("string", 0, ""),
    9: ("bool", 8, "?"),
    10: ("float16", 16, "e"),
    11: ("float64", 64, "d"),
    12: ("uint32", 32, "I"),
    13: ("uint64", 64, "Q"),
    14: ("complex64", 64, ""),
    15: ("complex128", 128, ""),
    16: ("bfloat16", 16, ""),
    17: ("float8_e4m3fn", 8, ""),
    18: ("float8_e4m3fnuz", 8, ""),
    19: ("float8_e5m2", 8, ""),
    20: ("float8_e5m2fnuz", 8, ""),
    21: ("uint4", 4, ""),
    22: ("int4", 4, ""),
    23: ("float4_e2m1fn", 4, ""),
    24: ("float8_e8m0fnu", 8, ""),
    25: ("uint2", 2, ""),
    26: ("int2", 2, ""),
}


def dtype_name(data_type: int) -> str:
    """Return ``"float32"`` for 1, and ``"type 99"`` for a number unknown to this version."""
    return _TYPES[data_type][0] if data_type in _TYPES else f"type {data_type}"


def bit_width(name: str) -> int:
    """Return the bits of one element of the type *name*; 0 for texts and for names that are not types."""
    return next((bits for known, bits, _ in _TYPES.values() if known == name), 0)


def byte_size(data_type: int, dims: Iterable[int]) -> int:
    """Return the bytes of a tensor's data, sub-byte types packed; 0 for texts and for types of unknown size."""
    bits = _TYPES[data_type][1] if data_type in _TYPES else 0
    return (prod(dims) * bits + 7) // 8


def struct_letter(data_type: int) -> str:
    """Return the letter with which ``struct`` reads one element; empty for a type that it cannot read."""
    return _TYPES[data_type][2] if data_type in _TYPES else ""


def channel_axis(node: NodeProto) -> int | None:
    """Return the axis of output channels in the weights (input 1) of *node*; None if it has no such weights."""
    if node.op_type == "Gemm" and any(attribute.name == "transB" and attribute.i for attribute in node.attribute):
        return 0
    return CHANNEL_AXES.get(node.op_type)


def standard_opset(model: ModelProto) -> int:
    """Return the version of the ONNX standard that *model* imports; 0 if it imports none."""
    return next((entry.version for entry in model.opset_import if entry.domain in ("", STANDARD_DOMAIN)), 0)
