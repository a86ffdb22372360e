"""How a stage gets done: the executor seam and its local form, a fresh process for every run.

A process of its own, because a native crash or a hang must cost one stage only, because memory has to come back, and
because bytes must not depend on what ran before (a second QNN compile in one process gives other bytes than the
first). Its current folder is the scratch folder and all names are fixed and relative, because absolute paths end up
in binaries too.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from winml_dag.canonical import JsonObject
from winml_dag.engine.process import ProcessGroup, describe_exit
from winml_dag.engine.stage import Node
from winml_dag.engine.worker import DISK_FULL, Result, Task

LOG_FILE = "log.txt"
_TAIL_LINES = 15


@dataclass(frozen=True)
class Job:
    """A node to run in *folder*, where its inputs already lie under ``inputs/<slot>``."""

    node: Node
    folder: Path
    timeout_seconds: float

    def input_folder(self, slot: str) -> Path:
        return self.folder / "inputs" / slot

    def output_folder(self, slot: str) -> Path:
        return self.folder / "outputs" / slot

    def make_output_folders(self) -> None:
        for slot in self.node.stage.outputs:
            self.output_folder(slot).mkdir(parents=True)


@dataclass(frozen=True)
class Outcome:
    """How a run ended. ``error`` is empty after success."""

    elapsed_seconds: float
    log: Path
    metrics: JsonObject
    error: str = ""
    advice: str = ""


class Executor(Protocol):
    """Runs jobs; ``run`` is called from several threads at once."""

    def run(self, job: Job) -> Outcome:
        """Do the work of *job* and wait for its end. Never raises for a failure of the stage."""

    def stop(self) -> None:
        """End everything that runs, now, and run nothing more."""


class LocalExecutor:
    """Worker processes on this machine."""

    def __init__(self) -> None:
        self._groups: set[ProcessGroup] = set()
        self._lock = threading.Lock()
        self._stopped = False

    def run(self, job: Job) -> Outcome:
        log = job.folder / LOG_FILE
        work = job.folder / "work"
        work.mkdir()
        job.make_output_folders()
        _task(job).write(job.folder)
        started = time.monotonic()
        with self._lock:
            if self._stopped:
                return Outcome(0.0, log, {}, "stopped")
            group = ProcessGroup(
                [sys.executable, "-P", "-m", "winml_dag.engine.worker"],
                folder=work,
                environment=worker_environment(job.folder),
                log=log,
            )
            self._groups.add(group)
        try:
            code = group.wait(job.timeout_seconds)
        finally:
            with self._lock:
                self._groups.discard(group)
        return _outcome(job, group, code, Result.read(job.folder), time.monotonic() - started)

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            groups = list(self._groups)
        for group in groups:
            group.end()


def _task(job: Job) -> Task:
    stage = job.node.stage
    return Task(
        stage=stage.name,
        work=stage.work,
        config_class=stage.config,
        config=job.node.config,
        # The current folder is work/, a sibling: whatever a library drops there is thrown away.
        inputs={slot: f"../inputs/{slot}" for slot in job.node.inputs},
        outputs={slot: f"../outputs/{slot}" for slot in stage.outputs},
    )


def _outcome(job: Job, group: ProcessGroup, code: int, result: Result | None, elapsed: float) -> Outcome:
    log = job.folder / LOG_FILE
    if group.timed_out:
        error = f"It took longer than its limit of {job.timeout_seconds:g} s and was ended."
        return Outcome(elapsed, log, {}, error, "Give it more time with --stage-timeout.")
    if result is None and code == DISK_FULL:
        error = "The disk of the cache folder is full."
        return Outcome(elapsed, log, {}, error, "Free some space, or use --cache-dir.")
    if result is None:
        error = f"Its process ended with {describe_exit(code)}."
        return Outcome(elapsed, log, {}, error, "The log has its last words." if log.stat().st_size else "")
    return Outcome(elapsed, log, result.metrics, result.error, result.advice)


def worker_environment(folder: Path) -> dict[str, str]:
    """The environment of a worker: the user's, without what would make its bytes depend on the moment.

    Hash order, time zone and locale are fixed, temporary files stay in the scratch folder, and hubs are not asked:
    whatever a stage needs is among its inputs.
    """
    temporary = folder / "temporary"
    temporary.mkdir()
    package = str(Path(__file__).resolve().parents[2])
    search = os.environ.get("PYTHONPATH")
    fixed: Mapping[str, str] = {
        "PYTHONPATH": package if not search else os.pathsep.join([package, search]),
        "PYTHONHASHSEED": "0",
        "PYTHONIOENCODING": "utf-8",
        "TZ": "UTC",
        "LC_ALL": "C.UTF-8",
        "TMPDIR": str(temporary),
        "TEMP": str(temporary),
        "TMP": str(temporary),
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    return {**os.environ, **fixed}


def log_tail(log: Path, lines: int = _TAIL_LINES) -> tuple[str, ...]:
    """The last *lines* of a log, reading no more than its last 64 KiB, whatever a stage has poured into it."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 65536))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ()
    return tuple(line for line in text.splitlines() if line.strip())[-lines:]
