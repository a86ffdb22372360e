"""What of a cache folder is needed: the records of current plans, and leftovers that nothing needs any more.

Leftovers are partial files, damaged files in quarantine, logs of failures, and plans without results.

A build that found everything up to date touches one file of its plan, not every record. The folder ``standing/`` of the
cache may have a file ``*.keys`` for each plan, text with one key per line, next to the plan itself under the same name
with another suffix. The newer modification time of the two is when the plan, and with it each of those records, was
last used.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from winml_dag.file_reading import change_time_ns, read_text
from winml_dag.store.files import PARTIAL, bytes_below, files_below, remove_file, remove_tree
from winml_dag.store.store import Store

PLAN_CACHE = "standing"
SUFFIX = ".keys"

# Enough for a build of 100 000 stages; a longer file is not a valid one.
_MOST_BYTES = 10_000_000


@dataclass(frozen=True)
class PlanKeys:
    """One plan: the keys of its records, all files of its name, and when it was used."""

    keys: frozenset[str]
    files: tuple[Path, ...]
    used_ns: int


def plan_keys(folder: Path) -> Iterator[PlanKeys]:
    """The plans in *folder*. A missing folder has none, and unreadable files are skipped."""
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        try:
            if path.stat().st_size <= _MOST_BYTES:
                keys = frozenset(read_text(path, encoding="ascii").split())
                files = tuple(sorted(folder.glob(f"{path.stem}.*")))
                yield PlanKeys(keys, files, max(file.stat().st_mtime_ns for file in files))
        except (OSError, UnicodeDecodeError):
            continue


def held_by_plans(folder: Path) -> Mapping[str, int]:
    """When a plan in *folder* last used each key, in ns."""
    held: dict[str, int] = {}
    for plan in plan_keys(folder):
        for key in plan.keys:
            held[key] = max(held.get(key, 0), plan.used_ns)
    return held


# A partial file that is unchanged for this long is abandoned: a copy in progress touches its file all the time.
_ABANDONED_SECONDS = 3600.0
# The part of a blob received from a remote is kept this long, so that another attempt can resume.
_RESUMED_SECONDS = 86_400.0


@dataclass(frozen=True)
class Leftover:
    """A file or folder to remove, and its size in bytes."""

    path: Path
    size: int

    def remove(self) -> bool:
        """False if it cannot be removed, for example because another program has it open."""
        try:
            if self.path.is_dir() and not self.path.is_symlink():
                remove_tree(self.path)
            else:
                remove_file(self.path)
        except OSError:
            return False
        return True


def leftovers(store: Store, older_than_ns: int, lost_keys: Collection[str]) -> Iterator[Leftover]:
    """What was quarantined, logged or planned before *older_than_ns*, and plans with any of *lost_keys*."""
    yield from abandoned(store)
    for folder in (store.quarantine, store.failures):
        for path in sorted(folder.glob("*")):
            if _changed_ns(path) < older_than_ns:
                yield _leftover(path)
    for plan in plan_keys(store.folder / PLAN_CACHE):
        if plan.used_ns < older_than_ns or not plan.keys.isdisjoint(lost_keys):
            yield from map(_leftover, plan.files)


def abandoned(store: Store) -> Iterator[Leftover]:
    """Files that dead writers of blobs and records left incomplete, and downloads that were not resumed."""
    now = time.time()
    yield from _partial_files(store.blobs.folder, now - _ABANDONED_SECONDS)
    yield from _partial_files(store.records.folder, now - _ABANDONED_SECONDS)
    yield from _partial_files(store.incoming, now - _RESUMED_SECONDS)


def _partial_files(folder: Path, older_than: float) -> Iterator[Leftover]:
    for entry in files_below(folder):
        with suppress(FileNotFoundError):
            status = entry.stat(follow_symlinks=False)
            # Both times: a complete copy already has the stamp of blobs, which is long ago.
            if entry.name.endswith(PARTIAL) and max(status.st_mtime, status.st_ctime) < older_than:
                yield Leftover(Path(entry.path), status.st_size)


def _leftover(path: Path) -> Leftover:
    if path.is_dir() and not path.is_symlink():
        return Leftover(path, bytes_below(path))
    with suppress(OSError):
        return Leftover(path, path.lstat().st_size)
    return Leftover(path, 0)


def _changed_ns(path: Path) -> int:
    """When *path* was last written to or moved, whichever was later: a blob in quarantine keeps its stamp."""
    try:
        status = path.lstat()
        return max(status.st_mtime_ns, change_time_ns(path, status))
    except OSError:
        return time.time_ns()
