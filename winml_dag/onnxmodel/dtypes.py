"""The element types of ONNX tensors: the number in the file, the name we show, the bits that one element takes."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

# numpy's and ml_dtypes' names, so that ``np.dtype(name)`` works for those that numpy knows.
_TYPES: dict[int, tuple[str, int]] = {
    1: ("float32", 32),
    2: ("uint8", 8),
    3: ("int8", 8),
    4: ("uint16", 16),
    5: ("int16", 16),
    6: ("int32", 32),
    7: ("int64", 64),
    8: ("string", 0),
    9: ("bool", 8),
    10: ("float16", 16),
    11: ("float64", 64),
    12: ("uint32", 32),
    13: ("uint64", 64),
    14: ("complex64", 64),
    15: ("complex128", 128),
    16: ("bfloat16", 16),
    17: ("float8_e4m3fn", 8),
    18: ("float8_e4m3fnuz", 8),
    19: ("float8_e5m2", 8),
    20: ("float8_e5m2fnuz", 8),
    21: ("uint4", 4),
    22: ("int4", 4),
    23: ("float4_e2m1fn", 4),
    24: ("float8_e8m0fnu", 8),
    25: ("uint2", 2),
    26: ("int2", 2),
}


def dtype_name(data_type: int) -> str:
    """``"float32"`` for 1; ``"type 99"`` for a number that this version does not know."""
    return _TYPES[data_type][0] if data_type in _TYPES else f"type {data_type}"


def bit_width(name: str) -> int:
    """Bits of one element of the type *name*; 0 for texts and for names that are no type."""
    return next((bits for known, bits in _TYPES.values() if known == name), 0)


def byte_size(data_type: int, dims: Iterable[int]) -> int:
    """Bytes of a tensor's data, sub-byte types packed; 0 for texts and for types whose size we do not know."""
    bits = _TYPES[data_type][1] if data_type in _TYPES else 0
    return (prod(dims) * bits + 7) // 8
