"""What builds on a cache have saved, how big it is about, and the size that it is kept to without being told each time:
set once in its folder, or by the environment. What builds did are the lines of ``cache_folder``, counted up.

    build <time> <reused> <ran> <ms saved> <bytes stored>
    size <time> <bytes>                                             as measured; what builds store later comes on top
    sum <time> <builds> <reused> <ran> <ms saved> <bytes stored>       all builds up to there, the first at <time>
    remote <time> <numbers, in the order of Traffic>       what went between here and remotes, in one run or in many

A line that is damaged or cut off is left out. One of remotes with fewer numbers than Traffic has is of an older
version. Whoever reads a long file replaces its lines by their sum.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import astuple, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING

from winml_dag.errors import StoreError, WinmlDagError
from winml_dag.file_reading import read_bytes
from winml_dag.store.cache_folder import FILE
from winml_dag.store.files import in_words, write_whole
from winml_dag.store.locks import Locks
from winml_dag.store.quantities import parse_size
from winml_dag.store.remote.traffic import Traffic
from winml_dag.store.store import Store

if TYPE_CHECKING:
    from winml_dag.store.collect import Collected

# About 500 builds, counted up in some 3 ms.
_LONG_BYTES = 16 * 1024
_LOCK = "statistics"
# No cache has so many bytes, and no number that is damaged may drown all others.
_TOO_LARGE = 10**18
_TRAFFIC = len(fields(Traffic))


@dataclass(frozen=True)
class Statistics:
    """What builds did on one cache.

    Attributes:
        since: when the first of them ended, in seconds since 1970; None when there was none.
        reused, ran: numbers of stages.
        seconds_saved: how long the reused ones took when they ran.
        size_bytes: what records and blobs took when that was last measured; None before the first time.
        stored_bytes: what builds have stored since then, counting what was here already.
        traffic: what went between here and remotes.
    """

    builds: int = 0
    since: int | None = None
    reused: int = 0
    ran: int = 0
    seconds_saved: float = 0.0
    size_bytes: int | None = None
    stored_bytes: int = 0
    traffic: Traffic = field(default_factory=Traffic)

    @property
    def hit_ratio(self) -> float | None:
        """Stages reused out of all, from 0 to 1; None when there were none."""
        return self.reused / (self.reused + self.ran) if self.reused + self.ran else None

    @property
    def estimated_bytes(self) -> int | None:
        """At most this is what records and blobs take now; None when it was never measured."""
        return None if self.size_bytes is None else self.size_bytes + self.stored_bytes


def read_statistics(folder: Path, locks: Locks) -> Statistics:
    """Count up what was noted in the cache at *folder*."""
    file = folder / FILE
    try:
        data = read_bytes(file)
    except OSError:
        return Statistics()
    found = _counted(data.decode("utf-8", "replace").splitlines())
    if len(data) > _LONG_BYTES:
        with suppress(OSError, StoreError):
            _compact(file, found, len(data), locks)
    return found


def _counted(lines: Iterable[str]) -> Statistics:
    builds = reused = ran = saved_ms = stored = 0
    since = size = None
    traffic = Traffic()
    for line in lines:
        kind, _, rest = line.partition(" ")
        numbers = _numbers(rest)
        if kind == "remote" and 1 < len(numbers) <= _TRAFFIC + 1:
            traffic += Traffic(*numbers[1:])
            continue
        if kind == "build" and len(numbers) == 5:
            numbers = [numbers[0], 1, *numbers[1:]]
        elif kind == "size" and len(numbers) == 2:
            size, stored = numbers[1], 0
            continue
        elif kind != "sum" or len(numbers) != 6:
            continue
        since = numbers[0] if since is None else min(since, numbers[0])
        builds += numbers[1]
        reused += numbers[2]
        ran += numbers[3]
        saved_ms += numbers[4]
        stored += numbers[5]
    return Statistics(builds, since, reused, ran, saved_ms / 1000, size, stored, traffic)


def _numbers(text: str) -> list[int]:
    """The fields of a line; none when anything else is among them."""
    try:
        found = [int(word) for word in text.split()]
    except ValueError:
        return []
    return found if all(0 <= number < _TOO_LARGE for number in found) else []


def _compact(file: Path, found: Statistics, length: int, locks: Locks) -> None:
    with locks.try_hold(_LOCK) as free:
        # Whoever has added a line since, or compacted first, finds it kept. Between this look and the replacement one
        # could still be lost: too rare, and too little, to have every build take a lock.
        if free and file.stat().st_size == length:
            write_whole(file, "".join(f"{line}\n" for line in _lines(found)).encode())


def _lines(found: Statistics) -> list[str]:
    """Lines that count up to *found*."""
    moved = astuple(found.traffic)
    remote = [f"remote 0 {' '.join(map(str, moved))}"] if any(moved) else []
    counted = f"{found.since or 0} {found.builds} {found.reused} {found.ran} {found.seconds_saved * 1000:.0f}"
    if found.size_bytes is None:
        return [*remote, f"sum {counted} {found.stored_bytes}"]
    stored = f"sum {found.since or 0} 0 0 0 0 {found.stored_bytes}"
    return [*remote, f"sum {counted} 0", f"size 0 {found.size_bytes}", stored]


VARIABLE = "WINML_DAG_CACHE_MAX_SIZE"
NONE = "none"

_LIMIT_FILE = "limit"
# Collecting goes below the limit, or the very next build would have to collect again.
_SHARE = 0.8


def configured_limit(folder: Path) -> int | None:
    """The bytes that records and blobs of the cache in *folder* may take: what the environment says, else what was set.

    Raises:
        UsageError: when that is no size.
    """
    if text := os.environ.get(VARIABLE):
        return parse_limit(text, VARIABLE)
    file = folder / _LIMIT_FILE
    try:
        return parse_limit(file.read_text(encoding="utf-8", errors="replace"), str(file))
    except FileNotFoundError:
        return None


def parse_limit(text: str, what: str) -> int | None:
    """The bytes that *text* means; None for ``none``. Raises UsageError as :func:`parse_size` does."""
    return None if text.strip().lower() == NONE else parse_size(text, what)


def set_limit(folder: Path, text: str) -> int | None:
    """Keep the cache in *folder* to the size *text* from now on, or with ``none`` to no size. Returns it in bytes.

    Raises:
        UsageError: when *text* is no size.
        StoreError: when the cache cannot be written.
    """
    limit = parse_limit(text, "the limit")
    with in_words("Cannot set the limit of the cache"):
        if limit is None:
            (folder / _LIMIT_FILE).unlink(missing_ok=True)
        else:
            write_whole(folder / _LIMIT_FILE, f"{text.strip()}\n".encode())
    return limit


def inherit_limit(folder: Path) -> None:
    """Keep the store in *folder* to the size that was set for the cache folder that it lies in."""
    with suppress(OSError):
        shutil.copyfile(folder.parent / _LIMIT_FILE, folder / _LIMIT_FILE)


def keep_to_limit(store: Store) -> Collected | None:
    """Collect if the store has outgrown its limit. None when nothing had to be removed, or somebody else is at it.

    Cheap as long as it cannot have: what was measured last and what builds have stored since then is looked up, and
    only when that exceeds the limit is the store gone through.

    Raises:
        WinmlDagError: when the limit makes no sense, or something cannot be removed.
    """
    limit = configured_limit(store.folder)
    if limit is None:
        return None
    estimate = read_statistics(store.folder, store.locks).estimated_bytes
    if estimate is not None and estimate <= limit:
        return None
    from winml_dag.store.collect import Limits, collect  # here, since it is seldom needed

    collected = collect(store, Limits(max_bytes=int(limit * _SHARE), above_bytes=limit), wait=False)
    return collected if collected is not None and collected.records + collected.blobs else None


def limit_text(folder: Path) -> str:
    """The limit as it was written down; empty without one."""
    if text := os.environ.get(VARIABLE):
        return "" if text.strip().lower() == NONE else text.strip()
    with suppress(OSError, WinmlDagError):
        return (folder / _LIMIT_FILE).read_text(encoding="utf-8", errors="replace").strip()
    return ""
