"""What vouches for a plan and for its outputs: what one stat each says of every file and folder that had a say.

Thousands of files are looked at in each build that has nothing to do, so this is one flat array that is compared as a
whole: 9000 paths take 15 ms, where an object for each would take as long again.
"""

from __future__ import annotations

import os
import sys
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path

from winml_dag.readlog import Signature
from winml_dag.store.changetime import INODE_MASK

# Size, time of modification, inode, time of change: see ``changetime`` for what the last one is for.
PER_PATH = 4
_ABSENT = (0, 0, 0, 0)
_CHANGED = 3

if sys.platform == "win32":
    from winml_dag.store.changetime import signature_from

    def look(paths: Iterable[str]) -> array[int]:
        """``PER_PATH`` numbers for each path: zeros for one that is not there."""
        found = array("q")
        for path in paths:
            try:
                found.extend(signature_from(path, os.stat(path)))
            except (OSError, ValueError):
                found.extend(_ABSENT)
        return found

else:

    def look(paths: Iterable[str]) -> array[int]:
        """``PER_PATH`` numbers for each path: zeros for one that is not there."""
        found = array("q")
        extend, stat = found.extend, os.stat
        for path in paths:
            try:
                status = stat(path)
            except (OSError, ValueError):
                extend(_ABSENT)
            else:
                extend((status.st_size, status.st_mtime_ns, status.st_ino & INODE_MASK, status.st_ctime_ns))
        return found


def differing(one: Sequence[int], other: Sequence[int]) -> list[int]:
    """The places of the paths for which two looks at the same paths differ."""
    if one == other:
        return []
    return [
        start // PER_PATH
        for start in range(0, len(one), PER_PATH)
        if one[start : start + PER_PATH] != other[start : start + PER_PATH]
    ]


def changed_ns(seen: Sequence[int], place: int) -> int:
    """When the path at *place* last changed; 0 for one that is not there."""
    return seen[place * PER_PATH + _CHANGED]


def changed_after(seen: Sequence[int], moment_ns: int) -> list[int]:
    """The places of the paths that changed after *moment_ns*: a write that follows could get the very same time."""
    return [place for place, changed_ns in enumerate(seen[_CHANGED::PER_PATH]) if changed_ns > moment_ns]


class FirstLooks:
    """What was seen of each path before planning read it: a log of reads (see ``readlog``).

    A look that is taken later may show another file under the same path, and would vouch for what nobody has read.
    """

    def __init__(self) -> None:
        self._first: dict[str, Signature] = {}
        self._changed: set[str] = set()

    def __call__(self, path: str, signature: Signature | None) -> None:
        # As ``text_of`` in ``recall`` has it. Nearly all are absolute, and to make a Path of each takes a while.
        at = path if path.startswith("/") else str(Path(path).absolute())
        if signature is None:
            size, modified_ns, inode, changed_ns = look([at])
            signature = size, modified_ns, inode, changed_ns
        if self._first.setdefault(at, signature) != signature:
            self._changed.add(at)

    def of(self, paths: Iterable[str]) -> array[int] | None:
        """What was first seen of *paths*, as ``look`` has it; None where that vouches for nothing: nobody told of a
        path, or it changed between two reads.
        """
        found = array("q")
        for path in paths:
            first = self._first.get(path)
            if first is None or path in self._changed:
                return None
            found.extend(first)
        return found
