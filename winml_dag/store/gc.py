"""Remove what was least recently used: records first, then the blobs that no record needs any more, and leftovers.

Builds may run meanwhile, and none of them loses what it uses. A live run reports when it started (see ``scratch``);
everything that has been used, stored or stored again since the oldest live run started is kept. Using a record updates
its time, storing an existing blob updates the blob's. Since either can happen between check and removal, no file is
unlinked under its name: it is renamed first, and renamed back if its time has changed.

Killed at any instant, the store is valid: a record is removed before its row in the index, and blobs after both are
gone. In between, a record without its file is restored from its row, and a blob without a record is unused bytes that
the next collection removes.

A build that found everything up to date touches one file of its plan, not every record: ``standing/*.keys``, text with
one key per line, next to the plan itself under the same name with another suffix. The newer modification time of the
two is when the plan, and with it each of those records, was last used.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from winml_dag.errors import StoreError
from winml_dag.file_reading import change_time_ns, read_text
from winml_dag.store.cache_folder import KEYS_SUFFIX, PLAN_CACHE, log_size
from winml_dag.store.files import PARTIAL, bytes_below, files_below, in_words, partial_beside, remove_file, remove_tree
from winml_dag.store.records import Record
from winml_dag.store.store import Store

_LOCK = "collect"
# Files of records to remove before their rows are removed in one batch.
_ROWS_AT_ONCE = 200
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
class _Kept:
    """A record as found: when its file, and when it was last used, the size of its file, the digests that it needs."""

    key: str
    file_used_ns: int
    used_ns: int
    size: int
    digests: frozenset[str]


@dataclass(frozen=True)
class _Bytes:
    """A blob as found."""

    path: Path
    size: int
    changed_ns: int
    accessed_ns: int
    in_use: bool


@dataclass(frozen=True)
class _Survey:
    """The content of the store. ``horizon_ns``: everything used since then may be in use."""

    now_ns: int
    horizon_ns: int
    records: tuple[_Kept, ...]
    blobs: dict[str, _Bytes]

    @property
    def size(self) -> int:
        return sum(record.size for record in self.records) + sum(blob.size for blob in self.blobs.values())


@dataclass
class _Choice:
    """What to remove: records in order, and the blobs that are then unneeded."""

    records: list[_Kept] = field(default_factory=list)
    blobs: list[str] = field(default_factory=list)
    freed: int = 0
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
        survey = _look(store, now_ns, root)
        if survey.size <= limits.above_bytes:
            collected = Collected(left_bytes=survey.size)
        else:
            seconds = _LEFTOVER_SECONDS if limits.older_than_seconds is None else limits.older_than_seconds
            choice, old_ns = _choose(survey, limits), now_ns - int(seconds * 10**9)
            collected = _remove(store, survey, choice, old_ns, dry_run=dry_run)
        if not dry_run:
            log_size(store.folder, collected.left_bytes)
        return collected


def _file_time(folder: Path) -> int:
    """The current time of the file system: its clock has coarse steps, or is that of another machine."""
    probe = folder / "now"
    probe.touch()
    return probe.stat().st_mtime_ns


def _look(store: Store, now_ns: int, own: Path | None) -> _Survey:
    # Determine this before checking any file: a run that starts later uses nothing older than this moment.
    began_ns = store.scratch.oldest_began(own)
    # Without live runs, a time far ahead does not mean use, but a wrong clock.
    end_ns = now_ns + _AHEAD_NS if began_ns is None else None
    horizon_ns = now_ns if began_ns is None else min(now_ns, began_ns)
    blobs = {}
    for blob in store.blobs.all():
        with suppress(FileNotFoundError):
            if blob.digest:
                status = blob.path.lstat()
                changed_ns = change_time_ns(blob.path, status)
                touched_ns = max(changed_ns, status.st_atime_ns)
                in_use = touched_ns >= horizon_ns and (end_ns is None or touched_ns < end_ns)
                blobs[blob.digest] = _Bytes(blob.path, status.st_size, changed_ns, status.st_atime_ns, in_use)
    held = held_by_plans(store)
    records = tuple(_kept(store, record, held.get(record.cache_key, 0), now_ns) for record in _records(store))
    return _Survey(now_ns, horizon_ns, records, blobs)


def _records(store: Store) -> Iterator[Record]:
    """Every record.

    A damaged one counts as absent, but an unreadable one raises an error: otherwise the blobs that it needs would seem
    unneeded.
    """
    found = {record.cache_key: record for record in store.records.all()}
    for key in store.records.keys():  # noqa: SIM118  # not a mapping
        if key not in found:
            with suppress(FileNotFoundError, StoreError):
                found[key] = store.records.read_file(key)
    yield from found.values()


def _kept(store: Store, record: Record, held_ns: int, now_ns: int) -> _Kept:
    key = record.cache_key
    path = store.records.path(key)
    used_ns = store.records.last_used_ns(key)
    if used_ns > now_ns + _AHEAD_NS:
        # It would be kept for as long as the clock was wrong. Reset it, so that it ages like all others.
        with suppress(OSError):
            os.utime(path, ns=(now_ns, now_ns))
        used_ns = store.records.last_used_ns(key)
    size = 0
    with suppress(FileNotFoundError):
        size = path.stat().st_size
    log = () if record.log is None else (record.log,)
    digests = frozenset(file.digest for file in (*record.files(), *log))
    return _Kept(key, used_ns, max(used_ns, min(held_ns, now_ns)), size, digests)


def _choose(survey: _Survey, limits: Limits) -> _Choice:
    choice = _Choice()
    needs = Counter(digest for record in survey.records for digest in record.digests)
    old_ns = survey.now_ns - int((limits.older_than_seconds or 0) * 10**9)
    size = survey.size

    def drop(digests: Iterable[str]) -> None:
        for digest in digests:
            blob = survey.blobs.get(digest)
            if blob is None or needs[digest]:
                continue
            if blob.in_use:
                choice.blobs_in_use += 1
            else:
                choice.blobs.append(digest)
                choice.freed += blob.size

    drop(digest for digest in survey.blobs if not needs[digest])
    for record in sorted(survey.records, key=lambda record: (record.used_ns, record.key)):
        is_old = limits.older_than_seconds is not None and record.used_ns < old_ns
        is_too_much = limits.max_bytes is not None and size - choice.freed > limits.max_bytes
        if not (is_old or is_too_much):
            break  # the following ones were used later
        if record.used_ns >= survey.horizon_ns:
            choice.records_in_use += 1
            continue
        choice.records.append(record)
        choice.freed += record.size
        needs.subtract(record.digests)
        drop(record.digests)
    return choice


def _remove(store: Store, survey: _Survey, choice: _Choice, old_ns: int, *, dry_run: bool) -> Collected:
    """Remove *choice*, and leftovers from before *old_ns*."""
    gone = {record.key: record for record in (choice.records if dry_run else _removed_records(store, choice.records))}
    needed = {digest for record in survey.records if record.key not in gone for digest in record.digests}
    unneeded = (survey.blobs[digest] for digest in choice.blobs if digest not in needed)
    removed = [blob for blob in unneeded if dry_run or _remove_blob(blob)]
    rest = [size for path, size in _leftovers(store, old_ns, gone) if dry_run or _remove_leftover(path)]
    if not dry_run:
        latest = store.index.read("latest", store.index.names("latest"))
        if dead := [name for name, key in latest.items() if key in gone]:
            store.index.remove("latest", dead)
        store.locks.remove_free()
    freed = sum(record.size for record in gone.values()) + sum(blob.size for blob in removed)
    return Collected(
        records=len(gone),
        blobs=len(removed),
        leftovers=len(rest),
        freed_bytes=freed + sum(rest),
        left_bytes=survey.size - freed,
        records_in_use=choice.records_in_use + len(choice.records) - len(gone),
        blobs_in_use=choice.blobs_in_use + len(choice.blobs) - len(removed),
    )


def _removed_records(store: Store, records: Iterable[_Kept]) -> list[_Kept]:
    gone = []
    rest = iter(records)
    while batch := list(islice(rest, _ROWS_AT_ONCE)):
        some = [record for record in batch if _remove_record(store, record)]
        store.index.remove("record", [record.key for record in some])
        gone += some
    # A record that was used meanwhile is back, and needs its blobs.
    return [record for record in gone if not store.records.path(record.key).exists()]


def _remove_record(store: Store, record: _Kept) -> bool:
    """False if the record was used since it was checked."""
    path = store.records.path(record.key)
    if store.records.last_used_ns(record.key) > record.file_used_ns:
        return False
    aside = partial_beside(path)
    try:
        path.rename(aside)
    except FileNotFoundError:
        return True  # only in the index
    except PermissionError:
        if os.name != "nt":
            raise
        return False  # another program has it open
    if aside.stat().st_mtime_ns > record.file_used_ns:
        aside.replace(path)
        return False
    aside.unlink()
    return True


def _remove_blob(blob: _Bytes) -> bool:
    """False if the blob was stored again, or read, since it was checked."""
    aside = partial_beside(blob.path)
    try:
        status = blob.path.lstat()
        if (change_time_ns(blob.path, status), status.st_atime_ns) != (blob.changed_ns, blob.accessed_ns):
            return False
        blob.path.rename(aside)
        # The rename has set the change time; storing a blob again also sets the access time.
        if aside.lstat().st_atime_ns != blob.accessed_ns:
            aside.replace(blob.path)
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
