"""Named locks between processes and threads; the operating system releases them when their owner dies.

A lock is a byte of one file if the system supports that (Linux), otherwise a file of its own. Such a file is kept when
its lock is released, until :meth:`Locks.remove_free` removes those that nobody holds. That is safe: a process that
opened a file which is removed before it gains the lock notices that the file has no name any more and starts again
(filelock checks that), so no two processes can hold locks on two files with one name. Windows does not remove a file
that is open.

Scratch folders, one per run, have a lock each. They are removed when the run ends, or by the next run if their owner
was killed.
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from winml_dag.errors import Interrupted, StoreError
from winml_dag.store.files import in_words, remove_tree

# Locks by number in one file: one byte each, held through an open file description (Linux).
#
# A lock costs 1 us instead of 300 us for a file of its own, and leaves nothing behind: 4000 stages are 4000 claims.
# Ordinary POSIX locks would not work, since a process loses all of them when any part of it closes the file.


# Byte 2**62 and all after it are never locked.
_BYTES = 1 << 62
_ALL = -1


class Ranges:
    """Exclusive locks on the bytes of *file*, which is created if necessary; one thread of one process holds each.

    Every method raises OSError when the file cannot be created or locked.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lock = threading.Lock()
        # The thread that holds each number.
        self._held: dict[int, int] = {}
        self._descriptor = -1
        self._owner = -1

    def acquire(self, number: int) -> bool:
        """Lock byte *number* if it is free, without waiting."""
        with self._lock:
            if number in self._held or _ALL in self._held or not self._set(number, 1, exclusive=True):
                return False
            self._held[number] = threading.get_ident()
            return True

    def is_mine(self, number: int) -> bool:
        return self._held.get(number) == threading.get_ident()

    def release(self, number: int) -> None:
        with self._lock:
            del self._held[number]
            self._set(number, 1, exclusive=False)

    def acquire_all(self) -> bool:
        """Lock every byte if none is locked, without waiting."""
        with self._lock:
            if self._held or not self._set(0, _BYTES, exclusive=True):
                return False
            self._held[_ALL] = threading.get_ident()
            return True

    def release_all(self) -> None:
        with self._lock:
            del self._held[_ALL]
            self._set(0, _BYTES, exclusive=False)

    def __del__(self) -> None:
        if self._owner == os.getpid():
            with suppress(OSError):
                os.close(self._descriptor)

    def _set(self, start: int, length: int, *, exclusive: bool) -> bool:
        if self._owner != os.getpid():
            # A forked child shares the description, and so the locks, of its parent.
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            self._owner = os.getpid()
        return _set_lock(self._descriptor, start, length, exclusive=exclusive)


if sys.platform == "linux":
    import fcntl

    AVAILABLE = hasattr(fcntl, "F_OFD_SETLK")
    # struct flock: type, whence, start, length, process.
    _FLOCK = struct.Struct("hhqqi4x")

    def _set_lock(descriptor: int, start: int, length: int, *, exclusive: bool) -> bool:
        kind = fcntl.F_WRLCK if exclusive else fcntl.F_UNLCK
        try:
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, start, length, 0))
        except (BlockingIOError, PermissionError):
            return False
        return True

else:
    AVAILABLE = False

    def _set_lock(descriptor: int, start: int, length: int, *, exclusive: bool) -> bool:
        raise NotImplementedError("Only Linux has such locks.")


_SUFFIX = ".lock"
_GATE = "gate"
_KEYS = "keys"
# How long a process that waits for a key sleeps between attempts: briefly at first, later long enough to cost nothing.
_SHORTEST_NAP, _LONGEST_NAP = 0.001, 0.05


def never() -> bool:
    return False


