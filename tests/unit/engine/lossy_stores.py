"""Stores from which things can be lost between two runs: one in memory, and one on disk, which also has an index."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from engine_samples import StatStore

from winml_dag.store.digest import digest_bytes, digest_file, split_digest
from winml_dag.store.local import LocalStore
from winml_dag.store.record import Record
from winml_dag.store.store import Store


class Lossy(Protocol):
    """A store, what is in it, and ways to lose it.

    Rot is what no look at size and time can tell. The index is whatever the store can do without: what stood under a
    name before, digests of files, copies of records.
    """

    @property
    def store(self) -> Store: ...

    def digests(self) -> list[str]: ...

    def is_sound(self, digest: str) -> bool:
        """Whether the blob is here with the bytes that it should have, by reading them."""

    def keys(self) -> set[str]: ...

    def lose_blob(self, digest: str) -> None: ...

    def rot_blob(self, digest: str) -> None: ...

    def lose_record(self, key: str) -> None: ...

    def lose_rows(self, keys: Iterable[str]) -> None:
        """Of the index, what it has of these records, and all that stood under a name."""

    def lose_index(self) -> None: ...

    def close(self) -> None: ...


class LossyMemory(StatStore):
    """Records are kept where the index is; so those of lost keys are hidden."""

    def __init__(self, folder: Path) -> None:  # noqa: ARG002 - as the one on disk is made
        super().__init__()
        self.lost: set[str] = set()
        self.known: set[str] = set()
        self.names: set[str] = set()

    @property
    def store(self) -> Store:
        return self

    def record(self, key: str) -> Record | None:
        return super().record(key) if key in self.known else None

    def publish(self, record: Record, folders: dict[str, Path], log: Path | None = None) -> Record:  # type: ignore[override]
        self.known.add(record.cache_key)
        return super().publish(record, folders, log)

    def latest(self, name: str) -> Record | None:
        found = super().latest(name) if name in self.names else None
        return found if found is not None and found.cache_key in self.known else None

    def remember(self, name: str, key: str) -> None:
        self.names.add(name)
        super().remember(name, key)

    def digests(self) -> list[str]:
        return sorted(self.blobs)

    def is_sound(self, digest: str) -> bool:
        return digest in self.blobs and digest_bytes(self.blobs[digest]) == digest

    def keys(self) -> set[str]:
        return set(self.known)

    def lose_blob(self, digest: str) -> None:
        del self.blobs[digest]

    def rot_blob(self, digest: str) -> None:
        self.blobs[digest] = b"\x00" * len(self.blobs[digest])

    def lose_record(self, key: str) -> None:
        self.known.remove(key)

    def lose_rows(self, keys: Iterable[str]) -> None:  # noqa: ARG002
        self.names.clear()

    def lose_index(self) -> None:
        self.names.clear()

    def close(self) -> None:
        pass


class LossyDisk:
    def __init__(self, folder: Path) -> None:
        self.store = LocalStore(folder / "cache")

    def digests(self) -> list[str]:
        return sorted(blob.digest for blob in self.store.blobs.all())

    def is_sound(self, digest: str) -> bool:
        path = self.store.blobs.path(digest)
        return path.is_file() and digest_file(path, split_digest(digest)[0]) == digest

    def keys(self) -> set[str]:
        return set(self.store.records.keys())

    def lose_blob(self, digest: str) -> None:
        path = self.store.blobs.path(digest)
        path.chmod(0o600)
        path.unlink()

    def rot_blob(self, digest: str) -> None:
        path = self.store.blobs.path(digest)
        status = path.stat()
        path.chmod(0o600)
        path.write_bytes(b"\x00" * status.st_size)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        path.chmod(status.st_mode)

    def lose_record(self, key: str) -> None:
        self.store.records.remove(key)

    def lose_rows(self, keys: Iterable[str]) -> None:
        self.store.index.remove("record", keys)
        self.store.index.remove("latest", self.store.index.names("latest"))

    def lose_index(self) -> None:
        self.store.close()
        shutil.rmtree(self.store.folder / "index", ignore_errors=True)

    def close(self) -> None:
        self.store.close()
