"""Files where users have theirs, whose content the cache knows as a result: nothing is lost when one is overwritten."""

from __future__ import annotations

import stat
from pathlib import Path

from winml_dag.errors import InputError
from winml_dag.store.artifact import FileEntry
from winml_dag.store.fingerprints import Fingerprints
from winml_dag.store.store import RunStore


class KnownFiles:
    """What *store* has, looked up by what *fingerprints* say of a file."""

    def __init__(self, store: RunStore, fingerprints: Fingerprints) -> None:
        self._store = store
        self._fingerprints = fingerprints

    def has(self, path: Path, expected: FileEntry | None = None) -> bool:
        """Whether the file *path* is a result, or *expected*, byte for byte; false for one that cannot be read."""
        try:
            if expected is not None and self._fingerprints.digest(path, expected.digest) == expected.digest:
                return True
            found = self._fingerprints.entry(path, path.name)
        except InputError:
            return False
        # Only what is on this machine: a remote has the work of others, and this file may be theirs or its owner's.
        return not (self._store.far([found]) or self._store.missing([found]))

    def may_replace(self, path: Path, *, owned: bool = False, expected: FileEntry | None = None) -> bool:
        """Whether nothing is lost when *path* is overwritten: it is not there, or a file that is *owned* or :meth:`has`
        knows.
        """
        try:
            mode = path.lstat().st_mode
        except OSError:
            return True
        return stat.S_ISREG(mode) and (owned or self.has(path, expected))
