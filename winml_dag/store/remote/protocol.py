"""The protocol between us and whatever keeps records and blobs for several machines, and the errors of one attempt.

A remote is two maps, as HTTP caches of build systems have them: records under their key (``ac/``), which have to be
signed, and blobs under their sha256 (``cas/``), which prove themselves. Each method makes one attempt: retries, and
what to do without an answer, are decided by the caller.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

from winml_dag.errors import StoreError

# No record is longer; nothing that answers with more is read to its end.
MOST_RECORD_BYTES = 8 << 20
# How long an attempt waits for a connection, and for each further byte, in seconds.
ATTEMPT_SECONDS = 2.0
# How long a part of an upload may take whose progress a client library does not tell: 5 MiB at 80 kB/s.
PART_SECONDS = 64.0
# How fast a server hashes and moves what it has received before it answers.
SETTLING_BYTES_PER_SECOND = 32 << 20
# The folders of all records and of all blobs.
FOLDERS = ("ac", "cas")

_KEY = re.compile(r"[0-9a-f]{64}")
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_FULL = (HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.INSUFFICIENT_STORAGE)
_TRANSIENT = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS)

# unreachable: no connection, or it broke off. slow: nothing came for a while. failing: an error of its own (5xx).
# forbidden: we may not (401, 403, 405). full: no room for what we put (413, 507). lying: what came is not what its name
# says, or has no end.
Trouble: TypeAlias = Literal["unreachable", "slow", "failing", "forbidden", "full", "lying"]


class RemoteError(StoreError):
    """An attempt without an answer. Never shown as it is: no build fails because of a remote."""

    def __init__(self, trouble: Trouble, message: str) -> None:
        super().__init__(message)
        self.trouble = trouble

    @classmethod
    def of_status(cls, status: int, because: str = "") -> RemoteError:
        """The error for a *status* of HTTP that is no success. Those that do not pass by themselves, 400 among them,
        count as forbidden.
        """
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
        """Whether another attempt could succeed."""
        return self.trouble in ("unreachable", "slow", "failing")


class Remote(Protocol):
    """Records by key, blobs by ``sha256:<64 hex>``. Used by several threads at once. Every method may raise
    RemoteError.
    """

    def record(self, key: str) -> bytes | None:
        """What lies under *key*, not verified; None for nothing. Raises RemoteError("lying") for more than
        ``MOST_RECORD_BYTES``, having read no more than that.
        """

    def put_record(self, key: str, data: bytes) -> bool:
        """Put *data* under *key* unless something is there, which stays; whether it was put."""

    def has(self, digest: str) -> bool:
        """Whether the blob is there."""

    def read(self, digest: str, offset: int = 0) -> Iterator[bytes]:
        """The bytes of a blob from *offset* on, not verified, in pieces of at most 1 MiB. Each is yielded as soon as it
        has come: a reader that fills its buffer first looks as slow as a remote that has stopped. If the iterator has a
        ``close``, that closes the connection. Raises KeyError when there is no such blob. A remote that cannot begin in
        the middle begins at 0 and drops what comes before *offset*.
        """

    def put(self, digest: str, path: Path, told: Callable[[int], None]) -> bool:
        """Put the file at *path* under *digest* unless it is there, in memory that does not grow with its size; whether
        it was put. *told* gets the number of bytes of each piece that has gone, of about 64 KiB where that is known.
        What *told* raises ends the attempt and is passed on.
        """

    def close(self) -> None:
        """Close connections. The remote may be used again."""


def whole_record(pieces: Iterable[bytes]) -> bytes:
    """*pieces* together. Raises RemoteError("lying") for more than a record has, having taken no more than that."""
    data = bytearray()
    for piece in pieces:
        data += piece
        if len(data) > MOST_RECORD_BYTES:
            raise RemoteError("lying", f"sent more than {MOST_RECORD_BYTES >> 20} MiB as a record")
    return bytes(data)


def record_path(key: str) -> str:
    """Raises ValueError for what is no key: nothing else may become part of a path."""
    if not _KEY.fullmatch(key):
        raise ValueError(f"no key of a record: {key!r}")
    return f"ac/{key}"


def blob_path(digest: str) -> str:
    """Raises ValueError for what is no sha256: remotes know blobs by nothing else."""
    if not (match := _DIGEST.fullmatch(digest)):
        raise ValueError(f"no sha256: {digest!r}")
    return f"cas/{match[1]}"
