"""The index: what the files of a store answer slowly, in one SQLite database (diskcache): digests of the user's files
by signature, the record that was made last under a name, and the newest records of each stage.

It stores only JSON text with a checksum, and nothing that cannot be measured or made again. So a damaged database is
moved to quarantine and a new one is started, with a warning and without failing the build. If it cannot be used at
all, on a full disk or in a read-only cache, everything works without it: lookups find nothing, and changes are lost.

diskcache unpickles every row that is marked as a pickle, so a database that somebody else wrote (for example a cache
folder restored in CI) could run their code. Its own JSONDisk does not prevent that: it lets the base class fetch, and
so unpickle, before it reads JSON. A row can also name a file anywhere on the disk to read, or to delete when the row is
deleted. Therefore rows are read and written by statements that handle only text, many rows at once, which diskcache
does not support.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Literal, Never, TypeAlias, TypeVar, get_args

import diskcache
from diskcache.core import MODE_RAW

from winml_dag.canonical import JsonValue, canonical_json
from winml_dag.errors import StoreError, warn
from winml_dag.store.digest import checked, with_checksum
from winml_dag.store.files import in_plain_words
from winml_dag.store.locks import Locks

_T = TypeVar("_T")

Namespace: TypeAlias = Literal["record", "fingerprint", "latest"]

BUSY_SECONDS = 60.0

_SETTINGS = {
    # No automatic eviction, and no write on reads.
    "eviction_policy": "none",
    "cull_limit": 0,
    "statistics": 0,
    # Find the rows with one tag without a full scan.
    "tag_index": 1,
    # Readers continue while one process writes.
    "sqlite_journal_mode": "wal",
    # NORMAL: a killed process loses nothing, a power cut at most the last rows, never the database; writes do not wait.
    "sqlite_synchronous": 1,
    # Not mapped: truncating a mapped file ends the process with SIGBUS.
    "sqlite_mmap_size": 0,
    # A foreign database has its own schema: do not let its triggers and views use SQLite's riskier functions.
    "sqlite_trusted_schema": 0,
    "sqlite_cell_size_check": 1,
}

# Older builds of SQLite limit a statement to 999 parameters.
_KEYS_AT_ONCE = 500

_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL}
_HINDRANCES = {
    *(sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_AUTH),
    *(sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOMEM),
}

_IS_TEXT = f"raw = 1 AND mode = {MODE_RAW} AND filename IS NULL AND typeof(key) = 'text' AND typeof(value) = 'text'"
_UPSERT = (
    "INSERT INTO Cache(key, raw, store_time, expire_time, access_time, access_count, tag, size, mode, filename, value)"
    f" VALUES (?, 1, ?, NULL, ?, 0, ?, 0, {MODE_RAW}, NULL, ?) ON CONFLICT(key, raw) DO UPDATE SET"
    " store_time = excluded.store_time, expire_time = NULL, access_time = excluded.access_time, access_count = 0,"
    " tag = excluded.tag, size = 0, mode = excluded.mode, filename = NULL, value = excluded.value"
)
_SELECT = f"SELECT key, value FROM Cache WHERE {_IS_TEXT}"


class TextOnlyError(ValueError):
    """A row is read in another way than by the statements of this module."""


class TextDisk(diskcache.Disk):  # type: ignore[misc]  # diskcache is untyped
    """Turns no row into a Python object, and removes no file."""

    def get(self, key: object, raw: object) -> Never:  # noqa: ARG002
        raise TextOnlyError("Keys of the index are not read by diskcache.")

    def fetch(self, mode: object, filename: object, value: object, read: bool) -> Never:  # noqa: ARG002
        raise TextOnlyError("Values of the index are not read by diskcache.")

    def remove(self, file_path: object) -> None:
        """Does nothing: no valid row has a file, so a row that names a file must not delete it."""


class Index:
    """The database in *folder*; opened on first use, safe for any number of threads and processes.

    If it cannot be read or written, for lack of space or permission, or because another process has locked it for
    longer than *busy_seconds*, reading finds nothing and changes are lost, with one warning. A locked one is not tried
    again.
    """

    def __init__(self, folder: Path, quarantine: Path, locks: Locks, *, busy_seconds: float = BUSY_SECONDS) -> None:
        self._folder = folder
        self._file = str(folder / diskcache.core.DBNAME)
        self._quarantine = quarantine
        self._locks = locks
        self._busy_seconds = busy_seconds
        self._opened: tuple[diskcache.Cache, object] | None = None
        self._has_warned = False
        self._is_locked = False

    def read(self, namespace: Namespace, names: Iterable[str]) -> dict[str, JsonValue]:
        """The values of those *names* that exist and are undamaged."""
        keys = [f"{namespace}:{name}" for name in names]
        found: dict[str, JsonValue] = {}
        for start in range(0, len(keys), _KEYS_AT_ONCE):
            some = keys[start : start + _KEYS_AT_ONCE]
            for key, text in self._rows(f"AND key IN ({','.join('?' * len(some))})", some):
                try:
                    found[key.partition(":")[2]] = checked(key, text)
                except ValueError as error:
                    warn(f"A row of the index is damaged and counts as absent: {error}")
        return found

    def newest_tagged(self, namespace: Namespace, tag: str, most: int) -> list[str]:
        """Up to *most* names that were written with *tag*, newest first."""
        rows = self._rows("AND tag = ? ORDER BY rowid DESC LIMIT ?", (f"{namespace}:{tag}", most))
        return [key.partition(":")[2] for key, _ in rows]

    def write(
        self, namespace: Namespace, values: Mapping[str, JsonValue], tags: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """Store *values* by name in one transaction; those with one of *tags* can also be found by it."""
        now = time.time()
        rows = []
        for name, value in values.items():
            key, tag = f"{namespace}:{name}", f"{namespace}:{tags[name]}" if name in tags else None
            rows.append((key, now, now, tag, with_checksum(key, canonical_json(value))))

        def put(cache: diskcache.Cache) -> None:
            # A third of the cost of single writes.
            with cache.transact():
                cache._con.executemany(_UPSERT, rows)

        if rows:
            self._do(put, None)

    def remove(self, namespace: Namespace, names: Iterable[str]) -> None:
        """Remove *names*; missing ones are ignored."""

        def remove(cache: diskcache.Cache) -> None:
            with cache.transact():
                for name in names:
                    cache.delete(f"{namespace}:{name}")

        self._do(remove, None)

    def remove_damaged(self) -> None:
        """Remove the rows that reading treats as absent, because they are damaged or invalid."""
        self._do(lambda cache: cache._sql(f"DELETE FROM Cache WHERE ({_IS_TEXT}) IS NOT 1"), None)
        for namespace in get_args(Namespace):
            names = self.names(namespace)
            if dead := set(names) - self.read(namespace, names).keys():
                self.remove(namespace, dead)

    def names(self, namespace: Namespace) -> list[str]:
        # ";" is the character after ":".
        rows = self._rows("AND key >= ? AND key < ? ORDER BY key", (f"{namespace}:", f"{namespace};"))
        return [key.partition(":")[2] for key, _ in rows]

    def clear(self) -> None:
        self._do(lambda cache: cache.clear(), None)

    def close(self) -> None:
        """Close this thread's connection; the next use opens it again."""
        if self._opened is not None:
            self._opened[0].close()
            self._opened = None

    def _rows(self, condition: str, values: Sequence[object]) -> list[tuple[str, str]]:
        return self._do(lambda cache: list(cache._sql(f"{_SELECT} {condition}", values)), [])

    def _do(self, work: Callable[[diskcache.Cache], _T], otherwise: _T) -> _T:
        """The result of *work*, or *otherwise* if the index cannot be used. A damaged one is replaced once."""
        if self._is_locked:
            return otherwise
        for last in (False, True):
            seen = self._identity()
            try:
                cache, seen = self._open()
                return work(cache)
            except (diskcache.Timeout, sqlite3.Error, OSError) as error:
                if (hindrance := self._hindrance(error)) is not None:
                    self._go_without(hindrance)
                    return otherwise
                damage: Exception = error
            except (_Unusable, UnicodeDecodeError) as error:
                # UnicodeDecodeError: SQLite quotes what it cannot parse in its message, and that may not be valid text.
                damage = error
            if last:
                break
            self._begin_afresh(seen, damage)
        raise StoreError(
            f"The index of the cache in {self._folder} is damaged: {damage}.", advice="Remove that folder."
        ) from damage

    def _go_without(self, hindrance: object) -> None:
        # A failed connection may keep failing after the cause is gone.
        self.close()
        if not self._has_warned:
            self._has_warned = True
            warn(
                f"The index of the cache in {self._folder} cannot be used: {hindrance}. Going on without it; "
                "where that lasts, remove it."
            )

    def _open(self) -> tuple[diskcache.Cache, object]:
        if self._opened is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            try:
                cache = diskcache.Cache(str(self._folder), timeout=self._busy_seconds, disk=TextDisk, **_SETTINGS)
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
                # diskcache reads settings from the database and sets them as its own attributes: invalid ones break it.
                from winml_dag.explanation import explanation

                raise _Unusable(explanation(error)) from error
            self._opened = cache, self._identity()
        return self._opened

    def _identity(self) -> object:
        """Distinguishes a database file from another one that replaced it."""
        try:
            status = os.stat(self._file)  # noqa: PTH116 - for each lookup
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def _begin_afresh(self, seen: object, damage: Exception) -> None:
        self.close()
        with self._locks.hold("index"):
            # Another process may have found the same damage and already started a new database.
            if self._identity() != seen:
                return
            target = self._quarantine / f"index-{os.urandom(4).hex()}"
            try:
                self._quarantine.mkdir(parents=True, exist_ok=True)
                # Move the folder in one step: a write-ahead log that outlives its database would be applied to the next
                # one. A process that still has it open keeps writing to the file in quarantine; SQLite notices that it
                # was moved and does not touch the new one.
                self._folder.rename(target)
            except OSError as error:
                raise StoreError(
                    f"The index of the cache in {self._folder} is damaged and cannot be moved away: {error.strerror}.",
                    advice="End the other programs that use the cache, then remove that folder.",
                ) from error
        warn(
            f"The index of the cache was damaged ({damage}) and is now in {target}. A fresh one was begun; results are "
            "kept."
        )

    def _hindrance(self, error: Exception) -> object:
        """What keeps us from using a database that may be intact; None if it is damaged."""
        if isinstance(error, OSError):
            return in_plain_words(error)
        # diskcache hides the cause of a transaction that could not start behind its Timeout.
        cause = error if isinstance(error, sqlite3.Error) else error.__context__
        code = getattr(cause, "sqlite_errorcode", 0) & 0xFF
        if code in _BUSY:
            self._is_locked = True
            return "it has been locked by another process for too long"
        return cause if code in _HINDRANCES else None


class _Unusable(Exception):
    """diskcache cannot handle the content of the database."""
