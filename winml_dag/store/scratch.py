"""Scratch folders, one a run: gone when the run ends, and swept by the next run when its owner was killed."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from winml_dag.store.files import in_words, remove_tree
from winml_dag.store.locks import Locks

# Seconds since 1970, then something of one's own.
_NAME = re.compile(r"[0-9a-f]{14}")
# The time in a name is cut to seconds, and times of files are behind the clock by up to 2 s (FAT).
_SLACK_SECONDS = 3


class Scratch:
    """The scratch folder of a store, on the device of its blobs: what is made there can be renamed into them."""

    def __init__(self, folder: Path, locks: Locks) -> None:
        self.folder = folder
        self._locks = locks

    @contextmanager
    def open(self) -> Iterator[Path]:
        """An empty folder of this run's own, removed with all that is in it when the block ends.

        A lock is held as long as its owner lives, so folders of the dead are told from those of the living, however
        long these sleep and whatever process id the next owner gets.

        Raises:
            StoreError: when it cannot be made.
        """
        # Short: paths below it grow, and Windows ends at 260 characters.
        name = f"{int(time.time()):08x}{secrets.token_hex(3)}"
        root = self.folder / name
        self.sweep()
        # The lock before the folder: a sweeper never sees a living folder without its lock.
        with self._locks.hold_in_use(_lock_name(name)):
            with in_words("Cannot make a scratch folder"):
                root.mkdir(parents=True)
            try:
                yield root
            finally:
                # What another program still has open on Windows is left for the next sweep.
                with suppress(OSError):
                    remove_tree(root)
        if not root.exists():
            self._locks.discard(_lock_name(name))

    def oldest_began(self, besides: Path | None = None) -> int | None:
        """A time, in ns, before which the oldest of the living had not begun; None when nobody lives. *besides*: one's
        own folder.

        It is in the names of their folders: times of folders and of lock files change.
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
        """Remove what dead owners left."""
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
    """0 for a name that tells nothing: then nothing is older than its owner."""
    if not _NAME.fullmatch(name):
        return 0
    return (int(name[:8], 16) - _SLACK_SECONDS) * 10**9
