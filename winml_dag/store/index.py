"""The index: what the files of a store answer slowly, in one SQLite database: digests of the user's files by signature,
the record that was made last under a name, and the newest records of each stage.

It stores only JSON text with a checksum, and nothing that cannot be measured or made again. So a damaged database is
moved to quarantine and a new one is started, with a warning and without failing the build. If it cannot be used at
all, on a full disk or in a read-only cache, everything works without it: lookups find nothing, and changes are lost.

A database may come from somebody else, for example with a cache folder restored in CI: a row that is not text with its
checksum counts as absent. That is why this is not diskcache, which unpickles rows and removes files that rows name.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Literal, TypeAlias, TypeVar, get_args

from winml_dag.canonical import JsonValue, canonical_json
from winml_dag.errors import StoreError, warn
from winml_dag.store.digest import checked, with_checksum
from winml_dag.store.files import in_plain_words
from winml_dag.store.locks import Locks

_T = TypeVar("_T")

Namespace: TypeAlias = Literal["record", "fingerprint", "latest"]

BUSY_SECONDS = 60.0

_SETTINGS = (
    # NORMAL: a killed process loses nothing, a power cut at most the last rows, never the database; writes do not wait.
    "synchronous = normal",
    # Not mapped: truncating a mapped file ends the process with SIGBUS.
    "mmap_size = 0",
    # A foreign database has its own schema: do not let its triggers and views use SQLite's riskier functions.
    "trusted_schema = off",
    "cell_size_check = on",
)
_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS entries (key TEXT PRIMARY KEY, tag TEXT, value TEXT)",
    "CREATE INDEX IF NOT EXISTS tags ON entries (tag)",
    # Readers continue while one process writes. Set last: a database that has this mode has the table.
    "PRAGMA journal_mode = wal",
)

# Older builds of SQLite limit a statement to 999 parameters.
_KEYS_AT_ONCE = 500

_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL}
_HINDRANCES = {
    *(sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_AUTH),
    *(sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOMEM),
}

_IS_TEXT = "typeof(key) = 'text' AND typeof(value) = 'text'"
_SELECT = f"SELECT key, value FROM entries WHERE {_IS_TEXT}"


class Index:
    """The database in *folder*; opened on first use, safe for any number of threads and processes.

    If it cannot be read or written, for lack of space or permission, or because another process has locked it for
    longer than *busy_seconds*, reading finds nothing and changes are lost, with one warning. A locked one is not tried
    again.
    """

    def __init__(self, folder: Path, quarantine: Path, locks: Locks, *, busy_seconds: float = BUSY_SECONDS) -> None:
        self._folder = folder
        self._file = str(folder / "cache.db")
        self._quarantine = quarantine
        self._locks = locks
        self._busy_seconds = busy_seconds
        # Of each thread: its connection, its process, and the file. A connection must not be used after a fork.
        self._of_thread = threading.local()
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
        rows = []
        for name, value in values.items():
            key, tag = f"{namespace}:{name}", f"{namespace}:{tags[name]}" if name in tags else None
            rows.append((key, tag, with_checksum(key, canonical_json(value))))
        self._change("INSERT OR REPLACE INTO entries (key, tag, value) VALUES (?, ?, ?)", rows)

    def remove(self, namespace: Namespace, names: Iterable[str]) -> None:
        """Remove *names*; missing ones are ignored."""
        self._change("DELETE FROM entries WHERE key = ?", [(f"{namespace}:{name}",) for name in names])

    def remove_damaged(self) -> None:
        """Remove the rows that reading treats as absent, because they are damaged or invalid."""
        self._change(f"DELETE FROM entries WHERE ({_IS_TEXT}) IS NOT 1", [()])
        for namespace in get_args(Namespace):
            names = self.names(namespace)
            if dead := set(names) - self.read(namespace, names).keys():
                self.remove(namespace, dead)

    def names(self, namespace: Namespace) -> list[str]:
        # ";" is the character after ":".
        rows = self._rows("AND key >= ? AND key < ? ORDER BY key", (f"{namespace}:", f"{namespace};"))
        return [key.partition(":")[2] for key, _ in rows]

    def clear(self) -> None:
        self._change("DELETE FROM entries", [()])

    def close(self) -> None:
        """Close this thread's connection; the next use opens it again."""
        connection, process, _ = self._opened()
        self._of_thread.opened = None
        if connection is not None and process == os.getpid():
            connection.close()

    def _rows(self, condition: str, values: Sequence[object]) -> list[tuple[str, str]]:
        return self._do(lambda connection: connection.execute(f"{_SELECT} {condition}", values).fetchall(), [])

    def _change(self, statement: str, rows: Sequence[Sequence[object]]) -> None:
        """Execute *statement* with each of *rows* in one transaction: a third of the cost of single ones."""

        def change(connection: sqlite3.Connection) -> None:
            with connection:
                connection.executemany(statement, rows)

        if rows:
            self._do(change, None)

    def _do(self, work: Callable[[sqlite3.Connection], _T], otherwise: _T) -> _T:
        """The result of *work*, or *otherwise* if the index cannot be used. A damaged one is replaced once."""
        if self._is_locked:
            return otherwise
        for last in (False, True):
            seen = self._identity()
            try:
                connection, seen = self._open()
                return work(connection)
            except (sqlite3.Error, OSError, StoreError) as error:
                if (hindrance := self._hindrance(error)) is not None:
                    self._go_without(hindrance)
                    return otherwise
                damage: Exception = error
            except UnicodeDecodeError as error:
                # SQLite quotes what it cannot parse in its message, and that may not be valid text.
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

    def _opened(self) -> tuple[sqlite3.Connection | None, int, object]:
        return getattr(self._of_thread, "opened", None) or (None, 0, None)

    def _open(self) -> tuple[sqlite3.Connection, object]:
        connection, process, identity = self._opened()
        if connection is not None and process == os.getpid():
            return connection, identity
        self._folder.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(self._file, timeout=self._busy_seconds, isolation_level="IMMEDIATE")
        try:
            for setting in _SETTINGS:
                connection.execute(f"PRAGMA {setting}")
            if connection.execute("PRAGMA journal_mode").fetchone() != ("wal",):
                # Changing the mode does not wait for another process that does so.
                with self._locks.hold("index"):
                    for statement in _SCHEMA:
                        connection.execute(statement)
        except BaseException:
            connection.close()
            raise
        identity = self._identity()
        self._of_thread.opened = connection, os.getpid(), identity
        return connection, identity

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
        if not isinstance(error, sqlite3.Error):
            return in_plain_words(error) if isinstance(error, OSError) else str(error).rstrip(".")
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in _BUSY:
            self._is_locked = True
            return "it has been locked by another process for too long"
        return error if code in _HINDRANCES else None
