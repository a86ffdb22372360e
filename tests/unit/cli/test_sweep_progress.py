"""What a user sees of a sweep while it runs, on a terminal and in a log."""

from __future__ import annotations

import io
import re
import threading
from collections.abc import Callable

import pytest
from rich.console import Console

from winml_dag.cli.sweepprogress import SweepLines, SweepTable, sweep_progress
from winml_dag.engine.eta import Eta, Work
from winml_dag.engine.events import Reason, StageResult, Status
from winml_dag.engine.exchange import Progress
from winml_dag.engine.graph import Graph
from winml_dag.engine.resources import Admission, Capacity, ResourceRequest
from winml_dag.engine.stage import Node, Stage
from winml_dag.pipeline.sweep.result import CellStatus

WHY = Reason("never", "never built before")
CELLS = [f"bert/{precision}/{ep}" for precision in ("fp32", "w8a8") for ep in ("cpu", "npu")]


def nothing() -> None:
    return None


def node(cell: str, name: str) -> Node:
    return Node(f"{cell}/{name}", Stage(name, 1, "", "", {}, {}), {}, {})


def ended(node: Node, status: Status = Status.RAN, error: str = "") -> StageResult:
    return StageResult(node, status, WHY, elapsed_seconds=1.0, error=error)


def forecast_of(seconds: float) -> Eta:
    """Return the forecast for a graph with one node of that duration, on a machine with 16 GiB of which 4 are
    in use.
    """
    one = node("bert/fp32/cpu", "export")
    admission = Admission(Capacity(2, 16 << 30))
    admission.take(ResourceRequest(4 << 30))
    return Eta(Work(Graph.of([one]), {one.id: seconds}), admission)


def lines_of(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def test_log_gets_each_failure_once_and_periodic_progress(capsys: pytest.CaptureFixture[str]) -> None:
    lines = SweepLines(to_stderr=False, every_seconds=1000.0)
    lines.phase("building", [*CELLS, "resnet/int4/npu"])
    lines.cell("resnet/int4/npu", CellStatus.REFUSED, "QNN has no int4.")
    lines.cell(CELLS[0], CellStatus.UP_TO_DATE)
    lines.started(node(CELLS[1], "compile"), WHY, None, nothing)
    lines.on_eta(forecast_of(240.0))
    lines.write_progress()
    lines.finished(ended(node(CELLS[1], "compile"), Status.FAILED, "It broke."))
    for cell in CELLS[1:3]:
        lines.cell(cell, CellStatus.FAILED, "compile failed: It broke.")
    lines.started(node(CELLS[3], "compile"), WHY, None, nothing)
    lines.finished(ended(node(CELLS[3], "compile")))
    lines.cell(CELLS[3], CellStatus.BUILT)
    lines.write_progress()
    lines.phase("measuring", CELLS[:1])
    lines.write_progress()
    lines.stop(finished=True)
    assert lines_of(capsys) == [
        "failed: resnet/int4/npu: QNN has no int4.",
        "building 2 of 5 cells: 1 up to date, 1 refused.",
        "building 2 of 5 cells: 1 up to date, 1 refused; stages: 1 pending; about 4 min left; memory 4.0 of 16.0 GiB.",
        "failed: bert/fp32/npu/compile: It broke.",
        "building 5 of 5 cells: 1 built, 1 up to date, 2 failed, 1 refused; stages: 1 ran, 1 pending;"
        " about 4 min left.",
        "measuring 0 of 1 cell; stages: 1 ran.",
    ]


def test_up_to_date_sweep_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with sweep_progress(quiet=False, to_stderr=False, cells=CELLS) as shown:
        for cell in CELLS:
            shown.cell(cell, CellStatus.UP_TO_DATE)
    assert lines_of(capsys) == []


def test_quiet_sweep_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with sweep_progress(quiet=True, to_stderr=False, cells=CELLS) as shown:
        shown.started(node(CELLS[0], "export"), WHY, None, nothing)
        shown.finished(ended(node(CELLS[0], "export"), Status.FAILED, "It broke."))
        shown.cell(CELLS[0], CellStatus.FAILED, "export failed: It broke.")
    assert lines_of(capsys) == []


def test_sweep_progress_lines_are_periodic_and_stop_with_run(capsys: pytest.CaptureFixture[str]) -> None:
    asked = threading.Event()

    class Asked(Eta):
        def seconds_left(self) -> float | None:
            asked.set()
            return None

    lines = SweepLines(to_stderr=False, every_seconds=0.01)
    lines.phase("building", CELLS)
    like = forecast_of(1.0)
    lines.on_eta(Asked(Work(Graph.of([]), {}), Admission(like.capacity)))
    lines.started(node(CELLS[0], "export"), WHY, None, nothing)
    assert asked.wait(60)
    lines.stop(finished=True)
    assert "progress" not in {thread.name for thread in threading.enumerate()}
    assert lines_of(capsys)[0] == "building 0 of 4 cells."


def table_of(width: int) -> tuple[SweepTable, Console, Callable[[], list[str]]]:
    """Return a table on a terminal of that width, its console, and a function for its current text."""
    console = Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None)
    table = SweepTable(to_stderr=False, console=console)

    def drawn() -> list[str]:
        paper = Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None, record=True)
        paper.print(table._drawn())
        return [line.rstrip() for line in paper.export_text().splitlines()]

    return table, console, drawn


