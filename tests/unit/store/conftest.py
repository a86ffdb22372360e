"""A store in a temporary folder, and helpers to fill it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from store_samples import DAY, KEY
from store_samples import key as key_of

from winml_dag.store.records import KeyInputs, Record
from winml_dag.store.store import Store

Publish = Callable[..., Record]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "cache")
    yield store
    store.close()


@pytest.fixture
def new_record() -> Callable[[str], Record]:
    def new_record(key: str = KEY) -> Record:
        made = KeyInputs("export", 1, {"export": {"opset": 21}}, {"source": "sha256:" + "0" * 64}, {"torch": "2.13"})
        return Record(key, "c" * 64, made, outputs={}, metrics={"nodes": 37}, elapsed_seconds=1.5, made_by="me@here")

    return new_record


@pytest.fixture
def fill(tmp_path: Path) -> Callable[[Mapping[str, bytes]], Path]:
    """Makes a new folder with these files."""
    numbers = itertools.count()

    def fill(files: Mapping[str, bytes]) -> Path:
        folder = tmp_path / f"output{next(numbers)}"
        folder.mkdir()
        for name, data in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        return folder

    return fill


@pytest.fixture
def publish(new_record: Callable[[str], Record], fill: Callable[[Mapping[str, bytes]], Path]) -> Publish:
    """Publishes one output slot, ``model``, with these files, like a completed run."""

    def publish(store: Store, files: Mapping[str, bytes], key: str = KEY) -> Record:
        record = store.publish(new_record(key), {"model": fill(files)})
        store.records.flush()
        return record

    return publish


@pytest.fixture
def put(store: Store, fill: Callable[..., Path]) -> Callable[..., Record]:
    """Publishes a record with these bytes, last used *days* ago."""

    def put(number: int, *data: bytes, days: float = 0) -> Record:
        made = KeyInputs("export", 1, {}, {}, {})
        files = {f"file{place}": some for place, some in enumerate(data)}
        record = store.publish(Record(key_of(number), "c", made, {}), {"out": fill(files)})
        store.records.flush()
        path = store.records.path(record.cache_key)
        used = path.stat().st_mtime - days * DAY
        os.utime(path, (used, used))
        return record

    return put
