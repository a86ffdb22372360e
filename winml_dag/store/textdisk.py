"""diskcache with its pickle path switched off: text keys and text values in SQLite, and no files beside it.

diskcache unpickles whatever a row says is a pickle, so a database that somebody else wrote (a cache folder restored in
CI is one) runs their code. Its own JSONDisk is no cure: it lets the base class fetch, and so unpickle, before it reads
JSON. A row can also name a file to read, or to delete when the row goes, anywhere on the disk. Here every way from a
row to Python goes through methods that know text and nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import diskcache
from diskcache.core import MODE_RAW, UNKNOWN


class TextOnlyError(ValueError):
    """A row holds something other than text: the database is damaged, or somebody means harm."""


class TextDisk(diskcache.Disk):  # type: ignore[misc]  # diskcache is untyped
    """How keys and values become columns and back."""

    def put(self, key: object) -> tuple[str, bool]:
        return _text(key, "key"), True

    def get(self, key: object, raw: object) -> str:
        if not raw:
            raise TextOnlyError("The index holds a pickled key; it was not opened.")
        return _text(key, "key")

    def store(self, value: object, read: bool, key: object = UNKNOWN) -> tuple[int, int, None, str]:  # noqa: ARG002
        if read:
            raise TextOnlyError("The index keeps no files.")
        return 0, MODE_RAW, None, _text(value, "value")

    def fetch(self, mode: object, filename: object, value: object, read: bool) -> str:
        if mode != MODE_RAW or filename is not None or read:
            raise TextOnlyError("The index holds a value that is no text; it was not opened.")
        return _text(value, "value")

    def remove(self, file_path: object) -> None:
        """Nothing: no row of ours has a file, so one that names a file must not get it deleted."""


class TextCache(diskcache.Cache):  # type: ignore[misc]  # diskcache is untyped
    """A cache of text that can read many rows at once, which diskcache cannot."""

    def texts(self, keys: Sequence[str]) -> dict[str, str]:
        """The values of those *keys* that are here, in one statement; a row that is no text counts as absent."""
        marks = ",".join("?" * len(keys))
        return dict(self._sql(f"{_SELECT} AND key IN ({marks})", keys).fetchall())

    def keys_between(self, first: str, last: str) -> list[str]:
        """All keys from *first* up to, not including, *last*, in order."""
        rows = self._sql(f"{_SELECT} AND key >= ? AND key < ? ORDER BY key", (first, last))
        return [key for key, _ in rows.fetchall()]

    def newest_tagged(self, tag: str, most: int) -> list[tuple[str, str]]:
        """Keys and values of up to *most* rows with *tag*, the last that came first."""
        rows = self._sql(f"{_SELECT} AND tag = ? ORDER BY rowid DESC LIMIT ?", (tag, most))
        return [(key, value) for key, value in rows.fetchall()]

    def put_texts(self, rows: Iterable[tuple[str, str, str | None]]) -> None:
        """Keep all of *rows* (key, value, tag), or none: a third of the price of setting one after the other."""
        now = time.time()
        with self.transact():
            self._con.executemany(_UPSERT, [(key, now, now, tag, value) for key, value, tag in rows])

    def remove_odd(self) -> None:
        """Remove the rows that are not text under text."""
        self._sql(f"DELETE FROM Cache WHERE ({_IS_TEXT}) IS NOT 1")


_IS_TEXT = f"raw = 1 AND mode = {MODE_RAW} AND filename IS NULL AND typeof(key) = 'text' AND typeof(value) = 'text'"
_UPSERT = (
    "INSERT INTO Cache(key, raw, store_time, expire_time, access_time, access_count, tag, size, mode, filename, value)"
    f" VALUES (?, 1, ?, NULL, ?, 0, ?, 0, {MODE_RAW}, NULL, ?) ON CONFLICT(key, raw) DO UPDATE SET"
    " store_time = excluded.store_time, expire_time = NULL, access_time = excluded.access_time, access_count = 0,"
    " tag = excluded.tag, size = 0, mode = excluded.mode, filename = NULL, value = excluded.value"
)
_SELECT = f"SELECT key, value FROM Cache WHERE {_IS_TEXT}"


def _text(value: object, what: str) -> str:
    if type(value) is not str:
        raise TextOnlyError(f"The index holds a {what} that is no text; it was not opened.")
    return value
