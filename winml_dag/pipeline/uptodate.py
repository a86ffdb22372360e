"""Whether there is nothing to do: the first thing that a build asks, and mostly the last.

Reading a recipe, resolving it, declaring and deciding thousands of stages takes many times as long as seeing that all
is as it was. So the plan cache has an entry for each request: the graph that it led to and, when that was carried out,
what lies in the store and where its user finds it; with what one stat said of every file and folder that had a say, and
a fingerprint of the environment. Whoever asks again looks at every path once and compares two arrays. Only what differs
is read, and what is racy: what had changed so shortly before it was looked at that a later change need not show.

An entry is one file. A first line of JSON says what the rest is; then come the paths, what was seen of them, their
digests, and the plan. Each part is taken out of the bytes only by who needs it: for 4000 stages the first two take 1
ms, the plan as a whole 50. An index row would do the same, but SQLite and diskcache take 20 ms to import. Whatever is
wrong with an entry, it counts as absent: all in it can be had otherwise.
"""

from __future__ import annotations

import json
import os
import sys
import time
from array import array
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import xxhash

from winml_dag.canonical import JsonValue
from winml_dag.pipeline.environment import Environment, short_hash
from winml_dag.readlog import Signature
from winml_dag.smallfiles import MOST_BYTES_OF_MANY, parse_json, read_bytes, read_text
from winml_dag.store import changetime
from winml_dag.store.changetime import INODE_MASK, signature_from
from winml_dag.store.usage_log import note_build

# --- What one stat says of each path. Thousands are looked at in each build, so this is one flat array that is compared
# as a whole: 9000 paths take 15 ms, where an object for each would take as long again.

# Size, time of modification, inode, time of change: see ``changetime`` for what the last one is for.
PER_PATH = 4
_ABSENT = (0, 0, 0, 0)
_CHANGED = 3


def look(paths: Iterable[str]) -> array[int]:
    """``PER_PATH`` numbers for each path: zeros for one that is not there."""
    found = array("q")
    extend, stat, is_windows = found.extend, os.stat, sys.platform == "win32"
    for path in paths:
        try:
            status = stat(path)
            if is_windows:
                extend(signature_from(path, status))
            else:  # the same, without a call for each
                extend((status.st_size, status.st_mtime_ns, status.st_ino & INODE_MASK, status.st_ctime_ns))
        except (OSError, ValueError):
            extend(_ABSENT)
    return found


def differing(one: Sequence[int], other: Sequence[int]) -> list[int]:
    """The places of the paths for which two looks at the same paths differ."""
    if one == other:
        return []
    return [
        start // PER_PATH
        for start in range(0, len(one), PER_PATH)
        if one[start : start + PER_PATH] != other[start : start + PER_PATH]
    ]


def changed_ns(seen: Sequence[int], place: int) -> int:
    """When the path at *place* last changed; 0 for one that is not there."""
    return seen[place * PER_PATH + _CHANGED]


def racy(seen: Sequence[int], looked_ns: int) -> list[int]:
    """The places of the paths that had changed shortly before *looked_ns*: a write that followed could have got the
    very same time.
    """
    settled_ns = looked_ns - changetime.SETTLED_NS
    return [place for place, changed in enumerate(seen[_CHANGED::PER_PATH]) if changed > settled_ns]


class FirstLooks:
    """What was seen of each path before planning read it: a log of reads (see ``readlog``).

    A look that is taken later may show another file under the same path, and would vouch for what nobody has read.
    """

    def __init__(self) -> None:
        self._first: dict[str, Signature] = {}
        self._changed: set[str] = set()

    def __call__(self, path: str, signature: Signature | None) -> None:
        # As ``text_of`` in ``plan_cache`` has it. Nearly all are absolute, and to make a Path of each takes a while.
        at = path if path.startswith("/") else str(Path(path).absolute())
        if signature is None:
            size, modified_ns, inode, changed_ns = look([at])
            signature = size, modified_ns, inode, changed_ns
        if self._first.setdefault(at, signature) != signature:
            self._changed.add(at)

    def of(self, paths: Iterable[str]) -> array[int] | None:
        """What was first seen of *paths*, as ``look`` has it; None where that vouches for nothing: nobody told of a
        path, or it changed between two reads.
        """
        found = array("q")
        for path in paths:
            first = self._first.get(path)
            if first is None or path in self._changed:
                return None
            found.extend(first)
        return found


# --- The content of a path, for where signatures differ.

