"""What builds on a cache have saved, and how big it is about: the lines of ``tally``, counted up.

    build <time> <reused> <ran> <seconds saved> <bytes stored>
    size <time> <bytes>                                             as measured; what builds store later comes on top
    sum <time> <builds> <reused> <ran> <seconds saved> <bytes stored>       all builds up to there, the first at <time>

A line that is damaged or cut off is left out. Whoever reads a long file replaces its lines by their sum.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from winml_dag.errors import StoreError
from winml_dag.store.files import write_whole
from winml_dag.store.locks import Locks
from winml_dag.store.tally import FILE

# About 3000 builds; reading that many takes some 10 ms.
_LONG_BYTES = 128 * 1024
_LOCK = "statistics"


@dataclass(frozen=True)
class Statistics:
    """What builds did on one cache.

    Attributes:
        since: when the first of them ended, in seconds since 1970; None when there was none.
        reused, ran: numbers of stages.
        seconds_saved: how long the reused ones took when they ran.
        size_bytes: what records and blobs took when that was last measured; None before the first time.
        stored_bytes: what builds have stored since then, counting what was here already.
    """

    builds: int = 0
    since: int | None = None
    reused: int = 0
    ran: int = 0
    seconds_saved: float = 0.0
    size_bytes: int | None = None
    stored_bytes: int = 0

    @property
    def hit_ratio(self) -> float | None:
        """Stages reused out of all, from 0 to 1; None when there were none."""
        return self.reused / (self.reused + self.ran) if self.reused + self.ran else None

    @property
    def estimated_bytes(self) -> int | None:
        """At most this is what records and blobs take now; None when it was never measured."""
        return None if self.size_bytes is None else self.size_bytes + self.stored_bytes


def read_statistics(folder: Path, locks: Locks) -> Statistics:
    """Count up what was noted in the cache at *folder*."""
    file = folder / FILE
    try:
        data = file.read_bytes()
    except OSError:
        return Statistics()
    found = _counted(data.decode("utf-8", "replace").splitlines())
    if len(data) > _LONG_BYTES:
        with suppress(OSError, StoreError):
            _compact(file, found, len(data), locks)
    return found


def _counted(lines: Iterable[str]) -> Statistics:
    found = Statistics()
    for line in lines:
        kind, *fields = line.split()[:8] or [""]
        with suppress(ValueError):
            if kind == "build" and len(fields) == 5:
                found = _with(found, fields[0], "1", *fields[1:])
            elif kind == "sum" and len(fields) == 6:
                found = _with(found, *fields)
            elif kind == "size" and len(fields) == 2:
                found = replace(found, size_bytes=_whole(fields[1]), stored_bytes=0)
    return found


def _with(found: Statistics, since: str, builds: str, reused: str, ran: str, saved: str, stored: str) -> Statistics:
    return replace(
        found,
        builds=found.builds + _whole(builds),
        since=_whole(since) if found.since is None else min(found.since, _whole(since)),
        reused=found.reused + _whole(reused),
        ran=found.ran + _whole(ran),
        seconds_saved=round(found.seconds_saved + _tenths(saved), 1),
        stored_bytes=found.stored_bytes + _whole(stored),
    )


def _compact(file: Path, found: Statistics, length: int, locks: Locks) -> None:
    with locks.try_hold(_LOCK) as free:
        # Whoever has added a line since, or compacted first, finds it kept. Between this look and the replacement one
        # could still be lost: too rare, and too little, to have every build take a lock.
        if free and file.stat().st_size == length:
            write_whole(file, "".join(f"{line}\n" for line in _lines(found)).encode())


def _lines(found: Statistics) -> list[str]:
    """Lines that count up to *found*."""
    counted = f"{found.since or 0} {found.builds} {found.reused} {found.ran} {found.seconds_saved:.1f}"
    if found.size_bytes is None:
        return [f"sum {counted} {found.stored_bytes}"]
    return [f"sum {counted} 0", f"size 0 {found.size_bytes}", f"sum {found.since or 0} 0 0 0 0.0 {found.stored_bytes}"]


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise ValueError(text)
    return int(text)


def _tenths(text: str) -> float:
    whole, point, tenth = text.partition(".")
    if point != "." or len(tenth) != 1:
        raise ValueError(text)
    return _whole(whole) + _whole(tenth) / 10
