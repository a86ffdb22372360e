"""What is remembered of a request between two runs: one file in the cache folder, ``standing/<name>.note``.

Read at the start of every build, so its form follows from what that may cost. A first line of JSON says what the rest
is; then come the paths, what was seen of them, their digests, and the plan. Each part is taken out of the bytes only by
who needs it: for 4000 stages the first two take 1 ms, the plan as a whole 50. An index row would do the same, but
SQLite and diskcache take 20 ms to import.

Whatever is wrong with a note, it counts as absent: all in it can be had otherwise.
"""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import xxhash

from winml_dag.canonical import JsonObject, JsonValue
from winml_dag.smallfiles import MOST_BYTES_OF_MANY, parse_json, read_bytes, read_text

FORMAT = 2
_SUFFIX = ".note"
# Beside a note: the keys that it stands on, for who collects what nobody uses.
KEYS_SUFFIX = ".keys"
_HEX = 16
_PARTS = 4


@dataclass(frozen=True)
class Groups:
    """How many of a note's paths are of each kind; they come in this order.

    ``steering``: files and folders that a plan is made from, such as the recipe. ``data``: files that stages only read,
    so that another content changes keys but not the plan. ``outputs``: what a build puts where its user finds it.
    ``blobs``: what the records of its stages need in the store.
    """

    steering: int
    data: int = 0
    outputs: int = 0
    blobs: int = 0

    @property
    def hashed(self) -> int:
        """How many, from the first on, have a digest: a blob's is its name."""
        return self.steering + self.data + self.outputs


@dataclass(frozen=True)
class Header:
    """The first line of a note.

    Attributes:
        asked: the request, word for word.
        places: where each folder really is, for folders whose names are written into what is built.
        unsettled: places in the list of paths of files that had changed so shortly before they were looked at that a
            later change need not show: they are read again.
        complete: whether the build that was planned was also carried out, so that outputs and blobs are in the list.
        summary: the line that a build which has nothing to do ends with, without its time.
        stages: how many there are; ``seconds``: how long they took when they ran.
    """

    asked: str
    surroundings: Mapping[str, JsonValue]
    places: Mapping[str, str]
    groups: Groups
    unsettled: Sequence[int] = ()
    complete: bool = False
    summary: str = ""
    stages: int = 0
    seconds: float = 0.0


class Note:
    """A note, each part of which is taken out of its file when it is asked for.

    ``paths``; ``seen`` with four numbers for each path; ``digests`` with a text for each of the hashed ones; ``plan``
    as whoever writes it knows it.
    """

    def __init__(self, header: Header, parts: Sequence[bytes | memoryview]) -> None:
        self.header = header
        self._parts = parts

    @classmethod
    def of(
        cls,
        header: Header,
        paths: Iterable[str],
        seen: array[int],
        digests: Iterable[str],
        plan: bytes,
    ) -> Note:
        encoded = "\0".join(paths).encode("utf-8", "surrogateescape")
        return cls(header, (encoded, seen.tobytes(), "\n".join(digests).encode(), plan))

    def seen_again(self, header: Header, seen: array[int]) -> Note:
        """The same note with another header, after another look at the same paths."""
        paths, _, *others = self._parts
        return Note(header, (paths, seen.tobytes(), *others))

    @cached_property
    def paths(self) -> list[str]:
        text = str(self._parts[0], "utf-8", "surrogateescape")
        return text.split("\0") if text else []

    @cached_property
    def seen(self) -> array[int]:
        found = array("q")
        found.frombytes(self._parts[1])
        return found

    @cached_property
    def digests(self) -> list[str]:
        text = str(self._parts[2], "ascii")
        return text.split("\n") if text else []

    @property
    def plan(self) -> bytes:
        return bytes(self._parts[3])

    def to_bytes(self) -> bytes:
        header = self.header
        groups = header.groups
        first: JsonObject = {
            "format": FORMAT,
            "asked": header.asked,
            "surroundings": header.surroundings,
            "places": header.places,
            "groups": [groups.steering, groups.data, groups.outputs, groups.blobs],
            "unsettled": list(header.unsettled),
            "complete": header.complete,
            "summary": header.summary,
            "stages": header.stages,
            "seconds": header.seconds,
            "lengths": [len(part) for part in self._parts],
        }
        # Surrogates, which stand for bytes in names that are no text, are escaped: the line is ASCII.
        body = b"".join([json.dumps(first, separators=(",", ":")).encode(), b"\n", *self._parts])
        return xxhash.xxh3_64_hexdigest(body).encode() + body


def file_of(cache_dir: str, asked: str) -> str:
    """Where the note of the request *asked* is, or would be."""
    name = xxhash.xxh3_128_hexdigest(asked.encode("utf-8", "surrogatepass"))
    return os.path.join(cache_dir, "standing", f"{name}{_SUFFIX}")


def keys_of(cache_dir: str, asked: str) -> list[str]:
    """The keys that the note of the request *asked* stands on; none when that cannot be told."""
    try:
        return read_text(os.path.splitext(file_of(cache_dir, asked))[0] + KEYS_SUFFIX, MOST_BYTES_OF_MANY).split()
    except (OSError, ValueError):
        return []


def read_note(cache_dir: str, asked: str) -> Note | None:
    """The note of the request *asked*; None when there is none that can be used."""
    try:
        data = read_bytes(file_of(cache_dir, asked), MOST_BYTES_OF_MANY)
        if data[:_HEX] != xxhash.xxh3_64_hexdigest(memoryview(data)[_HEX:]).encode():
            return None
        end = data.index(b"\n")
        first: Any = parse_json(data[_HEX:end])
        if first["format"] != FORMAT or first["asked"] != asked:
            return None
        header = Header(
            asked=asked,
            surroundings=first["surroundings"],
            places=first["places"],
            groups=Groups(*first["groups"]),
            unsettled=first["unsettled"],
            complete=first["complete"],
            summary=first["summary"],
            stages=first["stages"],
            seconds=first["seconds"],
        )
        return Note(header, _split(memoryview(data)[end + 1 :], first["lengths"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _split(data: memoryview, lengths: Sequence[int]) -> list[memoryview]:
    ends = list(accumulate(lengths))
    if len(ends) != _PARTS or ends[-1] != len(data):
        raise ValueError("a note with other parts")
    return [data[end - length : end] for end, length in zip(ends, lengths, strict=True)]