ABSENT = "absent"
_NAMES = "names:"
_PROGRAM = "program:"
_UNREADABLE = "unreadable"


def content_of(path: str, function: str = "xxh3-128") -> str:
    """The digest of a file, of the names in a folder, or that nothing is there."""
    try:
        if os.path.isdir(path):
            return _NAMES + short_hash(sorted(os.listdir(path)))
        # Imported here: most checks read no file.
        from winml_dag.store.digest import digest_file

        return digest_file(Path(path), "sha256" if function == "sha256" else "xxh3-128")
    except (FileNotFoundError, NotADirectoryError):
        return ABSENT
    except OSError:
        return _UNREADABLE


def program_content(path: str, function: str = "xxh3-128") -> str:
    """The same of a file that is a program, or may become one."""
    may_run = os.path.isfile(path) and os.access(path, os.X_OK)
    return _PROGRAM + (content_of(path, function) if may_run else ABSENT)


def places_of(folders: Mapping[str, str] | Sequence[str]) -> dict[str, str]:
    """Where each folder really is."""
    return {folder: os.path.realpath(folder) for folder in folders}


# --- An entry of the plan cache: the file ``standing/<name>.note``.

FORMAT = 3
_SUFFIX = ".note"
# Beside an entry: the keys that it stands on, for who collects what nobody uses.
KEYS_SUFFIX = ".keys"
_HEX = 16
_PARTS = 4

# What reading an entry can raise, whoever wrote it: it counts as absent.
MALFORMED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


