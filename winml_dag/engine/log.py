"""What is kept of a stage's log: all of it, unless the stage has poured out more than anybody reads."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

# Ordinary logs have kilobytes. Of a flood the beginning says how it came to it, and the end how it ended.
LARGEST_LOG_BYTES = 8 << 20


def shorten_log(log: Path, largest_bytes: int = LARGEST_LOG_BYTES) -> None:
    """Take the middle out of *log* when it is larger than that, and say so in its place; one that is not there is left
    to whoever needs it.
    """
    half = largest_bytes // 2
    with suppress(FileNotFoundError):
        # Nearly always: one look, and no file is opened.
        if os.stat(log).st_size <= largest_bytes:  # noqa: PTH116 - for each of thousands of stages
            return
    with suppress(FileNotFoundError), open(log, "r+b") as file:
        size = file.seek(0, 2)
        if size <= largest_bytes:
            return
        file.seek(-half, 2)
        end = file.read()
        file.seek(half)
        file.write(b"\n[... %d bytes are left out here ...]\n" % (size - 2 * half))
        file.write(end)
        file.truncate()
