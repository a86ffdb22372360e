"""Scratch folders, one per run: removed when the run ends, or by the next run if its owner was killed."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from winml_dag.store.files import in_words, remove_tree
from winml_dag.store.locks import Locks

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
        name = f"{int(time.time()):08x}{secrets.token_hex(3)}"
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
        """Remove the folders of dead owners."""
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
