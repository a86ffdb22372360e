"""The store: records by key and bytes by digest, in a folder shared by all threads and processes, and in remotes.

A record of a remote is stored here without its blobs, since a key needs only digests. Blobs are fetched when a run, or
a requested output, needs their bytes. A key that no remote has is looked up once per run, and a blob that could not be
fetched counts as missing for the rest of the run: the stage that made it runs again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from winml_dag.errors import StoreError
from winml_dag.file_reading import probe_clock, read_text
from winml_dag.store.artifact import Artifact, FileEntry, output_files
from winml_dag.store.blobs import BlobDamaged, Blobs
from winml_dag.store.cache_folder import FORMAT, MARKER, function_of
from winml_dag.store.digest import DigestFunction, Fingerprints
from winml_dag.store.files import PARTIAL, check_name, in_words, partial_in
from winml_dag.store.locks import Locks, Scratch, never
from winml_dag.store.records import Record, Records, check_key

if TYPE_CHECKING:
    from winml_dag.store.remote.tier import Remotes
    from winml_dag.store.usage import Traffic


class Store:
    """A store in *folder*, created if necessary; its content is never trusted.

    Args:
        remotes_of: creates its remotes; without it there are none.
        on_progress: gets the uploaded and the total bytes during :meth:`settle`.
        function: its digest function, by default xxh3-128 for a new folder, otherwise that of the existing store. With
            remotes it is sha256: what others write must be collision-resistant.

    Attributes:
        folder: absolute.
        function: that of all digests in it.
        failures: where runs keep the logs of failed stages.
        changes: where builds keep the journals of changes of output folders.
        fingerprints: digests of the user's files.
        scratch: where runs get a folder for their work.
        incoming: where partial downloads from a remote are.

    Raises:
        StoreError: when the folder is not a store, has an unknown format or another function, or cannot be written.
    """

    def __init__(
        self,
        folder: Path,
        remotes_of: Callable[[Store], Remotes] | None = None,
        on_progress: Callable[[int, int], None] | None = None,
        *,
        function: DigestFunction | None = None,
    ) -> None:
        # Imported here, with SQLite and diskcache: it takes 20 ms, which determining the default folder should not.
        from winml_dag.store.index import Index

        self.folder = folder.absolute()
        self.function = _begin(self.folder, function if remotes_of is None else "sha256")
        probe_clock(self.folder)
        self.quarantine = self.folder / "quarantine"
        self.failures = self.folder / "failures"
        self.changes = self.folder / "changes"
        self.locks = Locks(self.folder / "locks")
        self.index = Index(self.folder / "index", self.quarantine, self.locks)
        self.blobs = Blobs(self.folder / "blobs", self.quarantine)
        self.records = Records(self.folder / "records", self.index, self.blobs.quarantine)
        self.fingerprints = Fingerprints(self.index, self.function)
        self.scratch = Scratch(self.folder / "scratch", self.locks)
        self.incoming = self.folder / "incoming"
        self._on_progress = on_progress
        self._remotes = None if remotes_of is None else remotes_of(self)
        # In this run: keys that no remote has, and digests of blobs that could not be fetched.
        self._nowhere: set[str] = set()
        self._lost: set[str] = set()
        # In this run: keys whose record came from a remote, and those records that could not be written here.
        self._arrived: set[str] = set()
        self._unkept: dict[str, Record] = {}
        self._fetched = 0

    @property
    def has_remotes(self) -> bool:
        """Whether there are remotes: lookups may go to them, which takes time.

        Without remotes, :meth:`prefetch_records` and :meth:`fetch_ahead` need not be called.
        """
        return self._remotes is not None

    def record(self, key: str) -> Record | None:
        """The record of *key*; an unreadable record counts as absent."""
        with in_words(f"Cannot read the record of {key}"):
            found = self.records.read(key)
        if found is not None:
            return found
        return self._unkept[key] if key in self._unkept else self._from_remotes([key]).get(key)

    def prefetch_records(self, keys: Collection[str]) -> Mapping[str, Record]:
        """The records of *keys*, which will be needed next.

        Those that are not here are looked up in remotes concurrently, and so is the availability of their blobs. What
        is not found is not looked up again in this run.
        """
        found = self.records.read_many(list(keys))
        found.update((key, self._unkept[key]) for key in keys if key in self._unkept)
        found.update(self._from_remotes([key for key in keys if key not in found]))
        # Looks up all of their blobs at once; the remotes cache the result.
        self.missing([file for record in found.values() for file in record.files()])
        return found

    def came_from_remote(self, key: str) -> bool:
        """Whether the record of *key* came from a remote during this run."""
        return key in self._arrived

    def records_of(self, stage: str, most: int) -> list[Record]:
        """Up to *most* records of *stage* that are in the index, newest first. For explanations."""
        with in_words(f"Cannot read the records of {stage}"):
            return self.records.newest_of(stage, most)

    def missing(self, files: Iterable[FileEntry]) -> list[FileEntry]:
        """Those of *files* whose blob is not available anywhere, or is visibly damaged.

        Damage is detected by ``stat``; a blob that was written to since it was stored is hashed again.
        """
        with in_words("Cannot look for blobs"):
            gone = self.blobs.missing(files)
        if not gone or self._remotes is None:
            return gone
        there = self._remotes.has({file.digest for file in self._obtainable(gone)})
        return [file for file in gone if file.digest not in there]

    def remote_only(self, files: Iterable[FileEntry]) -> list[FileEntry]:
        """Those of *files* whose bytes would have to be fetched first, or are not available; empty without remotes."""
        with in_words("Cannot look for blobs"):
            return [] if self._remotes is None else self.blobs.missing(files)

    def fetch_ahead(self, files: Iterable[FileEntry]) -> None:
        """Fetch the bytes of *files*, which will be needed next, to this machine concurrently, as far as possible."""
        if self._remotes is not None and (wanted := self._obtainable(self.remote_only(files))):
            self._lost.update(file.digest for file in self._remotes.fetch(wanted))

    def publish(self, record: Record, folders: Mapping[str, Path | str], log: Path | None = None) -> Record:
        """Move the files of each output slot's folder into the store, then write the record, then start to upload both.

        *record* has no outputs and log yet; the returned one has them, but no empty log. Files are renamed, not copied.
        The upload goes to remotes that may be written. If killed at any instant the store is valid: blobs without a
        record are only unused bytes.

        Raises:
            StoreError: for a link, a special file or an unsafe name among the outputs; for a full disk.
        """
        check_key(record.cache_key)
        with in_words(f"Cannot store the outputs of {record.key_inputs.stage}"):
            # Check all files before the first is moved: an error leaves the folders as they were.
            found = {slot: output_files(slot, folder) for slot, folder in folders.items()}
            outputs = {
                # Not Artifact.of: the names have been checked.
                slot: Artifact(
                    tuple(sorted(self.blobs.ingest(path, self.function, name) for name, path in files.items()))
                )
                for slot, files in found.items()
            }
            # A copy: callers that wait for the stage still read its log at the old path.
            kept = None if log is None or not os.stat(log).st_size else self.blobs.ingest_copy(log, self.function)  # noqa: PTH116
            record = replace(record, outputs=outputs, log=kept)
            self.records.write(record)
        self._arrived.discard(record.cache_key)
        self.offer(record)
        return record

    def keep(self, record: Record) -> None:
        """Store *record*, which another machine has made; its blobs stay where they are."""
        with in_words(f"Cannot store the record of {record.key_inputs.stage}"):
            self.records.write(record)

    def offer(self, record: Record) -> None:
        """Start to upload *record*, whose blobs are here, to the remotes that may be written."""
        if self._remotes is not None:
            self._remotes.offer(record)

    def fetch(self, artifact: Artifact, folder: Path) -> None:
        """Put copies of the artifact's files into *folder*, created if necessary, and check every digest.

        Copies are reflinks where the file system supports them.

        Raises:
            BlobDamaged: and moves the blob to quarantine.
        """
        self.fetch_ahead(artifact.files)
        for file in artifact.files:
            self._put(file, folder, self.blobs.fetch)

    def link(self, artifact: Artifact, folder: Path, *, check: bool = False) -> tuple[str, ...]:
        """Put read-only hard links to the artifact's blobs into *folder*, created if necessary.

        Nothing is read: a blob is trusted by its ``stat`` unless *check* requires hashing it. Returns the names of
        files that are copies instead, because they cannot be linked.

        Raises:
            BlobDamaged: and moves the blob to quarantine.
        """
        copied = []

        def put(file: FileEntry, target: str) -> None:
            if not self.blobs.link(file, Path(target), check=check):
                self.blobs.fetch(file, target)
                copied.append(file.name)

        self.fetch_ahead(artifact.files)
        for file in artifact.files:
            self._put(file, folder, put)
        return tuple(copied)

    def used(self, keys: Iterable[str]) -> None:
        """Record that the records of *keys* are in use: the last used are removed last.

        Never fails; a cache that cannot be written keeps its times.
        """
        for key in keys:
            self.records.touch(key)

    def claim(self, key: str, gives_up: Callable[[], bool] = never) -> AbstractContextManager[None]:
        """Hold *key* exclusively until the block ends; waits while another process or thread holds it.

        Raises:
            Interrupted: when *gives_up*, called repeatedly while waiting, returns True.
        """
        return self.locks.hold_in_use(check_key(key), gives_up)

    def latest(self, names: Iterable[str]) -> dict[str, Record]:
        """The latest record made or reused under each of *names*, for comparisons in reasons and for estimates.

        Names without a record are omitted.
        """
        keys = {name: key for name, key in self.index.read("latest", names).items() if isinstance(key, str)}
        with in_words("Cannot read records"):
            records = self.records.read_many(list(dict.fromkeys(keys.values())))
        return {name: records[key] for name, key in keys.items() if key in records}

    def remember(self, keys: Mapping[str, str]) -> None:
        """Make each of *keys* the latest under its name.

        Called occasionally during a run and at its end, rather than for each result: if a killed process has not saved
        it, that costs time but no results.
        """
        self.index.write("latest", keys)
        self.records.flush()

    def settle(self) -> None:
        """Wait until all uploads are finished or given up."""
        if self._remotes is not None:
            self._remotes.settle(self._on_progress)

    def traffic(self) -> Traffic:
        """What went between this machine and its remotes, which there are, through this store."""
        assert self._remotes is not None
        return self._remotes.traffic()

    def take_fetched(self) -> int:
        """How many bytes of blobs have been fetched from other machines since the last call."""
        before, self._fetched = self._fetched, self.traffic().bytes_fetched if self.has_remotes else 0
        return self._fetched - before

    def close(self) -> None:
        """Cancel transfers and close the index; using the store again reopens it."""
        if self._remotes is not None:
            self._remotes.close()
        self.records.flush()
        self.index.close()

    def _from_remotes(self, keys: Collection[str]) -> dict[str, Record]:
        """The records of *keys* that a remote has; they are also stored here."""
        wanted = [] if self._remotes is None else [key for key in keys if key not in self._nowhere]
        if not wanted or self._remotes is None:
            return {}
        found = self._remotes.records(wanted)
        self._nowhere.update(key for key in wanted if key not in found)
        for key, record in found.items():
            try:
                self.records.write(record)
            except (OSError, StoreError):
                self._unkept[key] = record
        self._arrived.update(found)
        return found

    def _obtainable(self, files: Iterable[FileEntry]) -> list[FileEntry]:
        """Those of *files* that can be requested from remotes, each blob once: remotes use sha256."""
        by_digest = {file.digest: file for file in files if file.digest.startswith("sha256:")}
        return [file for digest, file in by_digest.items() if digest not in self._lost]

    def _put(self, file: FileEntry, folder: Path, put: Callable[[FileEntry, str], None]) -> None:
        """*put* the blob of *file* at its path in *folder*; a damaged one is fetched again."""
        with in_words(f"Cannot put {file.name} into {folder}"):
            target = _place(file, folder)
            try:
                put(file, target)
            except BlobDamaged:
                if not self._obtainable([file]) or self._remotes is None:
                    raise
                self.fetch_ahead([file])
                put(file, target)


def _place(file: FileEntry, folder: Path) -> str:
    """The path of *file* in *folder*; creates its parent folder if necessary."""
    target = f"{folder}{os.sep}{check_name(file.name)}"
    parent = os.path.dirname(target)  # noqa: PTH120 - for thousands of small files
    # Check first: nearly always it exists, and finding out by creating it costs more.
    if not os.path.isdir(parent):  # noqa: PTH112
        os.makedirs(parent, exist_ok=True)  # noqa: PTH103
    return target


def _begin(folder: Path, function: DigestFunction | None) -> DigestFunction:
    """Check that *folder* is a store of a supported format and of *function*, or create one; returns its function.

    Many processes may do so at once.
    """
    marker = folder / MARKER
    str(folder).encode()  # raises UnicodeEncodeError here, not in the libraries of a stage
    with in_words(f"Cannot use {folder} as the cache"):
        folder.mkdir(parents=True, exist_ok=True)
        # The marker is the first file of a store. So after checking for it again, other files cannot belong to a store
        # that another process is just creating.
        foreign = [] if marker.exists() else [path.name for path in folder.iterdir() if path.suffix != PARTIAL]
        if not marker.exists():
            if foreign:
                raise StoreError(
                    f"{folder} is not empty and is not a cache: it has {', '.join(sorted(foreign)[:3])}.",
                    advice="Choose an empty or a new folder, or remove this one if it is left of a cache.",
                )
            _mark(marker, function)
        text = read_text(marker, errors="replace").strip()
    found = function_of(folder)
    if found is None:
        raise StoreError(
            f"The cache in {folder} has format {text[:20]!r}, and this version knows {FORMAT} only.",
            advice="Use the winml_dag that made it, or choose another folder with --cache-dir or WINML_DAG_CACHE_DIR.",
        )
    if function not in (None, found):
        raise StoreError(
            f"The cache in {folder} has digests of {found}, and {function} is needed here.",
            advice="Choose another folder with --cache-dir or WINML_DAG_CACHE_DIR.",
        )
    return found


def _mark(marker: Path, function: DigestFunction | None) -> None:
    partial = Path(partial_in(marker.parent))
    with open(partial, "w", encoding="utf-8") as opened:
        opened.write(f"{FORMAT}\n" if function in (None, "xxh3-128") else f"{FORMAT} {function}\n")
        # The only file that is flushed, once in a store's life: if it were empty after a power cut, the whole store
        # would be unusable.
        opened.flush()
        os.fsync(opened.fileno())
    try:
        partial.replace(marker)
    except PermissionError:
        # Windows: another process has just created it and is reading it.
        if not marker.exists():
            raise
        partial.unlink()
