"""Digests of the user's files, remembered by their fingerprint, so that an unchanged file costs one stat."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from winml_dag.canonical import JsonValue
from winml_dag.errors import InputError, StoreError
from winml_dag.file_reading import SETTLED_NS, Signature, signature_of, was_read
from winml_dag.store.artifact import FileEntry
from winml_dag.store.digest import DigestFunction, digest_file, split_digest

if TYPE_CHECKING:
    from winml_dag.store.index import Index

_ATTEMPTS = 3


def _signature(path: Path) -> Signature:
    found = signature_of(path)
    if found is None:
        raise InputError(f"{path} is not a file.")
    return found


def _digest_in(row: JsonValue, found: Signature, function: DigestFunction) -> str | None:
    """The digest that *row* remembers, if it is about a file just like the one that was *found*."""
    if isinstance(row, list) and len(row) == 5 and isinstance(row[4], str) and row == [*found, row[4]]:
        try:
            return row[4] if split_digest(row[4])[0] == function else None
        except StoreError:
            return None
    return None


class Fingerprints:
    """Digests of files, by *function*, remembered in *rows*: of the index."""

    def __init__(self, rows: Index, function: DigestFunction = "xxh3-128") -> None:
        self._rows = rows
        self._function = function

    def digest(self, path: Path, like: str | None = None) -> str:
        """The digest of the file's bytes; of the function that the digest *like* has, if it is to be compared with it.

        Raises:
            InputError: when it is missing, unreadable, no file, or does not come to rest.
        """
        function = self._function if like is None else split_digest(like)[0]
        return self._entries([(path, path.name)], function)[0].digest

    def entry(self, path: Path, name: str) -> FileEntry:
        """The file as a part of an artifact, under *name*. Raises as :meth:`digest` does."""
        return self.entries([(path, name)])[0]

    def entries(self, files: Sequence[tuple[Path, str]]) -> list[FileEntry]:
        """Like :meth:`entry` for many, with one look into the index and one write to it."""
        return self._entries(files, self._function)

    def unchanged(self, path: Path, digest: str) -> bool:
        """Whether the file still has the bytes of *digest*; one that has gone has not."""
        try:
            return self._entries([(path, path.name)], split_digest(digest)[0])[0].digest == digest
        except InputError:
            return False

    def _entries(self, files: Sequence[tuple[Path, str]], function: DigestFunction) -> list[FileEntry]:
        row_names = [f"{function}:{_address(path)}" for path, _ in files]
        known = self._rows.read("fingerprint", row_names)
        entries = []
        fresh: dict[str, JsonValue] = {}
        for (path, name), row_name in zip(files, row_names, strict=True):
            try:
                found = _signature(path)
                digest = _digest_in(known.get(row_name), found, function)
                if digest is None:
                    began_ns = time.time_ns()
                    found, digest = _measure(path, found, function)
                    # One that may change again without showing it is measured each time.
                    if found[3] <= began_ns - SETTLED_NS:
                        fresh[row_name] = [*found, digest]
            except OSError as error:
                raise InputError(f"{path} cannot be read: {error.strerror}.") from error
            was_read(path, found)
            entries.append(FileEntry(name, digest, found[0]))
        self._rows.write("fingerprint", fresh)
        return entries


def _measure(path: Path, before: Signature, function: DigestFunction) -> tuple[Signature, str]:
    for _ in range(_ATTEMPTS):
        digest = digest_file(path, function)
        after = _signature(path)
        if after == before:
            return after, digest
        before = after
    raise InputError(f"{path} keeps changing while it is being read.", advice="Try again when it has come to rest.")


def _address(path: Path) -> str:
    # A name that is no text in the file system's encoding still needs a row of its own.
    return os.path.abspath(path).encode("utf-8", "backslashreplace").decode()  # noqa: PTH100  # Path.absolute keeps ".."
