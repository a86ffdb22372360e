"""Remove what was used longest ago: records first, then the blobs that no record needs any more.

Builds go on meanwhile, and none of them loses what it holds. A run tells when it began as long as it lives (see
``scratch``); what has been used, stored or stored again since the oldest living run began stays. Using a record sets
its time, storing a blob that is here already sets that blob's. Since either can happen between our look and our hand,
nothing is unlinked under its name: it is renamed first, and put back if its time has changed.

Killed at any instant, the store is valid: a record goes before its row in the index, and blobs when both have gone for
good. Of what is between, a record without its file is whole again by its row, and a blob without a record is only bytes
that the next collection removes.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from winml_dag.errors import StoreError
from winml_dag.file_reading import change_time_ns
from winml_dag.store.cache_folder import note_size
from winml_dag.store.files import in_words, partial_beside, remove_file
from winml_dag.store.garbage import STANDING, held_by_standing, leftovers
from winml_dag.store.records import Record
from winml_dag.store.store import Store

_LOCK = "collect"
# Files of records that are removed before their rows are, all at once.
_ROWS_AT_ONCE = 200
# What was set aside, logged or planned stays this long, unless another age was asked for.
_LEFTOVER_SECONDS = 30 * 86_400.0
# A time that lies further ahead comes from a clock that was wrong.
_AHEAD_NS = 3600 * 10**9


@dataclass(frozen=True)
class Limits:
    """What may stay.

    Attributes:
        max_bytes: what records and blobs may take together.
        older_than_seconds: records that have not been used for so long go in any case.
        above_bytes: nothing is removed at all unless records and blobs take more than this.
    """

    max_bytes: int | None = None
    older_than_seconds: float | None = None
    above_bytes: int = -1


@dataclass(frozen=True)
class Collected:
    """What was removed, or would be.

    Attributes:
        freed_bytes: of records, blobs and leftovers.
        left_bytes: what records and blobs take now.
        leftovers: half-written and damaged files, logs of failures, plans of no use.
        records_in_use, blobs_in_use: what would have had to go, if no run were using it.
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
    """A record as it was found: when it was used (by its file, and at all), what its file takes, what it needs."""

    key: str
    file_used_ns: int
    used_ns: int
    size: int
    digests: frozenset[str]


@dataclass(frozen=True)
class _Bytes:
    """A blob as it was found."""

    path: Path
    size: int
    changed_ns: int
    accessed_ns: int
    in_use: bool


@dataclass(frozen=True)
class _Survey:
    """What is in the store. ``horizon_ns``: what was used since is in use, or may be."""

    now_ns: int
    horizon_ns: int
    records: tuple[_Kept, ...]
    blobs: dict[str, _Bytes]

    @property
    def size(self) -> int:
        return sum(record.size for record in self.records) + sum(blob.size for blob in self.blobs.values())


@dataclass
class _Choice:
    """What is to go: records in order, and the blobs that nothing else needs then."""

    records: list[_Kept] = field(default_factory=list)
    blobs: list[str] = field(default_factory=list)
    freed: int = 0
    records_in_use: int = 0
    blobs_in_use: int = 0


def collect(store: Store, limits: Limits, *, dry_run: bool = False, wait: bool = True) -> Collected | None:
    """Remove what *limits* leave no room for, blobs that no record needs, and what was left lying.

    One collection runs at a time; None without *wait*, when another runs already.

    Raises:
        StoreError: when something cannot be read or removed.
    """
    with ExitStack() as stack, in_words("Cannot remove what is old from the cache"):
        now_ns, root = time.time_ns(), None
        if not dry_run:
            if wait:
                stack.enter_context(store.locks.hold(_LOCK))
            elif not stack.enter_context(store.locks.try_hold(_LOCK)):
                return None
            # Like any run: `cache clear` is refused meanwhile, and what dead runs left is swept.
            root = stack.enter_context(store.scratch.open())
            now_ns = _file_time(root)
        survey = _look(store, now_ns, root)
        if survey.size <= limits.above_bytes:
            collected = Collected(left_bytes=survey.size)
        else:
            choice = _choose(survey, limits)
            collected = _foreseen(store, survey, choice, limits) if dry_run else _remove(store, survey, choice, limits)
        if not dry_run:
            note_size(store.folder, collected.left_bytes)
        return collected


def _file_time(folder: Path) -> int:
    """Now, as the file system tells it: its clock goes in steps, or is another machine's."""
    probe = folder / "now"
    probe.touch()
    return probe.stat().st_mtime_ns


