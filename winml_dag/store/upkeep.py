"""Looking after a store: what it holds as a whole and record by record, whether all of it is sound, mending it, and
starting over.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from winml_dag.errors import Interrupted, StoreError, UsageError
from winml_dag.store.artifact import FileEntry
from winml_dag.store.blobs import STAMP_NS, Blob
from winml_dag.store.cache_folder import note_size
from winml_dag.store.digest import digest_bytes, split_digest
from winml_dag.store.files import PARTIAL, bytes_below, in_words, remove_tree
from winml_dag.store.garbage import STANDING, abandoned, held_by_standing
from winml_dag.store.records import Record
from winml_dag.store.store import Store


@dataclass(frozen=True)
class StoreInfo:
    """What a store holds. ``unique_bytes`` is what its blobs take, ``apparent_bytes`` what the outputs of all records
    would take if nothing were shared."""

    records: int
    blobs: int
    unique_bytes: int
    apparent_bytes: int
    index_bytes: int
    scratch_bytes: int
    quarantine_bytes: int


@dataclass(frozen=True)
class VerifyReport:
    """What a check of everything found.

    Attributes:
        records: number of sound records.
        blobs: number of sound blobs.
        damaged: digests of blobs whose bytes were wrong; they are in quarantine, unless that cannot be made.
        unreadable: keys of records that were damaged; they are in quarantine.
        incomplete: keys of sound records whose blobs are nowhere to be had. Not damage: they count as not built.
        foreign: names of files that a store does not have; left alone.
        restamped: digests of sound blobs whose times were not kept; they are as they should be again.
        rows: keys of records whose row in the index was wrong, missing or about nothing. Only :func:`repair` looks.
        removed: keys of incomplete records that were taken out. Only :func:`repair` does that.
        only_behind: number of blobs that are not here, and need not be: a remote has them, or had them when their
            record came from there.
    """

    records: int
    blobs: int
    damaged: tuple[str, ...]
    unreadable: tuple[str, ...]
    incomplete: tuple[str, ...]
    foreign: tuple[str, ...]
    restamped: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    only_behind: int = 0

    @property
    def clean(self) -> bool:
        return not (self.damaged or self.unreadable or self.incomplete or self.foreign)

    @property
    def repaired(self) -> bool:
        """Whether nothing of what was found is wrong any more; files of somebody else's are not ours to call wrong."""
        return set(self.incomplete) <= set(self.removed)


@dataclass(frozen=True)
class Cleared:
    """What was removed. ``freed_bytes`` leaves out the index, which keeps its file."""

    records: int
    blobs: int
    freed_bytes: int


def info(store: Store) -> StoreInfo:
    """Count and measure what *store* holds; records that cannot be read are left out."""
    with in_words("Cannot look through the cache"):
        blobs = [status for blob in store.blobs.all() if blob.digest and (status := _status(blob.path)) is not None]
        records = store.records.all()
        return StoreInfo(
            records=len(records),
            blobs=len(blobs),
            unique_bytes=sum(status.st_size for status in blobs),
            apparent_bytes=sum(file.size for record in records for file in record.files()),
            index_bytes=bytes_below(store.folder / "index"),
            scratch_bytes=bytes_below(store.scratch.folder),
            quarantine_bytes=bytes_below(store.quarantine),
        )


def verify(store: Store) -> VerifyReport:
    """Read every blob and every record; what is damaged goes to quarantine, so that the next build makes it anew.

    Builds may go on meanwhile: what they add while we read is checked or not, and sound either way.
    """
    with in_words("Cannot check the cache"):
        for leftover in abandoned(store):
            leftover.remove()
        sound, damaged, foreign, restamped = 0, [], [], []
        for blob in store.blobs.all():
            if not blob.digest:
                if blob.path.suffix != PARTIAL:
                    foreign.append(blob.path.relative_to(store.folder).as_posix())
                continue
            had_stamp = _has_stamp(blob)
            if store.blobs.is_intact(blob.digest):
                sound += 1
                if not had_stamp and _has_stamp(blob):
                    restamped.append(blob.digest)
            else:
                damaged.append(blob.digest)
        foreign += [path.relative_to(store.folder).as_posix() for path in store.records.foreign()]
        readable, unreadable, lacking = 0, [], []
        for key in store.records.keys():  # noqa: SIM118  # not a mapping
            record = _checked_record(store, key)
            if record is None:
                unreadable.append(key)
                continue
            readable += 1
            if gone := store.blobs.missing(record.files()):
                lacking.append((record, gone))
        incomplete, only_behind = _lacking(store, lacking)
    return VerifyReport(
        records=readable,
        blobs=sound,
        damaged=tuple(damaged),
        unreadable=tuple(unreadable),
        incomplete=tuple(incomplete),
        foreign=tuple(foreign),
        restamped=tuple(restamped),
        only_behind=only_behind,
    )


def _lacking(store: Store, lacking: Sequence[tuple[Record, Sequence[FileEntry]]]) -> tuple[list[str], int]:
    """The keys of those records that lack a blob for good, and how many blobs the others have elsewhere.

    A record that came from a remote is never one of the first: its blobs come when they are needed, and a remote that
    is not asked now, or does not answer, says nothing of them. It is removed when it was not used for long, as any.
    """
    gone = [file for record, files in lacking if not record.origin for file in files]
    nowhere = {file.digest for file in store.missing(gone)}
    incomplete = [
        record.cache_key
        for record, files in lacking
        if not record.origin and any(file.digest in nowhere for file in files)
    ]
    return incomplete, len({file.digest for _, files in lacking for file in files} - nowhere)


