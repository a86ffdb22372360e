"""The runs of a build as its scheduler sees them: it starts them, learns which have ended, and reads a clock.

The scheduler depends on nothing else of processes, threads and time. So another clock can drive it, and runs may happen
on other machines.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Protocol, Self

from winml_dag.engine.plan import Run
from winml_dag.engine.progress import Watch
from winml_dag.engine.run import Runner, RunOutcome
from winml_dag.engine.stage import Node
from winml_dag.store.artifact import Artifact

# On Windows a wait without timeout cannot be interrupted, so Ctrl-C would take effect only after the stage.
_PATIENCE_SECONDS = 0.2 if os.name == "nt" else None


@dataclass(frozen=True, eq=False)
class Ended:
    """A run that has ended, and its outcome."""

    node: Node
    decision: Run
    outcome: RunOutcome


class Runs(Protocol):
    """The runs of a build. Used from one thread, in its block; leaving it with an exception ends all runs first."""

    def __enter__(self) -> object: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def now(self) -> float:
        """Seconds since any fixed moment."""

    def start(self, node: Node, decision: Run, inputs: Mapping[str, Artifact], watch: Watch) -> None:
        """Start a run with the artifacts by slot. *watch* follows the progress of the work."""

    def wait(self) -> list[Ended]:
        """Wait until a run has ended; may return an empty list."""


class LocalRuns:
    """Runs of *runner*, *jobs* at a time, each in a thread that prepares it, waits for its process, and publishes."""

    def __init__(self, runner: Runner, jobs: int) -> None:
        self._runner = runner
        self._jobs = jobs
        self._underway: dict[Future[RunOutcome], tuple[Node, Run]] = {}
        # None only wakes up :meth:`wait`.
        self._ended: SimpleQueue[Future[RunOutcome] | None] = SimpleQueue()
        self._pool: ThreadPoolExecutor

    def __enter__(self) -> Self:
        self._pool = ThreadPoolExecutor(self._jobs, thread_name_prefix="stage")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is not None:
                self._runner.stop()
            self._pool.shutdown(wait=True, cancel_futures=kind is not None)
        finally:
            self._runner.close()

    def now(self) -> float:
        return time.monotonic()

    def start(self, node: Node, decision: Run, inputs: Mapping[str, Artifact], watch: Watch) -> None:
        self._follow(self._pool.submit(self._runner.run, node, decision, inputs, watch), node, decision)

    def wait(self) -> list[Ended]:
        ended = []
        with suppress(Empty):
            ended.append(self._ended.get(timeout=_PATIENCE_SECONDS))
            while True:
                ended.append(self._ended.get_nowait())
        return [Ended(*self._underway.pop(future), future.result()) for future in ended if future is not None]

    def _follow(self, future: Future[RunOutcome], node: Node, decision: Run) -> None:
        self._underway[future] = node, decision
        future.add_done_callback(self._ended.put)

    def _wake(self) -> None:
        """Make :meth:`wait` return; callable from any thread."""
        self._ended.put(None)
