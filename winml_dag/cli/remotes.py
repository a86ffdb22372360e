"""What commands print of remotes and transfers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from winml_dag.canonical import JsonObject
from winml_dag.cli import Note, echo

if TYPE_CHECKING:
    from winml_dag.store.store import Store
    from winml_dag.store.usage import Traffic

# A shorter transfer prints nothing; a longer one prints as often as a stage reports its progress.
_SECONDS_TO_FIRST_LINE = 2.0
_SECONDS_BETWEEN_LINES = 10.0


def say(sentence: str) -> None:
    """Print a note about a remote on stderr, also with --quiet."""
    echo(Note(sentence), err=True)


def traffic_of(store: Store) -> Traffic | None:
    """The traffic of *store*; None when it has no remote."""
    return store.traffic() if store.has_remotes else None


def traffic_json(traffic: Traffic | None) -> JsonObject:
    """Return ``{"remote": {...}}`` for the JSON object of a command; empty without a remote."""
    return {} if traffic is None else {"remote": asdict(traffic)}


def traffic_lines(traffic: Traffic | None) -> Iterator[str]:
    """``remote: 38 records, 4 blobs (9.7 MiB) fetched; 12 records, 2 blobs (1.2 MiB) put``, if there was any."""
    if traffic is None:
        return
    from winml_dag.store.quantities import counted, size_text

    def moved(records: int, blobs: int, size: int, verb: str) -> str:
        parts = [counted(records, "record")] if records else []
        parts += [f"{counted(blobs, 'blob')} ({size_text(size)})"] if blobs else []
        return f"{', '.join(parts)} {verb}" if parts else ""

    parts = [
        moved(traffic.records_found, traffic.blobs_fetched, traffic.bytes_fetched, "fetched"),
        moved(traffic.records_put, traffic.blobs_put, traffic.bytes_put, "put"),
        f"{traffic.refused} rejected" if traffic.refused else "",
        f"{traffic.left_alone} ignored" if traffic.left_alone else "",
    ]
    missed = f"none of {counted(traffic.records_missed, 'record')} was there" if traffic.records_missed else ""
    if text := "; ".join(filter(None, parts)) or missed:
        yield f"remote: {text}"


class Transfers:
    """Prints the progress of transfers: a line every ten seconds, which a live table shows above itself.

    Called by the threads that move the bytes, so no thread of its own is needed. *clock* returns seconds, *say* takes a
    line.
    """

    def __init__(self, say: Callable[[str], None] | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._say = say or (lambda line: echo(line, err=True))
        self._clock = clock
        self._lock = threading.Lock()
        self._received = 0
        self._due: dict[str, float] = {}
        self._last: dict[str, float] = {}

    def received(self, count: int) -> None:
        """*count* more bytes of blobs have arrived."""
        with self._lock:
            self._received += count
            if self._is_due("fetched"):
                from winml_dag.store.quantities import size_text

                self._say(f"remote: {size_text(self._received)} fetched so far")

    def waits(self, gone: int, everything: int) -> None:
        """The build has ended and waits for uploads."""
        with self._lock:
            if gone < everything and self._is_due("put"):
                from winml_dag.store.quantities import size_text

                self._say(f"remote: {size_text(gone)} of {size_text(everything)} put")

    def _is_due(self, what: str) -> bool:
        now = self._clock()
        # After a pause it is another transfer, which may be as short as the first.
        if now - self._last.get(what, now - _SECONDS_BETWEEN_LINES) > _SECONDS_TO_FIRST_LINE:
            self._due[what] = now + _SECONDS_TO_FIRST_LINE
        self._last[what] = now
        if now < self._due[what]:
            return False
        self._due[what] = now + _SECONDS_BETWEEN_LINES
        return True
