"""The store on this machine: a folder of blobs, records and an index, shared by any number of threads and processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from winml_dag.errors import StoreError
from winml_dag.smallfiles import read_text
from winml_dag.store.artifact import Artifact, FileEntry, check_name
from winml_dag.store.blobs import Blobs
from winml_dag.store.digest import DigestFunction
from winml_dag.store.files import PARTIAL, in_words, partial_beside
from winml_dag.store.fingerprints import Fingerprints
from winml_dag.store.location import FORMAT, MARKER, function_of
from winml_dag.store.locks import Locks, never
from winml_dag.store.outputs import output_files
from winml_dag.store.record import Record
from winml_dag.store.records import Records, check_key
from winml_dag.store.scratch import Scratch
from winml_dag.store.store import NothingBehind

if TYPE_CHECKING:
    from winml_dag.store.remote.traffic import Traffic


# Records that will be asked for soon, by name: read some hundreds at a time, each kept until it is asked for.


# So many rows are one statement, and so many records little memory.
_AT_ONCE = 500

Read: TypeAlias = Callable[[Sequence[str]], Mapping[str, Record]]


@dataclass(frozen=True)
class Found:
    """What was read for a name; *record* None when there is nothing."""

    record: Record | None


class Expected:
    """Reads with *read* what belongs to *names*, which are asked for in about this order."""

    def __init__(self, names: Sequence[str], read: Read) -> None:
        self._names = names
        self._read = read
        self._places = {name: place for place, name in enumerate(names)}
        self._here: dict[str, Record | None] = {}

    def take(self, name: str) -> Found | None:
        """What was read for *name*, once; None when it is not expected."""
        place = self._places.pop(name, None)
        if place is None:
            return None
        if name not in self._here:
            start = place - place % _AT_ONCE
            names = [other for other in self._names[start : start + _AT_ONCE] if other in self._places or other == name]
            records = self._read(names)
            self._here.update((other, records.get(other)) for other in names)
        return Found(self._here.pop(name))

    def forget(self, name: str) -> None:
        """What was read for *name* is no longer so."""
        self._places.pop(name, None)
        self._here.pop(name, None)


class LocalStore(NothingBehind):
    """A store in *folder*, made if need be. *function*: its digest function, by default xxh3-128 for one that is made,
    and else the one that it has. See ``Store`` for the shared methods.

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

    def __init__(self, folder: Path, *, function: DigestFunction | None = None) -> None:
        # Imported here, with SQLite and diskcache: 20 ms that nobody pays who only asks for the default folder.
        from winml_dag.store.index import Index

        self.folder = folder.absolute()
        self.function = _begin(self.folder, function)
        self.quarantine = self.folder / "quarantine"
        self.failures = self.folder / "failures"
        self.changes = self.folder / "changes"
        self.locks = Locks(self.folder / "locks")
        self.index = Index(self.folder / "index", self.quarantine, self.locks)
        self.records = Records(self.folder / "records", self.index)
        self.blobs = Blobs(self.folder / "blobs", self.quarantine)
        self.fingerprints = Fingerprints(self.index, self.function)
        self._expected = Expected((), self._latest)
        self.scratch = Scratch(self.folder / "scratch", self.locks)
        self.incoming = self.folder / "incoming"

    def record(self, key: str) -> Record | None:
        with in_words(f"Cannot read the record of {key}"):
            found = self.records.read(key)
            return found if found is not None and has_only(found, self.function) else None

    def records_of(self, stage: str, most: int) -> list[Record]:
        with in_words(f"Cannot read the records of {stage}"):
            found = self.records.newest_of(stage, most)
        return [record for record in found if has_only(record, self.function)]

    def missing(self, files: Iterable[FileEntry]) -> list[FileEntry]:
        with in_words("Cannot look for blobs"):
            return self.blobs.missing(files)

    def publish(self, record: Record, folders: Mapping[str, Path | str], log: Path | None = None) -> Record:
        check_key(record.cache_key)
        with in_words(f"Cannot store the outputs of {record.ingredients.stage}"):
            # All are looked at before the first is moved: a refusal leaves the folders as they were.
            found = {slot: output_files(slot, folder) for slot, folder in folders.items()}
            outputs = {
                # Not Artifact.of: their names have been looked at.
                slot: Artifact(tuple(sorted(self.blobs.adopt(file.place, self.function, file.name) for file in files)))
                for slot, files in found.items()
            }
            # A copy: whoever waits for the stage still wants to read its log where it was.
            kept = None if log is None or not os.stat(log).st_size else self.blobs.adopt_copy(log, self.function)  # noqa: PTH116
            record = replace(record, outputs=outputs, log=kept)
            self.records.write(record)
        return record

    def keep(self, record: Record) -> None:
        """Have *record*, which another machine has made; its blobs are where they are."""
        with in_words(f"Cannot store the record of {record.ingredients.stage}"):
            self.records.write(record)

    def offer(self, record: Record) -> None:
        """Have *record* and its blobs, which are here, wherever this store shares things."""

    def fetch(self, artifact: Artifact, folder: Path) -> None:
        for file in artifact.files:
            with in_words(f"Cannot put {file.name} into {folder}"):
                self.blobs.fetch(file, _place(file, folder))

    def link(self, artifact: Artifact, folder: Path, *, check: bool = False) -> tuple[str, ...]:
        copied = []
        for file in artifact.files:
            with in_words(f"Cannot put {file.name} into {folder}"):
                target = _place(file, folder)
                if not self.blobs.link(file, Path(target), check=check):
                    self.blobs.fetch(file, target)
                    copied.append(file.name)
        return tuple(copied)

    def used(self, keys: Iterable[str]) -> None:
        for key in keys:
            self.records.touch(key)

    def claim(self, key: str, gives_up: Callable[[], bool] = never) -> AbstractContextManager[None]:
        return self.locks.hold_key(check_key(key), gives_up)

    def together(self, names: Sequence[str]) -> AbstractContextManager[None]:
        return self._expecting(names)

    @contextmanager
    def _expecting(self, names: Sequence[str]) -> Iterator[None]:
        before, self._expected = self._expected, Expected(names, self._latest)
        try:
            with self.index.holding_back():
                yield
        finally:
            self._expected = before

    def latest(self, name: str) -> Record | None:
        found = self._expected.take(name)
        return self._latest([name]).get(name) if found is None else found.record

    def _latest(self, names: Sequence[str]) -> dict[str, Record]:
        keys = {name: key for name, key in self.index.read("latest", names).items() if isinstance(key, str)}
        with in_words("Cannot read records"):
            found = self.records.read_many(list(dict.fromkeys(keys.values())))
            records = {key: record for key, record in found.items() if has_only(record, self.function)}
        return {name: records[key] for name, key in keys.items() if key in records}

    def remember(self, name: str, key: str) -> None:
        self._expected.forget(name)
        self.index.write("latest", {name: key})

    def settle(self, told: Callable[[int, int], None] | None = None) -> None:
        """Wait until all that is on its way to other machines is there or given up; *told* gets bytes that have gone
        and all that have to.
        """

    def traffic(self) -> Traffic:
        """What went between this machine and others, through this store."""
        from winml_dag.store.remote.traffic import Traffic

        return Traffic()

    def take_fetched(self) -> int:
        """How many bytes of blobs have come from other machines since this was asked last."""
        return 0

    def close(self) -> None:
        """Let go of the index; the store may be used again, which opens it anew."""
        self.index.close()


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
