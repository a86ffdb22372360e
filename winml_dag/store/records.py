"""Records by key: one JSON file each, next to the blobs.

Its modification time is when the record was last used. It is written atomically, which costs about 0.15 ms: negligible
compared with a stage. A checksum over key and content detects damage. The index has only which records of a stage are
the newest: reading 1,000 records from their files took 0.60 s where copies in the index took 0.55 s, because parsing
takes most of it.

A record has the inputs of its key (so that a later miss can report what differs), the digests of the outputs, the
metrics, the duration and who made it. Reading one checks every field, because a record may come from a cache folder
that somebody else wrote.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from winml_dag.canonical import JsonObject, JsonValue, canonical_json, json_hash
from winml_dag.errors import StoreError, warn
from winml_dag.file_reading import read_bytes
from winml_dag.store.artifact import Artifact, FileEntry
from winml_dag.store.digest import checked, with_checksum
from winml_dag.store.files import PARTIAL, files_below, write_whole

if TYPE_CHECKING:
    from winml_dag.store.index import Index

T = TypeVar("T")

RECORD_FORMAT = 1
# Increased when the key format changes: old records are then never found.
KEY_FORMAT = 1


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


def cache_key(key_inputs: KeyInputs) -> str:
    """64 hex digits over everything that the outputs depend on: equal keys mean equal work.

    A key is made from the *contents* of the inputs, not from how they were made: a re-run with identical output stops
    there. Not in a key: verbosity, output folder, number of jobs, time, host name, absolute paths. It is sha256 because
    it is looked up in stores that others write to; the hashed data is small.
    """
    return json_hash(
        {
            "key_format": KEY_FORMAT,
            "stage": key_inputs.stage,
            "version": key_inputs.version,
            "config_hash": key_inputs.config_hash,
            "inputs": key_inputs.inputs,
            "toolchain": key_inputs.toolchain,
        }
    )


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
            stage=_field(value, "stage", str),
            version=_field(value, "version", int),
            config=_field(value, "config", dict),
            inputs=_texts(value, "inputs"),
            toolchain=_texts(value, "toolchain"),
        )
        log = value.get("log")
        optional = {"input_files": {}, "origin": {}, **value}
        return cls(
            cache_key=_field(value, "cache_key", str),
            config_hash=_field(value, "config_hash", str),
            key_inputs=key_inputs,
            outputs={slot: Artifact.from_json(files) for slot, files in _field(value, "outputs", dict).items()},
            metrics=_field(value, "metrics", dict),
            elapsed_seconds=_field(value, "elapsed_seconds", (int, float)),
            log=None if log is None else Artifact.from_json([log]).files[0],
            made_at=_field(value, "made_at", str),
            made_by=_field(value, "made_by", str),
            input_files=_field(optional, "input_files", dict),
            origin=_field(optional, "origin", dict),
        )


def _field(value: JsonObject, name: str, kind: type[T] | tuple[type[T], ...]) -> T:
    found = value.get(name)
    if not isinstance(found, kind) or isinstance(found, bool):
        raise StoreError(f"A record in the cache has no valid {name!r}.")
    return found


def _texts(value: JsonObject, name: str) -> dict[str, str]:
    found = _field(value, name, dict)
    return {key: _field(found, key, str) for key in found}


_SUFFIX = ".json"
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
    """The records in *folder*. *quarantine* moves away what is damaged."""

    def __init__(self, folder: Path, index: Index, quarantine: Callable[[Path], None]) -> None:
        self.folder = folder
        self._index = index
        self._quarantine = quarantine
        # Those that this process has read or written. A collection may remove one before it is marked as used.
        self._known: dict[str, Record] = {}
        # Those of them that the index has not got yet, the newest last.
        self._pending: dict[str, str] = {}
        self._lock = threading.Lock()

    def path(self, key: str) -> Path:
        return Path(self._path(key))

    def _path(self, key: str) -> str:
        return f"{self.folder}{os.sep}{key[:2]}{os.sep}{key[2:]}{_SUFFIX}"

    def read(self, key: str) -> Record | None:
        """The record of *key*; None if there is no valid one."""
        check_key(key)
        try:
            return self.read_file(key)
        except FileNotFoundError:
            return None
        except (OSError, StoreError) as error:
            warn(f"The record of {key} cannot be read and counts as absent: {error}")
            return None

    def read_many(self, keys: Iterable[str]) -> dict[str, Record]:
        return {key: record for key in keys if (record := self.read(key)) is not None}

    def all(self) -> list[Record]:
        """Every readable record, ordered by key."""
        return list(self.read_many(self.keys()).values())

    def newest_of(self, stage: str, most: int) -> list[Record]:
        """Up to *most* records of *stage* that are in the index, newest first."""
        self.flush()
        return list(self.read_many(self._index.newest_tagged("record", stage, most)).values())

    def read_file(self, key: str) -> Record:
        """The record of *key*.

        Raises:
            OSError: when it does not exist or cannot be read.
            StoreError: when it is damaged.
        """
        # Read twice for each stage that has to run, when it does not exist: so no file object.
        data = read_bytes(self._path(key))
        try:
            record = Record.from_json(checked(key, data.decode()))
        except ValueError as error:
            raise StoreError(f"The record of {key} is damaged: {error}") from error
        if record.cache_key != key:
            raise StoreError(f"The record of {key} says that it is that of {record.cache_key}.")
        self._known[key] = record
        return record

    def write(self, record: Record) -> None:
        """Store *record*, replacing an earlier one of its key. From here on it can be found."""
        key = check_key(record.cache_key)
        data = with_checksum(key, canonical_json(record.to_json())).encode()
        try:
            write_whole(self._path(key), data)
        except OSError:
            if not self.path(key).is_dir():
                raise
            # A damaged file is replaced, but a folder in its place cannot be.
            self._quarantine(self.path(key))
            write_whole(self._path(key), data)
        self._known[key] = record
        with self._lock:
            self._pending.pop(key, None)
            self._pending[key] = record.key_inputs.stage

    def flush(self) -> None:
        with self._lock:
            pending, self._pending = self._pending, {}
        self._index.write("record", dict.fromkeys(pending), pending)

    def touch(self, key: str) -> None:
        """Set the last use of the record of *key* to now, if possible."""
        try:
            os.utime(self._path(key))
        except FileNotFoundError:
            # Removed after it was found; its blobs are removed later.
            if key in self._known:
                with suppress(OSError):
                    self.write(self._known[key])
        except OSError:
            pass  # owned by another user, or read-only

    def last_used_ns(self, key: str) -> int:
        """When the record was made or last used; 0 if it has no file."""
        try:
            return self.path(key).stat().st_mtime_ns
        except FileNotFoundError:
            return 0

    def remove(self, key: str) -> None:
        self.path(key).unlink(missing_ok=True)
        self.forget([key])

    def forget(self, keys: Collection[str]) -> None:
        """Remove from the index what it has of *keys*, whose files are gone."""
        self.flush()
        self._index.remove("record", keys)
        latest = self._index.read("latest", self._index.names("latest"))
        self._index.remove("latest", [name for name, key in latest.items() if key in keys])

    def reindex(self) -> list[str]:
        """Make the index match the record files; returns the keys that it lacked, or had without a file."""
        self.flush()
        rows, found = set(self._index.names("record")), {record.cache_key: record for record in self.all()}
        dead = sorted(rows - found.keys())
        # In the order in which they were made: the last ones written are the newest of their stage.
        lacking = sorted((found[key] for key in found.keys() - rows), key=lambda record: record.made_at)
        self._index.remove("record", dead)
        self._pending.update((record.cache_key, record.key_inputs.stage) for record in lacking)
        self.flush()
        return sorted([*dead, *(record.cache_key for record in lacking)])

    def keys(self) -> list[str]:
        """The keys of all records, in order, readable or not."""
        paths = (Path(entry.path) for entry in files_below(self.folder))
        return sorted(key for path in paths if (key := self._key_of(path)) is not None)

    def foreign(self) -> Iterator[Path]:
        """Files next to the records that do not have a record's name, except partial files."""
        for entry in files_below(self.folder):
            path = Path(entry.path)
            if self._key_of(path) is None and path.suffix != PARTIAL:
                yield path

    def _key_of(self, path: Path) -> str | None:
        key = path.parent.name + path.name.removesuffix(_SUFFIX)
        return key if _KEY.fullmatch(key) and self.path(key) == path else None
