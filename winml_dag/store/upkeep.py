"""Maintain a store: report its content and records, verify and repair it, and clear it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from winml_dag.errors import Interrupted, StoreError, UsageError
from winml_dag.store.artifact import FileEntry
from winml_dag.store.blobs import STAMP_NS
from winml_dag.store.digest import digest_bytes, split_digest
from winml_dag.store.files import PARTIAL, bytes_below, in_words, remove_tree
from winml_dag.store.gc import held_by_plans, remove_abandoned
from winml_dag.store.records import Record
from winml_dag.store.store import Store
from winml_dag.store.usage import log_size


@dataclass(frozen=True)
class StoreInfo:
    """What a store holds.

    ``unique_bytes`` is the size of its blobs, ``apparent_bytes`` the size of the outputs of all records if nothing were
    shared.
    """

    records: int
    blobs: int
    unique_bytes: int
    apparent_bytes: int
    index_bytes: int
    scratch_bytes: int
    quarantine_bytes: int


@dataclass(frozen=True)
class VerifyReport:
    """The result of a full check.

    Attributes:
        records: number of intact records.
        blobs: number of intact blobs.
        damaged: digests of blobs whose bytes were wrong; they are in quarantine, unless that cannot be created.
        unreadable: keys of records that were damaged; they are in quarantine.
        incomplete: keys of intact records whose blobs are not available anywhere. Not damage: they count as not built.
        foreign: names of files that are not part of a store; they are not touched.
        restamped: digests of intact blobs whose stamps were lost; the stamps are restored.
        rows: keys of records whose row in the index was wrong, missing or orphaned. Only :func:`repair` checks these.
        removed: keys of incomplete records that were removed. Only :func:`repair` does that.
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
        """Whether everything that was found is repaired; foreign files do not count as problems of the store."""
        return set(self.incomplete) <= set(self.removed)


@dataclass(frozen=True)
class Cleared:
    """What was removed. ``freed_bytes`` excludes the index, which keeps its file."""

    records: int
    blobs: int
    freed_bytes: int


def info(store: Store) -> StoreInfo:
    """Count and measure the content of *store*; unreadable records are skipped."""
    with in_words("Cannot look through the cache"):
        sizes = [blob.status.st_size for blob in store.blobs.all() if blob.digest]
        records = store.records.all()
        return StoreInfo(
            records=len(records),
            blobs=len(sizes),
            unique_bytes=sum(sizes),
            apparent_bytes=sum(file.size for record in records for file in record.files()),
            index_bytes=bytes_below(store.folder / "index"),
            scratch_bytes=bytes_below(store.scratch.folder),
            quarantine_bytes=bytes_below(store.quarantine),
        )


def verify(store: Store) -> VerifyReport:
    """Read every blob and every record; damaged ones go to quarantine, so that the next build rebuilds them.

    Builds may run meanwhile: what they add is either checked or not, and valid in both cases.
    """
    with in_words("Cannot check the cache"):
        remove_abandoned(store)
        intact, damaged, foreign, restamped = 0, [], [], []
        for blob in store.blobs.all():
            if not blob.digest:
                if blob.path.suffix != PARTIAL:
                    foreign.append(blob.path.relative_to(store.folder).as_posix())
                continue
            if store.blobs.is_intact(blob.digest):
                intact += 1
                if blob.status.st_mtime_ns != STAMP_NS == blob.path.stat().st_mtime_ns:
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
        blobs=intact,
        damaged=tuple(damaged),
        unreadable=tuple(unreadable),
        incomplete=tuple(incomplete),
        foreign=tuple(foreign),
        restamped=tuple(restamped),
        only_behind=only_behind,
    )


def _lacking(store: Store, lacking: Sequence[tuple[Record, Sequence[FileEntry]]]) -> tuple[list[str], int]:
    """The keys of records that lack a blob for good, and the number of missing blobs that are available elsewhere.

    A record that came from a remote is never in the former: its blobs are fetched when needed, and an offline or
    unreachable remote gives no information about them. It is removed like any other when it has not been used for long.
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
    """Run :func:`verify`, then remove records that lack a blob, and rebuild the index from the records."""
    report = verify(store)
    with in_words("Cannot repair the cache"):
        removed = tuple(key for key in report.incomplete if _removed_if_incomplete(store, key))
        store.index.remove_damaged()
        rows = tuple(store.records.reindex())
    return replace(report, records=report.records - len(removed), removed=removed, rows=rows)


def _removed_if_incomplete(store: Store, key: str) -> bool:
    try:
        # A process that holds the key is about to complete its record.
        with store.claim(key, gives_up=lambda: True):
            record = store.records.read(key)
            if record is not None and not store.missing(record.files()):
                return False
            store.records.remove(key)
            return True
    except Interrupted:
        return False


def clear(store: Store) -> Cleared:
    """Remove every record, blob and fingerprint, and everything in scratch, quarantine, failures and incoming.

    Raises:
        StoreError: when the store is in use.
    """
    with store.locks.hold_unused(), in_words("Cannot clear the cache"):
        held = info(store)
        freed = bytes_below(store.records.folder) + held.unique_bytes + held.scratch_bytes + held.quarantine_bytes
        freed += bytes_below(store.incoming)
        # Records first: if interrupted, the store has unneeded blobs, never a record that lacks its blobs.
        remove_tree(store.records.folder)
        store.index.clear()
        for folder in (store.blobs.folder, store.incoming, store.scratch.folder, store.quarantine, store.failures):
            remove_tree(folder)
        log_size(store.folder, 0)
        return Cleared(held.records, held.blobs, freed)


def _checked_record(store: Store, key: str) -> Record | None:
    """The record of *key*; None if its file is damaged, and now in quarantine."""
    try:
        return store.records.read_file(key)
    except (OSError, StoreError):
        store.blobs.quarantine(store.records.path(key))
        store.records.remove(key)
        return None


# Maximum number of records named in an error.
_MOST_NAMED = 5


@dataclass(frozen=True)
class Entry:
    """A record in a list. ``size``: bytes of its outputs and its log, including shared ones."""

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
    """Every readable record, ordered by key; limited to *stage* if given."""
    with in_words("Cannot look through the cache"):
        records = store.records.all()
    held = held_by_plans(store)
    return [_entry(store, record, held) for record in records if stage in (None, record.key_inputs.stage)]


def find(store: Store, prefix: str) -> Entry:
    """The record whose key starts with *prefix*.

    Raises:
        UsageError: when there is none (with the folder searched), or more than one (with their keys).
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
            f"{len(keys)} keys begin with {prefix!r}: {named}{more}.", advice="Give more characters of one of them."
        )
    return _entry(store, found[0], held_by_plans(store))


def log_text(store: Store, record: Record) -> str | None:
    """The log of *record*; None if it has none, or its log is not intact."""
    if record.log is None:
        return None
    store.fetch_ahead((record.log,))
    try:
        data = store.blobs.path(record.log.digest).read_bytes()
    except OSError:
        return None
    is_intact = digest_bytes(data, split_digest(record.log.digest)[0]) == record.log.digest
    return data.decode("utf-8", "replace") if is_intact else None


def _entry(store: Store, record: Record, held: Mapping[str, int]) -> Entry:
    log = 0 if record.log is None else record.log.size
    key = record.cache_key
    used_ns = max(store.records.last_used_ns(key), held.get(key, 0))
    return Entry(record, log + sum(file.size for file in record.files()), used_ns)
