"""What is going on in a sweep, while it goes on: a live table on a terminal, plain lines everywhere else.

Cells are what its user counts in, and there may be thousands of stages: so what is shown is how many cells are done and
how long the rest will take, what runs just now, and every failure as it happens.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import click

from winml_dag.engine.events import Observer, Silent, StageResult, Status
from winml_dag.engine.reason import Reason
from winml_dag.engine.stage import Node
from winml_dag.pipeline.sweep.result import CellStatus

if TYPE_CHECKING:
    from winml_dag.cli.progress import ReadProgress
    from winml_dag.engine.forecast import Forecast

# Between two lines that say how far it all is: few enough for the log of a night, often enough for who waits.
_SECONDS_BETWEEN_LINES = 30.0


class SweepProgress(Observer, Protocol):
    """Told of stages as any observer is, with the name of a cell before the id of each node; and of cells."""

    def phase(self, doing: str, cells: Sequence[str]) -> None:
        """What comes now is done for each of *cells*: "building", "measuring speed"; they are counted anew."""

    def cell(self, name: str, status: CellStatus, why: str = "") -> None:
        """What became of a cell in this phase; *why*: the reason of a failure, in a sentence."""

    def foretold(self, forecast: Forecast) -> None:
        """What tells how long the stages will take that run from now on."""


@contextmanager
def sweep_progress(quiet: bool, to_stderr: bool, cells: Sequence[str]) -> Iterator[SweepProgress]:
    """One for a run that begins with building *cells*. *to_stderr* keeps stdout free for a JSON result."""
    shown: SweepProgress = SilentSweep() if quiet else SweepLines(to_stderr=to_stderr)
    shown.phase("building", cells)
    try:
        yield shown
    finally:
        if isinstance(shown, SweepLines):
            shown.stop()


class SilentSweep(Silent):
    """Says nothing."""

    def phase(self, doing: str, cells: Sequence[str]) -> None: ...

    def cell(self, name: str, status: CellStatus, why: str = "") -> None: ...

    def foretold(self, forecast: Forecast) -> None: ...


class SweepLines:
    """For logs and CI: every failure as it happens, and once in a while how far it all is."""

    def __init__(self, *, to_stderr: bool, every_seconds: float = _SECONDS_BETWEEN_LINES) -> None:
        self._to_stderr = to_stderr
        self._every = every_seconds
        self._doing = ""
        self._cells = 0
        self._done: Counter[CellStatus] = Counter()
        self._running: dict[str, float] = {}
        self._forecast: Forecast | None = None
        # Held while a line is written.
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def phase(self, doing: str, cells: Sequence[str]) -> None:
        with self._lock:
            self._doing, self._cells = doing, len(cells)
            self._done.clear()

    def cell(self, name: str, status: CellStatus, why: str = "") -> None:
        with self._lock:
            self._done[status] += 1
            if status in (CellStatus.FAILED, CellStatus.REFUSED):
                self._say(f"{name}: {status}{': ' if why else ''}{why}")

    def foretold(self, forecast: Forecast) -> None:
        self._forecast = forecast

    def started(
        self,
        node: Node,
        reason: Reason,  # noqa: ARG002
        estimate_seconds: float | None,  # noqa: ARG002
        progress: ReadProgress,  # noqa: ARG002
    ) -> None:
        self._running[node.id] = time.monotonic()
        if self._thread is None:
            self._thread = threading.Thread(target=self._follow, name="progress", daemon=True)
            self._thread.start()

    def finished(self, result: StageResult) -> None:
        self._running.pop(result.node.id, None)
        if result.status is Status.FAILED:
            with self._lock:
                self._say(f"{result.node.id} failed: {result.error}")

    def tell(self) -> None:
        """Write how far it all is."""
        with self._lock:
            told = ", ".join(f"{number} {status}" for status, number in self._done.items())
            self._say(f"{self._doing}: {self._done.total()}/{self._cells} cells{': ' if told else ''}{told}")

    def stop(self) -> None:
        self._stopped.set()
        # An interrupt may have come while it was being started; what comes to life later sees that it is to stop.
        if self._thread is not None and self._thread.is_alive():
            self._thread.join()

    def _follow(self) -> None:
        while not self._stopped.wait(self._every):
            try:
                self.tell()
            except (OSError, ValueError):  # nobody reads any more: who writes the next line will say so
                return

    def _say(self, line: str) -> None:
        click.echo(line, err=self._to_stderr)
