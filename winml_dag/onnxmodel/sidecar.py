"""The files that a model refers to under other names, and the binaries that several models share."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from winml_dag.errors import InputError
from winml_dag.onnxmodel.graphfile import BYTES, File, MalformedError, fields, read_attribute
from winml_dag.onnxmodel.inspect import sidecar_name

if TYPE_CHECKING:
    from winml_dag.onnxmodel.inspect import ModelSummary

# Part of the name of every binary that several models share, so that no other binary has to be read.
SHARED = "_shared"

_CHUNK = 1 << 22
_LONGEST_NAME = 256


def shares_binary(model: Path, summary: ModelSummary) -> bool:
    """Return whether the binary of *model* has graphs that *summary* does not have, going by their names.

    QNN's emulator crashes when it loads such a model.
    """
    own = {context.partition for context in summary.ep_context}
    binaries = {context.sidecar for context in summary.ep_context if context.sidecar and SHARED in context.sidecar}
    # Names of graphs differ only in their numbers.
    pattern = re.compile(
        b"|".join(re.sub(rb"\d+", rb"\\d+", re.escape(name.encode())) for name in own if name) or b"$^"
    )
    return any(name.decode() not in own for binary in binaries for name in _found(model.parent / binary, pattern))


def _found(path: Path, pattern: re.Pattern[bytes]) -> set[bytes]:
    found: set[bytes] = set()
    with path.open("rb") as handle:
        rest = b""
        while chunk := handle.read(_CHUNK):
            # A name may span two chunks; truncated it would look like another one.
            text = rest + chunk
            whole = len(text) - _LONGEST_NAME if len(chunk) == _CHUNK else len(text)
            found.update(match[0] for match in pattern.finditer(text) if match.start() < whole)
            rest = text[-_LONGEST_NAME:]
    return found


# The messages in which a name may be, by kind of message and number of the field.
_INSIDE: Mapping[str, Mapping[int, str]] = {
    "model": {7: "graph", 25: "function"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "function": {7: "node"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {13: "entry"},
    "entry": {},  # of a tensor's external data: key and value
    "binary": {},  # the attribute of an EPContext node with the name of its file
}


def write_renamed(source: Path, destination: Path, names: Mapping[str, str]) -> None:
    """Write the model *source* to *destination* with references to each file of *names* under its new name.

    A compiled model and its binary refer to each other only by name, so a renamed pair needs this. No other byte
    changes: onnx would rewrite all fields, and read all weights.

    Raises:
        InputError: *source* is not an ONNX model, or refers to a file by an unsafe name.
    """
    try:
        with source.open("rb") as handle:
            file = File(handle)
            destination.write_bytes(_Renaming(file, source, names).content("model", 0, file.size))
    except (MalformedError, UnicodeDecodeError, IndexError) as error:
        raise InputError(f"{source} is not an ONNX model, or is cut short or damaged.") from error


@dataclass(frozen=True)
class _Renaming:
    file: File
    model: Path
    names: Mapping[str, str]

    def content(self, kind: str, start: int, end: int) -> bytes:
        """Return the new content of a message of *kind*."""
        pieces, copied = [], start
        for first, last, new in self._changes(kind, start, end):
            length = _varint(last - first)
            # A length with more bytes than necessary, which no tool writes, would start at an unknown position.
            if self.file.read(first - len(length), first) != length:
                raise MalformedError
            pieces += [self.file.read(copied, first - len(length)), _varint(len(new)), new]
            copied = last
        return b"".join([*pieces, self.file.read(copied, end)])

    def _changes(self, kind: str, start: int, end: int) -> Iterator[tuple[int, int, bytes]]:
        """Yield start and end of the content of each field that may change, and its new content."""
        found = [(number, first, last) for number, wire, first, last in fields(self.file, start, end) if wire == BYTES]
        is_location = kind == "entry" and any(n == 1 and self.file.text(*at) == "location" for n, *at in found)
        is_context = kind == "node" and self._has_binary_beside(found)
        for number, first, last in found:
            inside = _INSIDE[kind].get(number)
            if (kind == "binary" and number == 4 and last > first) or (is_location and number == 2):
                text = self.file.text(first, last)
                yield first, last, self.names.get(sidecar_name(self.model, text), text).encode()
            elif is_context and number == 5 and read_attribute(self.file, first, last).name == "ep_cache_context":
                yield first, last, self.content("binary", first, last)
            elif inside is not None:
                yield first, last, self.content(inside, first, last)

    def _has_binary_beside(self, found: Sequence[tuple[int, int, int]]) -> bool:
        """Whether the fields *found* are those of an EPContext node whose binary is in a file."""
        if not any(number == 4 and self.file.text(first, last) == "EPContext" for number, first, last in found):
            return False
        attributes = [read_attribute(self.file, first, last) for number, first, last in found if number == 5]
        return any(attribute.name == "embed_mode" and attribute.integer == 0 for attribute in attributes)


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
