"""Build progress: a live table on a terminal, one plain line for each stage everywhere else.

The progress of a stage is read when it is displayed: at every redraw of the table, or periodically for the lines.

With thousands of stages, the table shows only running and failed ones, and the lines omit those reused or skipped.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from winml_dag.cli import echo, plain
from winml_dag.engine.events import Observer, ReadProgress, Reason, Silent, StageResult, Status
from winml_dag.engine.exchange import Progress
from winml_dag.engine.stage import Node

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live
    from rich.table import Table

# As many as a terminal shows without scrolling.
_FEW = 40
# Interval between two progress lines of one stage: sparse enough for a log, frequent enough for a waiting user.
_SECONDS_BETWEEN_LINES = 10.0
_BAR_WIDTH = 12


def on_terminal(*, to_stderr: bool) -> bool:
    stream = sys.stderr if to_stderr else sys.stdout
    return stream is not None and stream.isatty()  # None when it is closed, or in a program without a console


@contextmanager
def progress(*, quiet: bool, to_stderr: bool, stages: int = 0, starts: bool = False) -> Iterator[Observer]:
    """Yield an observer for one run of *stages* stages.

    *to_stderr* keeps stdout free for a JSON result. With *starts* a log has a line when a stage starts, too.
    """
    if quiet:
        yield Silent()
        return
    few = stages <= _FEW
    shown: LiveTable | Lines
    if on_terminal(to_stderr=to_stderr):
        shown = LiveTable(to_stderr=to_stderr, few=few)
    else:
        shown = Lines(to_stderr=to_stderr, few=few, starts=starts)
    try:
        yield shown
    finally:
        shown.stop()


@dataclass
class _Watched:
    """A running stage: when its next line is due (``time.monotonic``), and what the last one reported."""

    progress: ReadProgress
    expected: str
    due: float
    last_shown: Progress | None = None
    is_announced: bool = False


class Ticker:
    """Calls *tick* in a thread between :meth:`start` and :meth:`stop`. *wait* returns the seconds to the next call."""

    def __init__(self, tick: Callable[[], None], wait: Callable[[], float]) -> None:
        self._tick = tick
        self._wait = wait
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread unless it is running."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        # An interrupt may have come while the thread started. A thread that starts later sees the stop flag.
        if self._thread is not None and self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(self._wait()):
            try:
                self._tick()
            except (OSError, ValueError):  # the output is closed: the next writer reports it
                return


class Redrawn:
    """Redraws the result of *draw* on the terminal from :meth:`show` to :meth:`stop`.

    rich is imported on the first :meth:`show`. *console* replaces stdout or stderr.
    """

    def __init__(self, draw: Callable[[], RenderableType], *, to_stderr: bool, console: Console | None) -> None:
        self._draw = draw
        self._to_stderr = to_stderr
        self._console = console
        self._live: Live | None = None

    def show(self) -> None:
        if self._live is None:
            from rich.console import Console
            from rich.live import Live

            console = self._console or Console(stderr=self._to_stderr)
            self._live = Live(get_renderable=self._draw, console=console, refresh_per_second=4)
            self._live.start()

    def stop(self, *, keep: bool) -> None:
        """Draw for the last time, then *keep* the result on the screen or erase it."""
        if self._live is not None:
            self._live.transient = not keep
            self._live.update(self._draw(), refresh=True)
            self._live.stop()


class Lines:
    """One line when a stage ends, for logs and CI, and for a long stage lines in between.

    A thread, started with the first stage, writes the progress lines; :meth:`stop` ends it.
    """

    def __init__(
        self,
        *,
        to_stderr: bool,
        few: bool = True,
        starts: bool = False,
        every_seconds: float = _SECONDS_BETWEEN_LINES,
    ) -> None:
        self._to_stderr = to_stderr
        self._few = few
        self._starts = starts
        self._every = every_seconds
        self._running: dict[str, _Watched] = {}
        # Held while a line is written, so that no progress line follows the end of a stage.
        self._lock = threading.Lock()
        self._ticker = Ticker(lambda: self.write_progress(time.monotonic()), self._seconds_to_next)

    def started(
        self,
        node: Node,
        reason: Reason,  # noqa: ARG002 - printed with the result
        estimate_seconds: float | None,
        progress: ReadProgress,
    ) -> None:
        expected = "" if estimate_seconds is None else f", took {estimate_seconds:.1f} s last time"
        with self._lock:
            watched = _Watched(progress, expected, time.monotonic() + self._every, is_announced=self._starts)
            self._running[node.id] = watched
            if self._starts:
                self._say(f"{node.id:<12} running{expected}")
        self._ticker.start()

    def finished(self, result: StageResult) -> None:
        with self._lock:
            self._running.pop(result.node.id, None)
            if self._few or result.status not in (Status.REUSED, Status.SKIPPED):
                self._say(f"{result.node.id:<12} {_end(result)}")

    def write_progress(self, now: float) -> None:
        """Write a line for each stage whose line is due at *now* (``time.monotonic``) and that has made progress."""
        with self._lock:
            for node_id, watched in self._running.items():
                if watched.due > now:
                    continue
                watched.due = now + self._every
                progress = watched.progress()
                if progress != watched.last_shown or not watched.is_announced:
                    far = "" if progress is None else f", {under_way(progress)}"
                    self._say(f"{node_id:<12} running{far}{'' if watched.is_announced else watched.expected}")
                    watched.last_shown, watched.is_announced = progress, True

    def stop(self) -> None:
        self._ticker.stop()

    def _seconds_to_next(self) -> float:
        with self._lock:
            # Stages that start in the meantime are due later than any of these.
            due = min((watched.due for watched in self._running.values()), default=time.monotonic() + self._every)
        return max(0.0, due - time.monotonic())

    def _say(self, line: str) -> None:
        echo(line, err=self._to_stderr)


class LiveTable:
    """One row per stage, redrawn while stages run. With more than a *few* stages, finished ones are only counted."""

    def __init__(self, *, to_stderr: bool, few: bool = True, console: Console | None = None) -> None:
        self._few = few
        self._done: Counter[str] = Counter()
        self._rows: dict[str, _Row] = {}
        self._shown = Redrawn(self._table, to_stderr=to_stderr, console=console)

    def started(self, node: Node, reason: Reason, estimate_seconds: float | None, progress: ReadProgress) -> None:
        self._rows[node.id] = _Row("running", plain(str(reason)), time.monotonic(), estimate_seconds, progress)
        self._shown.show()

    def finished(self, result: StageResult) -> None:
        why = plain(result.error if result.status is Status.FAILED else str(result.reason))
        elapsed = result.elapsed_seconds if result.status in (Status.RAN, Status.FAILED) else None
        if self._few or result.status is Status.FAILED:
            progress = result.progress
            self._rows[result.node.id] = _Row(str(result.status), why, None, elapsed, lambda: progress)
        else:
            self._rows.pop(result.node.id, None)
            self._done[str(result.status)] += 1

    def stop(self) -> None:
        self._shown.stop(keep=True)

    def _table(self) -> Table:
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, header_style="bold", pad_edge=False)
        for name in ("stage", "status", "time"):
            table.add_column(name, no_wrap=True)
        table.add_column("reason", overflow="ellipsis")
        for node_id, row in tuple(self._rows.items()):  # drawn from another thread
            status = Text(row.status, style=_COLOURS.get(row.status, "white"))
            table.add_row(node_id, status, row.time(), row.description())
        if self._done:
            table.add_row("", ", ".join(f"{number} {status}" for status, number in sorted(self._done.items())))
        return table


@dataclass(frozen=True)
class _Row:
    """A stage. ``since``: when it was started, while it runs. ``seconds``: the expected time, or the time it took."""

    status: str
    reason: str
    since: float | None
    seconds: float | None
    progress: ReadProgress

    def time(self) -> str:
        if self.since is None:
            return "" if self.seconds is None else f"{self.seconds:.1f} s"
        expected = "" if self.seconds is None else f" of ~{self.seconds:.1f} s"
        return f"{time.monotonic() - self.since:.1f} s{expected}"

    def description(self) -> RenderableType:
        """Return the reason, with the progress of the stage below it."""
        from rich.console import Group
        from rich.text import Text

        # Brackets in a reason are a list from its recipe, not markup.
        reason = Text(self.reason, overflow="ellipsis")
        progress = self.progress()
        if progress is None:
            return reason
        return Group(reason, Text(counted(progress), style="dim") if self.since is None else _bar(progress))


def _bar(progress: Progress) -> RenderableType:
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    line = Table.grid(padding=(0, 1))
    bar = [ProgressBar(progress.total, progress.done, width=_BAR_WIDTH)] if progress.total else []
    line.add_row(*bar, Text(under_way(progress)))
    return line


def _end(result: StageResult) -> str:
    """Format ``ran in 12.3 s (512 samples, 41.6/s): never built before``."""
    if result.status is Status.FAILED:
        where = "" if result.progress is None else f" at {count(result.progress)}"
        return f"failed{where}: {result.error}"
    if result.status is not Status.RAN:
        return f"{result.status}: {result.reason}"
    suffix = "" if result.progress is None else f" ({counted(result.progress)})"
    return f"ran in {result.elapsed_seconds:.1f} s{suffix}: {result.reason}"


_COLOURS = {"running": "yellow", "ran": "green", "reused": "cyan", "failed": "red", "skipped": "bright_black"}


# Progress as text: ``64/512 samples, 5.2/s, 1 min 26 s left``.


def under_way(progress: Progress) -> str:
    """Format the progress of a running stage: count, rate and time left, as far as available."""
    return ", ".join([count(progress), *_rate(progress), *_left(progress)])


def counted(progress: Progress) -> str:
    """Format the progress of a finished stage: ``512 samples, 41.6/s``."""
    whole = progress.done == progress.total
    return ", ".join([f"{progress.done} {progress.unit}" if whole else count(progress), *_rate(progress)])


def count(progress: Progress) -> str:
    of = "" if progress.total is None else f"/{progress.total}"
    return f"{progress.done}{of} {progress.unit}"


def _rate(progress: Progress) -> list[str]:
    rate = progress.per_second
    if rate is None:
        return []
    return [f"{rate:.2g}/s" if rate < 1 else f"{rate:.1f}/s" if rate < 100 else f"{rate:.0f}/s"]


def _left(progress: Progress) -> list[str]:
    if progress.total is None or progress.per_second is None or progress.done >= progress.total:
        return []
    seconds = round((progress.total - progress.done) / progress.per_second)
    minutes = seconds // 60
    if minutes >= 60:
        return [f"{minutes // 60} h {minutes % 60:02d} min left"]
    return [f"{minutes} min {seconds % 60:02d} s left" if minutes else f"{seconds} s left"]
