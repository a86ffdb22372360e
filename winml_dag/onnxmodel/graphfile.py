"""Read the graph of an ONNX file, without protobuf: a message is a sequence of fields, each skipped or entered.

Importing protobuf and onnx takes longer than reading ten models here, and they read the weights with the graph. Tensor
data is skipped, so the size of the weights does not matter. Any bytes result in either a model or an InputError.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import chain
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias, TypeVar

from winml_dag.errors import InputError
from winml_dag.onnxmodel.facts import STANDARD_DOMAIN
from winml_dag.onnxmodel.graph import TAG_KEY, Attribute, Function, Graph, Model, Node, Tensor, Value

T = TypeVar("T")

# Bounded reads instead of mmap: a mapped file that shrinks meanwhile ends the process with SIGBUS. The window is small,
# because after every skipped tensor one is read that may be used for only a few bytes.
_WINDOW = 64 * 1024
_LONGEST_HEADER = 20  # two varints: tag and length

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5

# protobuf itself stops at 100 nested messages, and one nested graph takes three (node, attribute, graph).
_DEEPEST_GRAPH = 33
# A longer text attribute is a payload (an embedded EPContext binary has megabytes), of which only the size matters.
_LONGEST_CONTENT = 4096
_FEW_BYTES = 64
_LONGEST_LIST = 1024  # members of an attribute
_MOST_DIMENSIONS = 64  # numpy's limit; the product of a hundred thousand would take minutes
_MOST_ELEMENTS = 2**60  # more than any machine has, and few enough to count in floats


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


def fields(file: File, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield ``(tag, start, end)`` for each field in *start* to *end*; a varint has its value in place of the start.

    A tag is the number of the field times 8, plus the wire type.
    """
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
            found = (tag, first, position)
        elif wire == VARINT:
            value, offset = _varint(data, offset)
            position = base + offset
            found = (tag, value, 0)
        elif wire in (FIXED32, FIXED64):
            first = base + offset
            position = first + (4 if wire == FIXED32 else 8)
            found = (tag, first, position)
        else:
            raise MalformedError
        if position > end or tag < 8:
            raise MalformedError
        yield found


# What reads the content of a field from start to end, by tag. As in protobuf, a field of another wire type is unknown.
_Readers: TypeAlias = Mapping[int, Callable[[File, int, int], Any]]


class _Found(dict[int, list[Any]]):
    """The contents of a message by the number of the field."""

    def __missing__(self, number: int) -> tuple[Any, ...]:
        return ()


def _found(file: File, start: int, end: int, readers: _Readers) -> _Found:
    """Return what *readers* read in a message, by the number of the field, in the order of the file."""
    found = _Found()
    for tag, first, last in fields(file, start, end):
        if (reader := readers.get(tag)) is not None:
            found.setdefault(tag >> 3, []).append(reader(file, first, last))
    return found


def _inside(reader: Callable[[File, int, int], Any], *numbers: int) -> _Readers:
    """Return *reader* for the texts, or messages, of the fields *numbers*."""
    return dict.fromkeys((number << 3 | BYTES for number in numbers), reader)


def _texts(*numbers: int) -> _Readers:
    return _inside(File.text, *numbers)


def _integer(*numbers: int) -> _Readers:
    return dict.fromkeys((number << 3 | VARINT for number in numbers), lambda _, value, _end: _signed(value))


def _last(values: Sequence[T], default: T) -> T:
    """A field that does not repeat has the last value of those that are written."""
    return values[-1] if values else default


def _flat(values: Sequence[Any]) -> tuple[Any, ...]:
    """Join the members of a repeated field, which are written one by one or several at once (packed)."""
    if not values:
        return ()
    members: list[Any] = []
    for value in values:
        if isinstance(value, tuple):
            members.extend(value)
        else:
            members.append(value)
    return tuple(members)


def read_model(path: Path, *, values: bool = False) -> Model:
    """Read the graph of *path*; *values* adds the values between nodes, which takes a third longer.

    Raises:
        InputError: the file is missing, unreadable, truncated or not an ONNX model.
    """
    try:
        with path.open("rb") as handle:
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


