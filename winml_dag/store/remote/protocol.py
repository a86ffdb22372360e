"""The interface of a remote, the errors of one attempt, and the counter of what is transferred.

A remote is two maps, as in the HTTP caches of build systems: records by key (``ac/``), which must be signed, and blobs
by SHA-256 (``cas/``), which verify themselves. Each method makes one attempt; the caller decides about retries and
about what to do without an answer.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

from winml_dag.errors import StoreError
from winml_dag.store.usage import Traffic

# The size limit of a record. Nothing that answers with more is read to its end.
MOST_RECORD_BYTES = 8 << 20
# How long an attempt waits for a connection, and for each further byte, in seconds.
ATTEMPT_SECONDS = 2.0
# Time limit for a part of an upload whose progress the client library does not report: 5 MiB at 80 kB/s.
PART_SECONDS = 64.0
# How fast a server is assumed to hash and move an upload before it answers.
SETTLING_BYTES_PER_SECOND = 32 << 20
# The folders of all records and of all blobs.
FOLDERS = ("ac", "cas")

KEY = re.compile(r"[0-9a-f]{64}")
DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_FULL = (HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.INSUFFICIENT_STORAGE)
_TRANSIENT = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS)

# unreachable: no connection, or it broke. slow: no byte for a while. failing: an error of the server (5xx).
# forbidden: access denied (401, 403, 405). full: no space for an upload (413, 507). lying: the content does not match
# its name, or does not end.
Trouble: TypeAlias = Literal["unreachable", "slow", "failing", "forbidden", "full", "lying"]


class RemoteError(StoreError):
    """An attempt without an answer. Never reaches the user as an error: no build fails because of a remote."""

    def __init__(self, trouble: Trouble, message: str) -> None:
        super().__init__(message)
        self.trouble = trouble

    @classmethod
    def of_status(cls, status: int, because: str = "") -> RemoteError:
        """The error for an HTTP *status* other than success. Permanent errors, 400 among them, count as forbidden."""
        trouble: Trouble = "forbidden"
        if status in _FULL:
            trouble = "full"
        elif status in _TRANSIENT or (status >= 500 and status != HTTPStatus.NOT_IMPLEMENTED):
            trouble = "failing"
        phrase = f" {HTTPStatus(status).phrase}" if status in set(HTTPStatus) else ""
        return cls(trouble, f"answered {status}{phrase}{because}")

    @classmethod
    def too_slow(cls) -> RemoteError:
        return cls("slow", f"did not go on for {ATTEMPT_SECONDS:g} s")

    @property
    def may_pass(self) -> bool:
        return self.trouble in ("unreachable", "slow", "failing")


class Remote(Protocol):
    """Records by key, blobs by ``sha256:<64 hex>``. Thread-safe. Every method may raise RemoteError."""

    def record(self, key: str) -> bytes | None:
        """The unverified bytes under *key*; None if absent. Raises RemoteError("lying") for more than
        ``MOST_RECORD_BYTES``, without reading further.
        """

    def put_record(self, key: str, data: bytes) -> bool:
        """Store *data* under *key* unless the key exists, which keeps its value; return whether it was stored."""

    def has(self, digest: str) -> bool:
        """Whether the blob exists."""

    def read(self, digest: str, offset: int = 0) -> Iterator[bytes]:
        """The unverified bytes of a blob from *offset* on, in pieces of at most 1 MiB, each yielded as soon as it
        arrives: a reader that fills its buffer first looks as slow as a remote that has stopped. A ``close`` method of
        the iterator closes the connection. A remote without ranges starts at 0 and drops the bytes before *offset*.
        Raises KeyError for a missing blob.
        """

    def put(self, digest: str, path: Path, on_progress: Callable[[int], None]) -> bool:
        """Store the file at *path* under *digest* unless the blob exists, in memory that does not grow with its size;
        return whether it was stored. *on_progress* gets the size of each piece sent, about 64 KiB where that is known.
        An exception from *on_progress* ends the attempt and is passed on.
        """

    def close(self) -> None:
        """Close connections. The remote can be used again."""


class TrafficCounter:
    """A thread-safe sum of Traffic."""

    def __init__(self) -> None:
        self.traffic = Traffic()
        self._lock = threading.Lock()

    def add(self, **more: int) -> None:
        with self._lock:
            self.traffic += Traffic(**more)


def read_pieces(path: Path, size: int, on_progress: Callable[[int], None]) -> Iterator[bytes]:
    """The bytes of a file in pieces of *size*; *on_progress* gets the length of each once the next is asked for."""
    with open(path, "rb") as file:
        while piece := file.read(size):
            yield piece
            on_progress(len(piece))


def whole_record(pieces: Iterable[bytes]) -> bytes:
    """*pieces* joined. Raises RemoteError("lying") as soon as they exceed the size limit of a record."""
    data = bytearray()
    for piece in pieces:
        data += piece
        if len(data) > MOST_RECORD_BYTES:
            raise RemoteError("lying", f"sent more than {MOST_RECORD_BYTES >> 20} MiB as a record")
    return bytes(data)


def record_path(key: str) -> str:
    """Raises ValueError for anything but a key: nothing else may become part of a path."""
    if not KEY.fullmatch(key):
        raise ValueError(f"no key of a record: {key!r}")
    return f"ac/{key}"


def blob_path(digest: str) -> str:
    """Raises ValueError for anything but a SHA-256 digest: remotes know blobs by nothing else."""
    if not (match := DIGEST.fullmatch(digest)):
        raise ValueError(f"no sha256: {digest!r}")
    return f"cas/{match[1]}"
