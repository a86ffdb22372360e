"""The store's in-memory twin, which records calls: the engine's tests are fast with it and need no mocks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

from winml_dag.canonical import JsonValue
from winml_dag.errors import Interrupted
from winml_dag.store.artifact import Artifact, FileEntry, check_name
from winml_dag.store.digest import DigestFunction, digest_bytes, split_digest
from winml_dag.store.files import in_words, is_executable, make_executable
from winml_dag.store.fingerprints import Fingerprints
from winml_dag.store.locks import never
from winml_dag.store.outputs import output_files
from winml_dag.store.record import Record
from winml_dag.store.records import check_key
from winml_dag.store.rows import Namespace
from winml_dag.store.sealed import seal, unseal
from winml_dag.store.store import BlobDamaged


class MemoryRows:
    """The in-memory twin of the index."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def read(self, namespace: Namespace, names: Iterable[str]) -> dict[str, JsonValue]:
        keys = {f"{namespace}:{name}": name for name in names}
        return {name: unseal(key, self._texts[key]) for key, name in keys.items() if key in self._texts}

    def write(self, namespace: Namespace, values: Mapping[str, JsonValue]) -> None:
        self._texts.update({f"{namespace}:{name}": seal(f"{namespace}:{name}", values[name]) for name in values})

    def names(self, namespace: Namespace) -> list[str]:
        """All names of *namespace*, in the order in which they came."""
        keys = (key.partition(":") for key in self._texts)
        return [name for found, _, name in keys if found == namespace]


class MemoryStore:
    """A store that ends with the process. See ``Store`` for the methods.

    Attributes:
        calls: each call as (method, what it was about): a key, a name, an artifact's digest, or names with commas.
        blobs: bytes by digest. Change them to see what damage does.
        quarantine: digests of blobs found damaged.
    """

    asks_behind = False

    def __init__(self, *, function: DigestFunction = "xxh3-128") -> None:
        self.calls: list[tuple[str, str]] = []
        self.blobs: dict[str, bytes] = {}
        self.quarantine: list[str] = []
        self.function = function
        self._rows = MemoryRows()
        self.fingerprints = Fingerprints(self._rows, function)
        self._claims: dict[str, threading.Lock] = {}
        self._claimed_here = threading.local()

    def record(self, key: str) -> Record | None:
        self.calls.append(("record", key))
        return self._record(key)

    def came_from_behind(self, key: str) -> bool:  # noqa: ARG002
        return False

    def far(self, files: Iterable[FileEntry]) -> Sequence[FileEntry]:  # noqa: ARG002
        return ()

    def bring(self, files: Iterable[FileEntry]) -> None:
        pass

    def records_of(self, stage: str, most: int) -> list[Record]:
        self.calls.append(("records_of", stage))
        records = map(self._record, reversed(self._rows.names("record")))
        return [record for record in records if record is not None and record.ingredients.stage == stage][:most]

    def missing(self, files: Iterable[FileEntry]) -> list[FileEntry]:
        files = list(files)
        self.calls.append(("missing", ",".join(file.name for file in files)))
        return [file for file in files if (found := self._sound(file.digest)) is None or len(found) != file.size]

    def publish(self, record: Record, folders: Mapping[str, Path | str], log: Path | None = None) -> Record:
        self.calls.append(("publish", check_key(record.cache_key)))
        with in_words(f"Cannot store the outputs of {record.ingredients.stage}"):
            found = {slot: output_files(slot, folder) for slot, folder in folders.items()}
            outputs = {
                slot: Artifact.of(
                    replace(self._put(file.name, file.path.read_bytes()), executable=is_executable(file.path.stat()))
                    for file in files
                )
                for slot, files in found.items()
            }
            kept = None if log is None or not log.stat().st_size else self._put(log.name, log.read_bytes())
            for file in (file for files in found.values() for file in files):
                file.path.unlink()
        record = replace(record, outputs=outputs, log=kept)
        self._rows.write("record", {record.cache_key: record.to_json()})
        return record

    def fetch(self, artifact: Artifact, folder: Path) -> None:
        self.calls.append(("fetch", artifact.digest))
        self._fetch(artifact, folder)

    def link(self, artifact: Artifact, folder: Path, *, check: bool = False) -> tuple[str, ...]:  # noqa: ARG002
        """All are copies: what is in memory cannot be linked to."""
        self.calls.append(("link", artifact.digest))
        self._fetch(artifact, folder)
        return tuple(file.name for file in artifact.files)

    def _fetch(self, artifact: Artifact, folder: Path) -> None:
        for file in artifact.files:
            target = folder / check_name(file.name)
            was_here = file.digest in self.blobs
            data = self._sound(file.digest)
            if data is None:
                raise BlobDamaged(file, "damaged" if was_here else "missing")
            if len(data) != file.size:
                raise BlobDamaged(file, "of another size than its record says")
            with in_words(f"Cannot put {file.name} into {folder}"):
                target.parent.mkdir(parents=True, exist_ok=True)
                target.unlink(missing_ok=True)
                target.write_bytes(data)
                if file.executable:
                    make_executable(target)

    def used(self, keys: Iterable[str]) -> None:
        self.calls.extend(("used", key) for key in keys)

    @contextmanager
    def claim(self, key: str, gives_up: Callable[[], bool] = never) -> Iterator[None]:
        self.calls.append(("claim", key))
        mine = self._claimed_here.__dict__.setdefault("keys", set())
        if key in mine:
            raise RuntimeError(f"This thread holds {key} already and would wait for itself.")
        lock = self._claims.setdefault(key, threading.Lock())
        while not lock.acquire(timeout=0.05):
            if gives_up():
                raise Interrupted(f"Waiting for {key} was given up.")
        mine.add(key)
        try:
            yield
        finally:
            mine.remove(key)
            lock.release()

    def together(self, names: Sequence[str]) -> AbstractContextManager[None]:  # noqa: ARG002 - nothing is faster
        return nullcontext()

    def latest(self, name: str) -> Record | None:
        self.calls.append(("latest", name))
        key = self._rows.read("latest", [name]).get(name)
        return self._record(key) if isinstance(key, str) else None

    def remember(self, name: str, key: str) -> None:
        self.calls.append(("remember", name))
        self._rows.write("latest", {name: key})

    def _record(self, key: str) -> Record | None:
        rows = self._rows.read("record", [check_key(key)])
        return Record.from_json(rows[key]) if key in rows else None

    def _put(self, name: str, data: bytes) -> FileEntry:
        digest = digest_bytes(data, self.function)
        self.blobs[digest] = data
        return FileEntry(name, digest, len(data))

    def _sound(self, digest: str) -> bytes | None:
        data = self.blobs.get(digest)
        if data is not None and digest_bytes(data, split_digest(digest)[0]) != digest:
            self.quarantine.append(digest)
            del self.blobs[digest]
            return None
        return data
