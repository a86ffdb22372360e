"""The store of this machine with remotes behind it: what is not here is looked for there, and what is made here is
offered to them.

A record of a remote is kept here, without its blobs: a key needs digests alone. Blobs come when something that runs, or
that was asked for, needs their bytes. What no remote has is asked for once in a run, and a blob that could not be
fetched counts as missing for the rest of it: the stage that made it runs again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from winml_dag.errors import StoreError
from winml_dag.store.artifact import Artifact, FileEntry
from winml_dag.store.local import LocalStore, has_only
from winml_dag.store.record import Record
from winml_dag.store.store import BlobDamaged

if TYPE_CHECKING:
    from winml_dag.store.remote.remotes import Remotes
    from winml_dag.store.remote.traffic import Traffic

_PREFIX = "sha256:"


class SharedStore(LocalStore):
    """A store in *folder* with the remotes that *remotes_of* makes for it. Digests are sha256: what others write must
    be collision-proof. *told* is what :meth:`settle` tells when it is given nobody else to tell.
    """

    asks_behind = True

    def __init__(
        self,
        folder: Path,
        remotes_of: Callable[[LocalStore], Remotes],
        told: Callable[[int, int], None] | None = None,
    ) -> None:
        super().__init__(folder, function="sha256")
        self._told = told
        self._remotes = remotes_of(self)
        # In this run: keys that no remote has, and digests of blobs that could not be fetched.
        self._nowhere: set[str] = set()
        self._lost: set[str] = set()
        # In this run: keys whose record came from a remote, and those records that could not be written here.
        self._arrived: set[str] = set()
        self._unkept: dict[str, Record] = {}
        self._fetched = 0

    def record(self, key: str) -> Record | None:
        found = super().record(key)
        if found is not None or key in self._nowhere:
            return found
        return self._unkept[key] if key in self._unkept else self._from_remotes([key]).get(key)

    def look_up(self, keys: Collection[str]) -> Mapping[str, Record]:
        found = {
            **{k: record for k, record in self.records.read_many(list(keys)).items() if has_only(record, "sha256")},
            **{key: self._unkept[key] for key in keys if key in self._unkept},
        }
        found.update(self._from_remotes([key for key in keys if key not in found and key not in self._nowhere]))
        # Asks for all of their blobs at once; the remotes remember the answers.
        self.missing([file for record in found.values() for file in record.files()])
        return found

    def came_from_behind(self, key: str) -> bool:
        return key in self._arrived

    def missing(self, files: Iterable[FileEntry]) -> list[FileEntry]:
        gone = super().missing(files)
        if not gone:
            return []
        asked = {file.digest for file in gone if file.digest.startswith(_PREFIX)} - self._lost
        there = self._remotes.has(asked) if asked else set()
        return [file for file in gone if file.digest not in there]

    def far(self, files: Iterable[FileEntry]) -> list[FileEntry]:
        return super().missing(files)

    def bring(self, files: Iterable[FileEntry]) -> None:
        gone = {file.digest: file for file in self.far(files)}
        wanted = [file for digest, file in gone.items() if digest.startswith(_PREFIX) and digest not in self._lost]
        if wanted:
            self._lost.update(file.digest for file in self._remotes.fetch(wanted))

    def fetch(self, artifact: Artifact, folder: Path) -> None:
        self._with_blobs(artifact, lambda: LocalStore.fetch(self, artifact, folder))

    def link(self, artifact: Artifact, folder: Path, *, check: bool = False) -> tuple[str, ...]:
        copied: list[str] = []
        self._with_blobs(artifact, lambda: copied.extend(LocalStore.link(self, artifact, folder, check=check)))
        return tuple(copied)

    def publish(self, record: Record, folders: Mapping[str, Path | str], log: Path | None = None) -> Record:
        published = super().publish(record, folders, log)
        self._arrived.discard(published.cache_key)
        self._remotes.offer(published)
        return published

    def offer(self, record: Record) -> None:
        """Begin to put *record*, whose blobs are here, where we may write."""
        self._remotes.offer(record)

    def settle(self, told: Callable[[int, int], None] | None = None) -> None:
        self._remotes.settle(told or self._told)

    def traffic(self) -> Traffic:
        return self._remotes.traffic()

    def take_fetched(self) -> int:
        before, self._fetched = self._fetched, self.traffic().bytes_fetched
        return self._fetched - before

    def close(self) -> None:
        self._remotes.close()
        super().close()

    def _from_remotes(self, keys: Collection[str]) -> dict[str, Record]:
        """The records of *keys* that a remote has, kept here from now on."""
        if not keys:
            return {}
        found = {key: record for key, record in self._remotes.records(keys).items() if has_only(record, "sha256")}
        self._nowhere.update(key for key in keys if key not in found)
        with self.index.holding_back():
            for key, record in found.items():
                try:
                    self.records.write(record)
                except (OSError, StoreError):
                    self._unkept[key] = record
        self._arrived.update(found)
        return found

    def _with_blobs(self, artifact: Artifact, work: Callable[[], None]) -> None:
        """Do *work* with the blobs of *artifact* here; one that turns out to be damaged is fetched again."""
        self.bring(artifact.files)
        replaced: set[str] = set()
        while True:
            try:
                return work()
            except BlobDamaged as error:
                digest = error.file.digest
                if digest in replaced or digest in self._lost:
                    raise
                replaced.add(digest)
                self.bring([error.file])
