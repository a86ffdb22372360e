"""Named locks between processes and threads; the operating system releases them when their owner dies.

A lock is a file, which its holder removes when it releases the lock. Another process may have opened that file before,
and gains the lock of a file without a name: it notices that and starts again, so no two processes hold locks on two
files with one name. The file of a killed process stays until the lock is used again, or :meth:`Locks.remove_free`.

Scratch folders, one per run, have a lock each. They are removed when the run ends, or by the next run if their owner
was killed.
"""

# os functions with string paths: 4000 stages are 4000 claims.
# ruff: noqa: PTH108, PTH110

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from winml_dag.errors import Interrupted, StoreError
from winml_dag.store.files import in_words, remove_tree

if sys.platform == "win32":
    import msvcrt

    def _lock(descriptor: int) -> bool:
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

    def _release(descriptor: int, path: str) -> None:
        msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)
        os.close(descriptor)
        # Windows removes no open file: not by its holder, and not while another process waits for it.
        with suppress(OSError):
            os.unlink(path)

else:
    import fcntl

    def _lock(descriptor: int) -> bool:
        try:
            # Belongs to this descriptor: it keeps out other threads too, and does not end with other descriptors.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _release(descriptor: int, path: str) -> None:
        # While it is held: a process that gains the lock next must find that its file has no name.
        with suppress(OSError):
            os.unlink(path)
        os.close(descriptor)


# A link in a folder that somebody else has written could lead anywhere, or to a folder that never exists.
_NO_LINKS = getattr(os, "O_NOFOLLOW", 0)


def _acquire(path: str) -> int | None:
    """The descriptor of the locked file at *path*, created if necessary; None while another descriptor has the lock."""
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | _NO_LINKS, 0o666)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120
            continue
        except PermissionError:
            # Windows, about a file that is being removed.
            if os.name != "nt" or not os.path.exists(path):
                raise
            return None
        is_locked = False
        try:
            if not _lock(descriptor):
                return None
            is_locked = os.fstat(descriptor).st_nlink > 0
            if is_locked:
                return descriptor
        finally:
            if not is_locked:
                os.close(descriptor)


_SUFFIX = ".lock"
_GATE = "gate"
# How long a process that waits for a lock sleeps between attempts: briefly at first, later long enough to cost nothing.
_SHORTEST_NAP, _LONGEST_NAP = 0.001, 0.05


def never() -> bool:
    return False


class Locks:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # The thread that holds each.
        self._held: dict[str, int] = {}

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
            # Only pass the gate: :meth:`hold_unused` sees the lock of an earlier holder, and a later one waits here.
            if os.path.exists(self._path(_GATE)):
                with self.hold(_GATE, gives_up):
                    pass
            yield

    @contextmanager
    def hold_unused(self) -> Iterator[None]:
        """Keep all others out for the block, if nobody is in.

        Raises:
            StoreError: when somebody holds a lock. Waiting instead could silently take hours.
        """
        with self.hold(_GATE):
            for name in self._names():
                with self.try_hold(name) as free:
                    if not free:
                        raise StoreError("The cache is in use.", advice="Wait for the running builds, or stop them.")
            yield

    def remove_free(self) -> None:
        """Remove the files of all locks that nobody holds, which killed processes have left."""
        for name in self._names():
            with self.try_hold(name):
                pass

    def _names(self) -> list[str]:
        names = (file.stem for file in sorted(self._folder.glob(f"*{_SUFFIX}")))
        return [name for name in names if name != _GATE]

    def _path(self, name: str) -> str:
        return f"{self._folder}{os.sep}{name}{_SUFFIX}"

    def _acquire(self, name: str, gives_up: Callable[[], bool] | None) -> Callable[[], None] | None:
        """Hold *name*; returns what releases it, or None when it is given up, without *gives_up* at once."""
        path, nap = self._path(name), _SHORTEST_NAP
        while (descriptor := _acquire(path)) is None:
            if gives_up is not None and self._held.get(name) == threading.get_ident():
                raise RuntimeError(f"This thread holds {name} already and would wait for itself.")
            if gives_up is None or gives_up():
                return None
            time.sleep(nap)
            nap = min(2 * nap, _LONGEST_NAP)
        self._held[name] = threading.get_ident()
        return partial(self._give_back, name, descriptor)

    def _give_back(self, name: str, descriptor: int) -> None:
        del self._held[name]
        _release(descriptor, self._path(name))


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
