"""One line of text per build in the cache folder, which ``cache info`` sums up (see ``statistics``).

Builds that have nothing to do write it too, so this module imports almost nothing and makes one write. It never fails:
an unwritable cache is no reason to fail a build.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from winml_dag.store.remote.protocol import Traffic

FILE = "statistics.txt"

# In text mode Windows would write other line endings, and read those of another system differently.
_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0)


def note_build(
    cache: str | os.PathLike[str], *, reused: int, ran: int, seconds_saved: float, stored_bytes: int = 0
) -> None:
    """Log a finished build: numbers of stages, the original run time of reused ones, and newly stored bytes."""
    _append(cache, f"build {time.time():.0f} {reused} {ran} {seconds_saved * 1000:.0f} {stored_bytes}")


def note_size(cache: str | os.PathLike[str], size: int) -> None:
    """Log the current size of the cache's records and blobs, in bytes."""
    _append(cache, f"size {time.time():.0f} {size}")


def note_traffic(cache: str | os.PathLike[str], traffic: Traffic) -> None:
    """Log the traffic between this machine and its remotes, if any."""
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
        # One write, so that lines of several processes do not mix. The line starts with a newline, so that a line
        # truncated by a full disk corrupts only itself.
        os.write(descriptor, f"\n{line}\n".encode())
    except OSError:
        pass
    finally:
        os.close(descriptor)