class Locks:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ranges = Ranges(folder / _KEYS) if AVAILABLE else None

    @contextmanager
    def hold(self, name: str, gives_up: Callable[[], bool] = never) -> Iterator[None]:
        """Hold *name* until the block ends; waits while another process, or another thread of this one, holds it.

        Raises:
            Interrupted: when *gives_up*, called repeatedly while waiting, returns True.
            RuntimeError: when this thread already holds *name*: it would wait for itself.
            StoreError: when the lock file cannot be created.
        """
        with in_words(f"Cannot lock {name}"):
            if (release := self._acquire(name, gives_up)) is None:
                raise Interrupted(f"Waiting for {name} was given up.")
        try:
            yield
        finally:
            release()

    @contextmanager
    def try_hold(self, name: str) -> Iterator[bool]:
        """Hold *name* if it is free, without waiting; the block receives whether it does."""
        with in_words(f"Cannot lock {name}"):
            release = self._acquire(name, None)
        try:
            yield release is not None
        finally:
            if release is not None:
                release()

    @contextmanager
    def hold_in_use(self, name: str, gives_up: Callable[[], bool] = never) -> Iterator[None]:
        """Hold *name* so that :meth:`hold_unused` respects it. Raises as :meth:`hold` does."""
        with self.hold(name, gives_up):
            if self._ranges is None:
                # Only pass it: :meth:`hold_unused` sees the lock of an earlier holder, and a later one waits here.
                with self.hold(_GATE, gives_up):
                    pass
            yield

    @contextmanager
    def hold_unused(self) -> Iterator[None]:
        """Keep all others out for the block, if nobody is in.

        Raises:
            StoreError: when somebody holds a lock. Waiting instead could silently take hours.
        """
        if self._ranges is not None:
            with in_words("Cannot lock the cache"):
                if not self._ranges.acquire_all():
                    raise _in_use()
            try:
                yield
            finally:
                self._ranges.release_all()
            return
        with self.hold(_GATE):
            for file in sorted(self._folder.glob(f"*{_SUFFIX}")):
                if file.stem == _GATE:
                    continue
                with self.try_hold(file.stem) as free:
                    if not free:
                        raise _in_use()
            yield

    def remove_free(self) -> int:
        """Remove the files of all locks that nobody holds; returns how many."""
        count = 0
        for file in sorted(self._folder.glob(f"*{_SUFFIX}")):
            with self.try_hold(file.stem) as free:
                # While it is held: a process that gains the lock next must find that its file has no name.
                gone = free and os.name != "nt" and self.discard(file.stem)
            # On Windows only after closing it here; it stays if another process has it open.
            count += gone or (free and os.name == "nt" and self.discard(file.stem))
        return count

    def discard(self, name: str) -> bool:
        """Remove the file of a lock; False if that is not possible."""
        try:
            (self._folder / f"{name}{_SUFFIX}").unlink()
        except OSError:
            return False
        return True

    def _acquire(self, name: str, gives_up: Callable[[], bool] | None) -> Callable[[], object] | None:
        """Hold *name*; returns what releases it, or None when it is given up, without *gives_up* at once."""
        if self._ranges is None:
            return self._acquire_file(name, gives_up)
        if self._ranges.is_mine(_ALL):
            return lambda: None  # it is held, and released with all others
        # Two names with the same number would only wait for each other.
        number = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=7).digest(), "big")
        nap = _SHORTEST_NAP
        while not self._ranges.acquire(number):
            if gives_up is not None and self._ranges.is_mine(number):
                raise RuntimeError(f"This thread holds {name} already and would wait for itself.")
            if gives_up is None or gives_up():
                return None
            time.sleep(nap)
            nap = min(2 * nap, _LONGEST_NAP)
        return partial(self._ranges.release, number)

    def _acquire_file(self, name: str, gives_up: Callable[[], bool] | None) -> Callable[[], object] | None:
        # Imported here: it costs 40 ms, and plans and reports lock nothing.
        from filelock import FileLock, Timeout

        self._folder.mkdir(parents=True, exist_ok=True)
        # A new object each time, so that threads exclude each other as processes do.
        lock = FileLock(self._folder / f"{name}{_SUFFIX}", thread_local=False)
        try:
            lock.acquire(blocking=gives_up is not None, cancel_check=gives_up)
        except Timeout:
            return None
        return lock.release


def _in_use() -> StoreError:
    return StoreError("The cache is in use.", advice="Wait for the running builds, or stop them.")


# Seconds since 1970, then a random part.
_NAME = re.compile(r"[0-9a-f]{14}")
# The time in a name is truncated to seconds, and file times lag behind the clock by up to 2 s (FAT).
_SLACK_SECONDS = 3


class Scratch:
    """The scratch folder of a store, on the device of its blobs, so that files can be renamed from one to the other."""

    def __init__(self, folder: Path, locks: Locks) -> None:
        self.folder = folder
        self._locks = locks

    @contextmanager
    def open(self) -> Iterator[Path]:
        """An empty folder for this run, removed with its content when the block ends.

        A lock is held for the lifetime of its owner. It distinguishes folders of dead owners from those of live ones,
        however long these sleep and even if a process id is reused.

        Raises:
            StoreError: when it cannot be created.
        """
        # Short, because paths below it grow, and Windows limits them to 260 characters.
        name = f"{int(time.time()):08x}{os.urandom(3).hex()}"
        root = self.folder / name
        self.sweep()
        # Lock before creating the folder: a sweep then never sees a live folder without its lock.
        with self._locks.hold_in_use(_lock_name(name)):
            with in_words("Cannot make a scratch folder"):
                root.mkdir(parents=True)
            try:
                yield root
            finally:
                # On Windows, files that another program still has open are left for the next sweep.
                with suppress(OSError):
                    remove_tree(root)
        if not root.exists():
            self._locks.discard(_lock_name(name))

    def oldest_began(self, besides: Path | None = None) -> int | None:
        """A time, in ns, before which no live run started; None without live runs. *besides*: a folder to ignore.

        It comes from the names of their folders, because the times of folders and lock files change.
        """
        found = []
        for root in _entries(self.folder):
            if root == besides:
                continue
            with self._locks.try_hold(_lock_name(root.name)) as dead:
                if not dead:
                    found.append(_began(root.name))
        return min(found, default=None)

    def sweep(self) -> None:
        for root in _entries(self.folder):
            with self._locks.try_hold(_lock_name(root.name)) as dead:
                if dead:
                    with suppress(OSError):
                        remove_tree(root)
            if dead and not root.exists():
                self._locks.discard(_lock_name(root.name))


def _lock_name(name: str) -> str:
    return f"scratch-{name}"


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except FileNotFoundError:
        return []


def _began(name: str) -> int:
    """When the run started; 0 for an invalid name, so that nothing counts as older than its run."""
    if not _NAME.fullmatch(name):
        return 0
    return (int(name[:8], 16) - _SLACK_SECONDS) * 10**9
