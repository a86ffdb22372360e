"""Check whether there is nothing to do: the first step of a build, and usually the last.

Reading a recipe, resolving it, and declaring and deciding thousands of stages takes many times as long as checking that
nothing has changed. So the plan cache has an entry for each request: its graph and, after it ran, the blobs and
published files; with the stat signatures of every file and folder that influenced it, and a fingerprint of the
environment. A later request stats every path once and compares two arrays. It reads only files that differ or are racy:
those that changed so shortly before they were checked that a later change need not show.

The environment is everything other than files that a plan depends on: this program's code, installed distributions, the
home folder, and the variables that configure search paths.

An entry is one file. Its first line is JSON that describes the rest: the paths, their signatures, their digests, and
the plan. Each part is only decoded when needed: for 4000 stages the first two take 1 ms, the whole plan 50 ms. An index
row would serve as well, but SQLite and diskcache take 20 ms to import. An invalid entry counts as absent: everything in
it can be recomputed.
"""

from __future__ import annotations

import json
import os
import sys
import time
from array import array
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import xxhash

from winml_dag import file_reading
from winml_dag.canonical import JsonObject, JsonValue, canonical_json
from winml_dag.configuration import VARIABLES
from winml_dag.file_reading import (
    MOST_BYTES_OF_MANY,
    PER_PATH,
    differing,
    look,
    parse_json,
    probe_clock,
    racy,
    read_bytes,
)
from winml_dag.store.cache_folder import KEYS_SUFFIX, PLAN_CACHE, log_build


@dataclass(frozen=True)
class Environment:
    """A snapshot of the environment. Take it once to compare many entries: it takes longer than all other checks."""

    facts: Mapping[str, JsonValue]
    folders: list[JsonValue]

    @classmethod
    def now(cls) -> Environment:
        facts: JsonObject = {
            "code": _code_state(),
            "python": sys.version,
            "search_path": list(sys.path),
            "home": os.path.expanduser("~"),
            "machine": _machine(),
            "variables": {name: os.environ.get(name) for name in VARIABLES},
        }
        return cls(facts, [_time_of(path or ".") for path in sys.path])

    def is_as(self, fingerprint: Mapping[str, JsonValue]) -> bool:
        """Whether it matches *fingerprint*."""
        if any(fingerprint.get(name) != value for name, value in self.facts.items()):
            return False
        at_ns = fingerprint.get("at_ns")
        # Unchanged folder times mean that no distribution was installed or removed since. A folder that changed
        # recently may change again without a new time, and a changed folder may have any new content: then compare the
        # names of distributions.
        if self.folders == fingerprint.get("folders") and isinstance(at_ns, int):
            latest = max((int(folder[0]) for folder in self.folders if isinstance(folder, list)), default=0)
            if latest <= at_ns - file_reading.SETTLED_NS:
                return True
        return fingerprint.get("installed") == _installed()


def environment_fingerprint(now_ns: int) -> dict[str, JsonValue]:
    """Return the fingerprint that :meth:`Environment.is_as` compares; *now_ns* is the current time."""
    now = Environment.now()
    return {**now.facts, "installed": _installed(), "folders": now.folders, "at_ns": now_ns}


def _machine() -> str:
    """Return an id that changes when the machine may be another one, because some models are compiled for the host.

    The boot id or host name stands in for the hardware, which takes longer to query: a cache that moves to another
    machine sees another boot or host name.
    """
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return os.environ.get("COMPUTERNAME", "") if sys.platform == "win32" else os.uname().nodename


def _code_state() -> str:
    """Return a hash over size and time of each file of this package: a plan is only valid for the code that made it."""
    state: list[JsonValue] = []
    folders = [os.path.dirname(os.path.dirname(os.path.abspath(__file__)))]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.name.endswith(".py"):
                    status = entry.stat()
                    state.append([entry.path, status.st_size, status.st_mtime_ns])
                elif entry.name != "__pycache__" and entry.is_dir():
                    folders.append(entry.path)
    return short_hash(sorted(state, key=str))