def _look(store: Store, now_ns: int, own: Path | None) -> _Survey:
    # Asked before anything is looked at: who begins later uses nothing that is older than this moment.
    began_ns = store.scratch.oldest_began(own)
    # When nobody lives, a time that is far ahead is nobody's use, but of a clock that was wrong.
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
    held = held_by_standing(store.folder / STANDING)
    records = tuple(_kept(store, record, held.get(record.cache_key, 0), now_ns) for record in _records(store))
    return _Survey(now_ns, horizon_ns, records, blobs)


def _records(store: Store) -> Iterator[Record]:
    """Every record. One that is damaged counts as absent, but one that may not be read keeps us from going on: what it
    needs would seem to be needed by nobody.
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
        # It would stay for as long as the clock was wrong by: from now on it ages like all others.
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
            break  # those that follow were used later
        if record.used_ns >= survey.horizon_ns:
            choice.records_in_use += 1
            continue
        choice.records.append(record)
        choice.freed += record.size
        needs.subtract(record.digests)
        drop(record.digests)
    return choice


def _old_ns(survey: _Survey, limits: Limits) -> int:
    seconds = _LEFTOVER_SECONDS if limits.older_than_seconds is None else limits.older_than_seconds
    return survey.now_ns - int(seconds * 10**9)


def _foreseen(store: Store, survey: _Survey, choice: _Choice, limits: Limits) -> Collected:
    rest = list(leftovers(store, _old_ns(survey, limits), {record.key for record in choice.records}))
    return Collected(
        records=len(choice.records),
        blobs=len(choice.blobs),
        leftovers=len(rest),
        freed_bytes=choice.freed + sum(leftover.size for leftover in rest),
        left_bytes=survey.size - choice.freed,
        records_in_use=choice.records_in_use,
        blobs_in_use=choice.blobs_in_use,
    )


def _remove(store: Store, survey: _Survey, choice: _Choice, limits: Limits) -> Collected:
    gone = _remove_records(store, choice.records)
    # A record that was used in the meantime is back, with all that it needs.
    gone = {record.key: record for record in gone.values() if not store.records.path(record.key).exists()}
    needed = {digest for record in survey.records if record.key not in gone for digest in record.digests}
    unneeded = (survey.blobs[digest] for digest in choice.blobs if digest not in needed)
    removed = [blob for blob in unneeded if _remove_blob(blob)]
    _forget_names(store, gone)
    rest = [one for one in leftovers(store, _old_ns(survey, limits), gone) if one.remove()]
    store.locks.remove_free()
    freed = sum(record.size for record in gone.values()) + sum(blob.size for blob in removed)
    return Collected(
        records=len(gone),
        blobs=len(removed),
        leftovers=len(rest),
        freed_bytes=freed + sum(one.size for one in rest),
        left_bytes=survey.size - freed,
        records_in_use=choice.records_in_use + len(choice.records) - len(gone),
        blobs_in_use=choice.blobs_in_use + len(choice.blobs) - len(removed),
    )


def _remove_records(store: Store, records: Iterable[_Kept]) -> dict[str, _Kept]:
    gone = {}
    rest = iter(records)
    while batch := list(islice(rest, _ROWS_AT_ONCE)):
        some = {record.key: record for record in batch if _remove_record(store, record)}
        store.index.remove("record", some)
        gone.update(some)
    return gone


def _remove_record(store: Store, record: _Kept) -> bool:
    """False when the record was used since it was looked at."""
    path = store.records.path(record.key)
    if store.records.last_used_ns(record.key) > record.file_used_ns:
        return False
    aside = partial_beside(path)
    try:
        path.rename(aside)
    except FileNotFoundError:
        return True  # only the index has it
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
    """False when the blob was stored again, or read, since it was looked at."""
    aside = partial_beside(blob.path)
    try:
        status = blob.path.lstat()
        if (change_time_ns(blob.path, status), status.st_atime_ns) != (blob.changed_ns, blob.accessed_ns):
            return False
        blob.path.rename(aside)
        # The change time is that of the rename now; whoever stores a blob again sets the access time with it.
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


def _forget_names(store: Store, keys: Collection[str]) -> None:
    """Forget what was built last under a name where that has gone."""
    latest = store.index.read("latest", store.index.names("latest"))
    if dead := [name for name, key in latest.items() if key in keys]:
        store.index.remove("latest", dead)
