"""Scratch folders, one a run: gone when the run ends, and swept by the next run when its owner was killed."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from winml_dag.store.files import in_words, remove_tree
from winml_dag.store.locks import Locks


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
        name = secrets.token_hex(4)
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

    def sweep(self) -> None:
        """Remove what dead owners left."""
        if not self.folder.is_dir():
            return
        for root in list(self.folder.iterdir()):
            with self._locks.try_hold(_lock_name(root.name)) as dead:
                if dead:
                    with suppress(OSError):
                        remove_tree(root)
            if dead and not root.exists():
                self._locks.discard(_lock_name(root.name))


def _lock_name(name: str) -> str:
    return f"scratch-{name}"