@dataclass(frozen=True)
class Groups:
    """How many of an entry's paths are of each kind; they come in this order.

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
    """The first line of an entry.

    Attributes:
        asked: the request, word for word.
        environment: its fingerprint.
        places: where each folder really is, for folders whose names are written into what is built.
        racy: places in the list of paths of files that are read again.
        complete: whether the build that was planned was also carried out, so that outputs and blobs are in the list.
        summary: the line that a build which has nothing to do ends with, without its time.
        stages: how many there are; ``seconds``: how long they took when they ran.
    """

    asked: str
    environment: Mapping[str, JsonValue]
    places: Mapping[str, str]
    groups: Groups
    racy: Sequence[int] = ()
    complete: bool = False
    summary: str = ""
    stages: int = 0
    seconds: float = 0.0


class Entry:
    """An entry, each part of which is taken out of its file when it is asked for.

    ``paths``; ``seen`` with four numbers for each path; ``digests`` with a text for each of the hashed ones; ``plan``
    as whoever writes it knows it.
    """

    def __init__(self, header: Header, parts: Sequence[bytes | memoryview]) -> None:
        self.header = header
        self._parts = parts

    @classmethod
    def of(cls, header: Header, paths: Iterable[str], seen: array[int], digests: Iterable[str], plan: bytes) -> Entry:
        encoded = "\0".join(paths).encode("utf-8", "surrogateescape")
        return cls(header, (encoded, seen.tobytes(), "\n".join(digests).encode(), plan))

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

    def keep(self, cache_dir: str, keys: Iterable[str] | None = None) -> None:
        """Write it, and the *keys* that it stands on where these are others than before. A cache that cannot be
        written, or has no room, keeps nothing: the next build plans anew.
        """
        from winml_dag.store import files  # here, since it is done once after a change

        # Surrogates, which stand for bytes in names that are no text, are escaped: the line is ASCII.
        first = {"format": FORMAT, **asdict(self.header), "lengths": [len(part) for part in self._parts]}
        body = b"".join([json.dumps(first, separators=(",", ":")).encode(), b"\n", *self._parts])
        path = Path(file_of(cache_dir, self.header.asked))
        with suppress(OSError):
            files.write_whole(path, xxhash.xxh3_64_hexdigest(body).encode() + body)
            if keys is not None:
                files.write_whole(path.with_suffix(KEYS_SUFFIX), "".join(f"{key}\n" for key in keys).encode())

    def seen_again(self, header: Header, seen: array[int]) -> Entry:
        """The same entry with another header, after another look at the same paths."""
        paths, _, *others = self._parts
        return Entry(header, (paths, seen.tobytes(), *others))


def file_of(cache_dir: str, asked: str) -> str:
    """Where the entry of the request *asked* is, or would be."""
    name = xxhash.xxh3_128_hexdigest(asked.encode("utf-8", "surrogatepass"))
    return os.path.join(cache_dir, "standing", f"{name}{_SUFFIX}")


def keys_of(cache_dir: str, asked: str) -> list[str]:
    """The keys that the entry of the request *asked* stands on; none when that cannot be told."""
    try:
        return read_text(os.path.splitext(file_of(cache_dir, asked))[0] + KEYS_SUFFIX, MOST_BYTES_OF_MANY).split()
    except (OSError, ValueError):
        return []


def load(cache_dir: str, asked: str) -> Entry | None:
    """The entry of the request *asked*; None when there is none that can be used."""
    try:
        data = read_bytes(file_of(cache_dir, asked), MOST_BYTES_OF_MANY)
        if data[:_HEX] != xxhash.xxh3_64_hexdigest(memoryview(data)[_HEX:]).encode():
            return None
        end = data.index(b"\n")
        first: Any = parse_json(data[_HEX:end])
        if first.pop("format") != FORMAT or first["asked"] != asked:
            return None
        ends = list(accumulate(first.pop("lengths")))
        parts = [memoryview(data)[end + 1 :][start:stop] for start, stop in zip([0, *ends], ends, strict=False)]
        if len(parts) != _PARTS or end + 1 + ends[-1] != len(data):
            return None
        return Entry(Header(**{**first, "groups": Groups(**first["groups"])}), parts)
    except (OSError, *MALFORMED):
        return None


# --- The check.


@dataclass(frozen=True)
class CurrentPlan:
    """A plan that still holds.

    ``changed``: places, in the entry's list of paths, of data, outputs and blobs that are not what they were; ``seen``:
    what was seen of all paths when that was found out, which was not before ``at_ns``.
    """

    entry: Entry
    changed: tuple[int, ...]
    seen: array[int]
    at_ns: int

    @property
    def is_up_to_date(self) -> bool:
        """Whether there is nothing to do at all."""
        return self.entry.header.complete and not self.changed


def check(cache_dir: str, asked: str, environment: Environment | None = None) -> CurrentPlan | None:
    """What stands of the request *asked*; None when it has to be planned anew. *environment*: if somebody has looked
    just now.
    """
    entry = load(cache_dir, asked)
    try:
        return None if entry is None else _check(cache_dir, entry, environment or Environment.now())
    except MALFORMED:
        return None


def _check(cache_dir: str, entry: Entry, environment: Environment) -> CurrentPlan | None:
    header = entry.header
    if not environment.is_as(header.environment) or places_of(header.places) != header.places:
        return None
    at_ns = time.time_ns()
    seen = look(entry.paths)
    doubtful = sorted({*differing(entry.seen, seen), *header.racy})
    changed = [place for place in doubtful if not _is_as_before(entry, place, seen)]
    if changed and changed[0] < header.groups.steering:
        return None
    if doubtful and not changed:
        # So that the same files need not be read the next time.
        young = {*racy(seen, at_ns)}
        still = [place for place in doubtful if place in young and place < header.groups.hashed]
        entry.seen_again(replace(header, racy=still), seen).keep(cache_dir)
    return CurrentPlan(entry, tuple(changed), seen, at_ns)


def _is_as_before(entry: Entry, place: int, seen: array[int]) -> bool:
    """Whether the path at *place*, of which *seen* tells otherwise, still has the content that it had."""
    path, now = entry.paths[place], seen[place * PER_PATH : (place + 1) * PER_PATH]
    if place >= entry.header.groups.hashed:
        # As the store itself takes a blob for sound without reading it.
        from winml_dag.store.blobs import STAMP_NS

        return now[0] == entry.seen[place * PER_PATH] and now[1] == STAMP_NS
    digest = entry.digests[place]
    read = program_content if digest.startswith(_PROGRAM) else content_of
    function = digest.removeprefix(_PROGRAM).partition(":")[0]
    # Looked at again: what was seen of the file must be true of the bytes that were read.
    return digest != _UNREADABLE and read(path, function) == digest and look([path]) == now


def note_use(cache_dir: str, current_plan: CurrentPlan) -> None:
    """Note that a build found all of *current_plan* up to date: its records were used, and its time was saved."""
    touch(cache_dir, current_plan.entry)
    header = current_plan.entry.header
    note_build(cache_dir, reused=header.stages, ran=0, seconds_saved=header.seconds)


def touch(cache_dir: str, entry: Entry) -> None:
    """Say that the records that *entry* stands on are being used."""
    with suppress(OSError):
        os.utime(os.path.splitext(file_of(cache_dir, entry.header.asked))[0] + KEYS_SUFFIX)
