"""The store: records by key and bytes by digest, in a folder that any number of threads and processes of this machine
share, and in remotes behind it where there are any.

A record of a remote is kept here, without its blobs: a key needs digests alone. Blobs come when something that runs, or
that was asked for, needs their bytes. What no remote has is asked for once in a run, and a blob that could not be
fetched counts as missing for the rest of it: the stage that made it runs again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from winml_dag.errors import StoreError
from winml_dag.file_reading import read_text
from winml_dag.store.artifact import Artifact, FileEntry, check_name, output_files
from winml_dag.store.blobs import BlobDamaged as BlobDamaged
from winml_dag.store.blobs import Blobs
from winml_dag.store.cache_folder import FORMAT, MARKER, function_of
from winml_dag.store.digest import DigestFunction, Fingerprints
from winml_dag.store.files import PARTIAL, in_words, partial_beside
from winml_dag.store.locks import Locks, Scratch, never
from winml_dag.store.records import Record, Records, check_key

if TYPE_CHECKING:
    from winml_dag.store.remote.remotes import Remotes
    from winml_dag.store.remote.traffic import Traffic


class Store:
    """A store in *folder*, made if need be; nothing in it is trusted, whoever wrote it.

    Args:
        remotes_of: makes the remotes behind it; without it there are none.
        told: told by :meth:`settle` when it is given nobody else to tell.
        function: its digest function, by default xxh3-128 for a folder that is made here, and else the one that it has.
            With remotes it is sha256: what others write must be collision-proof.

    Attributes:
        folder: absolute.
        function: that of all digests in it.
        failures: where runs leave the logs of stages that failed.
        changes: where builds keep the journals of changes of output folders.
        fingerprints: digests of the user's files.
        scratch: where runs get a folder for their work.
        incoming: where blobs lie that are on their way here from a remote.

    Raises:
        StoreError: when the folder is something else than a store, of an unknown format or another function, or cannot
            be written.
    """

    def __init__(
        self,
        folder: Path,
        remotes_of: Callable[[Store], Remotes] | None = None,
        told: Callable[[int, int], None] | None = None,
        *,
        function: DigestFunction | None = None,
    ) -> None:
        # Imported here, with SQLite and diskcache: 20 ms that nobody pays who only asks for the default folder.
        from winml_dag.store.index import Index

        self.folder = folder.absolute()
        self.function = _begin(self.folder, function if remotes_of is None else "sha256")
        self.quarantine = self.folder / "quarantine"
        self.failures = self.folder / "failures"
        self.changes = self.folder / "changes"
        self.locks = Locks(self.folder / "locks")
        self.index = Index(self.folder / "index", self.quarantine, self.locks)
        self.records = Records(self.folder / "records", self.index)
        self.blobs = Blobs(self.folder / "blobs", self.quarantine)
        self.fingerprints = Fingerprints(self.index, self.function)
        self.scratch = Scratch(self.folder / "scratch", self.locks)
        self.incoming = self.folder / "incoming"
        self._told = told
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
        """Whether there are remotes: what is not here may come from there, which takes time. Without any,
        :meth:`look_up` and :meth:`bring` need not be called.
        """
        return self._remotes is not None

    def record(self, key: str) -> Record | None:
        """The record of *key*; a record that cannot be read counts as absent."""
        with in_words(f"Cannot read the record of {key}"):
            found = self.records.read(key)
        if found is not None and has_only(found, self.function):
            return found
        return self._unkept[key] if key in self._unkept else self._from_remotes([key]).get(key)

    def prefetch_records(self, keys: Collection[str]) -> Mapping[str, Record]:
        """The records of *keys*, which will be asked for next: those that are not here are looked for in remotes side
        by side, and whether their blobs can be had with them. What is not found is not looked for again in this run.
        """
        here = self.records.read_many(list(keys))
        found = {key: record for key, record in here.items() if has_only(record, self.function)}
        found.update((key, self._unkept[key]) for key in keys if key in self._unkept)
        found.update(self._from_remotes([key for key in keys if key not in found]))
        # Asks for all of their blobs at once; the remotes remember the answers.
        self.missing([file for record in found.values() for file in record.files()])
        return found

    def came_from_remote(self, key: str) -> bool:
        """Whether the record of *key* came from a remote during this run."""
        return key in self._arrived

    def records_of(self, stage: str, most: int) -> list[Record]:
        """Up to *most* records of *stage*, those that came last first. For explanations: those that the index has."""
        with in_words(f"Cannot read the records of {stage}"):
            found = self.records.newest_of(stage, most)
        return [record for record in found if has_only(record, self.function)]

    def missing(self, files: Iterable[FileEntry]) -> list[FileEntry]:
        """Those of *files* whose blob can be had nowhere, or is visibly damaged (by its ``stat``; one that was written
        to since it was stored is hashed again).
        """
        with in_words("Cannot look for blobs"):
            gone = self.blobs.missing(files)
        if not gone or self._remotes is None:
            return gone
        there = self._remotes.has({file.digest for file in self._obtainable(gone)})
        return [file for file in gone if file.digest not in there]

    def remote_only(self, files: Iterable[FileEntry]) -> list[FileEntry]:
        """Those of *files* whose bytes would have to come from another machine first, or are nowhere; none without
        remotes.
        """
        with in_words("Cannot look for blobs"):
            return [] if self._remotes is None else self.blobs.missing(files)

    def fetch_ahead(self, files: Iterable[FileEntry]) -> None:
        """Have the bytes of *files* on this machine, all side by side, as far as that is possible: they will be fetched
        next.
        """
        if self._remotes is not None and (wanted := self._obtainable(self.remote_only(files))):
            self._lost.update(file.digest for file in self._remotes.fetch(wanted))

    def publish(self, record: Record, folders: Mapping[str, Path | str], log: Path | None = None) -> Record:
        """Move the files of each output slot's folder into the store, then write the record, last; then begin to put
        both into the remotes that may be written.

        *record* comes without outputs and log; the returned one has them, but no log that is empty. Files are renamed,
        not copied. Killed at any instant the store is valid: blobs without a record are only unused bytes.

        Raises:
            StoreError: for a link, a special file or an unsafe name among the outputs; for a full disk.
        """
        check_key(record.cache_key)
        with in_words(f"Cannot store the outputs of {record.key_inputs.stage}"):
            # All are looked at before the first is moved: a refusal leaves the folders as they were.
            found = {slot: output_files(slot, folder) for slot, folder in folders.items()}
            outputs = {
                # Not Artifact.of: their names have been looked at.
                slot: Artifact(tuple(sorted(self.blobs.ingest(file.place, self.function, file.name) for file in files)))
                for slot, files in found.items()
            }
            # A copy: whoever waits for the stage still wants to read its log where it was.
            kept = None if log is None or not os.stat(log).st_size else self.blobs.ingest_copy(log, self.function)  # noqa: PTH116
            record = replace(record, outputs=outputs, log=kept)
            self.records.write(record)
        self._arrived.discard(record.cache_key)
        self.offer(record)
        return record

    def keep(self, record: Record) -> None:
        """Have *record*, which another machine has made; its blobs are where they are."""
        with in_words(f"Cannot store the record of {record.key_inputs.stage}"):
            self.records.write(record)

    def offer(self, record: Record) -> None:
        """Begin to put *record*, whose blobs are here, into the remotes that may be written."""
        if self._remotes is not None:
            self._remotes.offer(record)

    def fetch(self, artifact: Artifact, folder: Path) -> None:
        """Put copies of the artifact's files (reflinks where the file system can) into *folder*, made if need be,
        checking every digest.

        Raises:
            BlobDamaged: and moves the blob to quarantine.
        """
        self.fetch_ahead(artifact.files)
        for file in artifact.files:
            self._put(file, folder, self.blobs.fetch)

    def link(self, artifact: Artifact, folder: Path, *, check: bool = False) -> tuple[str, ...]:
        """Put read-only hard links to the artifact's blobs into *folder*, made if need be. Nothing is read: a blob is
        trusted by its ``stat`` unless *check* wants it hashed. Returns the names of files that are copies all the same,
        because no link can be made there.

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
        """Note that the records of *keys* are being used: what was used last is removed last. Never fails; a cache that
        cannot be written keeps the times that it has.
        """
        for key in keys:
            self.records.touch(key)

    def claim(self, key: str, gives_up: Callable[[], bool] = never) -> AbstractContextManager[None]:
        """Hold *key* against every other process and thread until the block ends; wait while somebody else does.

        Raises:
            Interrupted: when *gives_up*, asked now and then while waiting, answers that there is no need any more.
        """
        return self.locks.hold_key(check_key(key), gives_up)

    def latest(self, names: Iterable[str]) -> dict[str, Record]:
        """The record last made or reused under each of *names* that has one: what a reason compares with, what an
        estimate is taken from.
        """
        keys = {name: key for name, key in self.index.read("latest", names).items() if isinstance(key, str)}
        with in_words("Cannot read records"):
            found = self.records.read_many(list(dict.fromkeys(keys.values())))
        records = {key: record for key, record in found.items() if has_only(record, self.function)}
        return {name: records[key] for name, key in keys.items() if key in records}

    def remember(self, keys: Mapping[str, str]) -> None:
        """Make each of *keys* the latest under its name. Asked for now and then in a run and at its end, rather than
        for each result: what a killed process has not said costs time and no results.
        """
        self.index.write("latest", keys)
        self.records.flush()

    def settle(self, told: Callable[[int, int], None] | None = None) -> None:
        """Wait until all that is on its way to other machines is there or given up; *told* gets bytes that have gone
        and all that have to.
        """
        if self._remotes is not None:
            self._remotes.settle(told or self._told)

    def traffic(self) -> Traffic:
        """What went between this machine and others, through this store."""
        from winml_dag.store.remote.traffic import Traffic

        return Traffic() if self._remotes is None else self._remotes.traffic()

    def take_fetched(self) -> int:
        """How many bytes of blobs have come from other machines since this was asked last."""
        before, self._fetched = self._fetched, self.traffic().bytes_fetched
        return self._fetched - before

    def close(self) -> None:
        """Give up what is on its way, and let go of the index; the store may be used again, which opens it anew."""
        if self._remotes is not None:
            self._remotes.close()
        self.records.flush()
        self.index.close()

    def _from_remotes(self, keys: Collection[str]) -> dict[str, Record]:
        """The records of *keys* that a remote has, kept here from now on."""
        wanted = [] if self._remotes is None else [key for key in keys if key not in self._nowhere]
        if not wanted or self._remotes is None:
            return {}
        answered = self._remotes.records(wanted)
        found = {key: record for key, record in answered.items() if has_only(record, self.function)}
        self._nowhere.update(key for key in wanted if key not in found)
        for key, record in found.items():
            try:
                self.records.write(record)
            except (OSError, StoreError):
                self._unkept[key] = record
        self._arrived.update(found)
        return found

    def _obtainable(self, files: Iterable[FileEntry]) -> list[FileEntry]:
        """Those of *files*, each blob once, that remotes can be asked for: they know them by sha256."""
        by_digest = {file.digest: file for file in files if file.digest.startswith("sha256:")}
        return [file for digest, file in by_digest.items() if digest not in self._lost]

    def _put(self, file: FileEntry, folder: Path, put: Callable[[FileEntry, str], None]) -> None:
        """*put* the blob of *file* where it belongs in *folder*; one that turns out to be damaged is fetched again."""
        with in_words(f"Cannot put {file.name} into {folder}"):
            target = _place(file, folder)
            try:
                put(file, target)
            except BlobDamaged:
                if not self._obtainable([file]) or self._remotes is None:
                    raise
                self.fetch_ahead([file])
                put(file, target)


