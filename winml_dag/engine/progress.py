"""How far the work of a stage is: told in its process, written to a small file of its job, read by who displays it.

A file and no pipe, because then nothing is done as long as nobody looks, and nothing at all for the thousands of
commands that tell nothing. What was told last also outlives a process that is killed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from winml_dag.file_reading import read_json

PROGRESS_FILE = "progress.json"

# A display draws four times a second. A write takes up to 0.7 ms, more than a sample of a small model.
_SECONDS_BETWEEN_WRITES = 0.2
# On Windows a file that somebody reads just now cannot be replaced; reading one of 60 bytes takes no time.
_ATTEMPTS = 100


@dataclass(frozen=True)
class Progress:
    """*done* of *total* (None: nobody knows), counted in *unit* ("samples").

    ``per_second`` is the mean since counting began, None as long as there is none.
    """

    done: int
    total: int | None
    unit: str
    per_second: float | None = None


class Tell(Protocol):
    """How a stage tells how far it is: first with 0, then as often as it likes. Never an error.

    A smaller number than before, another total or another unit begins a new count.
    """

    def __call__(self, done: int, total: int | None, unit: str) -> None: ...


def tell_nobody(done: int, total: int | None, unit: str) -> None:
    """For work that is done where nobody looks."""


class Teller:
    """The worker's side: writes what it is told into *folder*, a few times a second, and a count's end at once.

    Attributes:
        last: what was told last.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = folder / PROGRESS_FILE
        self._clock = clock
        self.last: Progress | None = None
        self._first = 0
        self._began = 0.0
        self._tried_at = float("-inf")
        self._written: Progress | None = None

    def __call__(self, done: int, total: int | None, unit: str) -> None:
        # Work must not fail for its display, whatever a plug-in takes for a number. numpy has integers of its own.
        with suppress(TypeError, ValueError, OverflowError):
            self._take(int(done), None if total is None else int(total), unit)

    def _take(self, done: int, total: int | None, unit: str) -> None:
        now = self._clock()
        last = self.last
        if last is None or done < last.done or (total, unit) != (last.total, last.unit):
            self._first, self._began = done, now
        passed = now - self._began
        rate = (done - self._first) / passed if passed > 0 and done > self._first else None
        self.last = Progress(done, total, unit, rate)
        if done == total or now - self._tried_at >= _SECONDS_BETWEEN_WRITES:
            self._tried_at = now
            self._write()

    def flush(self) -> None:
        """Write what was told last, if it is not written yet."""
        for _ in range(_ATTEMPTS):
            if self._written == self.last:
                return
            self._write()

    def _write(self) -> None:
        if self.last is None:
            return
        with suppress(OSError):  # a full disk
            temporary = self._path.with_name(f"{PROGRESS_FILE}.part")
            temporary.write_text(json.dumps(self.last.__dict__), encoding="utf-8")
            temporary.replace(self._path)
            self._written = self.last


class Watch:
    """The display's side: where the progress of one job can be read, as soon as the job has a folder.

    Made before the job is begun, which may first have to wait for somebody else at the same key. ``folder``: of the
    job, once it has one.
    """

    def __init__(self) -> None:
        self.folder: Path | None = None
        self._told: Progress | None = None

    def follow(self, folder: Path) -> None:
        self.folder = folder

    def tell(self, progress: Progress) -> None:
        """Of a job that is elsewhere: how far it is."""
        self._told = progress

    def read(self) -> Progress | None:
        """What was told last; None before anything was, and when the job and its folder are gone. From any thread."""
        return self._told if self.folder is None else read_progress(self.folder)


def read_progress(folder: Path) -> Progress | None:
    """What the work in *folder* told last, if anything."""
    try:
        told = read_json(folder / PROGRESS_FILE)
        done, total, unit, rate = (told[name] for name in ("done", "total", "unit", "per_second"))
        return Progress(
            int(done), None if total is None else int(total), str(unit), None if rate is None else float(rate)
        )
    except (OSError, ValueError, TypeError, KeyError, OverflowError):
        return None  # none yet, none any more, or the stage itself has written there
