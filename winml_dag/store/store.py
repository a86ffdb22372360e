"""The seam between the engine and whatever keeps its results, with a local and an in-memory twin."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from winml_dag.errors import StoreError
from winml_dag.store.artifact import Artifact, FileEntry
from winml_dag.store.locks import never
from winml_dag.store.record import Record


class BlobDamaged(StoreError):
    """A blob's bytes no longer match its digest, or it has gone. It is in quarantine: the stage that made it can run
    again.
    """

    def __init__(self, file: FileEntry, what: str) -> None:
        super().__init__(f"{file.name} in the cache is {what} ({file.digest}).", advice="Build again to make it anew.")
        self.file = file
        self.what = what


class RunStore(Protocol):
    """As much of a store as running a stage takes."""

    def record(self, key: str) -> Record | None:
        """The record of *key*; a record that cannot be read counts as absent."""

    def missing(self, files: Iterable[FileEntry]) -> list[FileEntry]:
        """Those of *files* whose blob can be had nowhere, or is visibly damaged (by its ``stat``; one that was written
        to since it was stored is hashed again).
        """

    def publish(self, record: Record, folders: Mapping[str, Path | str], log: Path | None = None) -> Record:
        """Move the files of each output slot's folder into the store, then write the record, last.

        *record* comes without outputs and log; the returned one has them, but no log that is empty. Files are renamed,
        not copied. Killed at any instant the store is valid: blobs without a record are only unused bytes.

        Raises:
            StoreError: for a link, a special file or an unsafe name among the outputs; for a full disk.
        """

    def far(self, files: Iterable[FileEntry]) -> Sequence[FileEntry]:
        """Those of *files* whose bytes would have to come from another machine first, or are nowhere."""

    def bring(self, files: Iterable[FileEntry]) -> None:
        """Have the bytes of *files* on this machine, all side by side, as far as that is possible: they will be fetched
        next.
        """

    def fetch(self, artifact: Artifact, folder: Path) -> None:
        """Put copies of the artifact's files (reflinks where the file system can) into *folder*, made if need be,
        checking every digest.

        Raises:
            BlobDamaged: and moves the blob to quarantine.
        """

    def claim(self, key: str, gives_up: Callable[[], bool] = never) -> AbstractContextManager[None]:
        """Hold *key* against every other process and thread until the block ends; wait while somebody else does.

        Raises:
            Interrupted: when *gives_up*, asked now and then while waiting, answers that there is no need any more.
        """


class Store(RunStore, Protocol):
    """Records by key, bytes by digest.

    ``asks_behind``: whether what is not here may come from elsewhere, which takes time. Where it is false,
    :meth:`look_up` and :meth:`RunStore.bring` need not be called.
    """

    @property
    def asks_behind(self) -> bool: ...

    def look_up(self, keys: Collection[str]) -> Mapping[str, Record]:
        """The records of *keys*, which will be asked for next: those that are not here are looked for elsewhere side by
        side, and whether their blobs can be had with them. What is not found is not looked for again in this run.
        """

    def came_from_behind(self, key: str) -> bool:
        """Whether the record of *key* came from elsewhere during this run."""

    def records_of(self, stage: str, most: int) -> list[Record]:
        """Up to *most* records of *stage*, those that came last first. For explanations: a store may know of fewer than
        it has.
        """

    def used(self, keys: Iterable[str]) -> None:
        """Note that the records of *keys* are being used: what was used last is removed last. Never fails; a cache that
        cannot be written keeps the times that it has.
        """

    def link(self, artifact: Artifact, folder: Path, *, check: bool = False) -> tuple[str, ...]:
        """Put read-only hard links to the artifact's blobs into *folder*, made if need be. Nothing is read: a blob is
        trusted by its ``stat`` unless *check* wants it hashed. Returns the names of files that are copies all the same,
        because no link can be made there.

        Raises:
            BlobDamaged: and moves the blob to quarantine.
        """

    def together(self, names: Sequence[str]) -> AbstractContextManager[None]:
        """For the block, :meth:`latest` will be asked for *names*, in about this order, and much will be remembered: a
        store may read and write many at once. What is remembered may be lost when the process is killed.
        """

    def latest(self, name: str) -> Record | None:
        """The record last made or reused under *name*: what a reason compares with, what an estimate is taken from."""

    def remember(self, name: str, key: str) -> None:
        """Make *key* the latest under *name*."""


class NothingBehind:
    """What a store answers that has no remotes."""

    asks_behind = False

    def look_up(self, keys: Collection[str]) -> Mapping[str, Record]:  # noqa: ARG002 - nothing lies elsewhere
        return {}

    def came_from_behind(self, key: str) -> bool:  # noqa: ARG002
        return False

    def far(self, files: Iterable[FileEntry]) -> Sequence[FileEntry]:  # noqa: ARG002
        return ()

    def bring(self, files: Iterable[FileEntry]) -> None:
        pass
