"""What of a cache folder is needed and what is not: the records that plans stand on, and what is left lying that
nothing needs any more (half-written files, damaged ones in quarantine, logs of failures, plans without results).

A build that found all up to date touches one file of its plan, not every record. In ``standing/`` of the cache folder
there may be a file ``*.keys`` for each plan, text with one key a line, beside the plan itself under the same name with
another ending. When either was last modified is when the plan, and with it each of those records, was last used.
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

STANDING = "standing"
SUFFIX = ".keys"

# A build of 100 000 stages; a file that is longer is none of ours.
_MOST_BYTES = 10_000_000


@dataclass(frozen=True)
class PlanKeys:
    """One plan: the keys that it stands on, all files of its name, and when it was used."""

    keys: frozenset[str]
    files: tuple[Path, ...]
    used_ns: int


def plan_keys(folder: Path) -> Iterator[PlanKeys]:
    """What lies in *folder*; a folder that is not there has nothing, a file that cannot be read holds nothing."""
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        try:
            if path.stat().st_size <= _MOST_BYTES:
                keys = frozenset(read_text(path, encoding="ascii").split())
                files = tuple(sorted(folder.glob(f"{path.stem}.*")))
                yield PlanKeys(keys, files, max(file.stat().st_mtime_ns for file in files))
        except (OSError, UnicodeDecodeError):
            continue


def held_by_standing(folder: Path) -> Mapping[str, int]:
    """When each key was last used by a plan in *folder*, in ns."""
    held: dict[str, int] = {}
    for plan in plan_keys(folder):
        for key in plan.keys:
            held[key] = max(held.get(key, 0), plan.used_ns)
    return held


# What bears the name of unfinished work for this long is nobody's: a copy under way touches its file all the time.
_ABANDONED_SECONDS = 3600.0
# What came of a blob from a remote is gone on with, by the next attempt if there is one soon.
_RESUMED_SECONDS = 86_400.0


@dataclass(frozen=True)
class Leftover:
    """A file or folder to remove, and its bytes."""

    path: Path
    size: int

    def remove(self) -> bool:
        """False when it cannot be removed, because another program has it open, for one."""
        try:
            if self.path.is_dir() and not self.path.is_symlink():
                remove_tree(self.path)
            else:
                remove_file(self.path)
        except OSError:
            return False
        return True


def leftovers(store: Store, older_than_ns: int, lost_keys: Collection[str]) -> Iterator[Leftover]:
    """What was set aside, logged or planned before *older_than_ns*, and what plans there are on *lost_keys*."""
    yield from abandoned(store)
    for folder in (store.quarantine, store.failures):
        for path in sorted(folder.glob("*")):
            if _changed_ns(path) < older_than_ns:
                yield _leftover(path)
    for plan in plan_keys(store.folder / STANDING):
        if plan.used_ns < older_than_ns or not plan.keys.isdisjoint(lost_keys):
            yield from map(_leftover, plan.files)


def abandoned(store: Store) -> Iterator[Leftover]:
    """Files that dead writers of blobs and records left half written, and what nobody went on to fetch."""
    now = time.time()
    yield from _partial_files(store.blobs.folder, now - _ABANDONED_SECONDS)
    yield from _partial_files(store.records.folder, now - _ABANDONED_SECONDS)
    yield from _partial_files(store.incoming, now - _RESUMED_SECONDS)


def _partial_files(folder: Path, older_than: float) -> Iterator[Leftover]:
    for entry in files_below(folder):
        with suppress(FileNotFoundError):
            status = entry.stat(follow_symlinks=False)
            # Both times: a copy that is whole already bears the stamp of blobs, which is long ago.
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