def _model(file: File, values: bool) -> Model:
    graph = partial(_graph, 1, values=values)
    found = _found(file, 0, file.size, {**_MODEL, 7 << 3 | BYTES: graph})
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
    found = _found(file, start, end, {**_texts(1), **_integer(2)})
    return _plain(_last(found[1], "")), _last(found[2], 0)


def _entry(file: File, start: int, end: int) -> tuple[str, str]:
    """Read a StringStringEntryProto."""
    found = _found(file, start, end, _ENTRY)
    return _last(found[1], ""), _last(found[2], "")


def _graph(depth: int, file: File, start: int, end: int, *, values: bool = False) -> Graph:
    if depth > _DEEPEST_GRAPH:
        raise MalformedError
    nodes = _inside(partial(_node, depth), 1)
    found = _found(file, start, end, {**_GRAPH, **nodes, **(_inside(_value, 13) if values else {})})
    tensors = (*found[5], *chain.from_iterable(found[15]))
    return Graph(_last(found[2], ""), tuple(found[1]), tensors, tuple(found[11]), tuple(found[12]), tuple(found[13]))


def _function(file: File, start: int, end: int) -> Function:
    found = _found(file, start, end, {**_texts(1, 10), **_inside(partial(_node, 1), 7)})
    return Function(_last(found[1], ""), _last(found[10], ""), tuple(found[7]))


@cache
def _node_readers(depth: int) -> _Readers:
    return {**_texts(1, 2, 3, 4, 7), **_inside(partial(read_attribute, depth=depth), 5), **_inside(_entry, 9)}


def _node(depth: int, file: File, start: int, end: int) -> Node:
    found = _found(file, start, end, _node_readers(depth))
    return Node(
        op_type=_last(found[4], ""),
        domain=_plain(_last(found[7], "")),
        name=_last(found[3], ""),
        inputs=tuple(found[1]),
        outputs=tuple(found[2]),
        attributes=tuple(found[5]),
        tag=dict(found[9]).get(TAG_KEY, ""),
    )


@cache
def _attribute_readers(depth: int) -> _Readers:
    return {**_ATTRIBUTE, **_inside(partial(_graph, depth + 1), 6, 11)}


def read_attribute(file: File, start: int, end: int, *, depth: int = 1) -> Attribute:
    """Read an AttributeProto; *depth*: of the graph with its node."""
    found = _found(file, start, end, _attribute_readers(depth))
    content_bytes, content = _last(found[4], (0, None))
    return Attribute(
        _last(found[1], ""),
        _last(found[3], None),
        content,
        content_bytes,
        (*found[5], *found[10], *chain.from_iterable((*found[22], *found[23]))),
        (*found[6], *found[11]),
        _last(_flat(found[2]), None),
        _short(found[8]),
        _short(found[7]),
        _short(found[9]),
    )


def _short(values: Sequence[Any]) -> tuple[Any, ...]:
    members = _flat(values)
    return members if len(members) <= _LONGEST_LIST and None not in members else ()


def _content(file: File, start: int, end: int) -> tuple[int, bytes | None]:
    return end - start, _name(file, start, end)


def _name(file: File, start: int, end: int) -> bytes | None:
    """Read a text that may be a name; None if it is too long."""
    return file.read(start, end) if end - start <= _LONGEST_CONTENT else None


