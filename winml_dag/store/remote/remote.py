"""The one protocol between us and whatever keeps records and blobs for several machines: six methods, no more.

A remote is two maps, as HTTP caches of build systems have them: records under their key (``ac/``), which are to be
trusted or not, and blobs under their sha256 (``cas/``), which prove themselves. A method is one attempt: retries, time
limits over several attempts and what to do without an answer are no matter of a remote's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

from winml_dag.errors import StoreError

# No record is longer: what answers with more is not read to its end.
MOST_RECORD_BYTES = 8 << 20
# What a single attempt waits for a connection, and for each further byte, in seconds.
ATTEMPT_SECONDS = 2.0

# unreachable: no connection, or it broke off. slow: nothing came for a while. failing: it answered with an error of its
# own (5xx). forbidden: we may not (401, 403, 405). full: no room for what we put (413, 507). lying: what came is not
# what its name says, or endless.
Trouble: TypeAlias = Literal["unreachable", "slow", "failing", "forbidden", "full", "lying"]


class RemoteError(StoreError):
    """An attempt that did not lead to an answer. Never shown as it is: no build fails because of a remote."""

    def __init__(self, trouble: Trouble, message: str) -> None:
        super().__init__(message)
        self.trouble = trouble

    @property
    def may_pass(self) -> bool:
        """Whether another attempt could fare better."""
        return self.trouble in ("unreachable", "slow", "failing")


class Remote(Protocol):
    """Records by key, blobs by ``sha256:<64 hex>``; used by several threads at once. Every method may raise
    RemoteError.
    """

    def record(self, key: str) -> bytes | None:
        """What lies under *key*, unread and untrusted; None when nothing does. Raises RemoteError("lying") for more
        than ``MOST_RECORD_BYTES``, having read no more than that.
        """

    def put_record(self, key: str, data: bytes) -> bool:
        """Put *data* under *key* unless something is there already, which stays; whether it was put."""

    def has(self, digests: Collection[str]) -> set[str]:
        """Those of *digests* whose blob is there, asked for side by side."""

    def read(self, digest: str, offset: int = 0) -> Iterator[bytes]:
        """The bytes of a blob from *offset* on, unchecked, in pieces of at most 1 MiB, each as soon as it has come: who
        waits to fill one looks as slow as a remote that has stopped. Closing the iterator lets the connection go.
        Raises KeyError when there is no such blob. A remote that cannot begin in the middle begins at 0 and drops what
        comes before *offset*.
        """

    def put(self, digest: str, path: Path, told: Callable[[int], None]) -> bool:
        """Put the file at *path* under *digest* unless it is there, in memory that does not grow with its size; whether
        it was put. *told* gets the number of bytes of each piece that has gone, of 64 KiB or so wherever that can be
        told; what it raises ends the attempt and is passed on.
        """

    def close(self) -> None:
        """Let go of connections; it may be used again."""
