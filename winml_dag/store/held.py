"""The keys that plans stand on: a build that found all up to date touches one file of its plan, not every record.

In ``standing/`` of the cache folder there may be a file ``*.keys`` for each plan, text with one key a line, beside the
plan itself under the same name with another ending. When either was last modified is when the plan, and with it each of
those records, was last used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from winml_dag.smallfiles import read_text

FOLDER = "standing"
SUFFIX = ".keys"

# A build of 100 000 stages; a file that is longer is none of ours.
_MOST_BYTES = 10_000_000


@dataclass(frozen=True)
class StandingKeys:
    """One plan: the keys that it stands on, all files of its name, and when it was used."""

    keys: frozenset[str]
    files: tuple[Path, ...]
    used_ns: int


def standing_keys(folder: Path) -> Iterator[StandingKeys]:
    """What lies in *folder*; a folder that is not there has nothing, a file that cannot be read holds nothing."""
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        try:
            if path.stat().st_size <= _MOST_BYTES:
                keys = frozenset(read_text(path, encoding="ascii").split())
                files = tuple(sorted(folder.glob(f"{path.stem}.*")))
                yield StandingKeys(keys, files, max(file.stat().st_mtime_ns for file in files))
        except (OSError, UnicodeDecodeError):
            continue


def held_by_standing(folder: Path) -> Mapping[str, int]:
    """When each key was last used by a plan in *folder*, in ns."""
    held: dict[str, int] = {}
    for standing in standing_keys(folder):
        for key in standing.keys:
            held[key] = max(held.get(key, 0), standing.used_ns)
    return held
