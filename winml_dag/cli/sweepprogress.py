"""Sweep progress: a live table on a terminal, plain lines everywhere else.

Users count in cells, and a sweep may have thousands of stages. So the display shows how many cells are done, the time
left until all are built and measured, what is running and pending, and each failure once, when it happens. A stage
shared by several cells is named after the first of them.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from winml_dag.cli import echo, plain
from winml_dag.cli.progress import Redrawn, Ticker, on_terminal, under_way
from winml_dag.engine.events import ReadProgress, Reason, StageResult, Status
from winml_dag.engine.stage import Node
from winml_dag.pipeline.sweep.result import CellStatus
from winml_dag.pipeline.sweep.run import SilentWatcher, Watcher
from winml_dag.store.quantities import duration_text

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

    from winml_dag.engine.eta import Eta

# Interval between two lines of total progress: sparse enough for the log of a night, frequent enough for a waiting
# user.
_SECONDS_BETWEEN_LINES = 30.0
# The time left is recomputed at this interval, and takes at most this share of the total time.
_SECONDS_BETWEEN_FORECASTS = 1.0
_SHARE_OF_FORECASTS = 0.02
_GIB = 1 << 30
_BAR_WIDTH = 40
# The time left is estimated from the stages that ran when the rest is at most this many times as many.
_LEAST_SHARE = 5
# Rows that fit on a small terminal. Only the last failures are shown; the end of the run lists all of them.
_MOST_RUNNING = 12
_MOST_FAILED = 5


@contextmanager
def sweep_progress(
    quiet: bool, to_stderr: bool, cells: Sequence[str], measuring: Sequence[float] = ()
) -> Iterator[Watcher]:
    """Yield a watcher for a run that starts with building *cells*. *to_stderr* keeps stdout free for a JSON result.

    *measuring*: the expected seconds of each measurement of a cell, in the order in which they run.
    """
    if quiet:
        yield SilentWatcher()
        return
    shown = (SweepTable if on_terminal(to_stderr=to_stderr) else SweepLines)(to_stderr=to_stderr)
    shown.expect(measuring)
    shown.phase("building", cells)
    try:
        yield shown
    except BaseException:
        shown.stop(finished=False)
        raise
    shown.stop(finished=True)


@dataclass(frozen=True)
class _Stage:
    """A running stage. ``since``: start time (``time.monotonic``). ``seconds``: its estimated duration."""

    cell: str
    name: str
    since: float
    seconds: float | None
    progress: ReadProgress

    @property
    def time(self) -> str:
        expected = "" if self.seconds is None else f" of ~{duration_text(self.seconds)}"
        return f"{duration_text(time.monotonic() - self.since)}{expected}"


class _SweepProgress:
    """The state of a sweep, from the callbacks of its run. The running thread changes it, the display thread reads it.

    Subclasses display it.
    """

    def __init__(self) -> None:
        self._doing = ""
        self._cells: frozenset[str] = frozenset()
        self._done: dict[str, CellStatus] = {}
        self._stages: Counter[Status] = Counter()
        self._running: dict[str, _Stage] = {}
        self._failures: list[str] = []
        self._eta: Eta | None = None
        # Seconds of each measurement of a cell that has not begun, and the number of cells to measure.
        self._later: list[float] = []
        self._each_seconds = 0.0
        self._to_measure = 0
        self._since = time.monotonic()
        self._left_seconds: float | None = None
        self._left_due = 0.0

    def expect(self, measuring: Sequence[float]) -> None:
        """Receive the expected seconds of each measurement of a cell."""
        self._later = [*measuring]

    def phase(self, doing: str, cells: Sequence[str]) -> None:
        self._doing, self._cells, self._eta, self._left_due = doing, frozenset(cells), None, 0.0
        self._done.clear()
        if doing == "building":
            self._to_measure = len(cells)

    def on_eta(self, eta: Eta) -> None:
        self._eta, self._left_due = eta, 0.0
        if self._doing == "measuring" and self._later:
            self._each_seconds = self._later.pop(0)

    def started(
        self,
        node: Node,
        reason: Reason,  # noqa: ARG002 - reasons are printed at the end
        estimate_seconds: float | None,
        progress: ReadProgress,
    ) -> None:
        cell, name = _parted(node.id, self._cells)
        self._running[node.id] = _Stage(cell, name, time.monotonic(), estimate_seconds, progress)
        self._begin()

    def finished(self, result: StageResult) -> None:
        self._running.pop(result.node.id, None)
        self._stages[result.status] += 1
        if result.status is Status.FAILED:
            self._failed(f"{result.node.id}: {result.error}")

    def cell(self, name: str, status: CellStatus, why: str = "") -> None:
        self._done[name] = status
        # What was built before was most likely measured, too.
        self._to_measure -= self._doing == "building" and status is not CellStatus.BUILT
        # A failure of one of its stages was printed then.
        is_reported = status is CellStatus.FAILED and any(
            why.endswith(line.partition(": ")[2]) for line in self._failures
        )
        if status in (CellStatus.FAILED, CellStatus.REFUSED) and not is_reported:
            self._failed(f"{name}: {why}")

    def _begin(self) -> None:
        """Called when a stage starts, the first one or another."""
        raise NotImplementedError

    def _failed(self, line: str) -> None:
        self._failures.append(line)

    def _counts(self) -> str:
        """Format ``building 12 of 40 cells: 10 built, 2 failed``."""
        numbers = Counter(self._done.copy().values())
        counts = ", ".join(f"{numbers[status]} {status}" for status in CellStatus if numbers[status])
        noun = "cell" if len(self._cells) == 1 else "cells"
        return f"{self._doing} {len(self._done)} of {len(self._cells)} {noun}{': ' if counts else ''}{counts}"

    def _more(self) -> Iterator[str]:
        """Yield short texts on stages, time and memory."""
        stages, eta = self._stages.copy(), self._eta
        counts = [f"{stages[status]} {status}" for status in (Status.RAN, Status.REUSED) if stages[status]]
        if eta is not None and (pending := len(eta.pending)):
            counts.append(f"{pending} pending")
        if counts:
            yield f"stages: {', '.join(counts)}"
        if eta is not None:
            seconds = self._seconds_left()
            yield "time left unknown" if seconds is None else _left(seconds)
            if eta.capacity.counts_memory and self._running:
                yield f"memory {eta.memory_bytes / _GIB:.1f} of {eta.capacity.memory_bytes / _GIB:.1f} GiB"

    def _seconds_left(self) -> float | None:
        """Return the seconds until everything is built and measured; None if they are not known."""
        now = time.monotonic()
        if self._eta is not None and now >= self._left_due:
            seconds = self._eta.seconds_left()
            if seconds is None:
                seconds = self._left_by_count(self._eta)
            self._left_seconds = None if seconds is None else seconds + sum(self._later) * max(0, self._to_measure)
            took = time.monotonic() - now
            self._left_due = now + max(_SECONDS_BETWEEN_FORECASTS, took / _SHARE_OF_FORECASTS)
        return self._left_seconds

    def _left_by_count(self, eta: Eta) -> float | None:
        """Return the time left if all stages take equally long, for stages without a record."""
        ran, rest = self._stages[Status.RAN], len(self._running) + len(eta.pending)
        if self._doing == "measuring":
            return self._each_seconds * rest
        return (time.monotonic() - self._since) * rest / ran if ran * _LEAST_SHARE > rest else None

    def _share_done(self) -> float:
        """Return how much of the whole time is over, from 0 to 1."""
        left, elapsed = self._seconds_left(), time.monotonic() - self._since
        return 0.0 if left is None else elapsed / (elapsed + left)


class SweepLines(_SweepProgress):
    """Lines for logs and CI: each failure when it happens, and the total progress periodically.

    A thread, started with the first stage, writes the progress; :meth:`stop` ends it.
    """

    def __init__(self, *, to_stderr: bool, every_seconds: float = _SECONDS_BETWEEN_LINES) -> None:
        super().__init__()
        self._to_stderr = to_stderr
        # Held while a line is written.
        self._lock = threading.Lock()
        self._began = False
        self._ticker = Ticker(self.write_progress, lambda: every_seconds)

    def _begin(self) -> None:
        if not self._began:
            self._began = True
            self._say(f"{self._counts()}.")
        self._ticker.start()

    def write_progress(self) -> None:
        """Write the total progress."""
        self._say(f"{'; '.join([self._counts(), *self._more()])}.")

    def stop(self, *, finished: bool) -> None:  # noqa: ARG002 - printed lines stay in any case
        self._ticker.stop()

    def _failed(self, line: str) -> None:
        super()._failed(line)
        self._say(f"failed: {line}")

    def _say(self, line: str) -> None:
        with self._lock:
            echo(line, err=self._to_stderr)


class SweepTable(_SweepProgress):
    """A table that is redrawn while stages run and removed at the end, when the results of the cells are printed."""

    def __init__(self, *, to_stderr: bool, console: Console | None = None) -> None:
        super().__init__()
        self._shown = Redrawn(self._drawn, to_stderr=to_stderr, console=console)

    def stop(self, *, finished: bool) -> None:
        """Remove the table. If the run has not *finished*, the last progress stays."""
        self._running.clear()
        self._shown.stop(keep=not finished)

    def _begin(self) -> None:
        self._shown.show()

    def _drawn(self) -> RenderableType:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        lines: list[RenderableType] = [_line(self._counts(), "bold")]
        if self._eta is not None:
            bar = Table.grid(padding=(0, 1, 0, 0))
            bar.add_row(ProgressBar(1.0, self._share_done(), width=_BAR_WIDTH), f"{self._share_done():.0%}")
            lines.append(bar)
        if more := list(self._more()):
            lines.append(_line("   ".join(more), "dim"))
        running = sorted(self._running.copy().values(), key=lambda stage: stage.since)
        if running:
            lines.append(_table(running[:_MOST_RUNNING]))
        if len(running) > _MOST_RUNNING:
            lines.append(_line(f"  and {len(running) - _MOST_RUNNING} more run", "dim"))
        lines += _pending([] if self._eta is None else self._eta.pending, _MOST_RUNNING - len(running))
        lines += _failures(self._failures.copy())
        return Group(*lines)


def _table(running: Sequence[_Stage]) -> RenderableType:
    from rich.table import Table

    table = Table.grid(padding=(0, 2, 0, 0))
    # On a narrow terminal the first and last columns shrink. The columns between them never wrap.
    table.add_column()
    table.add_column(no_wrap=True, style="yellow")
    table.add_column(no_wrap=True, justify="right")
    table.add_column()
    for stage in running:
        progress = stage.progress()
        far = "" if progress is None else under_way(progress)
        table.add_row(_line(f"  {stage.cell}"), _line(stage.name), stage.time, _line(far))
    return table


def _line(text: str, style: str = "") -> Text:
    """Return *text*, cut to the width of the terminal."""
    from rich.text import Text

    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


def _pending(nodes: Sequence[Node], most: int) -> Iterator[Text]:
    """Yield a line for each of the next pending stages, and one for the rest."""
    shown = nodes[: max(0, most)]
    for node in shown:
        yield _line(f"  {node.id}  pending", "dim")
    if len(nodes) > len(shown):
        yield _line(f"  and {len(nodes) - len(shown)} more pending", "dim")


def _failures(failed: Sequence[str]) -> Iterator[Text]:
    """Yield a line for each of the last failures."""
    if len(failed) > _MOST_FAILED:
        yield _line(f"failed: {len(failed) - _MOST_FAILED} before these", "red")
    for line in failed[-_MOST_FAILED:]:
        yield _line(f"failed: {plain(line)}", "red")


def _parted(node_id: str, cells: frozenset[str]) -> tuple[str, str]:
    """Split *node_id* into the name of its cell and the rest. Both may contain a ``/``."""
    at = node_id.rfind("/")
    while at > 0 and node_id[:at] not in cells:
        at = node_id.rfind("/", 0, at)
    return (node_id[:at], node_id[at + 1 :]) if at > 0 else ("", node_id)


def _left(seconds: float) -> str:
    return f"about {duration_text(seconds)} left" if seconds >= 10 else "a few seconds left"
