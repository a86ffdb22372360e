"""The index: what is small and looked up often, in one SQLite database (diskcache).

Only JSON text with a checksum goes in and comes out. It holds nothing that cannot be had otherwise: records also lie
beside the blobs, fingerprints are measured again. So a damaged database is moved to quarantine and a fresh one begun,
with a warning and no failed build. And where it cannot be used at all, on a full disk or in a cache that may only be
read, the rest goes on without it: nothing is found in it, and what it is given is lost.

diskcache unpickles whatever a row says is a pickle, so a database that somebody else wrote (a cache folder restored in
CI is one) would run their code. Its own JSONDisk is no cure: it lets the base class fetch, and so unpickle, before it
reads JSON. A row can also name a file to read, or to delete when the row goes, anywhere on the disk. Here rows are read
and written by statements that know text and nothing else, many at once, which diskcache cannot.
"""

from __future__ import annotations

import errno
import logging
import os
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, Never, TypeAlias, TypeVar, get_args

import diskcache
from diskcache.core import MODE_RAW

from winml_dag.canonical import JsonValue, canonical_json
from winml_dag.errors import StoreError
from winml_dag.explanation import explanation
from winml_dag.store.digest import checked, with_checksum
from winml_dag.store.files import in_words
from winml_dag.store.locks import Locks

_LOGGER = logging.getLogger(__name__)
_T = TypeVar("_T")

Namespace: TypeAlias = Literal["record", "fingerprint", "latest"]

BUSY_SECONDS = 60.0

_SETTINGS = {
    # Nothing is ever thrown out behind our back, and a read is not a write.
    "eviction_policy": "none",
    "cull_limit": 0,
    "statistics": 0,
    # The rows with one tag are found without looking at all others.
    "tag_index": 1,
    # Readers go on while one process writes.
    "sqlite_journal_mode": "wal",
    # NORMAL: a killed process loses nothing, a power cut at most the last rows, never the database; no wait per write.
    "sqlite_synchronous": 1,
    # Not mapped: a mapped file that is truncated ends the process with SIGBUS.
    "sqlite_mmap_size": 0,
    # A database from elsewhere brings its own schema: its triggers and views get none of SQLite's riskier functions.
    "sqlite_trusted_schema": 0,
    "sqlite_cell_size_check": 1,
}

# SQLite's limit on parameters is 999 in older builds.
_KEYS_AT_ONCE = 500

_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL}
_DENIED = {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_AUTH}
_FILES = tuple(diskcache.core.DBNAME + ending for ending in ("", "-wal", "-shm", "-journal"))
_DISK = {sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOMEM}
_HINDRANCES = {errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS}


_IS_TEXT = f"raw = 1 AND mode = {MODE_RAW} AND filename IS NULL AND typeof(key) = 'text' AND typeof(value) = 'text'"
_UPSERT = (
    "INSERT INTO Cache(key, raw, store_time, expire_time, access_time, access_count, tag, size, mode, filename, value)"
    f" VALUES (?, 1, ?, NULL, ?, 0, ?, 0, {MODE_RAW}, NULL, ?) ON CONFLICT(key, raw) DO UPDATE SET"
    " store_time = excluded.store_time, expire_time = NULL, access_time = excluded.access_time, access_count = 0,"
    " tag = excluded.tag, size = 0, mode = excluded.mode, filename = NULL, value = excluded.value"
)
_SELECT = f"SELECT key, value FROM Cache WHERE {_IS_TEXT}"


class TextOnlyError(ValueError):
    """Somebody reads a row in another way than by our statements."""


class TextDisk(diskcache.Disk):  # type: ignore[misc]  # diskcache is untyped
    """Turns no row into a Python object, and removes no file."""

    def get(self, key: object, raw: object) -> Never:  # noqa: ARG002
        raise TextOnlyError("Keys of the index are not read by diskcache.")

    def fetch(self, mode: object, filename: object, value: object, read: bool) -> Never:  # noqa: ARG002
        raise TextOnlyError("Values of the index are not read by diskcache.")

    def remove(self, file_path: object) -> None:
        """Nothing: no row of ours has a file, so one that names a file must not get it deleted."""


