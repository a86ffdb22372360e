"""An in-memory executor that records calls, so that tests of the scheduler need neither processes nor mocks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from winml_dag.canonical import JsonObject
from winml_dag.engine.exchange import ProgressWriter
from winml_dag.engine.execute import Job, Outcome
from winml_dag.engine.stage import Node, Workspace
from winml_dag.errors import WinmlDagError

Work: TypeAlias = Callable[[Node, Workspace], JsonObject]


class MemoryExecutor:
    """Calls *work* with each node, in this process and in the calling thread.

    The folders of the workspace are absolute, unlike those of a worker process: threads share one current folder.

    Attributes:
        calls: the ids of the nodes that were run, in the order in which they started.
    """

    def __init__(self, work: Work) -> None:
        self.calls: list[str] = []
        self._work = work
        self._lock = threading.Lock()
        self._stopped = False

    def run(self, job: Job) -> Outcome:
        job.log.touch()
        with self._lock:
            if self._stopped:
                return Outcome(error="stopped")
            self.calls.append(job.node.id)
        job.make_output_folders()
        started = time.monotonic()
        writer = ProgressWriter(job.folder)
        try:
            metrics = self._work(job.node, _workspace(job, writer))
        except WinmlDagError as error:
            return Outcome(time.monotonic() - started, {}, error.message, error.advice, writer.last)
        return Outcome(time.monotonic() - started, metrics, progress=writer.last)

    def stop(self) -> None:
        """Start nothing more. Running nodes continue to their end: a thread cannot be stopped from outside."""
        with self._lock:
            self._stopped = True


def _workspace(job: Job, writer: ProgressWriter) -> Workspace:
    return Workspace(
        inputs={slot: job.input_folder(slot) for slot in job.node.inputs},
        outputs={slot: Path(job.output_folder(slot)) for slot in job.node.stage.outputs},
        progress=writer,
    )
