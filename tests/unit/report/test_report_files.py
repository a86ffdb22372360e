"""A report in files: read back unchanged, safe in a spreadsheet, and never replacing a foreign file."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from report_folders import cell, evaluated, failed, manifest, perf, put_sweep, sweep

from winml_dag.errors import InputError, UsageError
from winml_dag.pipeline.sweep.result import CellStatus, GoalResult
from winml_dag.report.collect import collect
from winml_dag.report.compare import Bound, Change, Compared, Comparison
from winml_dag.report.files import COLUMNS, csv_of, default_files, read_report, write_files
from winml_dag.report.row import Accuracy, Latency, Placement, Quality, Report, Row, Size
from winml_dag.report.table import table_lines


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    cells = [
        cell("bert/w8a8/npu", perf=perf(3.0), eval=evaluated(0.88)),
        cell("bert/fp32/npu"),
        failed("bert/w4a16/npu"),
        cell("bert/int8/npu", CellStatus.REFUSED, why="int8 needs data"),
    ]
    builds = {"bert/w8a8/npu": manifest(), "bert/fp32/npu": manifest(precision="fp32", size=9000)}
    return collect([put_sweep(tmp_path_factory.mktemp("sweep") / "out", sweep(cells), builds)])


def _rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


def test_report_round_trips_through_json(report: Report, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    write_files({"json": path}, report, None, overwrite=False)
    assert read_report(path) == report
    assert json.loads(path.read_text(encoding="utf-8"))["format"] == 2


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"format": 9}', '{"format": "\\u001b[31m"}', '{"format": 1, "rows": 3}', '{"a": NaN}']
)
def test_invalid_report_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "old.json").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"old.json is not a report") as refused:
        read_report(tmp_path / "old.json")
    assert str(refused.value).isprintable()


def test_undecodable_byte_survives_report_files(report: Report, tmp_path: Path) -> None:
    odd = replace(report, rows=(replace(report.rows[0], why="file \udcff is odd"), *report.rows[1:]))
    files = default_files(tmp_path)
    write_files(files, odd, None, overwrite=False)
    assert read_report(files["json"]) == odd
    assert "\\udcff" in files["csv"].read_text(encoding="utf-8")


def test_csv_has_line_per_build_and_fixed_columns(report: Report) -> None:
    text = csv_of(report)
    assert text.count("\r\n") == 1 + len(report.rows)
    rows = _rows(text)
    assert list(rows[0]) == list(COLUMNS)
    assert (rows[0]["size_bytes"], rows[0]["latency_p50_ms"], rows[0]["cpu_operators"]) == ("1000", "3.0", "3 Gather")
    assert (rows[2]["failed_stage"], rows[2]["size_bytes"]) == ("quantize", "")
    assert rows[3]["why"] == "int8 needs data"


@given(st.text())
@example("\n=1+1")
@example("\uff1d1+1")
def test_csv_text_is_never_formula_or_line_break(name: str) -> None:
    row = Row(name, {}, name, "w8a8", "cpu", "cpu", CellStatus.BUILT, why=name)
    (read,) = _rows(csv_of(Report("x", (), "", (row,))))
    for column in ("name", "model", "why"):
        assert not read[column].startswith(("=", "+", "-", "@", "\uff1d", "\t", "\r", "\n"))
        assert read[column] in (name, f"'{name}")


@given(st.text(min_size=1, max_size=40), st.integers(40, 200))
def test_table_fits_width_for_any_names(name: str, width: int) -> None:
    row = Row("a", {}, name, "w8a8", "cpu", "cpu", CellStatus.FAILED, why=name)
    for line in table_lines(Report(name, (), "", (row,)), width):
        assert len(line.plain) <= width
        assert line.plain.isprintable()


@pytest.mark.parametrize("width", [80, 200])
def test_table_lists_failures_and_missing_values(report: Report, width: int) -> None:
    text = "\n".join(line.plain for line in table_lines(report, width))
    assert max(map(len, text.splitlines())) <= width
    words = " ".join(text.split())
    for expected in (
        " npu failed in quantize: It did not fit.",
        "! bert/w4a16/npu failed in quantize: It did not fit. Try another. The whole log: failures/x.log",
        "refused: int8 needs data",
        "- latency of 1 build: perf was not requested (measure: [perf])",
        "4 builds: 2 built, 1 failed, 1 refused.",
    ):
        assert expected in words


def test_goal_without_winner_shows_whether_it_is_pending(report: Report) -> None:
    goal = GoalResult({"model": "bert"}, "size", {"cosine": ">=2"}, None, (), why="nothing is that good")
    for pending, expected in (
        (False, "! smallest for bert (cosine >=2): none; "),
        (True, "- smallest for bert (cosine"),
    ):
        lines = table_lines(replace(report, goals=(replace(goal, pending=pending),)), 200)
        assert any(line.plain.startswith(expected) and "nothing is that good" in line.plain for line in lines)


def test_winner_line_includes_note(report: Report) -> None:
    goal = GoalResult({}, "latency", {}, "bert/w8a8/npu", (), folder="best", why="measured on an emulator: latency")
    lines = [line.plain for line in table_lines(replace(report, goals=(goal,)), 200)]
    assert "* fastest: bert/w8a8/npu, in best; measured on an emulator: latency" in lines


def test_builds_of_other_shards_take_one_line(report: Report) -> None:
    others = tuple(
        Row(f"bert/w8a8/{at}", {}, "bert", "w8a8", "cpu", "cpu", CellStatus.NOT_REACHED, why="of another shard")
        for at in range(9)
    )
    lines = [line.plain for line in table_lines(replace(report, rows=(*report.rows, *others)), 80)]
    assert [line for line in lines if "another shard" in line] == ["- 9 builds not reached: of another shard"]


def test_wide_table_has_all_columns(report: Report) -> None:
    heading = next(line.plain for line in table_lines(report, 300) if "precision" in line.plain)
    first, last = "  precision  target", "measured"
    shown = "size p50 p90 p99 n+warm-up load memory cosine SQNR accuracy drop partitions on CPU quantized build time"
    assert " ".join(heading.split()) == f"{' '.join(first.split())} {shown} {last}"


@pytest.mark.parametrize("width", range(60, 220, 20))
def test_table_columns_do_not_depend_on_value_widths(report: Report, width: int) -> None:
    def heading(of: Report) -> list[str]:
        return next(line.plain.split() for line in table_lines(of, width) if "precision" in line.plain)

    def slower(row: Row) -> Row:
        if row.latency is None or row.size is None:
            return row
        latency = replace(row.latency, p50=1234.5, p90=123456.7, p99=1e7, load_seconds=1234.0, peak_memory_bytes=1023)
        return replace(row, latency=latency, size=replace(row.size, model=1023 << 30), made_in_seconds=45_000.0)

    assert heading(replace(report, rows=tuple(map(slower, report.rows)))) == heading(report)


def test_foreign_files_are_not_overwritten(report: Report, tmp_path: Path) -> None:
    files = default_files(tmp_path)
    theirs = '{"subjects": ["somebody else\'s"]}'
    for path in files.values():
        path.write_text(theirs, encoding="utf-8")
        with pytest.raises(UsageError, match="exists and is not a winml-dag report"):
            write_files(files, report, None, overwrite=False)
        assert {each.read_text(encoding="utf-8") for each in files.values() if each.exists()} == {theirs}
        path.unlink()
    files["csv"].mkdir()
    with pytest.raises(UsageError, match="is a folder"):
        write_files(files, report, None, overwrite=False)
    assert not files["html"].exists()
    files["csv"].rmdir()
    write_files(files, report, None, overwrite=False)
    write_files(files, report, None, overwrite=False)  # owned files are replaced
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.csv", "report.html", "report.json"]


_PAGE = Path(__file__).parents[3] / "docs" / "reference" / "report.md"
_FORMS = (Report, Row, Size, Latency, Quality, Accuracy, Placement, Comparison, Compared, Change, Bound)


def test_documentation_lists_every_field_and_column() -> None:
    page = _PAGE.read_text(encoding="utf-8")
    named = set(re.findall(r"`(\w+)`", page))
    for form in _FORMS:
        assert {field.name for field in fields(form)} <= named, form
    assert re.findall(r"`(\w+)`", page.rpartition("before it.")[2]) == list(COLUMNS)
