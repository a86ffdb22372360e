"""Remove what was least recently used: records first, then the blobs that no record needs any more, and leftovers.

Builds may run meanwhile, and none of them loses what it uses. A live run reports when it started (see ``scratch``);
everything that has been used, stored or stored again since the oldest live run started is kept. Using a record updates
its time, storing an existing blob updates the blob's. Since either can happen between check and removal, no file is
unlinked under its name: it is renamed first, and renamed back if its time has changed.

Killed at any instant, the store is valid: blobs are removed after the records that need them, and a blob without a
record is unused bytes that the next collection removes. A run that finds the file of a record gone when it marks it as
used writes it again.

A build that found everything up to date touches one file of its plan, not every record: ``standing/*.keys``, text with
one key per line, next to the plan itself under the same name with another suffix. The newer modification time of the
two is when the plan, and with it each of those records, was last used.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

from winml_dag.errors import StoreError
from winml_dag.file_reading import change_time_ns, read_text
from winml_dag.store.cache_folder import KEYS_SUFFIX, PLAN_CACHE
from winml_dag.store.files import PARTIAL, bytes_below, files_below, in_words, partial_in, remove_file, remove_tree
from winml_dag.store.store import Store
from winml_dag.store.usage import log_size

_LOCK = "collect"
# How long quarantined files, logs and plans are kept by default.
_LEFTOVER_SECONDS = 30 * 86_400.0
# A time that is further ahead comes from a clock that was wrong.
_AHEAD_NS = 3600 * 10**9
# A partial file that is unchanged for this long is abandoned: a copy in progress touches its file all the time.
_ABANDONED_SECONDS = 3600.0
# The part of a blob received from a remote is kept this long, so that another attempt can resume.
_RESUMED_SECONDS = 86_400.0
# Enough for the keys of a build of 100 000 stages; a longer file is not a valid one.
_MOST_BYTES = 10_000_000


@dataclass(frozen=True)
class Limits:
    """What may be kept.

    Attributes:
        max_bytes: total size of records and blobs.
        older_than_seconds: records that have not been used for this long are removed in any case.
        above_bytes: nothing is removed unless records and blobs exceed this size.
    """

    max_bytes: int | None = None
    older_than_seconds: float | None = None
    above_bytes: int = -1


@dataclass(frozen=True)
class Collected:
    """What was removed, or would be in a dry run.

    Attributes:
        freed_bytes: of records, blobs and leftovers.
        left_bytes: size of the remaining records and blobs.
        leftovers: partial and damaged files, logs of failures, useless plans.
        records_in_use, blobs_in_use: would have been removed if no run were using them.
    """

    records: int = 0
    blobs: int = 0
    leftovers: int = 0
    freed_bytes: int = 0
    left_bytes: int = 0
    records_in_use: int = 0
    blobs_in_use: int = 0


@dataclass(frozen=True)
class _Found:
    """The file of a record or of a blob.

    ``time_ns`` is the file time that a use changes. Of a record, ``used_ns`` is when it was last used, and ``needs``
    has the digests of its blobs.
    """

    path: Path
    size: int
    time_ns: int
    is_in_use: bool
    used_ns: int = 0
    needs: frozenset[str] = frozenset()


@dataclass
class _Choice:
    """What to remove: records by key, and by digest the blobs that are then unneeded. What is in use is counted."""

    records: dict[str, _Found] = field(default_factory=dict)
    blobs: dict[str, _Found] = field(default_factory=dict)
    records_in_use: int = 0
    blobs_in_use: int = 0


def collect(store: Store, limits: Limits, *, dry_run: bool = False, wait: bool = True) -> Collected | None:
    """Remove what exceeds *limits*, blobs that no record needs, and leftovers.

    Only one collection runs at a time. Without *wait*, returns None if another one is running.

    Raises:
        StoreError: when a file cannot be read or removed.
    """
    with ExitStack() as stack, in_words("Cannot remove what is old from the cache"):
        now_ns, root = time.time_ns(), None
        if not dry_run:
            if wait:
                stack.enter_context(store.locks.hold(_LOCK))
            elif not stack.enter_context(store.locks.try_hold(_LOCK)):
                return None
            # Behave like any run: `cache clear` is rejected meanwhile, and scratch folders of dead runs are removed.
            root = stack.enter_context(store.scratch.open())
            now_ns = _file_time(root)
        records, blobs = _look(store, now_ns, root)
        if (size := _size_of(records) + _size_of(blobs)) <= limits.above_bytes:
            collected = Collected(left_bytes=size)
        else:
            seconds = _LEFTOVER_SECONDS if limits.older_than_seconds is None else limits.older_than_seconds
            choice, old_ns = _choose(records, blobs, limits, now_ns), now_ns - int(seconds * 10**9)
            collected = _remove(store, records, choice, size, old_ns, dry_run=dry_run)
        if not dry_run:
            log_size(store.folder, collected.left_bytes)
        return collected


def _file_time(folder: Path) -> int:
    """The current time of the file system: its clock has coarse steps, or is that of another machine."""
    probe = folder / "now"
    probe.touch()
    return probe.stat().st_mtime_ns


def _size_of(files: Mapping[str, _Found]) -> int:
    return sum(file.size for file in files.values())


def _look(store: Store, now_ns: int, own: Path | None) -> tuple[dict[str, _Found], dict[str, _Found]]:
    """All records by key, those last used first, and all blobs by digest."""
    # Determine this before checking any file: a run that starts later uses nothing older than this moment.
    began_ns = store.scratch.oldest_began(own)
    # Everything that was used since then may be in use.
    horizon_ns = now_ns if began_ns is None else min(now_ns, began_ns)
    # Without live runs, a time far ahead does not mean use, but a wrong clock.
    end_ns = now_ns + _AHEAD_NS if began_ns is None else inf
    blobs = {}
    for blob in store.blobs.all():
        with suppress(FileNotFoundError):
            if blob.digest:
                touched_ns = max(change_time_ns(blob.path, blob.status), blob.status.st_atime_ns)
                is_in_use = horizon_ns <= touched_ns < end_ns
                blobs[blob.digest] = _Found(blob.path, blob.status.st_size, _blob_time(blob.status), is_in_use)
    held, records = held_by_plans(store), {}
    for key in store.records.keys():  # noqa: SIM118  # not a mapping
        # A damaged record counts as absent, but an unreadable one raises an error: otherwise the blobs that it needs
        # would seem unneeded.
        with suppress(FileNotFoundError, StoreError):
            record, path = store.records.read_file(key), store.records.path(key)
            if path.stat().st_mtime_ns > now_ns + _AHEAD_NS:
                # It would be kept for as long as the clock was wrong. Reset it, so that it ages like all others.
                with suppress(PermissionError):
                    os.utime(path, ns=(now_ns, now_ns))
            status = path.stat()
            used_ns = max(status.st_mtime_ns, min(held.get(key, 0), now_ns))
            needs = frozenset(file.digest for file in (*record.files(), *filter(None, [record.log])))
            is_in_use = used_ns >= horizon_ns
            records[key] = _Found(path, status.st_size, _record_time(status), is_in_use, used_ns, needs)
    return dict(sorted(records.items(), key=lambda item: (item[1].used_ns, item[0]))), blobs


def _record_time(status: os.stat_result) -> int:
    return status.st_mtime_ns


def _blob_time(status: os.stat_result) -> int:
    # Its modification time is the stamp. Storing it again sets the access time.
    return status.st_atime_ns


def _choose(records: Mapping[str, _Found], blobs: Mapping[str, _Found], limits: Limits, now_ns: int) -> _Choice:
    choice = _Choice()
    needs = Counter(digest for record in records.values() for digest in record.needs)
    old_ns = now_ns - int((limits.older_than_seconds or 0) * 10**9)
    size = _size_of(records) + _size_of(blobs)

    def drop(digests: Iterable[str]) -> None:
        nonlocal size
        for digest in digests:
            if digest in blobs and not needs[digest]:
                if blobs[digest].is_in_use:
                    choice.blobs_in_use += 1
                else:
                    choice.blobs[digest] = blobs[digest]
                    size -= blobs[digest].size

    drop(blobs)
    for key, record in records.items():
        is_old = limits.older_than_seconds is not None and record.used_ns < old_ns
        is_too_much = limits.max_bytes is not None and size > limits.max_bytes
        if not (is_old or is_too_much):
            break  # the following ones were used later
        if record.is_in_use:
            choice.records_in_use += 1
            continue
        choice.records[key] = record
        size -= record.size
        needs.subtract(record.needs)
        drop(record.needs)
    return choice


def _remove(
    store: Store, records: Mapping[str, _Found], choice: _Choice, size: int, old_ns: int, *, dry_run: bool
) -> Collected:
    """Remove *choice* of *size* bytes, and leftovers from before *old_ns*."""
    gone = {
        key: record for key, record in choice.records.items() if dry_run or _remove_unless_used(record, _record_time)
    }
    # A record that was used meanwhile is back, and needs its blobs.
    gone = {key: record for key, record in gone.items() if dry_run or not record.path.exists()}
    needed = {digest for key, record in records.items() if key not in gone for digest in record.needs}
    blobs = {
        digest: blob
        for digest, blob in choice.blobs.items()
        if digest not in needed and (dry_run or _remove_unless_used(blob, _blob_time))
    }
    rest = [size for path, size in _leftovers(store, old_ns, gone) if dry_run or _remove_leftover(path)]
    if not dry_run:
        store.records.forget(gone)
        store.locks.remove_free()
    freed = _size_of(gone) + _size_of(blobs)
    return Collected(
        records=len(gone),
        blobs=len(blobs),
        leftovers=len(rest),
        freed_bytes=freed + sum(rest),
        left_bytes=size - freed,
        records_in_use=choice.records_in_use + len(choice.records) - len(gone),
        blobs_in_use=choice.blobs_in_use + len(choice.blobs) - len(blobs),
    )


def _remove_unless_used(file: _Found, time_of: Callable[[os.stat_result], int]) -> bool:
    """False if *file* was used or stored again since it was looked at."""
    aside = Path(partial_in(file.path.parent))
    try:
        if time_of(file.path.lstat()) != file.time_ns:
            return False
        file.path.rename(aside)
        if time_of(aside.lstat()) != file.time_ns:
            aside.replace(file.path)
            return False
        remove_file(aside)
    except FileNotFoundError:
        return False
    except PermissionError:
        if os.name != "nt":
            raise
        return False  # another program has it open
    return True


def _plans(store: Store) -> Iterator[tuple[frozenset[str], list[Path], int]]:
    """For each plan the keys of its records, all files of its name, and when it was used, in ns."""
    folder = store.folder / PLAN_CACHE
    for path in sorted(folder.glob(f"*{KEYS_SUFFIX}")):
        with suppress(OSError, UnicodeDecodeError):
            keys = frozenset(read_text(path, _MOST_BYTES, encoding="ascii").split())
            files = sorted(folder.glob(f"{path.stem}.*"))
            yield keys, files, max(file.stat().st_mtime_ns for file in files)


def held_by_plans(store: Store) -> Mapping[str, int]:
    """When a plan last used each key, in ns."""
    held: dict[str, int] = {}
    for keys, _, used_ns in _plans(store):
        for key in keys:
            held[key] = max(held.get(key, 0), used_ns)
    return held


def _leftovers(store: Store, older_than_ns: int, lost_keys: Collection[str]) -> Iterator[tuple[Path, int]]:
    """Path and size of what was quarantined, logged or planned before *older_than_ns*, and plans with *lost_keys*."""
    yield from _abandoned(store)
    for folder in (store.quarantine, store.failures):
        yield from ((path, _size(path)) for path in sorted(folder.glob("*")) if _changed_ns(path) < older_than_ns)
    for keys, files, used_ns in _plans(store):
        if used_ns < older_than_ns or not keys.isdisjoint(lost_keys):
            yield from ((path, _size(path)) for path in files)


def remove_abandoned(store: Store) -> None:
    """Remove files that dead writers of blobs and records left incomplete, and downloads that were not resumed."""
    for path, _ in _abandoned(store):
        _remove_leftover(path)


def _abandoned(store: Store) -> Iterator[tuple[Path, int]]:
    for folder, seconds in (
        (store.blobs.folder, _ABANDONED_SECONDS),
        (store.records.folder, _ABANDONED_SECONDS),
        (store.incoming, _RESUMED_SECONDS),
    ):
        older_than = time.time() - seconds
        for entry in files_below(folder):
            with suppress(FileNotFoundError):
                status = entry.stat(follow_symlinks=False)
                # Both times: a complete copy already has the stamp of blobs, which is long ago.
                if entry.name.endswith(PARTIAL) and max(status.st_mtime, status.st_ctime) < older_than:
                    yield Path(entry.path), status.st_size


def _remove_leftover(path: Path) -> bool:
    """False if it cannot be removed, for example because another program has it open."""
    try:
        if path.is_dir() and not path.is_symlink():
            remove_tree(path)
        else:
            remove_file(path)
    except OSError:
        return False
    return True


def _size(path: Path) -> int:
    with suppress(OSError):
        return bytes_below(path) if path.is_dir() and not path.is_symlink() else path.lstat().st_size
    return 0


def _changed_ns(path: Path) -> int:
    """When *path* was last written to or moved, whichever was later: a blob in quarantine keeps its stamp."""
    try:
        status = path.lstat()
        return max(status.st_mtime_ns, change_time_ns(path, status))
    except OSError:
        return time.time_ns()