def _installed() -> str:
    # Imported here: it takes 3 ms, and is only needed when a package folder has changed.
    from winml_dag.installed import installed_distributions

    return short_hash(installed_distributions())


def _time_of(path: str) -> JsonValue:
    """Return time and inode of a folder on the module search path."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return [status.st_mtime_ns, status.st_ino]


def short_hash(value: JsonValue) -> str:
    """Return 32 hex digits over *value*: detects changes, but is not cryptographic."""
    return xxhash.xxh3_128_hexdigest(canonical_json(value).encode("utf-8", "surrogatepass"))


# --- The content of a path, for when signatures differ.

ABSENT = "absent"
_NAMES = "names:"
_PROGRAM = "program:"
_UNREADABLE = "unreadable"


def content_of(path: str, function: str = "xxh3-128") -> str:
    """Return the digest of a file, the digest of the names in a folder, or that nothing exists."""
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
    """Return the content of a file that is a program, or may become one."""
    may_run = os.path.isfile(path) and os.access(path, os.X_OK)
    return _PROGRAM + (content_of(path, function) if may_run else ABSENT)


def real_paths(folders: Iterable[str]) -> dict[str, str]:
    """Return the path of each folder without links."""
    return {folder: os.path.realpath(folder) for folder in folders}


# --- An entry of the plan cache: the file ``standing/<name>.note``.

FORMAT = 5
_SUFFIX = ".note"
_HEX = 16
_PARTS = 4

# What reading an invalid entry can raise: it counts as absent.
MALFORMED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


@dataclass(frozen=True)
class Groups:
    """How many of an entry's paths are of each kind, in this order.

    Attributes:
        steering: files and folders that a plan is made from, such as the recipe.
        data: files that only stages read, so that new content changes keys but not the plan.
        outputs: published files.
        blobs: blobs that the records of its stages need.
    """

    steering: int
    data: int = 0
    outputs: int = 0
    blobs: int = 0

    @property
    def hashed(self) -> int:
        """How many paths, from the first on, have a digest; a blob's digest is its name."""
        return self.steering + self.data + self.outputs


@dataclass(frozen=True)
class Header:
    """The first line of an entry.

    Attributes:
        asked: the exact request.
        environment: its fingerprint.
        places: the real paths of folders whose names are part of the result.
        racy: indices of paths that have to be read again.
        complete: whether the planned build also ran, so that outputs and blobs are in the list.
        summary: the last lines of a build with nothing to do, without its time.
        stages: the number of stages; ``seconds``: how long they took when they ran.
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
    """An entry, each part of which is decoded from its file on demand.

    ``paths``; ``seen`` with four numbers for each path; ``digests`` with a text for each hashed path; ``plan`` in the
    format of its writer.
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
        """Write the entry, and the *keys* it depends on if they have changed.

        A cache that is not writable, or full, saves nothing: the next build plans again.
        """
        from winml_dag.store import files  # here, since it only happens after a change

        # Surrogates, which are bytes of names that are not valid text, are escaped: the line is ASCII.
        lengths = [len(part) for part in self._parts]
        first = {"format": FORMAT, **vars(self.header), "groups": vars(self.header.groups), "lengths": lengths}
        body = b"".join([json.dumps(first, separators=(",", ":")).encode(), b"\n", *self._parts])
        path = Path(file_of(cache_dir, self.header.asked))
        with suppress(OSError):
            files.write_whole(path, xxhash.xxh3_64_hexdigest(body).encode() + body)
            if keys is not None:
                files.write_whole(path.with_suffix(KEYS_SUFFIX), "".join(f"{key}\n" for key in keys).encode())

    def seen_again(self, header: Header, seen: array[int]) -> Entry:
        """Return the same entry with another header, and new signatures of the same paths."""
        paths, _, *others = self._parts
        return Entry(header, (paths, seen.tobytes(), *others))


