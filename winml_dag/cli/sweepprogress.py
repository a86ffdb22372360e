"""What is going on in a sweep, while it goes on: a live table on a terminal, plain lines everywhere else.

Cells are what its user counts in, and there may be thousands of stages: so what is shown is how many cells are done and
how long the rest will take, what runs just now, and every failure once, as it happens. A stage that many cells share is
called by the first of them.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from winml_dag.cli import echo, plain
from winml_dag.cli.progress import Redrawn, Ticker, under_way
from winml_dag.engine.events import ReadProgress, Reason, StageResult, Status
from winml_dag.engine.stage import Node
from winml_dag.pipeline.sweep.result import CellStatus
from winml_dag.pipeline.sweep.run import SilentWatcher, Watcher
from winml_dag.store.quantities import duration_text

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

    from winml_dag.engine.eta import Eta

# Between two lines that say how far it all is: few enough for the log of a night, often enough for who waits.
_SECONDS_BETWEEN_LINES = 30.0
# What is left is worked out anew after that, and never for more than so small a part of the time.
_SECONDS_BETWEEN_FORECASTS = 1.0
_SHARE_OF_FORECASTS = 0.02
_GIB = 1 << 30
# As many rows as leave room on a small terminal; of failures the last ones, all are told of at the end.
_MOST_RUNNING = 12
_MOST_FAILED = 5


@contextmanager
def sweep_progress(quiet: bool, to_stderr: bool, cells: Sequence[str]) -> Iterator[Watcher]:
    """One for a run that begins with building *cells*. *to_stderr* keeps stdout free for a JSON result."""
    if quiet:
        yield SilentWatcher()
        return
    stream = sys.stderr if to_stderr else sys.stdout
    on_terminal = stream is not None and stream.isatty()  # None when it is closed, or for a program without a console
    shown = SweepTable(to_stderr=to_stderr) if on_terminal else SweepLines(to_stderr=to_stderr)
    shown.phase("building", cells)
    try:
        yield shown
    except BaseException:
        shown.stop(finished=False)
        raise
    shown.stop(finished=True)


@dataclass(frozen=True)
class _Stage:
    """One that runs. ``since`` is of ``time.monotonic``; ``seconds``: what it is expected to take."""

    cell: str
    name: str
    since: float
    seconds: float | None
    progress: ReadProgress

    @property
    def time(self) -> str:
        expected = "" if self.seconds is None else f" of ~{_rough(self.seconds)}"
        return f"{_rough(time.monotonic() - self.since)}{expected}"


@dataclass
class _State:
    """Where a sweep stands: changed by the thread that runs it, read by the one that shows it."""

    doing: str = ""
    cells: frozenset[str] = frozenset()
    done: dict[str, CellStatus] = field(default_factory=dict)
    stages: Counter[Status] = field(default_factory=Counter)
    running: dict[str, _Stage] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    eta: Eta | None = None
    left: str = ""
    left_due: float = 0.0

    def begin(self, doing: str, cells: Sequence[str]) -> None:
        self.doing, self.cells, self.eta = doing, frozenset(cells), None
        self.done.clear()

    def start(self, node: Node, seconds: float | None, progress: ReadProgress) -> None:
        cell, name = _parted(node.id, self.cells)
        self.running[node.id] = _Stage(cell, name, time.monotonic(), seconds, progress)

    def end(self, result: StageResult) -> str | None:
        """What is to be told of it, if it failed."""
        self.running.pop(result.node.id, None)
        self.stages[result.status] += 1
        return self._fail(f"{result.node.id}: {result.error}") if result.status is Status.FAILED else None

    def settle(self, name: str, status: CellStatus, why: str) -> str | None:
        """What is to be told of a cell that no stage of its own has said."""
        self.done[name] = status
        said = status is CellStatus.FAILED and any(why.endswith(line.partition(": ")[2]) for line in self.failed)
        return None if said or status not in (CellStatus.FAILED, CellStatus.REFUSED) else self._fail(f"{name}: {why}")

    def _fail(self, line: str) -> str:
        self.failed.append(line)
        return line

    def counts(self) -> str:
        """``building 12 of 40 cells: 10 built, 2 failed``."""
        numbers = Counter(self.done.copy().values())
        told = ", ".join(f"{numbers[status]} {status}" for status in CellStatus if numbers[status])
        noun = "cell" if len(self.cells) == 1 else "cells"
        return f"{self.doing} {len(self.done)} of {len(self.cells)} {noun}{': ' if told else ''}{told}"

    def more(self) -> Iterator[str]:
        """What else there is to say in a few words: stages, time, memory."""
        stages = self.stages.copy()
        if told := [f"{stages[status]} {status}" for status in (Status.RAN, Status.REUSED) if stages[status]]:
            yield f"stages: {', '.join(told)}"
        if left := self._time_left():
            yield left
        if (eta := self.eta) is not None and eta.capacity.counts_memory and self.running:
            yield f"memory {eta.memory_bytes / _GIB:.1f} of {eta.capacity.memory_bytes / _GIB:.1f} GiB"

    def _time_left(self) -> str:
        now = time.monotonic()
        if self.eta is None or not self.running:
            return ""
        if now >= self.left_due:
            seconds = self.eta.seconds_left()
            self.left = "time left not known yet" if seconds is None else _left(seconds)
            took = time.monotonic() - now
            self.left_due = now + max(_SECONDS_BETWEEN_FORECASTS, took / _SHARE_OF_FORECASTS)
        return self.left


class _SweepProgress:
    """What a run tells goes into a state; what is shown of it, and how, is for who is one of these."""

    def __init__(self) -> None:
        self._state = _State()

    def phase(self, doing: str, cells: Sequence[str]) -> None:
        self._state.begin(doing, cells)

    def cell(self, name: str, status: CellStatus, why: str = "") -> None:
        self._failed(self._state.settle(name, status, why))

    def on_eta(self, eta: Eta) -> None:
        self._state.eta = eta

    def started(
        self,
        node: Node,
        reason: Reason,  # noqa: ARG002 - reasons are told in the end
        estimate_seconds: float | None,
        progress: ReadProgress,
    ) -> None:
        self._state.start(node, estimate_seconds, progress)
        self._begin()

    def finished(self, result: StageResult) -> None:
        self._failed(self._state.end(result))

    def _begin(self) -> None:
        """A stage has started; the first one, or another."""
        raise NotImplementedError

    def _failed(self, line: str | None) -> None:
        """Something has ended, with *line* to be told if it failed."""


class SweepLines(_SweepProgress):
    """For logs and CI: every failure as it happens, and once in a while how far it all is.

    These are written by a thread, begun with the first stage; :meth:`stop` ends it.
    """

    def __init__(self, *, to_stderr: bool, every_seconds: float = _SECONDS_BETWEEN_LINES) -> None:
        super().__init__()
        self._to_stderr = to_stderr
        # Held while a line is written.
        self._lock = threading.Lock()
        self._began = False
        self._ticker = Ticker(self.tell, lambda: every_seconds)

    def _begin(self) -> None:
        if not self._began:
            self._began = True
            self._say(f"{self._state.counts()}.")
        self._ticker.start()

    def tell(self) -> None:
        """Write how far it all is."""
        self._say(f"{'; '.join([self._state.counts(), *self._state.more()])}.")

    def stop(self, *, finished: bool) -> None:  # noqa: ARG002 - what was said stays in any case
        self._ticker.stop()

    def _failed(self, line: str | None) -> None:
        if line is not None:
            self._say(f"failed: {line}")

    def _say(self, line: str) -> None:
        with self._lock:
            echo(line, err=self._to_stderr)


class SweepTable(_SweepProgress):
    """A table that is redrawn while stages run, and goes when all has ended: then what became of the cells is told."""

    def __init__(self, *, to_stderr: bool, console: Console | None = None) -> None:
        super().__init__()
        self._shown = Redrawn(self._drawn, to_stderr=to_stderr, console=console)

    def stop(self, *, finished: bool) -> None:
        """Take the table away; of a run that has not *finished*, how far it came stays."""
        self._state.running.clear()
        self._shown.stop(keep=not finished)

    def _begin(self) -> None:
        self._shown.show()

    def _drawn(self) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        state = self._state
        lines: list[RenderableType] = [Text(state.counts(), style="bold")]
        if more := list(state.more()):
            lines.append(Text("   ".join(more), style="dim", no_wrap=True, overflow="ellipsis"))
        running = sorted(state.running.copy().values(), key=lambda stage: stage.since)
        if running:
            lines.append(_table(running[:_MOST_RUNNING]))
        if len(running) > _MOST_RUNNING:
            lines.append(Text(f"  and {len(running) - _MOST_RUNNING} more run", style="dim"))
        lines += _failures(state.failed.copy())
        return Group(*lines)


def _table(running: Sequence[_Stage]) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2, 0, 0))
    # Where there is little room, the first and the last give way, and neither is ever broken into lines.
    table.add_column()
    table.add_column(no_wrap=True, style="yellow")
    table.add_column(no_wrap=True, justify="right")
    table.add_column()
    for stage in running:
        told = stage.progress()
        cell = Text(f"  {stage.cell}", no_wrap=True, overflow="ellipsis")
        far = Text("" if told is None else under_way(told), no_wrap=True, overflow="ellipsis")
        table.add_row(cell, Text(stage.name), stage.time, far)
    return table


def _failures(failed: Sequence[str]) -> Iterator[Text]:
    """A line for each of the last ones."""
    from rich.text import Text

    if len(failed) > _MOST_FAILED:
        yield Text(f"failed: {len(failed) - _MOST_FAILED} before these", style="red")
    for line in failed[-_MOST_FAILED:]:
        yield Text(f"failed: {plain(line)}", style="red", no_wrap=True, overflow="ellipsis")


def _parted(node_id: str, cells: frozenset[str]) -> tuple[str, str]:
    """The name of the cell that *node_id* begins with, and what follows; both may have a ``/`` in them."""
    at = node_id.rfind("/")
    while at > 0 and node_id[:at] not in cells:
        at = node_id.rfind("/", 0, at)
    return (node_id[:at], node_id[at + 1 :]) if at > 0 else ("", node_id)


def _left(seconds: float) -> str:
    return f"about {_rough(seconds)} left" if seconds >= 10 else "a few seconds left"


def _rough(seconds: float) -> str:
    """As exact as anybody reads it while it changes: ``4.2 s``, ``38 s``, ``5 min``."""
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s" if seconds < 100 else duration_text(seconds)
