"""Downloads of blobs: hashed while they stream into a partial file, which becomes the blob if the hash is right.

The partial file of a large blob stays when its transfer breaks or the process is killed. The next download hashes it
and requests the rest. If the result is wrong and part of it came from elsewhere, it is fetched once from its beginning
before the remote is blamed: the file may have been damaged here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING

from winml_dag.errors import Interrupted
from winml_dag.store.artifact import FileEntry
from winml_dag.store.blobs import Blobs
from winml_dag.store.digest import new_hash, overlap, split_digest
from winml_dag.store.files import PARTIAL, in_words, make_writable, partial_in, remove_file, write
from winml_dag.store.locks import Locks
from winml_dag.store.remote.protocol import ATTEMPT_SECONDS, RemoteError, TrafficCounter
from winml_dag.store.remote.transfer import Pace, RemoteUnavailable, Transfer

if TYPE_CHECKING:
    from winml_dag.store.remote.tier import RemoteTier

# Smaller blobs are not resumed: they are quickly fetched again.
RESUMED_BYTES = 8 << 20
_READ_BYTES = 1 << 20
_BINARY = getattr(os, "O_BINARY", 0)


class Partial:
    """The received part of a blob, open for more; a context manager.

    Attributes:
        size: received and hashed bytes.
        sources: the tiers that they came from; None for bytes of an earlier transfer.
    """

    def __init__(self, path: Path, file: FileEntry) -> None:
        self.path = path
        self.file = file
        self.size = 0
        self.sources: set[object] = set()
        self._function = split_digest(file.digest)[0]
        self._hash = new_hash(self._function)
        self._opened = -1

    def __enter__(self) -> Partial:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            # A killed process may have made it read-only already, as blobs are.
            make_writable(self.path)
        self._opened = os.open(self.path, os.O_RDWR | os.O_CREAT | _BINARY, 0o666)
        try:
            if os.fstat(self._opened).st_size > self.file.size:
                self.restart()
            while piece := os.read(self._opened, _READ_BYTES):
                self._hash.update(memoryview(piece))
                self.size += len(piece)
                self.sources.add(None)
                if self.size % (64 * _READ_BYTES) == 0:
                    # Processes that wait for the lock see progress.
                    os.utime(self.path)
        except BaseException:
            os.close(self._opened)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        os.close(self._opened)

    def __str__(self) -> str:
        return f"blob {self.file.digest[:19]}… ({self.file.name})"

    @property
    def is_intact(self) -> bool:
        """Whether it is complete and matches its digest."""
        return self.size == self.file.size and f"{self._function}:{self._hash.hexdigest()}" == self.file.digest

    def add(self, piece: bytes, source: object) -> None:
        """Raises OSError when the disk is full."""
        write(self._opened, piece)
        self._hash.update(memoryview(piece))
        self.size += len(piece)
        self.sources.add(source)

    def restart(self) -> None:
        os.ftruncate(self._opened, 0)
        os.lseek(self._opened, 0, os.SEEK_SET)
        self._hash = new_hash(self._function)
        self.size = 0
        self.sources.clear()


class Downloader:
    """Fetches into *blobs* by way of partial files in *folder*, on the same device. *on_received* gets the size of each
    received piece.
    """

    def __init__(
        self, blobs: Blobs, folder: Path, locks: Locks, count: TrafficCounter, on_received: Callable[[int], None] | None
    ) -> None:
        self._blobs = blobs
        self._folder = folder
        self._locks = locks
        self._count = count
        self._on_received = on_received

    def fetch(self, file: FileEntry, tiers: Sequence[RemoteTier], transfer: Transfer) -> int | None:
        """Fetch the blob of *file*; return the index of its tier, -1 if it is local already or another process fetched
        it meanwhile, None if no tier delivers it.

        Raises:
            StoreError: when it cannot be written locally.
        """
        digits = split_digest(file.digest)[1]
        with in_words(f"Cannot fetch {file.name}"):
            path = self._folder / f"{digits}{PARTIAL}"
            try:
                with self._locks.hold_in_use(f"blob-{digits}", _stalled(path)):
                    return self._into(path, file, tiers, transfer)
            except Interrupted:
                # The process that holds the lock makes no progress.
                return self._into(Path(partial_in(self._folder)), file, tiers, transfer)

    def _into(self, path: Path, file: FileEntry, tiers: Sequence[RemoteTier], transfer: Transfer) -> int | None:
        if not self._blobs.missing([file]):
            return -1
        partial, kept = Partial(path, file), False
        try:
            with partial:
                sources = (number for number, tier in enumerate(tiers) if self._complete(partial, tier, transfer))
                number = -1 if partial.is_intact else next(sources, None)
            if number is not None:
                self._blobs.receive(path, file)
            # Not after a local error: a full disk needs the space.
            kept = file.size >= RESUMED_BYTES and partial.size > 0
            return number
        finally:
            if not kept:
                with suppress(OSError):
                    remove_file(path)

    def _complete(self, partial: Partial, tier: RemoteTier, transfer: Transfer) -> bool:
        """Whether *partial* is intact with the rest from *tier*."""
        try:
            while True:
                tier.reading.run(transfer, lambda: self._receive(partial, tier, transfer), lambda: partial.size)
                if partial.is_intact:
                    self._count.add(blobs_fetched=1)
                    return True
                only_from_there = partial.sources <= {tier}
                partial.restart()
                if only_from_there:
                    tier.reading.lied(f"has other bytes than those of {partial}")
                    break
        except KeyError:
            tier.has_not(partial.file.digest)
        except RemoteUnavailable:
            pass
        return False

    def _receive(self, partial: Partial, tier: RemoteTier, transfer: Transfer) -> None:
        """One attempt to receive the rest."""
        if partial.size == partial.file.size and partial.sources:
            return
        pieces = transfer.wait_for(lambda: tier.remote.read(partial.file.digest, partial.size))
        pace = Pace(tier.reading)

        def next_piece() -> bytes | None:
            began = monotonic()
            piece = next(pieces, None)
            if piece is not None:
                self._count.add(bytes_fetched=len(piece))
                if self._on_received is not None:
                    self._on_received(len(piece))
                pace.moved(len(piece), monotonic() - began)
            return piece

        def arriving() -> Iterator[bytes]:
            left = partial.file.size - partial.size
            while (piece := transfer.wait_for(next_piece)) is not None:
                left -= len(piece)
                if left < 0:
                    raise RemoteError("lying", f"sent more than the {partial} has")
                yield piece

        try:
            # A piece is received while the last is hashed and written: 300 MiB take 1.4 s, not 2.7 s, on a busy
            # machine.
            overlap(arriving(), lambda piece: partial.add(piece, tier))
        except RemoteError as error:
            if error.trouble == "lying":
                partial.restart()
            raise
        finally:
            if hasattr(pieces, "close"):
                pieces.close()


def _stalled(path: Path) -> Callable[[], bool]:
    """Returns whether the file at *path*, written by another process, has not changed for too long."""
    seen, since = (0, 0), monotonic()

    def is_stalled() -> bool:
        nonlocal seen, since
        with suppress(OSError):
            status = path.stat()
            if (status.st_size, status.st_mtime_ns) != seen:
                seen, since = (status.st_size, status.st_mtime_ns), monotonic()
        return monotonic() - since > 2 * ATTEMPT_SECONDS

    return is_stalled
