"""Reads the graph of an ONNX file straight from protobuf's wire format, without protobuf.

``plan`` looks at every model of a recipe, and importing onnx alone costs more than reading ten models here. Tensor data is
skipped, not read, so the size of the weights does not matter. Whatever the bytes are, the outcome is a model or an InputError.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from winml_dag.errors import InputError

# Bounded reads rather than a memory map: a mapped file that shrinks meanwhile ends the process with SIGBUS. The window is
# small, since after every skipped tensor one is read that may be used for a few bytes only.
_WINDOW = 64 * 1024
_LONGEST_HEADER = 20  # two varints: tag and length
# protobuf itself gives up at 100 nested messages, and one nested graph takes three (node, attribute, graph).
_DEEPEST_GRAPH = 33
# A longer text attribute is a payload (an embedded EPContext binary has megabytes), of which nothing needs more than the size.
_LONGEST_CONTENT = 4096

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


@dataclass(frozen=True, slots=True)
class Tensor:
    """A constant of the graph. ``stored_bytes`` lie in the file itself; ``external`` is None unless its data lies elsewhere."""

    name: str
    data_type: int
    dims: tuple[int, ...]
    stored_bytes: int
    external: dict[str, str] | None


@dataclass(frozen=True, slots=True)
class Attribute:
    """What we use of an attribute. ``content`` is None when there is no text, or one too long to be a name."""

    name: str
    integer: int | None
    content: bytes | None
    content_bytes: int
    tensors: tuple[Tensor, ...]
    graphs: tuple[Graph, ...]


@dataclass(frozen=True, slots=True)
class Node:
    """One operator in a graph; ``domain`` is empty for the ONNX standard."""

    op_type: str
    domain: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: tuple[Attribute, ...]


@dataclass(frozen=True, slots=True)
class Value:
    """A graph input or output. ``data_type`` is 0 when it is no tensor; ``dims`` is None when even the rank is unknown."""

    name: str
    data_type: int
    dims: tuple[int | str | None, ...] | None


@dataclass(frozen=True, slots=True)
class Graph:
    """A graph or subgraph. A sparse initializer counts as two tensors, its values and its indices."""

    name: str
    nodes: tuple[Node, ...]
    initializers: tuple[Tensor, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Function:
    """A function of the model: an operator made of others."""

    name: str
    domain: str
    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Model:
    """An ONNX file without its tensor data."""

    ir_version: int
    producer: str
    opsets: dict[str, int]
    metadata: dict[str, str]
    graph: Graph
    functions: tuple[Function, ...]


def read_model(path: Path) -> Model:
    """Read the graph of *path*.

    Raises:
        InputError: when the file is missing, unreadable, cut short or not an ONNX model.
    """
    try:
        with path.open("rb") as handle:
            size = handle.seek(0, 2)
            return _model(_File(handle, size))
    except FileNotFoundError:
        raise InputError(f"The model {path} does not exist.", advice="Check the path.") from None
    except OSError as error:
        raise InputError(f"The model {path} cannot be read: {error.strerror or error}.") from error
    except (_MalformedError, UnicodeDecodeError, IndexError) as error:
        # IndexError: a number that runs past the end of the file.
        raise InputError(
            f"{path} is not an ONNX model, or is cut short or damaged.", advice="Fetch or export it again."
        ) from error


class _MalformedError(Exception):
    """The bytes are not what the format allows."""


class _File:
    """Random access to a file through one small window."""

    def __init__(self, handle: BinaryIO, size: int) -> None:
        self.size = size
        self._handle = handle
        self._data = b""
        self._base = 0

    def window(self, position: int) -> tuple[bytes, int]:
        """Bytes around *position* and where they begin: at least one whole field header, unless the file ends before."""
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
            raise _MalformedError
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
            raise _MalformedError


def _signed(value: int) -> int:
    """Negative numbers are written in two's complement of 64 bits."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


