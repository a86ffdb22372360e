"""A job: a node with its inputs in place, ready to be executed; its outcome; and its log."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Protocol

from winml_dag.canonical import JsonObject
from winml_dag.engine.progress import Progress
from winml_dag.engine.stage import Node
from winml_dag.engine.watch import Watched

LOG_FILE = "log.txt"
_TAIL_LINES = 20
# Ordinary logs take kilobytes. Of a very large log, the beginning shows what caused it and the end how it ended.
_LARGEST_LOG_BYTES = 8 << 20


@dataclass(frozen=True)
class Job:
    """A node to run in *folder*, where its inputs are already under ``inputs/<slot>``.

    Attributes:
        at: the folder in which a stage that works in place runs.
        seen: for such a stage, its inputs by slot as paths relative to that folder, each a file or a folder.
        hidden: a folder that the stage must not read, as far as the system can enforce that.
        is_traced: whether the files that it reads are recorded in ``trace``.
        began: when it was prepared, a ``time.time``.
        watched: the files and folders that it reads in place.
        own: the names of all files that were placed in its own folder; None when it works in the user's folder.
    """

    node: Node
    folder: Path
    timeout_seconds: float
    at: Path | None = None
    seen: Mapping[str, str] = field(default_factory=dict)
    hidden: Path | None = None
    is_traced: bool = False
    began: float = 0.0
    watched: tuple[Watched, ...] = ()
    own: frozenset[str] | None = None

    @cached_property
    def log(self) -> Path:
        return self.folder / LOG_FILE

    @property
    def trace(self) -> Path:
        return self.folder / "trace"

    def input_folder(self, slot: str) -> Path:
        return self.folder / "inputs" / slot

    def output_folder(self, slot: str) -> str:
        return f"{self.folder}{os.sep}outputs{os.sep}{slot}"

    def output_path(self, slot: str) -> str:
        """The path to which a stage that works in place must write *slot*: the value of ``{outputs.SLOT}``."""
        return f"{self.output_folder(slot)}{os.sep}{self.node.paths[slot].rstrip('/')}"

    def make_output_folders(self) -> None:
        """Create the folders of all slots; for a stage that works in place, the parents of its declared paths."""
        if self.at is None:
            for slot in self.node.stage.outputs:
                os.makedirs(self.output_folder(slot))  # noqa: PTH103
            return
        for slot, path in self.node.paths.items():
            target = self.output_path(slot)
            folder = target if path.endswith("/") else os.path.dirname(target)  # noqa: PTH120 - runs thousands of times
            if not os.path.isdir(folder):  # noqa: PTH112
                os.makedirs(folder)  # noqa: PTH103


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    ``error`` is empty after success. ``progress`` is the last progress that the work reported. ``is_own_message``: the
    error is a message of this program that needs no lines of the log next to it.
    """

    elapsed_seconds: float = 0.0
    metrics: JsonObject = field(default_factory=dict)
    error: str = ""
    advice: str = ""
    progress: Progress | None = None
    is_own_message: bool = False


class Executor(Protocol):
    """Runs jobs. ``run`` is called from several threads at once."""

    def run(self, job: Job) -> Outcome:
        """Do the work of *job* and wait until it ends. Never raises for a failure of the stage."""

    def stop(self) -> None:
        """Kill everything that runs, and refuse to run anything more."""


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
