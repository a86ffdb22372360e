"""What a user sees of a stage while it runs and when it has ended, on a terminal and in a log."""

from __future__ import annotations

import io
import re
import sys
import threading
import time
from collections.abc import Callable

import pytest
from rich.console import Console

from winml_dag.cli.progress import Lines, LiveTable, counted, under_way
from winml_dag.engine.events import Reason, StageResult, Status
from winml_dag.engine.exchange import Progress
from winml_dag.engine.stage import Node, Stage

CALIBRATE = Node("calibrate", Stage("calibrate", 1, "", "", {}, {"ranges": "ranges"}), {}, {})
EXPORT = Node("export", Stage("export", 1, "", "", {}, {"model": "model"}), {}, {})
WHY = Reason("never", "never built before")
HALF_WAY = Progress(64, 512, "samples", 5.2)


def nothing() -> None:
    return None


def ended(node: Node, status: Status = Status.RAN, progress: Progress | None = None, error: str = "") -> StageResult:
    return StageResult(node, status, WHY, elapsed_seconds=12.34, progress=progress, error=error)


@pytest.mark.parametrize(
    ("told", "running", "end"),
    [
        (HALF_WAY, "64/512 samples, 5.2/s, 1 min 26 s left", "64/512 samples, 5.2/s"),
        (Progress(0, 512, "samples"), "0/512 samples", "0/512 samples"),
        (Progress(512, 512, "samples", 41.62), "512/512 samples, 41.6/s", "512 samples, 41.6/s"),
        (Progress(7, None, "steps", 0.054), "7 steps, 0.054/s", "7 steps, 0.054/s"),
        (Progress(9, 10, "samples", 0.5), "9/10 samples, 0.5/s, 2 s left", "9/10 samples, 0.5/s"),
        (Progress(1, 9001, "samples", 1.0), "1/9001 samples, 1.0/s, 2 h 30 min left", "1/9001 samples, 1.0/s"),
        (Progress(3, 4, "samples", 1234.5), "3/4 samples, 1234/s, 0 s left", "3/4 samples, 1234/s"),
        (Progress(5, 4, "samples", 2.0), "5/4 samples, 2.0/s", "5/4 samples, 2.0/s"),
    ],
)
def test_progress_is_formatted_as_text(told: Progress, running: str, end: str) -> None:
    assert under_way(told) == running
    assert counted(told) == end


