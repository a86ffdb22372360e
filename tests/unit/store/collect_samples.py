"""Shared by the tests of collection: times, keys, and a collection in an idle store."""

from __future__ import annotations

from store_samples import contents

from winml_dag.store.gc import Collected, Limits, collect
from winml_dag.store.store import Store

DAY = 86_400


def key(number: int) -> str:
    return f"{number:064x}"


def settle(store: Store) -> None:
    """Wait until the file system's clock, which advances in ticks, is past everything stored."""
    probe = store.folder / "probe"
    probe.touch()
    before = probe.stat().st_mtime_ns
    while probe.stat().st_mtime_ns == before:
        probe.touch()
    probe.unlink()


def keys(store: Store) -> list[int]:
    return [int(found, 16) for found in store.records.keys()]  # noqa: SIM118  # not a mapping


def size(store: Store) -> int:
    return sum(len(data) for folder in (store.records.folder, store.blobs.folder) for data in contents(folder).values())


def collected(store: Store, limits: Limits, *, dry_run: bool = False) -> Collected:
    settle(store)
    found = collect(store, limits, dry_run=dry_run)
    assert found is not None
    return found
