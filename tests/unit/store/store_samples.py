"""Shared by the tests of the store: keys, contents, damage, and a collection in an idle store."""

from __future__ import annotations

import os
from pathlib import Path

from winml_dag.store.blobs import STAMP_NS
from winml_dag.store.gc import Collected, Limits, collect
from winml_dag.store.store import Store

KEY = "0123456789abcdef" * 4
OTHER_KEY = "fedcba9876543210" * 4
DAY = 86_400


def contents(folder: Path) -> dict[str, bytes]:
    """Return the bytes of every file below *folder*, by relative name."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def spoil(blob: Path, data: bytes, *, stamped: bool = False) -> None:
    """Write *data* in place of a blob. *stamped*: with the time of a sound blob, as a failing disk does."""
    blob.chmod(0o644)
    blob.write_bytes(data)
    if stamped:
        os.utime(blob, ns=(STAMP_NS, STAMP_NS))


def key(number: int) -> str:
    return f"{number:064x}"


def keys(store: Store) -> list[int]:
    return [int(found, 16) for found in store.records.keys()]  # noqa: SIM118  # not a mapping


def size(store: Store) -> int:
    return sum(len(data) for folder in (store.records.folder, store.blobs.folder) for data in contents(folder).values())


def settle(store: Store) -> None:
    """Wait until the file system's clock, which advances in ticks, is past everything stored."""
    probe = store.folder / "probe"
    probe.touch()
    before = probe.stat().st_mtime_ns
    while probe.stat().st_mtime_ns == before:
        probe.touch()
    probe.unlink()


def collected(store: Store, limits: Limits, *, dry_run: bool = False) -> Collected:
    settle(store)
    found = collect(store, limits, dry_run=dry_run)
    assert found is not None
    return found
