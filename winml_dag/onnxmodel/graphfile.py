"""Read the graph of an ONNX file.

Tensor data is skipped, so the size of the weights does not matter. Any bytes result in either a model or an InputError.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import TypeVar

from winml_dag.errors import InputError
from winml_dag.onnxmodel.facts import STANDARD_DOMAIN
from winml_dag.onnxmodel.graph import TAG_KEY, Attribute, Function, Graph, Model, Node, Tensor, Value
from winml_dag.onnxmodel.wire import BYTES, FIXED32, VARINT, File, MalformedError, expect, fields, signed, varint

T = TypeVar("T")

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
        with path.open("rb") as handle:
            size = handle.seek(0, 2)
            return _model(File(handle, size), values)
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
    ir_version = 0
    producer_name = producer_version = domain = description = ""
    version = 0
    opsets: dict[str, int] = {}
    metadata: dict[str, str] = {}
    graph: Graph | None = None
    functions: list[Function] = []
    for number, wire, start, end in fields(file, 0, file.size):
        if number == 1:
            expect(wire, VARINT)
            ir_version = signed(start)
        elif number == 2:
            expect(wire, BYTES)
            producer_name = file.text(start, end)
        elif number == 3:
            expect(wire, BYTES)
            producer_version = file.text(start, end)
        elif number == 4:
            expect(wire, BYTES)
            domain = file.text(start, end)
        elif number == 5:
            expect(wire, VARINT)
            version = signed(start)
        elif number == 6:
            expect(wire, BYTES)
            description = file.text(start, end)
        elif number == 7:
            expect(wire, BYTES)
            if graph is not None:
                raise MalformedError
            graph = _graph(file, start, end, 1, values=values)
        elif number == 8:
            expect(wire, BYTES)
            opsets.update([_opset(file, start, end)])
        elif number == 14:
            expect(wire, BYTES)
            key, value = _entry(file, start, end)
            metadata[key] = value
        elif number == 25:
            expect(wire, BYTES)
            functions.append(_function(file, start, end))
    if graph is None or ir_version <= 0 or (ir_version >= 3 and not opsets):
        raise MalformedError
    return Model(
        ir_version,
        producer_name,
        producer_version,
        opsets,
        metadata,
        graph,
        tuple(functions),
        domain,
        version,
        description,
    )


def _plain(domain: str) -> str:
    """Normalize the ONNX standard's domain, which has two names."""
    return "" if domain == STANDARD_DOMAIN else domain


def _opset(file: File, start: int, end: int) -> tuple[str, int]:
    domain, version = "", 0
    for number, wire, first, last in fields(file, start, end):
        if number == 1:
            expect(wire, BYTES)
            domain = file.text(first, last)
        elif number == 2:
            expect(wire, VARINT)
            version = signed(first)
    return _plain(domain), version


def _entry(file: File, start: int, end: int) -> tuple[str, str]:
    """Read a StringStringEntryProto."""
    pair = ["", ""]
    for number, wire, first, last in fields(file, start, end):
        if number in (1, 2):
            expect(wire, BYTES)
            pair[number - 1] = file.text(first, last)
    return pair[0], pair[1]


def _graph(file: File, start: int, end: int, depth: int, *, values: bool = False) -> Graph:
    if depth > _DEEPEST_GRAPH:
        raise MalformedError
    name = ""
    nodes: list[Node] = []
    initializers: list[Tensor] = []
    inputs: list[Value] = []
    outputs: list[Value] = []
    between: list[Value] = []
    wanted = (1, 2, 5, 11, 12, 13, 15) if values else (1, 2, 5, 11, 12, 15)
    for number, wire, first, last in fields(file, start, end):
        if number not in wanted:
            continue
        expect(wire, BYTES)
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
        elif number == 13:
            between.append(_value(file, first, last))
        else:
            initializers.extend(_sparse(file, first, last))
    return Graph(name, tuple(nodes), tuple(initializers), tuple(inputs), tuple(outputs), tuple(between))


def _function(file: File, start: int, end: int) -> Function:
    name = domain = ""
    nodes: list[Node] = []
    for number, wire, first, last in fields(file, start, end):
        if number not in (1, 7, 10):
            continue
        expect(wire, BYTES)
        if number == 1:
            name = file.text(first, last)
        elif number == 7:
            nodes.append(_node(file, first, last, 1))
        else:
            domain = file.text(first, last)
    return Function(name, domain, tuple(nodes))


