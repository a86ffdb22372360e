"""One line of text for each build, in the cache folder: what ``cache info`` counts up (see ``statistics``).

Written by builds that have nothing to do too, so this imports next to nothing and is one write. It never fails: a cache
that cannot be written is no reason to.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from winml_dag.store.remote.protocol import Traffic

FILE = "statistics.txt"

# In text mode Windows would write other line ends, and read a line of another system differently.
_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0)


def note_build(
    cache: str | os.PathLike[str], *, reused: int, ran: int, seconds_saved: float, stored_bytes: int = 0
) -> None:
    """Note a build that ended: stages by number, the time that reused ones took when they ran, what was stored anew."""
    _append(cache, f"build {time.time():.0f} {reused} {ran} {seconds_saved * 1000:.0f} {stored_bytes}")


def note_size(cache: str | os.PathLike[str], size: int) -> None:
    """Note what the records and blobs of the cache take, in bytes, as measured just now."""
    _append(cache, f"size {time.time():.0f} {size}")


def note_traffic(cache: str | os.PathLike[str], traffic: Traffic) -> None:
    """Note what went between this machine and its remotes; nothing when nothing did."""
    from dataclasses import astuple

    numbers = astuple(traffic)
    if any(numbers):
        _append(cache, f"remote {time.time():.0f} {' '.join(map(str, numbers))}")


def _append(cache: str | os.PathLike[str], line: str) -> None:
    try:
        descriptor = os.open(f"{os.fspath(cache)}/{FILE}", _FLAGS, 0o666)
    except OSError:
        return
    try:
        # In one step, so that lines of several processes do not mix; a new line first, so that what a full disk cut off
        # spoils none but itself.
        os.write(descriptor, f"\n{line}\n".encode())
    except OSError:
        pass
    finally:
        os.close(descriptor)
