"""Rewrite a model with other names for the files that it refers to, without changing any other byte.

A compiled model and its binary refer to each other only by name, so a renamed pair needs this. The bytes between the
names are copied: onnx would rewrite all fields, and read all weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from winml_dag.errors import InputError
from winml_dag.onnxmodel.sidecar import sidecar_name
from winml_dag.onnxmodel.wire import BYTES, VARINT, File, MalformedError, fields, signed

_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class _Part:
    """A field that contains a name: its content is from *start* to *end*, preceded by its length.

    *text*: the new content; None for a message that is rewritten because of the *parts* in it.
    """

    start: int
    end: int
    text: bytes | None = None
    parts: tuple[_Part, ...] = ()

    @property
    def size(self) -> int:
        """The size of the content that is written."""
        if self.text is not None:
            return len(self.text)
        return self.end - self.start + sum(part.growth for part in self.parts)

    @property
    def growth(self) -> int:
        """By how many bytes the enclosing message grows."""
        before = self.end - self.start
        return self.size - before + len(_varint(self.size)) - len(_varint(before))


def write_renamed(source: Path, destination: Path, names: Mapping[str, str]) -> None:
    """Write the model *source* to *destination* with references to each file of *names* under its new name.

    Raises:
        InputError: *source* is not an ONNX model, or refers to a file by an unsafe name.
    """
    try:
        with source.open("rb") as handle:
            file = File(handle, handle.seek(0, 2))
            parts = tuple(_Finder(file, source, names).in_model())
            for part in parts:
                _check_lengths(file, part)
            with destination.open("wb") as output:
                _write(file, output, 0, file.size, parts)
    except (MalformedError, UnicodeDecodeError, IndexError) as error:
        raise InputError(f"{source} is not an ONNX model, or is cut short or damaged.") from error


@dataclass(frozen=True)
class _Finder:
    file: File
    model: Path
    names: Mapping[str, str]

    def in_model(self) -> Iterator[_Part]:
        for number, wire, start, end in fields(self.file, 0, self.file.size):
            if number == 7 and wire == BYTES:
                yield from _holder(start, end, self._in_graph(start, end))
            elif number == 25 and wire == BYTES:
                yield from _holder(start, end, self._in_function(start, end))

    def _in_graph(self, start: int, end: int) -> Iterator[_Part]:
        for number, wire, first, last in fields(self.file, start, end):
            if wire != BYTES:
                continue
            if number == 1:
                yield from _holder(first, last, self._in_node(first, last))
            elif number == 5:
                yield from _holder(first, last, self._in_tensor(first, last))
            elif number == 15:
                yield from _holder(first, last, self._in_sparse(first, last))

    def _in_function(self, start: int, end: int) -> Iterator[_Part]:
        for number, wire, first, last in fields(self.file, start, end):
            if number == 7 and wire == BYTES:
                yield from _holder(first, last, self._in_node(first, last))

    def _in_node(self, start: int, end: int) -> Iterator[_Part]:
        attributes = []
        is_context = False
        for number, wire, first, last in fields(self.file, start, end):
            if number == 4 and wire == BYTES:
                is_context = self.file.text(first, last) == "EPContext"
            elif number == 5 and wire == BYTES:
                attributes.append((first, last))
        beside = is_context and 0 in [self._integer(first, last, "embed_mode") for first, last in attributes]
        for first, last in attributes:
            yield from _holder(first, last, self._in_attribute(first, last, beside=beside))

    def _in_attribute(self, start: int, end: int, *, beside: bool) -> Iterator[_Part]:
        named = beside and self._name(start, end) == "ep_cache_context"
        for number, wire, first, last in fields(self.file, start, end):
            if wire != BYTES:
                continue
            if number == 4 and named and last > first:
                yield from self._text(first, last)
            elif number in (5, 10):
                yield from _holder(first, last, self._in_tensor(first, last))
            elif number in (6, 11):
                yield from _holder(first, last, self._in_graph(first, last))
            elif number in (22, 23):
                yield from _holder(first, last, self._in_sparse(first, last))

    def _in_sparse(self, start: int, end: int) -> Iterator[_Part]:
        for number, wire, first, last in fields(self.file, start, end):
            if number in (1, 2) and wire == BYTES:
                yield from _holder(first, last, self._in_tensor(first, last))

    def _in_tensor(self, start: int, end: int) -> Iterator[_Part]:
        for number, wire, first, last in fields(self.file, start, end):
            if number == 13 and wire == BYTES:
                yield from _holder(first, last, self._in_entry(first, last))

    def _in_entry(self, start: int, end: int) -> Iterator[_Part]:
        """Find the location in a StringStringEntryProto of a tensor's external data."""
        found = {number: (first, last) for number, wire, first, last in fields(self.file, start, end) if wire == BYTES}
        if 1 in found and 2 in found and self.file.text(*found[1]) == "location":
            yield from self._text(*found[2])

    def _text(self, start: int, end: int) -> Iterator[_Part]:
        new = self.names.get(sidecar_name(self.model, self.file.text(start, end)))
        if new is not None:
            yield _Part(start, end, text=new.encode())

    def _name(self, start: int, end: int) -> str:
        found = [(first, last) for number, _, first, last in fields(self.file, start, end) if number == 1]
        return self.file.text(*found[-1]) if found else ""

    def _integer(self, start: int, end: int, name: str) -> int | None:
        if self._name(start, end) != name:
            return None
        values = [first for number, wire, first, _ in fields(self.file, start, end) if number == 3 and wire == VARINT]
        return signed(values[-1]) if values else None


def _holder(start: int, end: int, inside: Iterator[_Part]) -> Iterator[_Part]:
    parts = tuple(inside)
    if parts:
        yield _Part(start, end, parts=parts)


def _check_lengths(file: File, part: _Part) -> None:
    """Refuse a length with more bytes than necessary, which no tool writes: its start would be unknown."""
    length = _varint(part.end - part.start)
    if file.read(part.start - len(length), part.start) != length:
        raise MalformedError
    for inner in part.parts:
        _check_lengths(file, inner)


def _write(file: File, output: BinaryIO, start: int, end: int, parts: tuple[_Part, ...]) -> None:
    position = start
    for part in parts:
        _copy(file, output, position, part.start - len(_varint(part.end - part.start)))
        output.write(_varint(part.size))
        if part.text is None:
            _write(file, output, part.start, part.end, part.parts)
        else:
            output.write(part.text)
        position = part.end
    _copy(file, output, position, end)


def _copy(file: File, output: BinaryIO, start: int, end: int) -> None:
    for position in range(start, end, _CHUNK):
        output.write(file.read(position, min(position + _CHUNK, end)))


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