def _node(file: File, start: int, end: int, depth: int) -> Node:
    op_type = domain = name = tag = ""
    inputs: list[str] = []
    outputs: list[str] = []
    attributes: list[Attribute] = []
    for number, wire, first, last in fields(file, start, end):
        if number not in (1, 2, 3, 4, 5, 7, 9):
            continue
        expect(wire, BYTES)
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
        elif number == 7:
            domain = file.text(first, last)
        else:
            key, value = _entry(file, first, last)
            tag = value if key == TAG_KEY else tag
    return Node(op_type, _plain(domain), name, tuple(inputs), tuple(outputs), tuple(attributes), tag)


def _attribute(file: File, start: int, end: int, depth: int) -> Attribute:
    name = ""
    integer: int | None = None
    content: bytes | None = None
    content_bytes = 0
    tensors: list[Tensor] = []
    graphs: list[Graph] = []
    single: float | None = None
    integers: list[int] = []
    numbers: list[float] = []
    texts: list[bytes] = []
    for number, wire, first, last in fields(file, start, end):
        if number == 2:
            expect(wire, FIXED32)
            single = _floats(file, first, last)[0]
        elif number == 3:
            expect(wire, VARINT)
            integer = signed(first)
        elif number == 7:
            if wire not in (BYTES, FIXED32):
                raise MalformedError
            if len(numbers) <= _LONGEST_LIST:
                numbers.extend(_floats(file, first, min(last, first + 4 * _LONGEST_LIST + 4)))
        elif number == 8:
            if len(integers) <= _LONGEST_LIST and last - first <= _LONGEST_CONTENT:
                integers.extend(_integers(file, wire, first, last))
        elif number == 9:
            expect(wire, BYTES)
            if last - first <= _LONGEST_CONTENT and len(texts) <= _LONGEST_LIST:
                texts.append(file.read(first, last))
        elif number in (1, 4, 5, 6, 10, 11, 22, 23):
            expect(wire, BYTES)
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
    return Attribute(
        name,
        integer,
        content,
        content_bytes,
        tuple(tensors),
        tuple(graphs),
        single,
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
            expect(wire, VARINT)
            data_type = first
        elif number == 8:
            expect(wire, BYTES)
            name = file.text(first, last)
        elif number == 13:
            expect(wire, BYTES)
            key, value = _entry(file, first, last)
            location[key] = value
        elif number == 14:
            expect(wire, VARINT)
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


def _integers(file: File, wire: int, start: int, end: int) -> Iterator[int]:
    """Yield a repeated integer field, which is written one by one or packed."""
    if wire == VARINT:
        yield signed(start)
        return
    expect(wire, BYTES)
    data, offset = file.read(start, end), 0
    while offset < len(data):
        value, offset = varint(data, offset)
        yield signed(value)


def _sparse(file: File, start: int, end: int) -> Iterator[Tensor]:
    for number, wire, first, last in fields(file, start, end):
        if number in (1, 2):
            expect(wire, BYTES)
            yield _tensor(file, first, last)


def _value(file: File, start: int, end: int) -> Value:
    name = ""
    data_type = 0
    dims: tuple[int | str | None, ...] | None = None
    for number, wire, first, last in fields(file, start, end):
        if number == 1:
            expect(wire, BYTES)
            name = file.text(first, last)
        elif number == 2:
            expect(wire, BYTES)
            for kind, kind_wire, kind_first, kind_last in fields(file, first, last):
                if kind == 1:
                    expect(kind_wire, BYTES)
                    data_type, dims = _tensor_type(file, kind_first, kind_last)
    return Value(name, data_type, dims)


def _tensor_type(file: File, start: int, end: int) -> tuple[int, tuple[int | str | None, ...] | None]:
    data_type = 0
    dims: tuple[int | str | None, ...] | None = None
    for number, wire, first, last in fields(file, start, end):
        if number == 1:
            expect(wire, VARINT)
            data_type = first
        elif number == 2:
            expect(wire, BYTES)
            dims = tuple(_dimensions(file, first, last))
    return data_type, dims


def _dimensions(file: File, start: int, end: int) -> Iterator[int | str | None]:
    for number, wire, first, last in fields(file, start, end):
        if number != 1:
            continue
        expect(wire, BYTES)
        dim: int | str | None = None
        for kind, kind_wire, kind_first, kind_last in fields(file, first, last):
            if kind == 1:
                expect(kind_wire, VARINT)
                dim = signed(kind_first)
            elif kind == 2:
                expect(kind_wire, BYTES)
                dim = file.text(kind_first, kind_last) or None
        yield dim