def lines_of(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def test_log_gets_periodic_progress_of_long_stage(capsys: pytest.CaptureFixture[str]) -> None:
    told: list[Progress | None] = [None]
    lines = Lines(to_stderr=False, every_seconds=1000.0)
    lines.started(CALIBRATE, WHY, 12.34, lambda: told[-1])
    lines.started(EXPORT, WHY, None, nothing)
    began = time.monotonic()
    assert lines_of(capsys) == [], "a short stage has one line, when it has ended"
    lines.write_progress(began + 1000)
    assert lines_of(capsys) == ["calibrate    running, took 12.3 s last time", "export       running"]
    told.append(HALF_WAY)
    lines.write_progress(began + 1999)
    assert lines_of(capsys) == [], "the next is not due yet"
    lines.write_progress(began + 2000)
    assert lines_of(capsys) == ["calibrate    running, 64/512 samples, 5.2/s, 1 min 26 s left"]
    lines.write_progress(began + 3000)
    assert lines_of(capsys) == [], "it has not got on"
    told.append(Progress(500, 512, "samples", 41.6))
    lines.finished(ended(CALIBRATE, progress=Progress(512, 512, "samples", 41.6)))
    lines.write_progress(began + 4000)
    assert lines_of(capsys) == ["calibrate    ran in 12.3 s (512 samples, 41.6/s): never built before"]
    lines.stop()


def test_failed_stage_line_includes_progress(capsys: pytest.CaptureFixture[str]) -> None:
    lines = Lines(to_stderr=False)
    lines.finished(ended(CALIBRATE, Status.FAILED, HALF_WAY, "Its process ended with signal SIGKILL."))
    lines.finished(ended(EXPORT, Status.FAILED, None, "It is too large."))
    assert lines_of(capsys) == [
        "calibrate    failed at 64/512 samples: Its process ended with signal SIGKILL.",
        "export       failed: It is too large.",
    ]


class Heard(io.StringIO):
    """A stream that signals when text containing *word* is written."""

    def __init__(self, word: str) -> None:
        super().__init__()
        self.event = threading.Event()
        self._word = word

    def write(self, text: str) -> int:
        written = super().write(text)
        if self._word in text:
            self.event.set()
        return written


def test_progress_lines_are_periodic_and_stop_with_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Heard("64/512")
    monkeypatch.setattr(sys, "stderr", stream)
    lines = Lines(to_stderr=True, every_seconds=0.01)
    lines.started(CALIBRATE, WHY, None, lambda: HALF_WAY)
    assert stream.event.wait(60)
    lines.stop()
    assert "progress" not in {thread.name for thread in threading.enumerate()}


def test_interrupt_at_progress_start_propagates(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: threading.Thread) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    lines = Lines(to_stderr=True)
    with pytest.raises(KeyboardInterrupt):
        lines.started(CALIBRATE, WHY, None, nothing)
    lines.stop()


def test_closed_output_ends_periodic_lines_only(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Heard("running")
    monkeypatch.setattr(sys, "stdout", stream)
    lines = Lines(to_stderr=False, every_seconds=0.01)
    asked = threading.Event()

    def gone() -> Progress:
        stream.close()
        asked.set()
        return HALF_WAY

    lines.started(CALIBRATE, WHY, None, gone)
    assert asked.wait(60)
    lines.stop()
    with pytest.raises(ValueError, match="closed"):
        lines.finished(ended(CALIBRATE))


def table_of(few: bool = True, width: int = 100) -> tuple[LiveTable, Callable[[], list[str]]]:
    """Return a live table on a terminal of that width, and a function for its final text."""
    console = Console(file=io.StringIO(), force_terminal=True, record=True, width=width, color_system=None)
    table = LiveTable(to_stderr=False, few=few, console=console)

    def drawn() -> list[str]:
        table.stop()
        return [line.rstrip() for line in console.export_text().splitlines()]

    return table, drawn


def test_table_shows_progress_bar_below_reason() -> None:
    table, drawn = table_of()
    table.started(CALIBRATE, WHY, 100.0, lambda: HALF_WAY)
    table.started(EXPORT, WHY, None, nothing)
    reason, bar, other = drawn()[-3:]
    assert reason.startswith("calibrate  running")
    assert reason.endswith("never built before")
    assert bar.split(maxsplit=1)[1] == "64/512 samples, 5.2/s, 1 min 26 s left"
    assert set(bar.split()[0]) <= set("━╸╺")
    assert bar.index("━") == reason.index("never")
    assert other.startswith("export     running")


def test_table_redraws_latest_progress() -> None:
    told = [Progress(1, None, "steps")]
    table, drawn = table_of()
    table.started(CALIBRATE, WHY, None, lambda: told[-1])
    told.append(Progress(2, None, "steps", 8.0))
    assert drawn()[-1].strip() == "2 steps, 8.0/s"


@pytest.mark.parametrize("status", [Status.RAN, Status.FAILED])
def test_table_keeps_progress_of_finished_stage(status: Status) -> None:
    table, drawn = table_of()
    table.started(CALIBRATE, WHY, None, nothing)
    table.finished(ended(CALIBRATE, status, HALF_WAY, "It broke."))
    *_, row, told = drawn()
    assert row.split()[:4] == ["calibrate", str(status), "12.3", "s"]
    assert told.strip() == "64/512 samples, 5.2/s"


def test_narrow_terminal_shows_full_count_and_rate() -> None:
    table, drawn = table_of(width=60)
    table.started(CALIBRATE, WHY, 100.0, lambda: HALF_WAY)
    text = " ".join(" ".join(drawn()).split())
    assert "64/512 samples," in text
    assert "5.2/s" in text


def test_narrow_terminal_breaks_no_word() -> None:
    table, drawn = table_of(width=44)
    why = Reason("changed", f"weights {'f' * 60}")
    table.started(Node("decoder/quantize", CALIBRATE.stage, {}, {}), why, None, nothing)
    *_, first, second = drawn()
    assert first.split()[:2] == ["decoder/quantize", "running"]
    assert re.fullmatch("f+…", second.strip())
