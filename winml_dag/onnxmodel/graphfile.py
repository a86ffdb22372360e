"""Read the graph of an ONNX file, without protobuf: a message is a sequence of fields, each skipped or entered.

Importing protobuf and onnx takes longer than reading ten models here, and they read the weights with the graph. Tensor
data is skipped, so the size of the weights does not matter. Any bytes result in either a model or an InputError.
"""

from __future__ import annotations

import os
import struct
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import chain
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias, TypeVar

from winml_dag.errors import InputError
from winml_dag.file_reading import open_regular
from winml_dag.onnxmodel.graph import STANDARD_DOMAIN, TAG_KEY, Attribute, Function, Graph, Model, Node, Tensor, Value

# Bounded reads instead of mmap: a mapped file that shrinks meanwhile ends the process with SIGBUS. The window is small,
# because after every skipped tensor one is read that may be used for only a few bytes.
_WINDOW = 64 * 1024
_LONGEST_HEADER = 20  # two varints: tag and length

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


class MalformedError(Exception):
    """The bytes violate the format."""


class File:
    """Random access to a file through one small window."""

    def __init__(self, handle: BinaryIO) -> None:
        self.size = handle.seek(0, 2)
        self._handle = handle
        self._data = b""
        self._base = 0

    def window(self, position: int) -> tuple[bytes, int]:
        """Return bytes around *position* and their start: at least a whole field header, except at the end."""
        end = self._base + len(self._data)
        if not (self._base <= position and (position + _LONGEST_HEADER <= end or end == self.size)):
            self._handle.seek(position)
            self._data, self._base = self._handle.read(_WINDOW), position
        return self._data, self._base

    def read(self, start: int, end: int) -> bytes:
        if self._base <= start and end <= self._base + len(self._data):
            return self._data[start - self._base : end - self._base]
        self._handle.seek(start)
        found = self._handle.read(end - start)
        if len(found) != end - start:
            raise MalformedError
        return found

    def text(self, start: int, end: int) -> str:
        return self.read(start, end).decode("utf-8")