def _fields(file: _File, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield ``(number, wire type, start, end)`` for every field between *start* and *end*; for a varint its value is the third."""
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
        if wire == _BYTES:
            length = data[offset]
            offset += 1
            if length >= 0x80:
                length, offset = _varint(data, offset - 1)
            first = base + offset
            position = first + length
            found = (tag >> 3, wire, first, position)
        elif wire == _VARINT:
            value, offset = _varint(data, offset)
            position = base + offset
            found = (tag >> 3, wire, value, 0)
        elif wire in (_FIXED32, _FIXED64):
            first = base + offset
            position = first + (4 if wire == _FIXED32 else 8)
            found = (tag >> 3, wire, first, position)
        else:
            raise _MalformedError
        if position > end or tag < 8:
            raise _MalformedError
        yield found


def _expect(wire: int, expected: int) -> None:
    if wire != expected:
        raise _MalformedError


def _model(file: _File) -> Model:
    ir_version = 0
    producer: list[str] = ["", ""]
    opsets: dict[str, int] = {}
    metadata: dict[str, str] = {}
    graph: Graph | None = None
    functions: list[Function] = []
    for number, wire, start, end in _fields(file, 0, file.size):
        if number == 1:
            _expect(wire, _VARINT)
            ir_version = _signed(start)
        elif number in (2, 3):
            _expect(wire, _BYTES)
            producer[number - 2] = file.text(start, end)
        elif number == 7:
            _expect(wire, _BYTES)
            if graph is not None:
                raise _MalformedError
            graph = _graph(file, start, end, 1)
        elif number == 8:
            _expect(wire, _BYTES)
            domain, version = _opset(file, start, end)
            opsets[domain] = version
        elif number == 14:
            _expect(wire, _BYTES)
            key, value = _entry(file, start, end)
            metadata[key] = value
        elif number == 25:
            _expect(wire, _BYTES)
            functions.append(_function(file, start, end))
    if graph is None or ir_version <= 0 or (ir_version >= 3 and not opsets):
        raise _MalformedError
    return Model(ir_version, " ".join(producer).strip(), opsets, metadata, graph, tuple(functions))


def _opset(file: _File, start: int, end: int) -> tuple[str, int]:
    domain, version = "", 0
    for number, wire, first, last in _fields(file, start, end):
        if number == 1:
            _expect(wire, _BYTES)
            domain = file.text(first, last)
        elif number == 2:
            _expect(wire, _VARINT)
            version = _signed(first)
    return domain, version


def _entry(file: _File, start: int, end: int) -> tuple[str, str]:
    """A StringStringEntryProto."""
    pair = ["", ""]
    for number, wire, first, last in _fields(file, start, end):
        if number in (1, 2):
            _expect(wire, _BYTES)
            pair[number - 1] = file.text(first, last)
    return pair[0], pair[1]


def _graph(file: _File, start: int, end: int, depth: int) -> Graph:
    if depth > _DEEPEST_GRAPH:
        raise _MalformedError
    name = ""
    nodes: list[Node] = []
    initializers: list[Tensor] = []
    inputs: list[Value] = []
    outputs: list[Value] = []
    for number, wire, first, last in _fields(file, start, end):
        if number not in (1, 2, 5, 11, 12, 15):
            continue
        _expect(wire, _BYTES)
        if number == 1:
            nodes.append(_node(file, first, last, depth))
        elif number == 2:
            name = file.text(first, last)
        elif number == 5:
            initializers.append(_tensor(file, first, last))
        elif number == 11:
            inputs.append(_value(file, first, last))
        elif number == 12:
            outputs.append(_value(file, first, last))
        else:
            initializers.extend(_sparse(file, first, last))
    return Graph(name, tuple(nodes), tuple(initializers), tuple(inputs), tuple(outputs))


def _function(file: _File, start: int, end: int) -> Function:
    name = domain = ""
    nodes: list[Node] = []
    for number, wire, first, last in _fields(file, start, end):
        if number not in (1, 7, 10):
            continue
        _expect(wire, _BYTES)
        if number == 1:
            name = file.text(first, last)
        elif number == 7:
            nodes.append(_node(file, first, last, 1))
        else:
            domain = file.text(first, last)
    return Function(name, domain, tuple(nodes))


def _node(file: _File, start: int, end: int, depth: int) -> Node:
    op_type = domain = name = ""
    inputs: list[str] = []
    outputs: list[str] = []
    attributes: list[Attribute] = []
    for number, wire, first, last in _fields(file, start, end):
        if number not in (1, 2, 3, 4, 5, 7):
            continue
        _expect(wire, _BYTES)
        if number == 1:
            inputs.append(file.text(first, last))
        elif number == 2:
            outputs.append(file.text(first, last))
        elif number == 3:
            name = file.text(first, last)
        elif number == 4:
            op_type = file.text(first, last)
        elif number == 5:
            attributes.append(_attribute(file, first, last, depth))
        else:
            domain = file.text(first, last)
    return Node(op_type, domain, name, tuple(inputs), tuple(outputs), tuple(attributes))


def _attribute(file: _File, start: int, end: int, depth: int) -> Attribute:
    name = ""
    integer: int | None = None
    content: bytes | None = None
    content_bytes = 0
    tensors: list[Tensor] = []
    graphs: list[Graph] = []
    for number, wire, first, last in _fields(file, start, end):
        if number == 3:
            _expect(wire, _VARINT)
            integer = _signed(first)
        elif number in (1, 4, 5, 6, 10, 11, 22, 23):
            _expect(wire, _BYTES)
            if number == 1:
                name = file.text(first, last)
            elif number == 4:
                content_bytes = last - first
                content = file.read(first, last) if content_bytes <= _LONGEST_CONTENT else None
            elif number in (5, 10):
                tensors.append(_tensor(file, first, last))
            elif number in (6, 11):
                graphs.append(_graph(file, first, last, depth + 1))
            else:
                tensors.extend(_sparse(file, first, last))
    return Attribute(name, integer, content, content_bytes, tuple(tensors), tuple(graphs))


def _tensor(file: _File, start: int, end: int) -> Tensor:
    name = ""
    data_type = stored = 0
    dims: list[int] = []
    location: dict[str, str] = {}
    is_external = False
    for number, wire, first, last in _fields(file, start, end):
        if number == 1:
            dims.extend(_integers(file, wire, first, last))
        elif number == 2:
            _expect(wire, _VARINT)
            data_type = first
        elif number == 8:
            _expect(wire, _BYTES)
            name = file.text(first, last)
        elif number == 13:
            _expect(wire, _BYTES)
            key, value = _entry(file, first, last)
            location[key] = value
        elif number == 14:
            _expect(wire, _VARINT)
            is_external = first == 1
        elif number in (4, 5, 6, 7, 9, 10, 11):
            stored += last - first if wire != _VARINT else 1
    if any(dim < 0 for dim in dims):
        raise _MalformedError
    return Tensor(name, data_type, tuple(dims), stored, location if is_external else None)


def _integers(file: _File, wire: int, start: int, end: int) -> Iterator[int]:
    """A repeated integer field may be written one by one or packed together."""
    if wire == _VARINT:
        yield _signed(start)
        return
    _expect(wire, _BYTES)
    data, offset = file.read(start, end), 0
    while offset < len(data):
        value, offset = _varint(data, offset)
        yield _signed(value)


def _sparse(file: _File, start: int, end: int) -> Iterator[Tensor]:
    for number, wire, first, last in _fields(file, start, end):
        if number in (1, 2):
            _expect(wire, _BYTES)
            yield _tensor(file, first, last)


def _value(file: _File, start: int, end: int) -> Value:
    name = ""
    data_type = 0
    dims: tuple[int | str | None, ...] | None = None
    for number, wire, first, last in _fields(file, start, end):
        if number == 1:
            _expect(wire, _BYTES)
            name = file.text(first, last)
        elif number == 2:
            _expect(wire, _BYTES)
            for kind, kind_wire, kind_first, kind_last in _fields(file, first, last):
                if kind == 1:
                    _expect(kind_wire, _BYTES)
                    data_type, dims = _tensor_type(file, kind_first, kind_last)
    return Value(name, data_type, dims)


def _tensor_type(file: _File, start: int, end: int) -> tuple[int, tuple[int | str | None, ...] | None]:
    data_type = 0
    dims: tuple[int | str | None, ...] | None = None
    for number, wire, first, last in _fields(file, start, end):
        if number == 1:
            _expect(wire, _VARINT)
            data_type = first
        elif number == 2:
            _expect(wire, _BYTES)
            dims = tuple(_dimensions(file, first, last))
    return data_type, dims


def _dimensions(file: _File, start: int, end: int) -> Iterator[int | str | None]:
    for number, wire, first, last in _fields(file, start, end):
        if number != 1:
            continue
        _expect(wire, _BYTES)
        dim: int | str | None = None
        for kind, kind_wire, kind_first, kind_last in _fields(file, first, last):
            if kind == 1:
                _expect(kind_wire, _VARINT)
                dim = _signed(kind_first)
            elif kind == 2:
                _expect(kind_wire, _BYTES)
                dim = file.text(kind_first, kind_last) or None
        yield dim
