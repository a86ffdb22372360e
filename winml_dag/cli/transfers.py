"""Progress of transfers: a line every ten seconds, which a live table prints above itself.

The thread that transfers the bytes writes the line, so no extra thread is needed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from winml_dag.cli.plaintext import echo

# Shorter transfers print nothing; longer ones as often as the progress of a stage.
_SECONDS_TO_FIRST_LINE = 2.0
_SECONDS_BETWEEN_LINES = 10.0


class Transfers:
    """Receives byte counts from several threads. *clock* returns seconds, *say* prints a line."""

    def __init__(self, say: Callable[[str], None] | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._say = say or _say
        self._clock = clock
        self._lock = threading.Lock()
        self._received = 0
        self._due: dict[str, float] = {}
        self._last: dict[str, float] = {}

    def received(self, count: int) -> None:
        """Record that *count* more bytes of blobs have arrived."""
        with self._lock:
            self._received += count
            if self._is_due("fetched"):
                from winml_dag.store.quantities import size_text

                self._say(f"remote: {size_text(self._received)} fetched so far")

    def waits(self, gone: int, everything: int) -> None:
        """Record that the build has finished and waits for uploads."""
        with self._lock:
            if gone < everything and self._is_due("put"):
                from winml_dag.store.quantities import size_text

                self._say(f"remote: {size_text(gone)} of {size_text(everything)} put")

    def _is_due(self, what: str) -> bool:
        now = self._clock()
        # A transfer after a pause counts as a new one, which may again be short.
        if now - self._last.get(what, now - _SECONDS_BETWEEN_LINES) > _SECONDS_TO_FIRST_LINE:
            self._due[what] = now + _SECONDS_TO_FIRST_LINE
        self._last[what] = now
        if now < self._due[what]:
            return False
        self._due[what] = now + _SECONDS_BETWEEN_LINES
        return True


def _say(line: str) -> None:
    echo(line, err=True)
