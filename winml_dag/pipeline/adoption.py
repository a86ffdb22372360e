"""A cache that was used alone, made one that can be shared, without a stage run: its records get the keys that they
have with sha256.

Every blob that a record needs is read once, for both digests. Sources are known by the rows that remember their
digests: of a file that is still what it was, the other digest is made; one that is not leaves its records as they were.
What was adopted is remembered, so that a second time only looks at what has come since. All that was there stays, and
is found as before without a remote.
"""

from __future__ import annotations

import os
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from winml_dag.canonical import JsonObject, JsonValue
from winml_dag.engine.keys import cache_key
from winml_dag.errors import StoreError
from winml_dag.store.artifact import Artifact, FileEntry
from winml_dag.store.digest import DigestFunction
from winml_dag.store.files import in_words, write_whole
from winml_dag.store.fingerprints import Fingerprints
from winml_dag.store.local import ADOPTED
from winml_dag.store.quantities import counted, size_text
from winml_dag.store.record import Ingredients, Record
from winml_dag.store.remote.transfer import ThreadPool
from winml_dag.store.shared import adopted_name
from winml_dag.store.twins import make_twin

if TYPE_CHECKING:
    from winml_dag.store.local import LocalStore

_OLD: DigestFunction = "xxh3-128"
_NEW: DigestFunction = "sha256"
_TOKEN = re.compile(rf"{_OLD}:[0-9a-f]{{32}}")
_LOCK = "adopt"
# More would only take processors away from each other.
_MOST_AT_ONCE = 8

_NO_BLOB = "a file that it put out is not in the cache any more, or is damaged"
_NO_INPUT = "a file that it read is not what it was, or not there any more"
_NO_TOOL = "a program or library that it ran with is not what it was"
_OTHER_VERSION = "another version of this program has made it"


@dataclass(frozen=True)
class Adopted:
    """What became of an adoption.

    Attributes:
        records: that have a key with sha256 now; ``known``: that had one already.
        blobs, bytes: read for that.
        left_out: why records were not adopted, with the number of those.
    """

    records: int = 0
    known: int = 0
    blobs: int = 0
    bytes: int = 0
    left_out: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        if not (self.records or self.left_out):
            return f"Nothing to adopt: {counted(self.known, 'record')} of this cache had been adopted before."
        done = (
            f"Adopted {counted(self.records, 'record')} of this cache, which had no remote when they were made: "
            f"{size_text(self.bytes)} were read, and nothing was built."
        )
        why = (f"{number}, because {reason}" for reason, number in self.left_out.items())
        return f"{done} Not adopted were {'; '.join(why)}." if self.left_out else done


def adopt_at_first(store: LocalStore, tell: Callable[[str], None]) -> None:
    """Adopt what *store* has of a time without a remote, if nothing of that was ever adopted, and say so. That it
    cannot be is no reason for a build to fail.
    """
    if (store.folder / ADOPTED).exists() or not (store.blobs.folder / _OLD).is_dir():
        return
    try:
        tell(str(adopt(store)))
    except StoreError as error:
        tell(f"What is in this cache could not be adopted, and is made anew where it is needed: {error}")


def adopt(store: LocalStore, told: Callable[[int, int], None] = lambda _, __: None) -> Adopted:
    """Give the records of *store*, whose digests are sha256, that were made without a remote the keys that they have
    with one; *told* gets bytes that were read and all that have to be.

    Raises:
        StoreError: when something of the cache cannot be read or written.
    """
    # As a run: what is adopted is not removed meanwhile, nor all of the cache.
    with store.locks.hold(_LOCK), store.scratch.open(), in_words("Cannot adopt what is in the cache"):
        adopted = _Adoption(store, told).run()
        write_whole(store.folder / ADOPTED, b"1\n")
    return adopted


class _Left(Exception):
    """Why a record is not adopted."""


