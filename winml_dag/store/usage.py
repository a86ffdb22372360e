"""The log of what builds on a cache have reused, saved and stored; its sums, its size, and the limit of that.

The lines:

    build <time> <reused> <ran> <ms saved> <bytes stored>
    size <time> <bytes>                                             as measured; bytes stored later are added to it
    sum <time> <builds> <reused> <ran> <ms saved> <bytes stored>       all builds up to there, the first at <time>
    remote <time> <numbers, in the order of Traffic>       traffic with remotes, of one run or of many

Damaged or truncated lines are skipped. Reading a long file replaces its lines with their sum.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import astuple, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING

from winml_dag.errors import StoreError
from winml_dag.file_reading import read_bytes
from winml_dag.store.cache_folder import LIMIT_FILE, LIMIT_VARIABLE, LOG, NO_LIMIT, limit_text, log_line
from winml_dag.store.files import in_words, write_whole

if TYPE_CHECKING:
    from winml_dag.store.gc import Collected
    from winml_dag.store.locks import Locks
    from winml_dag.store.store import Store


def log_size(cache: str | os.PathLike[str], size: int) -> None:
    """Log the current size of the cache's records and blobs, in bytes."""
    log_line(cache, f"size {time.time():.0f} {size}")


@dataclass(frozen=True)
class Traffic:
    """What one run, or the sum of many, transferred. Printed at the end of a build and by ``cache info``.

    Attributes:
        requests: attempts of any kind, retries included.
        records_found, records_missed: answers to requests for records.
        records_put: uploaded records.
        blobs_fetched: blobs that arrived complete and intact.
        bytes_fetched: received bytes of blobs, discarded ones included.
        blobs_put: uploaded blobs.
        bytes_put: sent bytes of blobs, repeated ones included.
        refused: records and blobs that failed verification.
        left_alone: how often a remote was given up for the rest of a run.
        record_bytes: bytes of records, received and sent.
    """

    requests: int = 0
    records_found: int = 0
    records_missed: int = 0
    records_put: int = 0
    blobs_fetched: int = 0
    bytes_fetched: int = 0
    blobs_put: int = 0
    bytes_put: int = 0
    refused: int = 0
    left_alone: int = 0
    record_bytes: int = 0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(*(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__))


def log_traffic(cache: str | os.PathLike[str], traffic: Traffic) -> None:
    """Log the traffic between this machine and its remotes, if any."""
    numbers = astuple(traffic)
    if any(numbers):
        log_line(cache, f"remote {time.time():.0f} {' '.join(map(str, numbers))}")


# About 500 builds, which take some 3 ms to sum up.
_LONG_BYTES = 16 * 1024
_LOCK = "statistics"
# Larger than any cache. Limits the effect of a damaged number.
_TOO_LARGE = 10**18
_TRAFFIC = len(fields(Traffic))


@dataclass(frozen=True)
class Statistics:
    """What builds did on one cache.

    Attributes:
        since: when the first of them ended, in seconds since 1970; None if there was none.
        reused, ran: numbers of stages.
        seconds_saved: how long the reused stages took when they ran.
        size_bytes: size of records and blobs when last measured; None before the first time.
        stored_bytes: what builds have stored since then, including bytes that existed already.
        traffic: traffic between this machine and remotes.
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
        """Fraction of stages that were reused, from 0 to 1; None if there were none."""
        return self.reused / (self.reused + self.ran) if self.reused + self.ran else None

    @property
    def estimated_bytes(self) -> int | None:
        """Upper bound of the current size of records and blobs; None if it was never measured."""
        return None if self.size_bytes is None else self.size_bytes + self.stored_bytes


def read_statistics(folder: Path, locks: Locks) -> Statistics:
    file = folder / LOG
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
        if kind == "remote" and len(numbers) == _TRAFFIC + 1:
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
    """The fields of a line; empty if any of them is invalid."""
    try:
        found = [int(word) for word in text.split()]
    except ValueError:
        return []
    return found if all(0 <= number < _TOO_LARGE for number in found) else []


def _compact(file: Path, found: Statistics, length: int, locks: Locks) -> None:
    with locks.try_hold(_LOCK) as free:
        # A line added meanwhile, or another compaction, changes the length, and the file is kept. A line added between
        # this check and the replacement would be lost: too rare, and too little, to make every build take a lock.
        if free and file.stat().st_size == length:
            write_whole(file, "".join(f"{line}\n" for line in _lines(found)).encode())


def _lines(found: Statistics) -> list[str]:
    """Lines whose sum is *found*."""
    moved = astuple(found.traffic)
    remote = [f"remote 0 {' '.join(map(str, moved))}"] if any(moved) else []
    counted = f"{found.since or 0} {found.builds} {found.reused} {found.ran} {found.seconds_saved * 1000:.0f}"
    if found.size_bytes is None:
        return [*remote, f"sum {counted} {found.stored_bytes}"]
    stored = f"sum {found.since or 0} 0 0 0 0 {found.stored_bytes}"
    return [*remote, f"sum {counted} 0", f"size 0 {found.size_bytes}", stored]


# Collecting goes below the limit; otherwise the very next build would have to collect again.
_SHARE = 0.8


def configured_limit(folder: Path) -> int | None:
    """The same in bytes of records and blobs; None without one.

    Raises:
        UsageError: when it is not a size.
    """
    text = limit_text(folder)
    where = LIMIT_VARIABLE if os.environ.get(LIMIT_VARIABLE) else str(folder / LIMIT_FILE)
    return parse_limit(text, where) if text else None


def parse_limit(text: str, what: str) -> int | None:
    """The size in bytes of *text*; None for ``none``. Raises UsageError as :func:`parse_size` does."""
    from winml_dag.store.quantities import parse_size

    return None if text.strip().lower() == NO_LIMIT else parse_size(text, what)


def set_limit(folder: Path, text: str) -> int | None:
    """Set the limit of the cache in *folder* to the size *text*, or remove it with ``none``. Returns it in bytes.

    Raises:
        UsageError: when *text* is not a size.
        StoreError: when the cache cannot be written.
    """
    limit = parse_limit(text, "the limit")
    with in_words("Cannot set the limit of the cache"):
        if limit is None:
            (folder / LIMIT_FILE).unlink(missing_ok=True)
        else:
            write_whole(folder / LIMIT_FILE, f"{text.strip()}\n".encode())
    return limit


def inherit_limit(folder: Path) -> None:
    """Give the store in *folder* the limit of the cache folder that contains it."""
    with suppress(OSError):
        shutil.copyfile(folder.parent / LIMIT_FILE, folder / LIMIT_FILE)


def keep_to_limit(store: Store) -> Collected | None:
    """Collect if the store exceeds its limit. None if nothing was removed, or another process is collecting.

    Cheap in the usual case: first compares the last measured size plus what builds have stored since then with the
    limit, and scans the store only if that exceeds it.

    Raises:
        WinmlDagError: when the limit is invalid, or a file cannot be removed.
    """
    limit = configured_limit(store.folder)
    if limit is None:
        return None
    estimate = read_statistics(store.folder, store.locks).estimated_bytes
    if estimate is not None and estimate <= limit:
        return None
    from winml_dag.store.gc import Limits, collect  # here, since it is seldom needed

    collected = collect(store, Limits(max_bytes=int(limit * _SHARE), above_bytes=limit), wait=False)
    return collected if collected is not None and collected.records + collected.blobs else None
