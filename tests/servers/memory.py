"""A remote in memory, the test double of the real ones, which records every call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

_PIECE_BYTES = 1 << 20


@dataclass
class MemoryRemote:
    """See ``Remote``. ``calls``: the requests as (method, key or digest), in order."""

    records: dict[str, bytes] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)
    calls: list[tuple[str, str]] = field(default_factory=list)

    def record(self, key: str) -> bytes | None:
        self.calls.append(("record", key))
        return self.records.get(key)

    def put_record(self, key: str, data: bytes) -> bool:
        self.calls.append(("put_record", key))
        return self.records.setdefault(key, data) is data

    def has(self, digest: str) -> bool:
        self.calls.append(("has", digest))
        return digest in self.blobs

    def read(self, digest: str, offset: int = 0) -> Iterator[bytes]:
        self.calls.append(("read", digest))
        data = self.blobs[digest]
        return (data[start : start + _PIECE_BYTES] for start in range(offset, len(data), _PIECE_BYTES))

    def put(self, digest: str, path: Path, told: Callable[[int], None]) -> bool:
        self.calls.append(("put", digest))
        if digest in self.blobs:
            return False
        self.blobs[digest] = path.read_bytes()
        told(len(self.blobs[digest]))
        return True

    def close(self) -> None:
        self.calls.append(("close", ""))
