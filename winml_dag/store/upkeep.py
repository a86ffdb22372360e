"""Looking after a local store: what it holds, whether all of it is sound, and starting over."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from winml_dag.errors import StoreError
from winml_dag.store.files import PARTIAL, bytes_below, files_below, in_words, make_writable, remove_tree
from winml_dag.store.local import LocalStore
from winml_dag.store.record import Record

# What bears the name of unfinished work for this long is nobody's: a copy under way touches its file all the time.
_ABANDONED_SECONDS = 3600.0


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
        damaged: digests of blobs whose bytes were wrong; they are in quarantine.
        unreadable: keys of records that were damaged; they are in quarantine.
        incomplete: keys of sound records whose blobs are not all here. Not damage: they count as not built.
        foreign: names of files that a store does not have; left alone.
    """

    records: int
    blobs: int
    damaged: tuple[str, ...]
    unreadable: tuple[str, ...]
    incomplete: tuple[str, ...]
    foreign: tuple[str, ...]

    @property
    def clean(self) -> bool:
        return not (self.damaged or self.unreadable or self.incomplete or self.foreign)


@dataclass(frozen=True)
class Cleared:
    """What was removed. ``freed_bytes`` leaves out the index, which keeps its file."""

    records: int
    blobs: int
    freed_bytes: int


def info(store: LocalStore) -> StoreInfo:
    """Count and measure what *store* holds; records that cannot be read are left out."""
    with in_words("Cannot look through the cache"):
        sizes = [size for blob in store.blobs.all() if blob.digest and (size := _size(blob.path)) is not None]
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


def verify(store: LocalStore) -> VerifyReport:
    """Read every blob and every record; what is damaged goes to quarantine, so that the next build makes it anew.

    Builds may go on meanwhile: what they add while we read is checked or not, and sound either way.
    """
    with in_words("Cannot check the cache"):
        _remove_abandoned(store)
        sound, damaged, foreign = 0, [], []
        for blob in store.blobs.all():
            if not blob.digest:
                if blob.path.suffix != PARTIAL:
                    foreign.append(blob.path.relative_to(store.folder).as_posix())
            elif store.blobs.is_sound(blob.digest):
                sound += 1
            else:
                damaged.append(blob.digest)
        readable, unreadable, incomplete = 0, [], []
        for key in store.records.keys():  # noqa: SIM118  # not a mapping
            record = _checked_record(store, key)
            if record is None:
                unreadable.append(key)
                continue
            readable += 1
            if store.blobs.missing(record.files()):
                incomplete.append(key)
    return VerifyReport(readable, sound, tuple(damaged), tuple(unreadable), tuple(incomplete), tuple(foreign))


def clear(store: LocalStore) -> Cleared:
    """Remove every record, blob and fingerprint, and all that is in scratch and quarantine.

    Raises:
        StoreError: when anybody is using the store.
    """
    with store.locks.hold_unused(), in_words("Cannot clear the cache"):
        held = info(store)
        freed = bytes_below(store.records.folder) + held.unique_bytes + held.scratch_bytes + held.quarantine_bytes
        # Records first: stopped half-way, the store has blobs that nobody needs, never a record that lacks its blobs.
        remove_tree(store.records.folder)
        store.index.clear()
        for folder in (store.blobs.folder, store.scratch.folder, store.quarantine):
            remove_tree(folder)
        return Cleared(held.records, held.blobs, freed)


def _checked_record(store: LocalStore, key: str) -> Record | None:
    """The record of *key*; when its file is damaged, that goes to quarantine and its row from the index with it."""
    try:
        return store.records.read_file(key)
    except FileNotFoundError:
        # The index alone has it: somebody deleted the file. Written again, so that both tell the same.
        record = store.records.read(key)
        if record is not None:
            store.records.write(record)
        return record
    except (OSError, StoreError):
        store.blobs.set_aside(store.records.path(key))
        store.records.remove(key)
        return None


def _remove_abandoned(store: LocalStore) -> None:
    limit = time.time() - _ABANDONED_SECONDS
    for folder in (store.blobs.folder, store.records.folder):
        for entry in files_below(folder):
            with suppress(FileNotFoundError):
                status = entry.stat(follow_symlinks=False)
                # Both times: a copy that is whole already bears the stamp of blobs, which is long ago.
                if entry.name.endswith(PARTIAL) and max(status.st_mtime, status.st_ctime) < limit:
                    make_writable(Path(entry.path))
                    Path(entry.path).unlink()


def _size(path: Path) -> int | None:
    try:
        return path.lstat().st_size
    except FileNotFoundError:
        return None
