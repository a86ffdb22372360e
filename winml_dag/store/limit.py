"""The size that a cache is kept to without being told each time: set once in its folder, or by the environment."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

from winml_dag.errors import WinmlDagError
from winml_dag.store.collect import Collected, Limits, collect
from winml_dag.store.files import in_words, write_whole
from winml_dag.store.local import LocalStore
from winml_dag.store.quantities import parse_size
from winml_dag.store.statistics import read_statistics

VARIABLE = "WINML_DAG_CACHE_MAX_SIZE"
NONE = "none"

_FILE = "limit"
# Collecting goes below the limit, or the very next build would have to collect again.
_SHARE = 0.8


def configured_limit(folder: Path) -> int | None:
    """The bytes that records and blobs of the cache in *folder* may take: what the environment says, else what was set.

    Raises:
        UsageError: when that is no size.
    """
    if text := os.environ.get(VARIABLE):
        return parse_limit(text, VARIABLE)
    file = folder / _FILE
    try:
        return parse_limit(file.read_text(encoding="utf-8", errors="replace"), str(file))
    except FileNotFoundError:
        return None


def parse_limit(text: str, what: str) -> int | None:
    """The bytes that *text* means; None for ``none``. Raises UsageError as :func:`parse_size` does."""
    return None if text.strip().lower() == NONE else parse_size(text, what)


def set_limit(folder: Path, text: str) -> int | None:
    """Keep the cache in *folder* to the size *text* from now on, or with ``none`` to no size. Returns it in bytes.

    Raises:
        UsageError: when *text* is no size.
        StoreError: when the cache cannot be written.
    """
    limit = parse_limit(text, "the limit")
    with in_words("Cannot set the limit of the cache"):
        if limit is None:
            (folder / _FILE).unlink(missing_ok=True)
        else:
            write_whole(folder / _FILE, f"{text.strip()}\n".encode())
    return limit


def inherit_limit(folder: Path) -> None:
    """Keep the store in *folder* to the size that was set for the cache folder that it lies in."""
    with suppress(OSError):
        shutil.copyfile(folder.parent / _FILE, folder / _FILE)


def keep_to_limit(store: LocalStore) -> Collected | None:
    """Collect if the store has outgrown its limit. None when nothing had to be removed, or somebody else is at it.

    Cheap as long as it cannot have: what was measured last and what builds have stored since then is looked up, and
    only when that exceeds the limit is the store gone through.

    Raises:
        WinmlDagError: when the limit makes no sense, or something cannot be removed.
    """
    limit = configured_limit(store.folder)
    if limit is None:
        return None
    estimate = read_statistics(store.folder, store.locks).estimated_bytes
    if estimate is not None and estimate <= limit:
        return None
    collected = collect(store, Limits(max_bytes=int(limit * _SHARE), above_bytes=limit), wait=False)
    return collected if collected is not None and collected.records + collected.blobs else None


def limit_text(folder: Path) -> str:
    """The limit as it was written down; empty without one."""
    if text := os.environ.get(VARIABLE):
        return "" if text.strip().lower() == NONE else text.strip()
    with suppress(OSError, WinmlDagError):
        return (folder / _FILE).read_text(encoding="utf-8", errors="replace").strip()
    return ""