def _varint(data: bytes, offset: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[offset]
        offset += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, offset
        shift += 7
        if shift > 63:
            raise MalformedError


def _signed(value: int) -> int:
    """Decode a negative number, which is written in two's complement of 64 bits."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


def fields(file: File, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield ``(number, wire type, start, end)`` for each field in *start* to *end*; a varint has its value third."""
    position = start
    data, base = file.window(position)
    while position < end:
        offset = position - base
        if offset + _LONGEST_HEADER > len(data):
            data, base = file.window(position)
            offset = position - base
        tag = data[offset]
        offset += 1
        if tag >= 0x80:
            tag, offset = _varint(data, offset - 1)
        wire = tag & 7
        if wire == BYTES:
            length = data[offset]
            offset += 1
            if length >= 0x80:
                length, offset = _varint(data, offset - 1)
            first = base + offset
            position = first + length
            found = (tag >> 3, wire, first, position)
        elif wire == VARINT:
            value, offset = _varint(data, offset)
            position = base + offset
            found = (tag >> 3, wire, value, 0)
        elif wire in (FIXED32, FIXED64):
            first = base + offset
            position = first + (4 if wire == FIXED32 else 8)
            found = (tag >> 3, wire, first, position)
        else:
            raise MalformedError
        if position > end or tag < 8:
            raise MalformedError
        yield found


def _expect(wire: int, expected: int) -> None:
    if wire != expected:
        raise MalformedError


T = TypeVar("T")
# The contents of a message by the number of the field.
_Found: TypeAlias = defaultdict[int, list[Any]]
# The wire type of a field, and what reads its content from start to end.
_Reader: TypeAlias = tuple[int, Callable[[File, int, int], Any]]

# protobuf itself stops at 100 nested messages, and one nested graph takes three (node, attribute, graph).
_DEEPEST_GRAPH = 33
# A longer text attribute is a payload (an embedded EPContext binary has megabytes), of which only the size matters.
_LONGEST_CONTENT = 4096
_PLAIN_VALUES = (4, 9, 10)  # packed float_data and double_data are the bytes that raw_data would be
_INTEGER_DATA = (5, 7, 11)  # int32_data, int64_data and uint64_data
_FEW_BYTES = 64
_LONGEST_LIST = 1024  # members of an attribute
_MOST_DIMENSIONS = 64  # numpy's limit; the product of a hundred thousand would take minutes
_MOST_ELEMENTS = 2**60  # more than any machine has, and few enough to count in floats


def read_model(path: Path, *, values: bool = False) -> Model:
    """Read the graph of *path*; *values* adds the values between nodes, which takes a third longer.

    Raises:
        InputError: the file is missing, unreadable, truncated or not an ONNX model.
    """
    try:
        with os.fdopen(open_regular(path)[0], "rb") as handle:
            return _model(File(handle), values)
    except FileNotFoundError:
        raise InputError(f"The model {path} does not exist.", advice="Check the path.") from None
    except OSError as error:
        raise InputError(f"The model {path} cannot be read: {error.strerror or error}.") from error
    except (MalformedError, UnicodeDecodeError, IndexError) as error:
        # IndexError: a number that extends past the end of the file.
        raise InputError(
            f"{path} is not an ONNX model, or is cut short or damaged.", advice="Fetch or export it again."
        ) from error


def _found(file: File, start: int, end: int, readers: Mapping[int, _Reader]) -> _Found:
    """Return what *readers* read in a message, by the number of the field, in the order of the file."""
    found: _Found = defaultdict(list)
    for number, wire, first, last in fields(file, start, end):
        if (reader := readers.get(number)) is not None:
            _expect(wire, reader[0])
            found[number].append(reader[1](file, first, last))
    return found


_TEXT: _Reader = (BYTES, File.text)
# A varint has its value where others have their start.
_INTEGER: _Reader = (VARINT, lambda _, value, _end: _signed(value))


def _last(values: Sequence[T], default: T) -> T:
    """A field that does not repeat has the last value of those that are written."""
    return values[-1] if values else default


def _model(file: File, values: bool) -> Model:
    found = _found(
        file,
        0,
        file.size,
        {**dict.fromkeys((1, 5), _INTEGER), **dict.fromkeys((2, 3, 4, 6), _TEXT)}
        | {7: (BYTES, partial(_graph, 1, values=values)), 8: (BYTES, _opset), 14: _ENTRY, 25: (BYTES, _function)},
    )
    ir_version, opsets = _last(found[1], 0), dict(found[8])
    if len(found[7]) != 1 or ir_version <= 0 or (ir_version >= 3 and not opsets):
        raise MalformedError
    return Model(
        ir_version,
        producer_name=_last(found[2], ""),
        producer_version=_last(found[3], ""),
        opsets=opsets,
        metadata=dict(found[14]),
        graph=found[7][0],
        functions=tuple(found[25]),
        domain=_last(found[4], ""),
        version=_last(found[5], 0),
        description=_last(found[6], ""),
    )


def _plain(domain: str) -> str:
    """Normalize the ONNX standard's domain, which has two names."""
    return "" if domain == STANDARD_DOMAIN else domain


def _opset(file: File, start: int, end: int) -> tuple[str, int]:
    found = _found(file, start, end, {1: _TEXT, 2: _INTEGER})
    return _plain(_last(found[1], "")), _last(found[2], 0)


def _entry(file: File, start: int, end: int) -> tuple[str, str]:
    """Read a StringStringEntryProto."""
    found = _found(file, start, end, {1: _TEXT, 2: _TEXT})
    return _last(found[1], ""), _last(found[2], "")


_ENTRY: _Reader = (BYTES, _entry)


def _graph(depth: int, file: File, start: int, end: int, *, values: bool = False) -> Graph:
    if depth > _DEEPEST_GRAPH:
        raise MalformedError
    value: _Reader = (BYTES, _value)
    readers: dict[int, _Reader] = {1: (BYTES, partial(_node, depth)), 2: _TEXT, 5: _TENSOR, 15: (BYTES, _sparse)}
    found = _found(file, start, end, readers | dict.fromkeys((11, 12, 13) if values else (11, 12), value))
    tensors = (*found[5], *chain.from_iterable(found[15]))
    return Graph(_last(found[2], ""), tuple(found[1]), tensors, tuple(found[11]), tuple(found[12]), tuple(found[13]))


def _function(file: File, start: int, end: int) -> Function:
    found = _found(file, start, end, {1: _TEXT, 7: (BYTES, partial(_node, 1)), 10: _TEXT})
    return Function(_last(found[1], ""), _last(found[10], ""), tuple(found[7]))


@cache
def _fields_of_node(depth: int) -> Mapping[int, _Reader]:
    return {**dict.fromkeys((1, 2, 3, 4, 7), _TEXT), 5: (BYTES, partial(read_attribute, depth=depth)), 9: _ENTRY}


def _node(depth: int, file: File, start: int, end: int) -> Node:
    found = _found(file, start, end, _fields_of_node(depth))
    return Node(
        op_type=_last(found[4], ""),
        domain=_plain(_last(found[7], "")),
        name=_last(found[3], ""),
        inputs=tuple(found[1]),
        outputs=tuple(found[2]),
        attributes=tuple(found[5]),
        tag=dict(found[9]).get(TAG_KEY, ""),
    )


def _content(file: File, start: int, end: int) -> tuple[bytes | None, int]:
    """Read a text, unless it is too long, and its size."""
    return file.read(start, end) if end - start <= _LONGEST_CONTENT else None, end - start


@cache
def _fields_of_attribute(depth: int) -> Mapping[int, _Reader]:
    """All but lists of numbers and of texts."""
    graph: _Reader = (BYTES, partial(_graph, depth + 1))
    readers: dict[int, _Reader] = {1: _TEXT, 2: (FIXED32, _floats), 3: _INTEGER, 4: (BYTES, _content)}
    several = {**dict.fromkeys((5, 10), _TENSOR), **dict.fromkeys((6, 11), graph)}
    return readers | several | dict.fromkeys((22, 23), (BYTES, _sparse))


def read_attribute(file: File, start: int, end: int, *, depth: int = 1) -> Attribute:
    """Read an AttributeProto; *depth*: of the graph with its node."""
    readers = _fields_of_attribute(depth)
    found: _Found = defaultdict(list)
    integers: list[int] = []
    numbers: list[float] = []
    texts: list[bytes] = []
    for number, wire, first, last in fields(file, start, end):
        if (reader := readers.get(number)) is not None:
            _expect(wire, reader[0])
            found[number].append(reader[1](file, first, last))
        elif number == 7:
            if wire not in (BYTES, FIXED32):
                raise MalformedError
            if len(numbers) <= _LONGEST_LIST:
                numbers.extend(_floats(file, first, min(last, first + 4 * _LONGEST_LIST + 4)))
        elif number == 8:
            if len(integers) <= _LONGEST_LIST and last - first <= _LONGEST_CONTENT:
                integers.extend(_integers(file, wire, first, last))
        elif number == 9:
            _expect(wire, BYTES)
            if last - first <= _LONGEST_CONTENT and len(texts) <= _LONGEST_LIST:
                texts.append(file.read(first, last))
    content, size = _last(found[4], (None, 0))
    return Attribute(
        _last(found[1], ""),
        _last(found[3], None),
        content,
        size,
        (*found[5], *found[10], *chain.from_iterable((*found[22], *found[23]))),
        (*found[6], *found[11]),
        _last(found[2], (None,))[0],
        _short(integers),
        _short(numbers),
        _short(texts),
    )


def _short(members: list[T]) -> tuple[T, ...]:
    return tuple(members) if len(members) <= _LONGEST_LIST else ()


def _floats(file: File, start: int, end: int) -> tuple[float, ...]:
    """Unpack repeated floats, which are written one by one or packed: plain bytes in both cases."""
    if (end - start) % 4:
        raise MalformedError
    return struct.unpack(f"<{(end - start) // 4}f", file.read(start, end))


def _tensor(file: File, start: int, end: int) -> Tensor:
    name = ""
    data_type = stored = 0
    dims: list[int] = []
    location: dict[str, str] = {}
    is_external = False
    values_at: tuple[int, int] | None = None
    integers: tuple[int, ...] = ()
    plain = b""
    for number, wire, first, last in fields(file, start, end):
        if number == 1:
            dims.extend(_integers(file, wire, first, last))
        elif number == 2:
            _expect(wire, VARINT)
            data_type = first
        elif number == 8:
            _expect(wire, BYTES)
            name = file.text(first, last)
        elif number == 13:
            location.update([_entry(file, first, last)])
        elif number == 14:
            _expect(wire, VARINT)
            is_external = first == 1
        elif number in (4, 5, 6, 7, 9, 10, 11):
            stored += last - first if wire != VARINT else 1
            if wire == BYTES and number in _PLAIN_VALUES:
                values_at = (first, last)
                if last - first <= _FEW_BYTES:
                    plain = file.read(first, last)
            elif number in _INTEGER_DATA and stored <= _FEW_BYTES:
                integers += tuple(_integers(file, wire, first, last))
    if len(dims) > _MOST_DIMENSIONS or any(dim < 0 for dim in dims) or prod(dims) > _MOST_ELEMENTS:
        raise MalformedError
    return Tensor(name, data_type, tuple(dims), stored, location if is_external else None, values_at, integers, plain)


_TENSOR: _Reader = (BYTES, _tensor)


def _integers(file: File, wire: int, start: int, end: int) -> Iterator[int]:
    """Yield a repeated integer field, which is written one by one or packed."""
    if wire == VARINT:
        yield _signed(start)
        return
    _expect(wire, BYTES)
    data, offset = file.read(start, end), 0
    while offset < len(data):
        value, offset = _varint(data, offset)
        yield _signed(value)


def _sparse(file: File, start: int, end: int) -> list[Tensor]:
    found = _found(file, start, end, {1: _TENSOR, 2: _TENSOR})
    return [*found[1], *found[2]]


def _dimension(file: File, start: int, end: int) -> int | str | None:
    """Read a size, the name of an open one, or None."""
    found = _found(file, start, end, {1: _INTEGER, 2: _TEXT})
    return _last(found[1], None) if found[1] else _last(found[2], "") or None


# The fields of a TensorShapeProto, of a type of tensors, of a type, and of a value.
_SHAPE: Mapping[int, _Reader] = {1: (BYTES, _dimension)}
_TENSOR_TYPE: Mapping[int, _Reader] = {
    1: _INTEGER,
    2: (BYTES, lambda file, start, end: tuple(_found(file, start, end, _SHAPE)[1])),
}
_TYPE: Mapping[int, _Reader] = {1: (BYTES, lambda file, start, end: _found(file, start, end, _TENSOR_TYPE))}
_VALUE: Mapping[int, _Reader] = {1: _TEXT, 2: (BYTES, lambda file, start, end: _found(file, start, end, _TYPE))}


def _value(file: File, start: int, end: int) -> Value:
    found = _found(file, start, end, _VALUE)
    no_tensor: _Found = defaultdict(list)
    tensor = _last([tensor for kind in found[2] for tensor in kind[1]], no_tensor)
    return Value(_last(found[1], ""), _last(tensor[1], 0), _last(tensor[2], None))
