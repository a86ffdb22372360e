"""Hash, and optionally copy, a big file with two threads: one hashes and writes while the other reads.

Copying from the page cache takes seven times as long as hashing, and writing twice as long as reading, so a single
thread mostly waits for memory. Memory use is one chunk per thread, independent of the file size.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
from typing import BinaryIO, Protocol

# Below this, starting a thread costs more than it gains (measured: break-even at 16 MiB for hashing, at 6 MiB for
# copying).
BIG_BYTES = 16 << 20
# Smaller chunks hand over too often; larger ones do not fit in the processor's cache.
CHUNK_BYTES = 1 << 20
# Size of one write call. Linux allocates page cache memory in blocks as large as a write, and blocks as large as a
# whole chunk are seldom available: virtual machines that return free memory to their host fetched them again every
# time, and copying took up to eight times as long (512 MiB after a ``cp``: 4.2 s instead of 0.6).
_WRITE_BYTES = 64 << 10
# More threads would only take processors from stages: the bytes of one file are hashed in order.
_THREADS = 2


class Hash(Protocol):
    """The common interface of xxhash and hashlib."""

    def update(self, data: memoryview, /) -> None: ...
    def hexdigest(self) -> str: ...


def hash_in_chunks(source: BinaryIO, hasher: Hash, target: BinaryIO | None = None) -> None:
    """Feed the bytes of *source* to *hasher* and copy them to *target*; both are open, unbuffered and at their start.

    Raises:
        OSError: as reading and writing do; *target* may then have only some of the bytes.
    """
    passage = _Passage(source, hasher, target)
    threads = [threading.Thread(target=passage.work, args=(first,), daemon=True) for first in range(1, _THREADS)]
    for thread in threads:
        thread.start()
    passage.work(0)
    for thread in threads:
        thread.join()
    if passage.error is not None:
        raise passage.error


def has_spare_processor() -> bool:
    """Whether a second thread would find a free processor.

    Without one, two threads mostly wait for each other: copying took a third longer than with one. Returns True if the
    system does not report what is currently running.
    """
    try:
        with open("/proc/loadavg", "rb", buffering=0) as file:
            running = int(file.read(100).split()[3].partition(b"/")[0])
    except (OSError, ValueError, IndexError):
        return True
    # The calling thread runs too.
    return running <= (os.cpu_count() or 1) - 1


def write_all(target: BinaryIO, data: memoryview) -> None:
    """Write *data* to *target*, which is unbuffered."""
    while len(data):
        # A raw write may be partial, typically just before the disk is full.
        data = data[target.write(data[:_WRITE_BYTES]) :]


class _SoughtSource:
    """An open file that any number of threads read; seeks before each read."""

    def __init__(self, opened: BinaryIO) -> None:
        self._opened = opened
        self._lock = threading.Lock()

    def fill(self, buffer: memoryview, offset: int) -> int:
        """Fill *buffer* from *offset*; returns fewer bytes only at the end of the file."""
        filled = 0
        while filled < len(buffer) and (count := self._read(buffer[filled:], offset + filled)):
            filled += count
        return filled

    def _read(self, buffer: memoryview, offset: int) -> int:
        with self._lock:
            self._opened.seek(offset)
            return int(self._opened.readinto(buffer))  # type: ignore[attr-defined]  # BinaryIO lacks readinto


if sys.platform == "win32":
    _Source = _SoughtSource

else:

    class _Source(_SoughtSource):
        """The same without the lock, so that two threads read one file concurrently."""

        def _read(self, buffer: memoryview, offset: int) -> int:
            return os.preadv(self._opened.fileno(), [buffer], offset)


class _Passage:
    """Each thread takes every other chunk; hashing and writing happen in chunk order.

    Writing too: two writers of one file would wait for its lock in the kernel, and temporarily leave holes.
    """

    def __init__(self, source: BinaryIO, hasher: Hash, target: BinaryIO | None) -> None:
        self._source = _Source(source)
        self._hasher = hasher
        self._target = target
        self._next = 0
        self._over = False
        self._changed = threading.Condition()
        self.error: BaseException | None = None

    def work(self, first: int) -> None:
        """Process chunk *first* and every ``_THREADS``-th after it, until the file ends or a thread fails."""
        try:
            buffer = memoryview(bytearray(CHUNK_BYTES))
            for number in itertools.count(first, _THREADS):
                chunk = buffer[: self._source.fill(buffer, number * CHUNK_BYTES)]
                if not self._take_turn(number, chunk):
                    return
        except BaseException as error:
            # An interrupt too: it hits only the main thread, and the other one must not wait forever.
            with self._changed:
                self.error = self.error or error
                self._over = True
                self._changed.notify_all()

    def _take_turn(self, number: int, chunk: memoryview) -> bool:
        """False when nothing remains to be done: the file has ended, or the other thread has failed."""
        with self._changed:
            self._changed.wait_for(lambda: self._over or self._next == number)
            if self._over:
                return False
        self._hasher.update(chunk)
        if self._target is not None:
            write_all(self._target, chunk)
        with self._changed:
            self._next += 1
            # Ignore bytes after a short chunk: they were written meanwhile, and the file ended here.
            self._over = self._over or len(chunk) < CHUNK_BYTES
            self._changed.notify_all()
            return not self._over