def file_of(cache_dir: str, words: str, suffix: str = _SUFFIX) -> str:
    """Return the path of the entry of the request *words*; with another *suffix*, of a file beside it."""
    name = xxhash.xxh3_128_hexdigest(words.encode("utf-8", "surrogatepass"))
    return os.path.join(cache_dir, PLAN_CACHE, f"{name}{suffix}")


def load(cache_dir: str, words: str) -> Entry | None:
    """Load the entry of the request *words*; None if there is no valid one."""
    try:
        data = read_bytes(file_of(cache_dir, words), MOST_BYTES_OF_MANY)
        if data[:_HEX] != xxhash.xxh3_64_hexdigest(memoryview(data)[_HEX:]).encode():
            return None
        end = data.index(b"\n")
        first: Any = parse_json(data[_HEX:end])
        if first.pop("format") != FORMAT or first["asked"] != words:
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
    """A plan that is still valid.

    ``changed``: indices, in the entry's list of paths, of data, outputs and blobs that have changed; ``doubtful``: of
    all paths that had to be read, since their signatures differ or they were racy; ``seen``: the signatures of all
    paths during the check, which was not before ``at_ns``.
    """

    entry: Entry
    changed: tuple[int, ...]
    doubtful: Sequence[int]
    seen: array[int]
    at_ns: int

    @property
    def is_up_to_date(self) -> bool:
        """Whether there is nothing to do at all."""
        return self.entry.header.complete and not self.changed


def check(cache_dir: str, words: str, environment: Environment | None = None) -> CurrentPlan | None:
    """Return the current plan of the request *words*; None if it has to be planned again.

    *environment*: a snapshot, if one was just taken.
    """
    entry = load(cache_dir, words)
    try:
        return None if entry is None else _check(cache_dir, entry, environment or Environment.now())
    except MALFORMED:
        return None


def _check(cache_dir: str, entry: Entry, environment: Environment) -> CurrentPlan | None:
    header = entry.header
    if not environment.is_as(header.environment) or real_paths(header.places) != header.places:
        return None
    at_ns = time.time_ns()
    seen = look(entry.paths)
    doubtful = sorted({*differing(entry.seen, seen), *header.racy})
    changed = [place for place in doubtful if not _is_as_before(entry, place, seen)]
    if changed and changed[0] < header.groups.steering:
        return None
    if doubtful and not changed:
        # So that the same files need not be read the next time.
        probe_clock(cache_dir)
        young = {*racy(entry.paths, seen, at_ns)}
        still = [place for place in doubtful if place in young and place < header.groups.hashed]
        entry.seen_again(replace(header, racy=still), seen).keep(cache_dir)
    return CurrentPlan(entry, tuple(changed), doubtful, seen, at_ns)


def _is_as_before(entry: Entry, place: int, seen: array[int]) -> bool:
    """Whether the path at *place* still has its content, although its signature in *seen* differs or it is racy."""
    path, now = entry.paths[place], seen[place * PER_PATH : (place + 1) * PER_PATH]
    if place >= entry.header.groups.hashed:
        # As in the store, which accepts a blob as intact without reading it.
        from winml_dag.store.blobs import STAMP_NS

        return now[0] == entry.seen[place * PER_PATH] and now[1] == STAMP_NS
    digest = entry.digests[place]
    read = program_content if digest.startswith(_PROGRAM) else content_of
    function = digest.removeprefix(_PROGRAM).partition(":")[0]
    # Check the signature again: it must be that of the bytes that were read.
    return digest != _UNREADABLE and read(path, function) == digest and look([path]) == now


def log_use(cache_dir: str, current_plan: CurrentPlan) -> None:
    """Record that a build found all of *current_plan* up to date: its records were used, and its time was saved."""
    touch(cache_dir, current_plan.entry)
    header = current_plan.entry.header
    log_build(cache_dir, reused=header.stages, ran=0, seconds_saved=header.seconds)


def touch(cache_dir: str, entry: Entry) -> None:
    """Mark the records that *entry* depends on as used."""
    with suppress(OSError):
        os.utime(file_of(cache_dir, entry.header.asked, KEYS_SUFFIX))