@pytest.mark.parametrize("width", [80, 140])
def test_table_shows_cells_then_running_then_failed(width: int) -> None:
    table, _, drawn = table_of(width)
    table.phase("building", CELLS)
    table.cell(CELLS[0], CellStatus.BUILT)
    table.on_eta(forecast_of(3.0))
    table.started(node(CELLS[1], "quantize"), WHY, 40.0, nothing)
    table.started(node(CELLS[3], "decoder/calibrate"), WHY, None, lambda: Progress(64, 512, "samples", 5.2))
    table.started(node(CELLS[2], "compile"), WHY, None, nothing)
    table.finished(ended(node(CELLS[2], "compile"), Status.FAILED, "It broke. " * 30))
    told = drawn()
    table.stop(finished=True)
    assert told[0] == "building 1 of 4 cells: 1 built"
    assert re.search(r" \d+%$", told[1])
    assert told[2] == "stages: 1 pending   a few seconds left   memory 4.0 of 16.0 GiB"
    assert told[3].split()[:2] == ["bert/fp32/npu", "quantize"]
    assert told[3].endswith(" s of ~40.0 s")
    assert told[4].split()[:2] == ["bert/w8a8/npu", "decoder/calibrate"]
    assert "64/512" in told[4]
    assert told[5] == "  bert/fp32/cpu/export  pending"
    assert told[6].startswith("failed: bert/w8a8/cpu/compile: It broke.")
    assert len(told) == 7, "a long error is cut, all of it is told at the end"
    assert max(map(len, told)) <= width


def test_many_stages_and_failures_fit_terminal() -> None:
    table, _, drawn = table_of(80)
    names = [f"a-model-with-quite-a-long-name-{number}/w8a16/npu" for number in range(200)]
    table.phase("building", names)
    for name in names[:100]:
        table.started(node(name, "export"), WHY, None, nothing)
        table.finished(ended(node(name, "export"), Status.FAILED, "It broke."))
        table.cell(name, CellStatus.FAILED, "export failed: It broke.")
    for name in names[100:]:
        table.started(node(name, "export"), WHY, None, nothing)
    told = drawn()
    table.stop(finished=True)
    assert len(told) < 24
    assert told[0] == "building 100 of 200 cells: 100 failed"
    assert "  and 88 more run" in told
    assert "failed: 95 before these" in told
    assert max(map(len, told)) <= 80


@pytest.mark.parametrize("finished", [True, False])
def test_table_is_erased_when_finished_and_kept_on_interrupt(finished: bool) -> None:
    table, console, drawn = table_of(80)
    table.phase("building", CELLS)
    table.started(node(CELLS[0], "export"), WHY, None, nothing)
    table.stop(finished=finished)
    assert drawn() == ["building 0 of 4 cells"]
    assert isinstance(console.file, io.StringIO)
    erases = "\x1b[1A\x1b[2K"
    assert console.file.getvalue().endswith(erases) is finished


def test_eta_includes_measuring(capsys: pytest.CaptureFixture[str]) -> None:
    lines = SweepLines(to_stderr=False, every_seconds=1000.0)
    lines.expect([60.0, 120.0])
    lines.phase("building", CELLS)
    lines.on_eta(forecast_of(600.0))
    lines.write_progress()
    lines.cell(CELLS[0], CellStatus.UP_TO_DATE)  # and measured, most likely
    lines.on_eta(forecast_of(600.0))
    lines.write_progress()
    lines.phase("measuring", CELLS)
    lines.on_eta(forecast_of(300.0))
    lines.write_progress()
    lines.on_eta(forecast_of(240.0))
    lines.write_progress()
    lines.stop(finished=True)
    found = [line.partition("about ")[2].partition(" left")[0] for line in lines_of(capsys)]
    assert found == ["22 min", "19 min", "11 min", "4 min"]
