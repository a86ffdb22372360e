"""Protobuf's wire format, read without protobuf: a sequence of fields, each skipped or entered.

Importing protobuf and onnx takes longer than inspecting ten models here, and they read the weights with the graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

# Bounded reads instead of mmap: a mapped file that shrinks meanwhile ends the process with SIGBUS. The window is small,
# because after every skipped tensor one is read that may be used for only a few bytes.
_WINDOW = 64 * 1024
_LONGEST_HEADER = 20  # two varints: tag and length

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


class MalformedError(Exception):
    """The bytes violate the format."""


class File:
    """Random access to a file through one small window."""

    def __init__(self, handle: BinaryIO, size: int) -> None:
        self.size = size
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


def varint(data: bytes, offset: int) -> tuple[int, int]:
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


def signed(value: int) -> int:
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
            tag, offset = varint(data, offset - 1)
        wire = tag & 7
        if wire == BYTES:
            length = data[offset]
            offset += 1
            if length >= 0x80:
                length, offset = varint(data, offset - 1)
            first = base + offset
            position = first + length
            found = (tag >> 3, wire, first, position)
        elif wire == VARINT:
            value, offset = varint(data, offset)
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


def expect(wire: int, expected: int) -> None:
    if wire != expected:
        raise MalformedError