def repair(store: Store) -> VerifyReport:
    """As :func:`verify`, and then remove records that lack a blob, and make the index again what the records say."""
    report = verify(store)
    with in_words("Cannot repair the cache"):
        removed = tuple(key for key in report.incomplete if _removed_if_incomplete(store, key))
        store.index.remove_damaged()
        rows = tuple(store.records.reindex())
    return replace(report, records=report.records - len(removed), removed=removed, rows=rows)


def _removed_if_incomplete(store: Store, key: str) -> bool:
    try:
        # Whoever holds the key is about to make its record whole.
        with store.claim(key, gives_up=lambda: True):
            record = store.records.read(key)
            if record is not None and not store.missing(record.files()):
                return False
            store.records.remove(key)
            return True
    except Interrupted:
        return False


def clear(store: Store) -> Cleared:
    """Remove every record, blob and fingerprint, and all that is in scratch, quarantine and logs of failures, or came
    in part.

    Raises:
        StoreError: when anybody is using the store.
    """
    with store.locks.hold_unused(), in_words("Cannot clear the cache"):
        held = info(store)
        freed = bytes_below(store.records.folder) + held.unique_bytes + held.scratch_bytes + held.quarantine_bytes
        freed += bytes_below(store.incoming)
        # Records first: stopped half-way, the store has blobs that nobody needs, never a record that lacks its blobs.
        remove_tree(store.records.folder)
        store.index.clear()
        for folder in (store.blobs.folder, store.incoming, store.scratch.folder, store.quarantine, store.failures):
            remove_tree(folder)
        note_size(store.folder, 0)
        return Cleared(held.records, held.blobs, freed)


def _checked_record(store: Store, key: str) -> Record | None:
    """The record of *key*; when its file is damaged, that goes to quarantine and its row from the index with it."""
    try:
        return store.records.read_file(key)
    except FileNotFoundError:
        # The index alone has it: somebody deleted the file. Written again, so that both tell the same.
        record = store.records.read(key)
        if record is None:
            store.records.remove(key)
        else:
            store.records.write(record)
        return record
    except (OSError, StoreError):
        store.blobs.quarantine(store.records.path(key))
        store.records.remove(key)
        return None


def _has_stamp(blob: Blob) -> bool:
    try:
        return blob.path.lstat().st_mtime_ns == STAMP_NS
    except FileNotFoundError:
        return False


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except FileNotFoundError:
        return None


# As many as one reads at a glance.
_MOST_NAMED = 5


@dataclass(frozen=True)
class Entry:
    """A record in a list. ``size``: bytes of its outputs and its log, those that others share included."""

    record: Record
    size: int
    used_ns: int

    @property
    def key(self) -> str:
        return self.record.cache_key

    @property
    def stage(self) -> str:
        return self.record.key_inputs.stage


def entries(store: Store, stage: str | None = None) -> list[Entry]:
    """Every record that can be read, in order of key; of *stage* only."""
    with in_words("Cannot look through the cache"):
        records = store.records.all()
    held = held_by_standing(store.folder / STANDING)
    return [_entry(store, record, held) for record in records if stage in (None, record.key_inputs.stage)]


def find(store: Store, prefix: str) -> Entry:
    """The one record whose key begins with *prefix*.

    Raises:
        UsageError: when there is none, naming where to look, or more than one, naming them.
    """
    with in_words("Cannot look through the cache"):
        keys = [key for key in store.records.keys() if key.startswith(prefix.lower())]  # noqa: SIM118
        found = [record for key in keys[: _MOST_NAMED + 1] if (record := store.records.read(key)) is not None]
    if not found:
        raise UsageError(
            f"No record in {store.folder} has a key that begins with {prefix!r}.",
            advice="`winml-dag cache list` shows them all.",
        )
    if len(found) > 1:
        named = ", ".join(f"{record.cache_key[:16]} ({record.key_inputs.stage})" for record in found[:_MOST_NAMED])
        more = f" and {len(keys) - _MOST_NAMED} more" if len(keys) > _MOST_NAMED else ""
        raise UsageError(
            f"{len(keys)} keys begin with {prefix!r}: {named}{more}.", advice="Give more of the one that you mean."
        )
    return _entry(store, found[0], held_by_standing(store.folder / STANDING))


def log_text(store: Store, record: Record) -> str | None:
    """The log of *record*; None when it has none, or none that is sound."""
    if record.log is None:
        return None
    store.fetch_ahead((record.log,))
    try:
        data = store.blobs.path(record.log.digest).read_bytes()
    except OSError:
        return None
    is_sound = digest_bytes(data, split_digest(record.log.digest)[0]) == record.log.digest
    return data.decode("utf-8", "replace") if is_sound else None


def _entry(store: Store, record: Record, held: Mapping[str, int]) -> Entry:
    log = 0 if record.log is None else record.log.size
    key = record.cache_key
    used_ns = max(store.records.last_used_ns(key), held.get(key, 0))
    return Entry(record, log + sum(file.size for file in record.files()), used_ns)
