"""The progress of transfers: a line every ten seconds, which a live table prints above itself.

The thread that moves the bytes writes it, so no thread of its own is needed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from winml_dag.cli import echo

# What is done sooner needs no word; after that as often as a stage tells how far it is.
_SECONDS_TO_FIRST_LINE = 2.0
_SECONDS_BETWEEN_LINES = 10.0


class Transfers:
    """Told of bytes by several threads. *clock* tells seconds, *say* takes a line."""

    def __init__(self, say: Callable[[str], None] | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._say = say or _say
        self._clock = clock
        self._lock = threading.Lock()
        self._received = 0
        self._due: dict[str, float] = {}
        self._last: dict[str, float] = {}

    def received(self, count: int) -> None:
        """*count* more bytes of blobs have come."""
        with self._lock:
            self._received += count
            if self._is_due("fetched"):
                from winml_dag.store.quantities import size_text

                self._say(f"remote: {size_text(self._received)} fetched so far")

    def waits(self, gone: int, everything: int) -> None:
        """The build has ended, and waits for what still has to go."""
        with self._lock:
            if gone < everything and self._is_due("put"):
                from winml_dag.store.quantities import size_text

                self._say(f"remote: {size_text(gone)} of {size_text(everything)} put")

    def _is_due(self, what: str) -> bool:
        now = self._clock()
        # After a pause it is another transfer, which may be done as soon as the first.
        if now - self._last.get(what, now - _SECONDS_BETWEEN_LINES) > _SECONDS_TO_FIRST_LINE:
            self._due[what] = now + _SECONDS_TO_FIRST_LINE
        self._last[what] = now
        if now < self._due[what]:
            return False
        self._due[what] = now + _SECONDS_BETWEEN_LINES
        return True


def _say(line: str) -> None:
    echo(line, err=True)
