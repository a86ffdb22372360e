"""A store that can lose things between two runs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from winml_dag.store.digest import digest_file, split_digest
from winml_dag.store.store import Store


class Lossy:
    """A store, its contents, and ways to lose them.

    Rot is damage that size and time do not reveal. The index is everything the store can do without: the latest key
    under each name, file digests, copies of records.
    """

    def __init__(self, folder: Path) -> None:
        self.store = Store(folder / "cache")

    def digests(self) -> list[str]:
        return sorted(blob.digest for blob in self.store.blobs.all())

    def is_intact(self, digest: str) -> bool:
        """Return whether the blob exists with the correct bytes, by reading them."""
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
        """Remove the index entries of these records, and all latest keys."""
        self.store.index.remove("record", keys)
        self.store.index.remove("latest", self.store.index.names("latest"))

    def lose_index(self) -> None:
        self.store.close()
        shutil.rmtree(self.store.folder / "index", ignore_errors=True)

    def close(self) -> None:
        self.store.close()
