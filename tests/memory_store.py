"""An index in memory, and a store in a temporary folder that records its calls."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from winml_dag.canonical import JsonValue
from winml_dag.store.artifact import FileEntry
from winml_dag.store.digest import DigestFunction
from winml_dag.store.index import Namespace
from winml_dag.store.records import Record
from winml_dag.store.store import Store

# The fastest file system: nothing needs to outlive the tests.
MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None  # noqa: PTH112


class MemoryRows:
    """The part of an index that file digests need."""

    def __init__(self) -> None:
        self._values: dict[tuple[Namespace, str], JsonValue] = {}

    def read(self, namespace: Namespace, names: Iterable[str]) -> dict[str, JsonValue]:
        return {name: self._values[namespace, name] for name in names if (namespace, name) in self._values}

    def write(self, namespace: Namespace, values: Mapping[str, JsonValue]) -> None:
        self._values.update({(namespace, name): value for name, value in values.items()})


class NotedStore(Store):
    """A store whose folder is removed with it.

    Attributes:
        calls: each call as (method, subject): a key, a name or a stage.
    """

    def __init__(self, *, function: DigestFunction | None = None) -> None:
        self._place = tempfile.TemporaryDirectory(dir=MEMORY, ignore_cleanup_errors=True)
        super().__init__(Path(self._place.name) / "cache", function=function)
        self.calls: list[tuple[str, str]] = []

    def record(self, key: str) -> Record | None:
        self.calls.append(("record", key))
        return super().record(key)

    def records_of(self, stage: str, most: int) -> list[Record]:
        self.calls.append(("records_of", stage))
        return super().records_of(stage, most)

    def publish(self, record: Record, folders: Mapping[str, Path | str], log: Path | None = None) -> Record:
        self.calls.append(("publish", record.cache_key))
        return super().publish(record, folders, log)

    def used(self, keys: Iterable[str]) -> None:
        asked = list(keys)
        self.calls.extend(("used", key) for key in asked)
        super().used(asked)

    def latest(self, names: Iterable[str]) -> dict[str, Record]:
        asked = list(names)
        self.calls.extend(("latest", name) for name in asked)
        return super().latest(asked)

    def remember(self, keys: Mapping[str, str]) -> None:
        self.calls.extend(("remember", name) for name in keys)
        super().remember(keys)

    def bytes_of(self, file: FileEntry) -> bytes:
        return self.blobs.path(file.digest).read_bytes()

    def lose(self, file: FileEntry) -> None:
        self.blobs.path(file.digest).unlink()

    def rot(self, file: FileEntry) -> None:
        """Change its bytes as a failing disk does, with size and time unchanged."""
        path = self.blobs.path(file.digest)
        status = path.stat()
        path.chmod(0o600)
        path.write_bytes(b"\x00" * file.size)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        path.chmod(status.st_mode)
