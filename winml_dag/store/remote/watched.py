"""A remote of which somebody is told how many bytes have come: who waits for a large blob wants to see it come."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from winml_dag.store.remote.protocol import Remote


@dataclass(frozen=True)
class WatchedRemote:
    """See ``Remote``. *received* gets the number of bytes of each piece of a blob, from any thread."""

    remote: Remote
    received: Callable[[int], None]

    def record(self, key: str) -> bytes | None:
        return self.remote.record(key)

    def put_record(self, key: str, data: bytes) -> bool:
        return self.remote.put_record(key, data)

    def has(self, digest: str) -> bool:
        return self.remote.has(digest)

    def read(self, digest: str, offset: int = 0) -> Iterator[bytes]:
        # Asked for at once, not with the first piece: that there is no such blob is told here.
        return self._told(self.remote.read(digest, offset))

    def put(self, digest: str, path: Path, told: Callable[[int], None]) -> bool:
        return self.remote.put(digest, path, told)

    def close(self) -> None:
        self.remote.close()

    def _told(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        try:
            for piece in pieces:
                self.received(len(piece))
                yield piece
        finally:
            if hasattr(pieces, "close"):
                pieces.close()
