"""The store of a simulation: local and remote records in memory; blobs are only names.

Its requests to a remote are those of `Store`: for a missing record, once per run; for the blobs of a record, once each;
known needs in parallel.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from world import VirtualClock, VirtualRemote

from winml_dag.store.artifact import FileEntry
from winml_dag.store.records import Record


@dataclass
class Shelf:
    """Records by key, each with its size on the wire."""

    records: dict[str, Record] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)


class VirtualStore:
    """The part of ``Store`` that the scheduler and the prefetch use.

    *far*: the contents of the remote, None without one. ``shelf``: the contents of this machine. ``usual``: records of
    other work by stage, for estimates.
    """

    def __init__(
        self,
        clock: VirtualClock,
        remote: VirtualRemote,
        far: Shelf,
        usual: Mapping[str, Sequence[Record]],
        names: dict[str, str] | None = None,
    ) -> None:
        self.shelf = Shelf()
        self.far = far
        self.usual = usual
        self.names: dict[str, str] = {} if names is None else names
        self._clock = clock
        self._remote = remote
        self._nowhere: set[str] = set()
        self._arrived: set[str] = set()
        self._seen: set[str] = set()

    @property
    def has_remotes(self) -> bool:
        return True

    def record(self, key: str) -> Record | None:
        found = self.shelf.records.get(key)
        if found is None and key not in self._nowhere:
            self._from_behind([key])
            found = self.shelf.records.get(key)
        return found

    def prefetch_records(self, keys: Collection[str]) -> Mapping[str, Record]:
        self._from_behind([key for key in keys if key not in self.shelf.records and key not in self._nowhere])
        found = {key: self.shelf.records[key] for key in keys if key in self.shelf.records}
        self.missing([file for record in found.values() for file in record.files()])
        return found

    def missing(self, files: Iterable[FileEntry]) -> list[FileEntry]:
        asked = {file.digest for file in files} - self._seen
        if asked:
            self._clock.until(self._remote.ask_for_blobs(self._clock.seconds, len(asked)))
            self._seen |= asked
        return [file for file in files if file.digest not in self._remote.held]

    def made(self, record: Record, size: int) -> None:
        """Record that a run has uploaded *record* and its blobs, and its machine has reported it."""
        self.far.records[record.cache_key] = self.shelf.records[record.cache_key] = record
        self.far.sizes[record.cache_key] = size
        self._seen.update(file.digest for file in record.files())

    def fetch_ahead(self, files: Iterable[FileEntry]) -> None:
        """Fetch the blobs of *files*."""
        wanted = {file.digest: file.size for file in files}
        self._clock.until(self._remote.get(self._clock.seconds, wanted.values()))

    def came_from_remote(self, key: str) -> bool:
        return key in self._arrived

    def records_of(self, stage: str, most: int) -> list[Record]:
        return list(self.usual.get(stage, ()))[:most]

    def used(self, keys: Iterable[str]) -> None:
        """Do nothing: nothing is ever removed."""

    def latest(self, names: Iterable[str]) -> dict[str, Record]:
        keys = {name: self.names[name] for name in names if name in self.names}
        return {name: self.shelf.records[key] for name, key in keys.items() if key in self.shelf.records}

    def remember(self, keys: Mapping[str, str]) -> None:
        self.names.update(keys)

    def _from_behind(self, keys: Sequence[str]) -> None:
        if not keys:
            return
        found = [key for key in keys if key in self.far.records]
        size = sum(self.far.sizes[key] for key in found)
        self._clock.until(self._remote.ask_for_records(self._clock.seconds, len(keys), size))
        self.shelf.records.update((key, self.far.records[key]) for key in found)
        self._arrived.update(found)
        self._nowhere.update(key for key in keys if key not in self.far.records)