class _Adoption:
    """One adoption: ``_digests`` has the new digest for each old one that is known, of files and of artifacts."""

    def __init__(self, store: LocalStore, told: Callable[[int, int], None]) -> None:
        self._store = store
        self._told = told
        self._digests: dict[str, str] = {}
        self._blobs = 0
        self._bytes = 0

    def run(self) -> Adopted:
        store = self._store
        records = [record for record in store.records.all() if not record.origin and _is_old(record)]
        keys = self._known([record.cache_key for record in records])
        pending = [record for record in records if record.cache_key not in keys]
        self._recall(pending)
        self._make_twins(pending)
        self._find_sources(pending)
        left: Counter[str] = Counter()
        before = len(keys)
        # In the order in which they were made: those that came last are the newest of their stage.
        with store.index.holding_back():
            for record in sorted(pending, key=lambda record: record.made_at):
                try:
                    keys[record.cache_key] = self._adopt(record)
                except _Left as why:
                    left[str(why)] += 1
            self._remember(keys)
        return Adopted(len(keys) - before, before, self._blobs, self._bytes, dict(left))

    def _known(self, keys: Iterable[str]) -> dict[str, str]:
        """By its old key, the key of each that was adopted before, if the record of that is here still."""
        rows = {old: new for old, new in self._store.index.read("adopted", keys).items() if isinstance(new, str)}
        here = self._store.records.read_many(list(rows.values()))
        return {old: new for old, new in rows.items() if new in here}

    def _recall(self, records: Iterable[Record]) -> None:
        """Take the digests that were made before. They are remembered for bytes, never found by comparing two records
        of one key: what lies under the new key may have come from a remote, where the same work gave other bytes.
        """
        rows = self._store.index.read("adopted", _named(records))
        self._digests.update({old: new for old, new in rows.items() if isinstance(new, str)})

    def _make_twins(self, records: Sequence[Record]) -> None:
        """Of all blobs here that *records* name: those that they read may be of a record that has gone."""
        blobs = self._store.blobs
        wanted = {digest for digest in _named(records) if _TOKEN.fullmatch(digest) and not self._has_twin(digest)}
        sizes = {digest: path.stat().st_size for digest in wanted if (path := blobs.path(digest)).is_file()}
        total, lock = sum(sizes.values()), threading.Lock()

        def work(digest: str) -> str | None:
            twin = make_twin(blobs, digest, _NEW)
            with lock:
                self._bytes += sizes[digest]
                self._told(self._bytes, total)
            return twin

        # The largest first: one that begins last would be waited for alone.
        ordered = sorted(sizes, key=lambda digest: (-sizes[digest], digest))
        twins = ThreadPool(min(_MOST_AT_ONCE, os.cpu_count() or 1)).map(work, ordered)
        found = {digest: twin for digest, twin in zip(ordered, twins, strict=True) if twin is not None}
        self._digests.update(found)
        self._blobs = len(found)

    def _has_twin(self, digest: str) -> bool:
        return digest in self._digests and self._store.blobs.path(self._digests[digest]).exists()

    def _find_sources(self, records: Iterable[Record]) -> None:
        """Have the new digests of files outside of the store that *records* were made from."""
        wanted = {digest for record in records for digest in _mentioned(record)} - self._digests.keys()
        if not wanted:
            return
        index = self._store.index
        names = [name for name in index.names("fingerprint") if name.startswith(f"{_OLD}:")]
        old = Fingerprints(index, _OLD)
        for name, row in index.read("fingerprint", names).items():
            digest = row[-1] if isinstance(row, list) and row else None
            if not isinstance(digest, str) or digest not in wanted:
                continue
            path = Path(name.partition(":")[2])
            # Before and after: the new digest must be of the very bytes that have the old one.
            with suppress(StoreError, OSError):
                if old.unchanged(path, digest):
                    new = self._store.fingerprints.digest(path)
                    if old.unchanged(path, digest):
                        self._digests[digest] = new
                        wanted.discard(digest)

    def _adopt(self, record: Record) -> str:
        """Write *record* under its new key, which is returned. Raises _Left for one that has none."""
        made = record.ingredients
        if cache_key(made) != record.cache_key:
            raise _Left(_OTHER_VERSION)
        outputs = {slot: self._artifact(artifact, _NO_BLOB) for slot, artifact in record.outputs.items()}
        inputs = {slot: self._input(record, slot) for slot in made.inputs}
        config = self._replaced(made.config)
        assert isinstance(config, Mapping)
        toolchain = {name: self._tool(text) for name, text in made.toolchain.items()}
        new = Ingredients(
            made.stage, made.version, config, {slot: each.digest for slot, each in inputs.items()}, toolchain
        )
        key = cache_key(new)
        log = record.log
        if log is not None:
            log = None if log.digest not in self._digests else replace(log, digest=self._digests[log.digest])
        adopted = replace(
            record,
            cache_key=key,
            config_hash=new.config_hash,
            ingredients=new,
            outputs=outputs,
            log=log,
            input_files={slot: artifact.to_json() for slot, artifact in inputs.items()},
        )
        # One that reads no file has the same key as before: its outputs have their new digests then.
        if key == record.cache_key or self._store.records.read(key) is None:
            used_ns = self._store.records.last_used_ns(record.cache_key)
            self._store.records.write(adopted)
            with suppress(OSError):
                os.utime(self._store.records.path(key), ns=(used_ns, used_ns))
        return key

    def _artifact(self, artifact: Artifact, why: str) -> Artifact:
        return Artifact.of(replace(file, digest=self._digest(file.digest, why)) for file in artifact.files)

    def _input(self, record: Record, slot: str) -> Artifact:
        artifact = record.input_artifact(slot)
        if artifact is None:
            raise _Left(_OTHER_VERSION)
        return self._artifact(artifact, _NO_INPUT)

    def _digest(self, digest: str, why: str) -> str:
        if not _TOKEN.fullmatch(digest):
            return digest
        if digest not in self._digests:
            raise _Left(why)
        return self._digests[digest]

    def _tool(self, text: str) -> str:
        return _TOKEN.sub(lambda found: self._digest(found[0], _NO_TOOL), text)

    def _replaced(self, value: JsonValue) -> JsonValue:
        """*value* with the new digest in place of each old one that is known: what is no file's stays as it is."""
        if isinstance(value, str):
            return _TOKEN.sub(lambda found: self._digests.get(found[0], found[0]), value)
        if isinstance(value, Mapping):
            return {name: self._replaced(each) for name, each in value.items()}
        return [self._replaced(each) for each in value] if isinstance(value, list | tuple) else value

    def _remember(self, keys: Mapping[str, str]) -> None:
        index = self._store.index
        index.write("adopted", {**self._digests, **keys})
        latest = index.read("latest", index.names("latest"))
        new = {adopted_name(name): keys[key] for name, key in latest.items() if isinstance(key, str) and key in keys}
        index.write("latest", {name: key for name, key in new.items() if name not in latest})


def _is_old(record: Record) -> bool:
    return any(_TOKEN.fullmatch(digest) for digest in _mentioned(record)) or any(
        _TOKEN.fullmatch(file.digest) for file in _stored(record)
    )


def _stored(record: Record) -> Iterator[FileEntry]:
    yield from record.files()
    if record.log is not None:
        yield record.log


def _named(records: Iterable[Record]) -> set[str]:
    """The digests of all that *records* have put out and were made from."""
    return {
        digest for record in records for digest in (*(file.digest for file in _stored(record)), *_mentioned(record))
    }


def _mentioned(record: Record) -> Iterator[str]:
    """The digests of what *record* was made from."""
    for slot in record.ingredients.inputs:
        artifact = record.input_artifact(slot)
        yield from () if artifact is None else (file.digest for file in artifact.files)
    yield from _TOKEN.findall(" ".join(record.ingredients.toolchain.values()))
    yield from _texts(record.ingredients.config)


def _texts(config: JsonObject) -> Iterator[str]:
    waiting: list[JsonValue] = [config]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            yield from _TOKEN.findall(value)
        elif isinstance(value, Mapping):
            waiting.extend(value.values())
        elif isinstance(value, list | tuple):
            waiting.extend(value)
