"""Blobs on their way here: hashed while they stream into a partial file, and given a name when they are right.

The partial file of a large blob stays when its transfer breaks off or the process is killed. Whoever wants the blob
next hashes what is there and asks for the rest. If the whole is wrong then, it is fetched once from its beginning
before the remote is called a liar: what lay here for a while may have been damaged here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from types import TracebackType

from winml_dag.errors import Interrupted
from winml_dag.store.artifact import FileEntry
from winml_dag.store.blobs import Blobs
from winml_dag.store.digest import new_hash, split_digest
from winml_dag.store.files import PARTIAL, in_words, make_writable, partial_in, remove_file, write
from winml_dag.store.locks import Locks
from winml_dag.store.remote.clock import Clock
from winml_dag.store.remote.counting import Counting
from winml_dag.store.remote.guard import LeftAlone
from winml_dag.store.remote.guardedlevel import GuardedLevel
from winml_dag.store.remote.protocol import ATTEMPT_SECONDS, RemoteError
from winml_dag.store.remote.traffic import Traffic

# Smaller ones are fetched again in less time than it takes to be glad of a part.
RESUMED_BYTES = 8 << 20
_READ_BYTES = 1 << 20
_BINARY = getattr(os, "O_BINARY", 0)


class Partial:
    """As much of a blob as is here, open to be gone on with; a context manager.

    Attributes:
        size: bytes that are here, and hashed.
        sources: what they came from; None is among them for what was here before.
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
            # Whoever was killed last may have made it read-only already, as blobs are.
            make_writable(self.path)
        self._opened = os.open(self.path, os.O_RDWR | os.O_CREAT | _BINARY, 0o666)
        try:
            self._hash_what_is_here()
        except BaseException:
            os.close(self._opened)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        os.close(self._opened)

    @property
    def is_right(self) -> bool:
        """Whether it is whole, and the bytes are those of its digest."""
        return self.size == self.file.size and f"{self._function}:{self._hash.hexdigest()}" == self.file.digest

    def add(self, piece: bytes, source: object) -> None:
        """Raises OSError when there is no room for it."""
        write(self._opened, piece)
        self._hash.update(memoryview(piece))
        self.size += len(piece)
        self.sources.add(source)

    def begin_anew(self) -> None:
        os.ftruncate(self._opened, 0)
        os.lseek(self._opened, 0, os.SEEK_SET)
        self._hash = new_hash(self._function)
        self.size = 0
        self.sources.clear()

    def _hash_what_is_here(self) -> None:
        if os.fstat(self._opened).st_size > self.file.size:
            self.begin_anew()
        while piece := os.read(self._opened, _READ_BYTES):
            self._hash.update(memoryview(piece))
            self.size += len(piece)
            self.sources.add(None)
            if self.size % (64 * _READ_BYTES) == 0:
                # Who waits for us sees that we live.
                os.utime(self.path)


class Fetching:
    """Into *blobs*, by way of partial files in *folder*, which is on the same device."""

    def __init__(self, blobs: Blobs, folder: Path, locks: Locks, count: Counting, clock: Clock) -> None:
        self._blobs = blobs
        self._folder = folder
        self._locks = locks
        self._count = count
        self._clock = clock

    def fetch(self, file: FileEntry, levels: Sequence[GuardedLevel]) -> int | None:
        """Have the blob of *file* here: the number of the level that it came from, -1 if it was here already or came
        by another process meanwhile, None if it could not be had.

        Raises:
            StoreError: when it cannot be written here.
        """
        digits = split_digest(file.digest)[1]
        with in_words(f"Cannot fetch {file.name}"):
            path = self._folder / f"{digits}{PARTIAL}"
            try:
                with self._locks.hold_key(f"blob-{digits}", self._watch(path)):
                    return self._into(path, file, levels)
            except Interrupted:
                # Whoever holds it neither goes on nor ends.
                return self._into(Path(partial_in(str(self._folder))), file, levels)

    def _into(self, path: Path, file: FileEntry, levels: Sequence[GuardedLevel]) -> int | None:
        if not self._blobs.missing([file]):
            return -1
        partial, kept = Partial(path, file), False
        try:
            with partial:
                number = -1 if partial.is_right else self._from_one_of(levels, partial)
            if number is not None:
                self._blobs.receive(path, file)
            # Not after an error of ours: a full disk wants its bytes back.
            kept = file.size >= RESUMED_BYTES and partial.size > 0
            return number
        except (KeyboardInterrupt, SystemExit):
            kept = file.size >= RESUMED_BYTES
            raise
        finally:
            if not kept:
                with suppress(OSError):
                    remove_file(path)

    def _from_one_of(self, levels: Sequence[GuardedLevel], partial: Partial) -> int | None:
        for number, level in enumerate(levels):
            if self._from(level, partial):
                self._count.add(Traffic(blobs_fetched=1))
                return number
        return None

    def _from(self, level: GuardedLevel, partial: Partial) -> bool:
        """Whether the blob is whole and right now."""
        try:
            while True:
                level.reading.trying(lambda: self._go_on(level, partial), lambda: partial.size)
                if partial.is_right:
                    return True
                only_from_there = partial.sources <= {level}
                partial.begin_anew()
                if only_from_there:
                    level.reading.lied(f"has other bytes than those of {_in_short(partial.file)}")
                    return False
        except KeyError:
            level.has_not(partial.file.digest)
            return False
        except LeftAlone:
            return False

    def _go_on(self, level: GuardedLevel, partial: Partial) -> None:
        """One attempt at the rest. Raises RemoteError."""
        if partial.size == partial.file.size and partial.sources:
            return
        came = 0
        try:
            with closing(level.reading.read(partial.file.digest, partial.size)) as pieces:
                for piece in pieces:
                    came += len(piece)
                    if partial.size + len(piece) > partial.file.size:
                        partial.begin_anew()
                        raise RemoteError("lying", f"sent more than the {_in_short(partial.file)} has")
                    partial.add(piece, level)
        finally:
            self._count.add(Traffic(bytes_fetched=came))

    def _watch(self, path: Path) -> Callable[[], bool]:
        """Whether who holds the lock has not gone on with *path* for too long."""
        seen, since = _mark(path), self._clock.now()

        def gives_up() -> bool:
            nonlocal seen, since
            if (now_seen := _mark(path)) != seen:
                seen, since = now_seen, self._clock.now()
            return self._clock.now() - since > 2 * ATTEMPT_SECONDS

        return gives_up


def _mark(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError:
        return 0, 0
    return status.st_size, status.st_mtime_ns


def _in_short(file: FileEntry) -> str:
    return f"blob {file.digest[:19]}… ({file.name})"
