"""What the engine and the process of a stage exchange, in files: the task, the result, the progress, and the log.

Progress is reported in that process and read by the display. A file instead of a pipe, because then nothing is done
while nobody reads it, and nothing at all for the thousands of commands that report no progress. The last report also
survives when the process is killed.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from winml_dag.canonical import JsonObject
from winml_dag.file_reading import read_json

TASK_FILE = "task.json"
RESULT_FILE = "result.json"
PROGRESS_FILE = "progress.json"
LOG_FILE = "log.txt"
_TAIL_LINES = 20
# Ordinary logs take kilobytes. Of a very large log, the beginning shows what caused it and the end how it ended.
_LARGEST_LOG_BYTES = 8 << 20
# Exit code of a worker that could not write its result because the disk is full.
DISK_FULL = 28

# A display refreshes four times a second. A write takes up to 0.7 ms, more than one sample of a small model.
_SECONDS_BETWEEN_WRITES = 0.2
# On Windows a file cannot be replaced while it is being read; reading one of 60 bytes takes no time.
_ATTEMPTS = 100


@dataclass(frozen=True)
class Task:
    """The task of a worker. Paths are relative to its current folder. Without a class the config stays plain JSON."""

    stage: str
    work: str
    config_class: str
    config: JsonObject
    inputs: dict[str, str]
    outputs: dict[str, str]
    machine_facts: dict[str, str]

    def write(self, folder: Path) -> None:
        (folder / TASK_FILE).write_text(json.dumps(self.__dict__), encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> Task:
        return cls(**json.loads((folder / TASK_FILE).read_text(encoding="utf-8")))


@dataclass(frozen=True)
class Result:
    """The result of a worker.

    ``error`` is empty after success. After a failure, ``metrics`` are those measured until then.
    """

    metrics: JsonObject
    error: str = ""
    advice: str = ""

    def write(self, folder: Path) -> None:
        # Write aside and rename: a partial result must not be read.
        temporary = folder / f"{RESULT_FILE}.part"
        temporary.write_text(json.dumps(self.__dict__, allow_nan=False), encoding="utf-8")
        temporary.replace(folder / RESULT_FILE)

    @classmethod
    def read(cls, folder: Path) -> Result | None:
        """None if the worker ended without a result; a failure if the file is not a valid one."""
        try:
            result = cls(**read_json(folder / RESULT_FILE))
            if isinstance(result.metrics, dict) and isinstance(result.error, str) and isinstance(result.advice, str):
                return result
        except FileNotFoundError:
            return None
        except (OSError, TypeError, ValueError):
            pass  # written by the stage, or by a library in it
        return cls({}, "It ended, but its result cannot be read.", "The log may show what wrote to its folder.")


@dataclass(frozen=True)
class Progress:
    """*done* of *total* (None if unknown), counted in *unit* ("samples").

    ``per_second`` is the mean since the count started, None if there is none yet.
    """

    done: int
    total: int | None
    unit: str
    per_second: float | None = None


class OnProgress(Protocol):
    """The callback with which a stage reports progress: first with 0, then as often as it likes. Never raises.

    A smaller number than before, another total or another unit starts a new count.
    """

    def __call__(self, done: int, total: int | None, unit: str) -> None: ...


def no_progress(done: int, total: int | None, unit: str) -> None:
    """Ignores progress."""


class ProgressWriter:
    """The worker's side: writes reports to *folder* a few times a second, and the end of a count at once.

    Attributes:
        last: the last report.
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
        # Work must not fail because of its display, whatever type of number a plug-in passes. numpy has its own
        # integers.
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
        """Write the last report if it is not written yet."""
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
    """The display's side: where to read the progress of one job, once the job has a folder.

    Created before the job starts, which may first have to wait for another process that holds the same key. ``folder``:
    the job's folder, once it exists.
    """

    def __init__(self) -> None:
        self.folder: Path | None = None
        self._remote: Progress | None = None

    def follow(self, folder: Path) -> None:
        self.folder = folder

    def update(self, progress: Progress) -> None:
        """Set the progress of a job on another machine."""
        self._remote = progress

    def read(self) -> Progress | None:
        """The last report; None before the first one, and after the job's folder is gone. Callable from any thread."""
        return self._remote if self.folder is None else read_progress(self.folder)


def read_progress(folder: Path) -> Progress | None:
    """The last report of the work in *folder*, if any."""
    try:
        report = read_json(folder / PROGRESS_FILE)
        done, total, unit, rate = (report[name] for name in ("done", "total", "unit", "per_second"))
        return Progress(
            int(done), None if total is None else int(total), str(unit), None if rate is None else float(rate)
        )
    except (OSError, ValueError, TypeError, KeyError, OverflowError):
        return None  # none yet, already removed, or overwritten by the stage itself


def log_tail(log: Path, lines: int = _TAIL_LINES) -> tuple[str, ...]:
    """The last *lines* of a log. Reads at most its last 64 KiB, however large it is."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 65536))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ()
    return tuple(line for line in text.splitlines() if line.strip())[-lines:]


def shorten_log(log: Path, largest_bytes: int = _LARGEST_LOG_BYTES) -> None:
    """Replace the middle of *log* with a marker if it is larger than *largest_bytes*.

    Does nothing if the log does not exist; its readers handle that.
    """
    half = largest_bytes // 2
    with suppress(FileNotFoundError):
        # The usual case: one stat, and no file is opened.
        if os.stat(log).st_size <= largest_bytes:  # noqa: PTH116 - for each of thousands of stages
            return
        with open(log, "r+b") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(-half, os.SEEK_END)
            end = file.read()
            file.seek(half)
            file.write(b"\n[... %d bytes are omitted here ...]\n" % (size - 2 * half))
            file.write(end)
            file.truncate()