def _floats(file: File, start: int, end: int) -> tuple[float, ...]:
    """Read one or more floats; of too many, one more than are used."""
    if (end - start) % 4:
        raise MalformedError
    count = min((end - start) // 4, _LONGEST_LIST + 1)
    return struct.unpack(f"<{count}f", file.read(start, start + 4 * count))


def _integers(file: File, start: int, end: int) -> tuple[int, ...]:
    data, offset = file.read(start, end), 0
    found = []
    while offset < len(data):
        value, offset = _varint(data, offset)
        found.append(_signed(value))
    return tuple(found)


def _few_integers(file: File, start: int, end: int) -> tuple[int | None, ...]:
    return _integers(file, start, end) if end - start <= _LONGEST_CONTENT else (None,)


def _place(_: File, start: int, end: int) -> tuple[int, int]:
    return start, end


def _tensor(file: File, start: int, end: int) -> Tensor:
    found = _found(file, start, end, _TENSOR)
    dims = _flat(found[1])
    if len(dims) > _MOST_DIMENSIONS or any(dim < 0 for dim in dims) or prod(dims) > _MOST_ELEMENTS:
        raise MalformedError
    # Packed float_data and double_data are the bytes that raw_data would be; string_data is not.
    values_at = _last(found[9] or found[4] or found[10], None)
    numbers = found[7] or found[5] or found[11]  # packed, or one by one
    data = found[6] or numbers if values_at is None else (values_at,)
    stored = sum(place[1] - place[0] if isinstance(place, tuple) else 1 for place in data)
    few = stored <= _FEW_BYTES
    return Tensor(
        _last(found[8], ""),
        _last(found[2], 0),
        dims,
        stored,
        dict(found[13]) if _last(found[14], 0) == 1 else None,
        values_at,
        _flat([_integers(file, *place) if isinstance(place, tuple) else place for place in numbers]) if few else (),
        file.read(*values_at) if values_at is not None and few else b"",
    )


def _sparse(file: File, start: int, end: int) -> list[Tensor]:
    found = _found(file, start, end, _inside(_tensor, 1, 2))
    return [*found[1], *found[2]]


def _dimension(file: File, start: int, end: int) -> int | str | None:
    """Read a size, the name of an open one, or None."""
    found = _found(file, start, end, _DIMENSION)
    size: int | str | None = _last(found[2], "") or _last(found[1], None)
    return size


def _value(file: File, start: int, end: int) -> Value:
    found = _found(file, start, end, _VALUE)
    data_type, dims = _last(tuple(chain.from_iterable(found[2])), (0, None))
    return Value(_last(found[1], ""), data_type, dims)


def _type(file: File, start: int, end: int) -> list[tuple[int, tuple[int | str | None, ...] | None]]:
    """Read the element type and the dimensions of a type of tensors; none of another type."""
    tensors = _found(file, start, end, _TYPE)[1]
    return [(_last(tensor[1], 0), _last(tensor[2], None)) for tensor in tensors]


def _shape(file: File, start: int, end: int) -> tuple[int | str | None, ...]:
    return tuple(_found(file, start, end, _SHAPE)[1])


# The fields of the messages, by their names in onnx's definition, without "Proto".
_ENTRY = _texts(1, 2)
_DIMENSION = {**_integer(1), **_texts(2)}
_SHAPE = _inside(_dimension, 1)
_TYPE = _inside(partial(_found, readers={**_integer(1), **_inside(_shape, 2)}), 1)
_VALUE = {**_texts(1), **_inside(_type, 2)}
_TENSOR = {
    **_integer(1, 2, 5, 7, 11, 14),
    **_inside(_integers, 1),
    **_inside(_place, 4, 5, 6, 7, 9, 10, 11),
    **_texts(8),
    **_inside(_entry, 13),
}
_ATTRIBUTE = {
    **_texts(1),
    **_integer(3, 8),
    **dict.fromkeys((2 << 3 | FIXED32, 7 << 3 | FIXED32, 7 << 3 | BYTES), _floats),
    **_inside(_content, 4),
    **_inside(_tensor, 5, 10),
    **_inside(_few_integers, 8),
    **_inside(_name, 9),
    **_inside(_sparse, 22, 23),
}
_GRAPH = {**_texts(2), **_inside(_tensor, 5), **_inside(_value, 11, 12), **_inside(_sparse, 15)}
_MODEL = {
    **_integer(1, 5),
    **_texts(2, 3, 4, 6),
    **_inside(_opset, 8),
    **_inside(_entry, 14),
    **_inside(_function, 25),
}