def has_only(record: Record, function: DigestFunction) -> bool:
    """Whether all files of *record* have digests of *function*: a store that was made before stores had one function
    may have others, and so may a remote. Asked of each record that is read, so spelled out.
    """
    for artifact in record.outputs.values():
        for file in artifact.files:
            if not file.digest.startswith(function):
                return False
    return True


def _place(file: FileEntry, folder: Path) -> str:
    """Where *file* goes in *folder*: the folder for it is made if need be."""
    target = f"{folder}{os.sep}{check_name(file.name)}"
    parent = os.path.dirname(target)  # noqa: PTH120 - for thousands of small files
    # Looked at first: nearly always it is there, and to find that out by making it costs more.
    if not os.path.isdir(parent):  # noqa: PTH112
        os.makedirs(parent, exist_ok=True)  # noqa: PTH103
    return target


def _begin(folder: Path, function: DigestFunction | None) -> DigestFunction:
    """Check that *folder* is a store of the format that we know and of *function*, or make it one; many processes may
    do so at once. Returns its function.
    """
    marker = folder / MARKER
    with in_words(f"Cannot use {folder} as the cache"):
        folder.mkdir(parents=True, exist_ok=True)
        # The marker is the first thing that a store gets, so somebody else's files cannot be those of a store that
        # another process is just beginning, once the marker has been looked for again.
        foreign = [] if marker.exists() else [path.name for path in folder.iterdir() if path.suffix != PARTIAL]
        if not marker.exists():
            if foreign:
                raise StoreError(
                    f"{folder} is not empty and is not a cache: it has {', '.join(sorted(foreign)[:3])}.",
                    advice="Choose an empty or a new folder.",
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
    partial = partial_beside(marker)
    with open(partial, "w", encoding="utf-8") as opened:
        opened.write(f"{FORMAT}\n" if function in (None, "xxh3-128") else f"{FORMAT} {function}\n")
        # The one file that is flushed, once in a store's life: empty after a power cut, it would condemn all the rest.
        opened.flush()
        os.fsync(opened.fileno())
    try:
        partial.replace(marker)
    except PermissionError:
        # Windows: another process has just made it and is reading it.
        if not marker.exists():
            raise
        partial.unlink()


# What the parts of a store were called when they were classes of their own.
Store = Store
