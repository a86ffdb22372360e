"""What is going on, while it goes on: a live table on a terminal, plain lines everywhere else.

Among thousands of stages the few that matter must not drown: then the table has only those that run or have failed,
and the lines leave out what is reused or skipped.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from winml_dag.engine.events import Observer, Silent, StageResult, Status
from winml_dag.engine.reason import Reason
from winml_dag.engine.stage import Node

if TYPE_CHECKING:
    from rich.table import Table


# As many as a terminal shows without scrolling.
_FEW = 40


@contextmanager
def progress(*, quiet: bool, to_stderr: bool, stages: int = 0) -> Iterator[Observer]:
    """An observer for one run of so many *stages*. *to_stderr* keeps stdout free for a JSON result."""
    stream = sys.stderr if to_stderr else sys.stdout
    if quiet:
        yield Silent()
    elif stream is not None and stream.isatty():  # None when it is closed, or for a program without a console
        table = LiveTable(to_stderr=to_stderr, few=stages <= _FEW)
        try:
            yield table
        finally:
            table.stop()
    else:
        yield Lines(to_stderr=to_stderr, few=stages <= _FEW)


class Lines:
    """A line when a stage begins and one when it ends, for logs and CI."""

    def __init__(self, *, to_stderr: bool, few: bool = True) -> None:
        self._to_stderr = to_stderr
        self._few = few

    def started(self, node: Node, reason: Reason, estimate_seconds: float | None) -> None:
        expected = "" if estimate_seconds is None else f" (took {estimate_seconds:.1f} s last time)"
        click.echo(f"{node.id:<12} running{expected}: {reason}", err=self._to_stderr)

    def finished(self, result: StageResult) -> None:
        if not self._few and result.status in (Status.REUSED, Status.SKIPPED):
            return
        took = f" in {result.elapsed_seconds:.1f} s" if result.status is Status.RAN else ""
        why = result.error if result.status is Status.FAILED else str(result.reason)
        click.echo(f"{result.node.id:<12} {result.status}{took}: {why}", err=self._to_stderr)


class LiveTable:
    """One row for each stage, redrawn while stages run. rich is imported when the first stage starts, not before.

    Of more than a *few* stages, those that are done become numbers.
    """

    def __init__(self, *, to_stderr: bool, few: bool = True) -> None:
        self._to_stderr = to_stderr
        self._few = few
        self._done: Counter[str] = Counter()
        self._rows: dict[str, _Row] = {}
        self._live: object | None = None

    def started(self, node: Node, reason: Reason, estimate_seconds: float | None) -> None:
        self._rows[node.id] = _Row("running", str(reason), time.monotonic(), estimate_seconds)
        self._show()

    def finished(self, result: StageResult) -> None:
        why = result.error if result.status is Status.FAILED else str(result.reason)
        elapsed = result.elapsed_seconds if result.status in (Status.RAN, Status.FAILED) else None
        if self._few or result.status is Status.FAILED:
            self._rows[result.node.id] = _Row(str(result.status), why, None, elapsed)
        else:
            self._rows.pop(result.node.id, None)
            self._done[str(result.status)] += 1
        if self._live is not None:
            self._show()

    def stop(self) -> None:
        from rich.live import Live

        if isinstance(self._live, Live):
            self._live.update(self._table(), refresh=True)
            self._live.stop()

    def _show(self) -> None:
        from rich.console import Console
        from rich.live import Live

        if not isinstance(self._live, Live):
            console = Console(stderr=self._to_stderr)
            self._live = Live(get_renderable=self._table, console=console, refresh_per_second=4)
            self._live.start()

    def _table(self) -> Table:
        from rich.table import Table
        from rich.text import Text

        table = Table("stage", "status", "time", "reason", box=None, header_style="bold", pad_edge=False)
        for node_id, row in tuple(self._rows.items()):  # drawn from a thread of its own
            # Brackets in a reason are a list of its recipe, not markup.
            status = Text(row.status, style=_COLOURS.get(row.status, "white"))
            table.add_row(node_id, status, row.time(), Text(row.reason))
        if self._done:
            table.add_row("", ", ".join(f"{number} {status}" for status, number in sorted(self._done.items())))
        return table


class _Row:
    def __init__(self, status: str, reason: str, since: float | None, seconds: float | None) -> None:
        self.status = status
        self.reason = reason
        self._since = since
        self._seconds = seconds

    def time(self) -> str:
        if self._since is None:
            return "" if self._seconds is None else f"{self._seconds:.1f} s"
        expected = "" if self._seconds is None else f" of ~{self._seconds:.1f} s"
        return f"{time.monotonic() - self._since:.1f} s{expected}"


_COLOURS = {"running": "yellow", "ran": "green", "reused": "cyan", "failed": "red", "skipped": "bright_black"}