class Index:
    """The database in *folder*; opened at its first use, safe for any number of threads and processes.

    Every method raises StoreError when the database is locked for longer than *busy_seconds*. Where it cannot be read
    or written, for want of room or of permission, reading finds nothing, writing keeps nothing, and only forgetting,
    which must not be lost, raises StoreError.
    """

    def __init__(self, folder: Path, quarantine: Path, locks: Locks, *, busy_seconds: float = BUSY_SECONDS) -> None:
        self._folder = folder
        self._quarantine = quarantine
        self._locks = locks
        self._busy_seconds = busy_seconds
        self._opened: tuple[diskcache.Cache, object] | None = None
        self._has_warned = False

    def read(self, namespace: Namespace, names: Iterable[str]) -> dict[str, JsonValue]:
        """The values of those *names* that are here and undamaged."""
        keys = [f"{namespace}:{name}" for name in names]
        found: dict[str, JsonValue] = {}
        for start in range(0, len(keys), _KEYS_AT_ONCE):
            some = keys[start : start + _KEYS_AT_ONCE]
            found.update(self._select(f"AND key IN ({','.join('?' * len(some))})", some))
        return found

    def newest_tagged(self, namespace: Namespace, tag: str, most: int) -> dict[str, JsonValue]:
        """Up to *most* values that were written with *tag*, by name, the last that came first."""
        return dict(self._select("AND tag = ? ORDER BY rowid DESC LIMIT ?", (f"{namespace}:{tag}", most)))

    def write(self, namespace: Namespace, values: Mapping[str, JsonValue], *, tag: str | None = None) -> None:
        """Keep *values* by name, all or none of them; *tag* is what they can be found by as well."""
        self.write_texts(namespace, [(name, canonical_json(value), tag) for name, value in values.items()])

    def write_texts(self, namespace: Namespace, rows: Iterable[tuple[str, str, str | None]]) -> None:
        """Like :meth:`write`, for names with canonical JSON and tags: a third of the price of one after the other."""
        now = time.time()
        flat = [
            (key := f"{namespace}:{name}", now, now, tag and f"{namespace}:{tag}", with_checksum(key, text))
            for name, text, tag in rows
        ]

        def put(cache: diskcache.Cache) -> None:
            with cache.transact():
                cache._con.executemany(_UPSERT, flat)

        if flat:
            self._try(put, None)

    def remove(self, namespace: Namespace, names: Iterable[str]) -> None:
        """Forget *names*; those that are not here are no error."""

        def remove(cache: diskcache.Cache) -> None:
            with cache.transact():
                for name in names:
                    cache.delete(f"{namespace}:{name}")

        self._do(remove)

    def remove_damaged(self) -> None:
        """Forget the rows that reading takes for absent, because they are damaged or not ours."""
        self._do(lambda cache: cache._sql(f"DELETE FROM Cache WHERE ({_IS_TEXT}) IS NOT 1"))
        for namespace in get_args(Namespace):
            names = self.names(namespace)
            if dead := set(names) - self.read(namespace, names).keys():
                self.remove(namespace, dead)

    def names(self, namespace: Namespace) -> list[str]:
        """All names of *namespace*, in order."""
        # ";" follows ":" in the order of characters.
        rows = self._rows("AND key >= ? AND key < ? ORDER BY key", (f"{namespace}:", f"{namespace};"))
        return [key.partition(":")[2] for key, _ in rows]

    def clear(self) -> None:
        """Forget everything."""
        self._do(lambda cache: cache.clear())

    def close(self) -> None:
        """Close this thread's connection; the next use opens it again."""
        if self._opened is not None:
            self._opened[0].close()
            self._opened = None

    def _select(self, condition: str, values: Sequence[object]) -> Iterator[tuple[str, JsonValue]]:
        """Name and value of the rows that meet *condition* and are undamaged."""
        for key, text in self._rows(condition, values):
            try:
                yield key.partition(":")[2], checked(key, text)
            except ValueError as error:
                _LOGGER.warning("A row of the index is damaged and counts as absent: %s", error)

    def _rows(self, condition: str, values: Sequence[object]) -> list[tuple[str, str]]:
        return self._try(lambda cache: list(cache._sql(f"{_SELECT} {condition}", values)), [])

    def _try(self, work: Callable[[diskcache.Cache], _T], otherwise: _T) -> _T:
        """What *work* returns, or *otherwise* where the index cannot be used."""
        try:
            return self._do(work)
        except _Hindered as error:
            # A connection that failed may go on failing when the reason has gone.
            self.close()
            if not self._has_warned:
                self._has_warned = True
                _LOGGER.warning("%s Going on without it.", error.message)
            return otherwise

    def _do(self, work: Callable[[diskcache.Cache], _T]) -> _T:
        """What *work* returns; on a damaged database a second time, with a fresh one."""
        for last in (False, True):
            seen = self._identity()
            try:
                cache, seen = self._open()
                return work(cache)
            except (diskcache.Timeout, sqlite3.Error) as error:
                self._raise_unless_damaged(error)
                damage: Exception = error
            except (_Unusable, UnicodeDecodeError) as error:
                # The latter: SQLite quotes what it cannot make sense of in its message, and that may be no text.
                damage = error
            if last:
                break
            self._begin_afresh(seen, damage)
        raise StoreError(
            f"The index of the cache in {self._folder} is damaged: {damage}.", advice="Remove that folder."
        ) from damage

    def _open(self) -> tuple[diskcache.Cache, object]:
        """The open database and its identity."""
        if self._opened is None:
            try:
                with in_words("Cannot open the index of the cache"):
                    self._folder.mkdir(parents=True, exist_ok=True)
            except StoreError as error:
                if isinstance(error.__cause__, OSError) and error.__cause__.errno in _HINDRANCES:
                    raise _Hindered(error.message, advice=error.advice) from error
                raise
            try:
                cache = diskcache.Cache(str(self._folder), timeout=self._busy_seconds, disk=TextDisk, **_SETTINGS)
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
                # diskcache takes settings from the database and sets them as attributes of its own: odd ones break it.
                raise _Unusable(explanation(error)) from error
            self._opened = cache, self._identity()
        return self._opened

    def _identity(self) -> object:
        """Tells one database file from another that took its place."""
        try:
            status = (self._folder / diskcache.core.DBNAME).stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def _may_write(self) -> bool:
        """Whether it is not permissions that keep us out: one wrong byte in its header makes a database read-only."""
        files = [self._folder, *(path for name in _FILES if os.path.lexists(path := self._folder / name))]
        return all(os.access(path, os.R_OK | os.W_OK) for path in files)

    def _has_no_files(self) -> bool:
        """Whether something is in the place of a file of the database that is none."""
        paths = (self._folder / name for name in _FILES)
        return any(os.path.lexists(path) and not path.is_file() for path in paths)

    def _begin_afresh(self, seen: object, damage: Exception) -> None:
        self.close()
        with self._locks.hold("index"):
            # Another process may have found the same damage and begun afresh already.
            if self._identity() != seen:
                return
            target = self._quarantine / f"index-{secrets.token_hex(4)}"
            try:
                self._quarantine.mkdir(parents=True, exist_ok=True)
                # The folder in one step: a write-ahead log that outlives its database would be played into the next.
                # Who still has it open goes on writing to the file in quarantine; SQLite sees that it was moved and
                # leaves the new one alone.
                self._folder.rename(target)
            except OSError as error:
                raise StoreError(
                    f"The index of the cache in {self._folder} is damaged and cannot be moved away: {error.strerror}.",
                    advice="End the other programs that use the cache, then remove that folder.",
                ) from error
        _LOGGER.warning(
            "The index of the cache was damaged (%s) and is now in %s. A fresh one was begun; results are kept.",
            damage,
            target,
        )

    def _raise_unless_damaged(self, error: Exception) -> None:
        # diskcache hides why a transaction could not begin behind its Timeout.
        cause = error if isinstance(error, sqlite3.Error) else error.__context__
        code = getattr(cause, "sqlite_errorcode", 0) & 0xFF
        where = f"The index of the cache in {self._folder}"
        if code in _BUSY:
            raise StoreError(
                f"{where} has been locked by another process for too long.",
                advice="Try again, or end the process that hangs.",
            ) from error
        if code in _DENIED and not self._may_write():
            raise _Hindered(
                f"{where} cannot be written: permission denied.",
                advice="Make it writable, or choose another cache folder with --cache-dir or WINML_DAG_CACHE_DIR.",
            ) from error
        if code == sqlite3.SQLITE_CANTOPEN and not self._has_no_files():
            # Not asked by opening one: too many files may be open now and no longer then.
            raise _Hindered(
                f"{where} cannot be opened: {cause}.",
                advice="Allow more open files (`ulimit -n`), or end other programs.",
            ) from error
        if code == sqlite3.SQLITE_FULL:
            raise _Hindered(
                f"{where} cannot grow: the disk is full.",
                advice="Free some space, or choose another cache folder with --cache-dir or WINML_DAG_CACHE_DIR.",
            ) from error
        if code in _DISK:
            raise _Hindered(f"{where} cannot be used: {cause}.") from error


class _Hindered(StoreError):
    """The index is not damaged, but the system does not let us use it."""


class _Unusable(Exception):
    """diskcache cannot work with what is in the database."""
