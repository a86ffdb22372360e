"""Records by key: one JSON file each, next to the blobs, and a copy in the index.

The file is authoritative, and its modification time is when the record was last used. It is written first, atomically,
and costs about 0.15 ms, which is negligible compared with a stage. The index is for reading many records at once, and
its copies are written in batches. A missing copy (deleted, damaged, or not written because a process was killed) is
written when the file is next read. Both have a checksum over key and content, so damage is detected in either.

A record has the inputs of its key (so that a later miss can report what differs), the digests of the outputs, the
metrics, the duration and who made it. Reading one checks every field, because a record may come from a cache folder
that somebody else wrote.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from winml_dag.canonical import JsonObject, JsonValue, canonical_json, json_hash
from winml_dag.errors import StoreError
from winml_dag.file_reading import read_bytes
from winml_dag.store.artifact import Artifact, FileEntry
from winml_dag.store.digest import checked, with_checksum
from winml_dag.store.files import PARTIAL, files_below, write_whole

if TYPE_CHECKING:
    from winml_dag.store.index import Index


RECORD_FORMAT = 1


@dataclass(frozen=True)
class KeyInputs:
    """Everything that a cache key is made from.

    ``config`` has the resolved recipe fields that the stage reads, by section; ``inputs`` the digest of each input
    slot; ``toolchain`` the versions and fingerprints of everything that affects the bytes, by name.
    """

    stage: str
    version: int
    config: JsonObject
    inputs: Mapping[str, str]
    toolchain: Mapping[str, str]

    @cached_property
    def config_hash(self) -> str:
        """The hash of ``config``, used for the key and for the record."""
        return json_hash(self.config)


@dataclass(frozen=True)
class Record:
    """One finished, successful run. ``elapsed_seconds`` is the run itself, without waiting.

    ``input_files`` lists the files of each input slot, so that a later miss can name the one that differs. It is in no
    key, may be missing, and is validated on use: it can be long, and only reasons need it.

    ``origin`` is what the remote of the record reported about it (``Trust.verify``); empty for runs of this store.
    """

    cache_key: str
    config_hash: str
    key_inputs: KeyInputs
    outputs: Mapping[str, Artifact]
    metrics: JsonObject = field(default_factory=dict)
    elapsed_seconds: float = 0.0
    log: FileEntry | None = None
    made_at: str = ""
    made_by: str = ""
    input_files: JsonObject = field(default_factory=dict)
    origin: JsonObject = field(default_factory=dict)

    def input_artifact(self, slot: str) -> Artifact | None:
        """The files that were read from *slot*; None if they were not recorded, or not validly."""
        try:
            artifact = Artifact.from_json(self.input_files.get(slot))
        except StoreError:
            return None
        return artifact if artifact.digest == self.key_inputs.inputs.get(slot) else None

    def files(self) -> tuple[FileEntry, ...]:
        """Every file that a hit on this record needs: the outputs, not the log."""
        return tuple(file for artifact in self.outputs.values() for file in artifact.files)

    def to_json(self) -> JsonObject:
        made = self.key_inputs
        return {
            "format": RECORD_FORMAT,
            "cache_key": self.cache_key,
            "config_hash": self.config_hash,
            "stage": made.stage,
            "version": made.version,
            "config": made.config,
            "inputs": made.inputs,
            "input_files": self.input_files,
            "toolchain": made.toolchain,
            "outputs": {slot: artifact.to_json() for slot, artifact in self.outputs.items()},
            "metrics": self.metrics,
            "elapsed_seconds": self.elapsed_seconds,
            "log": None if self.log is None else self.log.to_json(),
            "made_at": self.made_at,
            "made_by": self.made_by,
            **({"origin": self.origin} if self.origin else {}),
        }

    @classmethod
    def from_json(cls, value: JsonValue) -> Record:
        """Rebuild from :meth:`to_json`.

        Raises:
            StoreError: when a field is missing, of another type, or names a file outside its artifact.
        """
        if not isinstance(value, Mapping) or value.get("format") != RECORD_FORMAT:
            raise StoreError("A record in the cache is malformed or of another format.")
        key_inputs = KeyInputs(
            stage=_text(value, "stage"),
            version=_whole(value, "version"),
            config=_object(value, "config"),
            inputs=_texts(value, "inputs"),
            toolchain=_texts(value, "toolchain"),
        )
        log = value.get("log")
        return cls(
            cache_key=_text(value, "cache_key"),
            config_hash=_text(value, "config_hash"),
            key_inputs=key_inputs,
            outputs={slot: Artifact.from_json(files) for slot, files in _object(value, "outputs").items()},
            metrics=_object(value, "metrics"),
            elapsed_seconds=_number(value, "elapsed_seconds"),
            log=None if log is None else Artifact.from_json([log]).files[0],
            made_at=_text(value, "made_at"),
            made_by=_text(value, "made_by"),
            input_files=_object(value, "input_files") if "input_files" in value else {},
            origin=_object(value, "origin") if "origin" in value else {},
        )


def _text(value: JsonObject, name: str) -> str:
    found = value.get(name)
    if not isinstance(found, str):
        raise StoreError(f"A record in the cache has no text in {name!r}.")
    return found


def _number(value: JsonObject, name: str) -> float:
    found = value.get(name)
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise StoreError(f"A record in the cache has no number in {name!r}.")
    return found


def _whole(value: JsonObject, name: str) -> int:
    found = _number(value, name)
    if not isinstance(found, int):
        raise StoreError(f"A record in the cache has no whole number in {name!r}.")
    return found


def _object(value: JsonObject, name: str) -> JsonObject:
    found = value.get(name)
    if not isinstance(found, Mapping):
        raise StoreError(f"A record in the cache has no object in {name!r}.")
    return found


def _texts(value: JsonObject, name: str) -> dict[str, str]:
    found = _object(value, name)
    return {key: _text(found, key) for key in found}


_LOGGER = logging.getLogger(__name__)
_SUFFIX = ".json"
# One statement can write this many rows, and this many records need little memory.
_MOST_PENDING = 500

# At least eight characters, and no dot: such a name is not a path, and not a device name of Windows.
_KEY = re.compile(r"[0-9a-z]{8,64}")


def check_key(key: str) -> str:
    """Return *key* if it can name a record on every system.

    Raises:
        StoreError: with the rejected key.
    """
    if not _KEY.fullmatch(key):
        raise StoreError(f"{key!r} is not a cache key: 8 to 64 lower-case letters and digits.")
    return key


class Records:
    """The records of one store."""

    def __init__(self, folder: Path, index: Index) -> None:
        self.folder = folder
        self._index = index
        self._not_indexed: set[str] = set()
        # Rows not yet written to the index: text and stage by key.
        self._pending: dict[str, tuple[str, str]] = {}
        self._lock = threading.Lock()

    def path(self, key: str) -> Path:
        return Path(self._path(key))

    def _path(self, key: str) -> str:
        return f"{self.folder}{os.sep}{key[:2]}{os.sep}{key[2:]}{_SUFFIX}"

    def read(self, key: str) -> Record | None:
        """The record of *key*, from the index, else from its file; None if neither has a valid one."""
        # Query the index only once per key: later reads wait for another process to write the file.
        rows = {} if key in self._not_indexed else self._rows([key])
        if not rows:
            self._not_indexed.add(key)
        return self._read(key, rows)

    def read_many(self, keys: Sequence[str]) -> dict[str, Record]:
        """Those of *keys* that can be read, with one query of the index."""
        rows = self._rows(keys)
        found = {key: record for key in keys if (record := self._read(key, rows)) is not None}
        self.flush()
        return found

    def all(self) -> list[Record]:
        """Every readable record, ordered by key."""
        return list(self.read_many(self.keys()).values())

    def newest_of(self, stage: str, most: int) -> list[Record]:
        """Up to *most* records of *stage* that are in the index, newest first."""
        self.flush()
        rows = self._index.newest_tagged("record", stage, most)
        return [record for key in rows if (record := self._read(key, rows)) is not None]

    def _rows(self, keys: Iterable[str]) -> dict[str, JsonValue]:
        """The rows of *keys* in the index, except those that are about to be rewritten."""
        return self._index.read("record", [check_key(key) for key in keys if key not in self._pending])

    def _read(self, key: str, rows: Mapping[str, JsonValue]) -> Record | None:
        if key in rows:
            try:
                return _checked(key, Record.from_json(rows[key]))
            except StoreError as error:
                _LOGGER.warning("The index has a record that cannot be read, its file is tried: %s", error)
        try:
            record = self.read_file(key)
        except (OSError, StoreError) as error:
            if not isinstance(error, FileNotFoundError):
                _LOGGER.warning("The record of %s cannot be read and counts as absent: %s", key, error)
            return None
        self._add_row(record, canonical_json(record.to_json()))
        return record

    def read_file(self, key: str) -> Record:
        """The record of *key* from its file.

        Raises:
            OSError: when it does not exist or cannot be read.
            StoreError: when it is damaged.
        """
        # Read twice for each stage that has to run, when it does not exist: so no file object.
        data = read_bytes(self._path(key))
        try:
            value = checked(key, data.decode())
        except ValueError as error:
            raise StoreError(f"The record of {key} is damaged: {error}") from error
        return _checked(key, Record.from_json(value))

    def write(self, record: Record) -> None:
        """Store *record*, replacing an earlier one of its key. From here on it can be found."""
        text = canonical_json(record.to_json())
        self._not_indexed.discard(record.cache_key)
        write_whole(self._path(check_key(record.cache_key)), with_checksum(record.cache_key, text).encode())
        self._add_row(record, text)

    def flush(self) -> None:
        """Write pending rows to the index. If it is busy they are lost, but the files are not."""
        with self._lock:
            pending, self._pending = self._pending, {}
        try:
            self._index.write_texts("record", ((key, text, stage) for key, (text, stage) in pending.items()))
        except StoreError as error:
            _LOGGER.warning("The index got no copies of %d records: %s", len(pending), error)

    def _add_row(self, record: Record, text: str) -> None:
        with self._lock:
            self._pending.pop(record.cache_key, None)  # the last one written is the newest of its stage
            self._pending[record.cache_key] = text, record.key_inputs.stage
        if len(self._pending) >= _MOST_PENDING:
            self.flush()

    def touch(self, key: str) -> None:
        """Set the last use of the record of *key* to now, if possible."""
        path = self.path(key)
        try:
            os.utime(path)
        except FileNotFoundError:
            # Removed after it was found, but not yet from the index. Its blobs are removed later than both.
            with suppress(OSError, StoreError):
                self._restore(key)
        except OSError:
            pass  # owned by another user, or read-only

    def last_used_ns(self, key: str) -> int:
        """When the record was made or last used; 0 if it has no file."""
        try:
            return self.path(key).stat().st_mtime_ns
        except FileNotFoundError:
            return 0

    def remove(self, key: str) -> None:
        """Remove *key*."""
        self.path(key).unlink(missing_ok=True)
        self.flush()
        self._index.remove("record", [key])

    def reindex(self) -> list[str]:
        """Make the index match the record files exactly; returns the keys whose row was wrong."""
        self.flush()
        names = set(self._index.names("record"))
        rows = self._index.read("record", names)
        kept, dead, wrong = set(self._keys_of_files()), [], []
        for key in sorted({*names, *kept}):
            try:
                record = self.read_file(key) if key in kept else None
            except (OSError, StoreError):
                continue  # a file that is currently unreadable does not show whether its row is wrong
            if record is None:
                dead.append(key)
            elif canonical_json(rows.get(key)) != canonical_json(record.to_json()):
                wrong.append(record)
        self._index.remove("record", dead)
        # In the order in which they were made: the last ones written are the newest of their stage.
        for record in sorted(wrong, key=lambda record: record.made_at):
            self._add_row(record, canonical_json(record.to_json()))
        self.flush()
        return sorted([*dead, *(record.cache_key for record in wrong)])

    def _restore(self, key: str) -> None:
        self.flush()
        value = self._index.read("record", [key]).get(key)
        if value is not None:
            write_whole(self.path(key), with_checksum(key, canonical_json(value)).encode())

    def keys(self) -> list[str]:
        """The keys of all records, in order, readable or not."""
        self.flush()
        return sorted({*self._keys_of_files(), *self._index.names("record")})

    def foreign(self) -> Iterator[Path]:
        """Files next to the records that do not have a record's name, except partial files."""
        for entry in files_below(self.folder):
            path = Path(entry.path)
            if self._key_of(path) is None and path.suffix != PARTIAL:
                yield path

    def _keys_of_files(self) -> Iterator[str]:
        for entry in files_below(self.folder):
            if key := self._key_of(Path(entry.path)):
                yield key

    def _key_of(self, path: Path) -> str | None:
        key = path.parent.name + path.name.removesuffix(_SUFFIX)
        return key if _KEY.fullmatch(key) and self.path(key) == path else None


def _checked(key: str, record: Record) -> Record:
    if record.cache_key != key:
        raise StoreError(f"The record of {key} says that it is that of {record.cache_key}.")
    return record
