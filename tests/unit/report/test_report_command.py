"""``winml-dag report`` as users call it: its output, files and exit code."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from report_folders import cell, failed, manifest, perf, put_build, put_sweep, sweep

from winml_dag.cli import run
from winml_dag.report.files import read_report

_NAMES = ("bert/fp32/npu", "bert/w8a8/npu")


def _folder(where: Path, *, w8a8: int = 1000, cosine: float = 0.99) -> Path:
    cells = [*(cell(name, perf=perf(3.0)) for name in _NAMES), failed("bert/w4a16/npu")]
    builds = {
        _NAMES[0]: manifest(precision="fp32", size=4000, cosine=1.0),
        _NAMES[1]: manifest(size=w8a8, cosine=cosine),
    }
    return put_sweep(where, sweep(cells), builds)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return _folder(tmp_path / "out")


def _object(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(capsys.readouterr().out)
    return value


def test_report_prints_table_and_writes_three_files(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "3 builds: 2 built, 1 failed." in printed
    assert (
        printed.splitlines()[-1]
        == f"written: {', '.join(str(out / f'report.{kind}') for kind in ('html', 'json', 'csv'))}"
    )
    assert [row.name for row in read_report(out / "report.json").rows] == [*_NAMES, "bert/w4a16/npu"]
    assert "\x1b[" not in printed


def test_json_report_is_one_object_on_stdout(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", str(out), "--no-files", "-f", "json", "--against", str(out)]) == 0
    told = _object(capsys)
    assert (told["format"], len(told["rows"]), told["comparison"]["regressions"]) == (2, 3, 0)
    assert not list(out.glob("report.*"))
    assert run(["report", str(out / "gone"), "-f", "json"]) == 3
    assert "does not exist" in _object(capsys)["errors"][0]


@pytest.mark.parametrize(
    ("bounds", "code", "expected"),
    [
        ([], 1, "worse: bert/w8a8/npu: size 1000 B -> 1.1 KiB (+10.0%, bound +1%)"),
        (["--bound", "size=+20%"], 1, "worse: bert/w8a8/npu: cosine 0.9900 -> 0.9800 (-1.0%, bound -0.001)"),
        (["--bound", "size=+20%", "--bound", "cosine=off"], 0, "0 builds worse, 0 better, 2 as before, 1 in neither."),
    ],
    ids=["default bounds", "one is wider", "wide enough"],
)
def test_regression_against_old_report_exits_1(
    out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], bounds: list[str], code: int, expected: str
) -> None:
    new = _folder(tmp_path / "new", w8a8=1100, cosine=0.98)
    assert run(["report", str(new), "--against", str(out), "--no-files", *bounds]) == code
    assert expected in " ".join(capsys.readouterr().out.split())


def test_folder_is_compared_with_its_earlier_report(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", str(out)]) == 0
    _folder(out, w8a8=2000)
    assert run(["report", str(out), "--against", str(out / "report.json")]) == 1
    assert "2.0 KiB" in capsys.readouterr().out
    kept = json.loads((out / "report.json").read_text(encoding="utf-8"))
    assert kept["comparison"]["regressions"] == 1
    assert next(row for row in read_report(out / "report.json").rows if row.name == _NAMES[1]).size is not None


def test_compared_folder_may_contain_only_report_json(out: Path, tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.mkdir()
    assert run(["report", str(out), "--no-files", "--json", str(old / "report.json")]) == 0
    assert run(["report", str(out), "--no-files", "--against", str(old)]) == 0


def test_rows_are_filtered_and_sorted(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def names(*options: str) -> list[str]:
        assert run(["report", str(out), "-f", "json", *options]) == 0
        return [row["name"] for row in _object(capsys)["rows"]]

    assert names("--no-files", "--sort", "size") == ["bert/w8a8/npu", "bert/fp32/npu", "bert/w4a16/npu"]
    assert names("--filter", "precision=w*", "--filter", "status!=failed") == ["bert/w8a8/npu"]
    assert names("--filter", "bert/fp32/*,bert/w4a16/npu") == ["bert/fp32/npu", "bert/w4a16/npu"]
    # A partial report does not replace a complete one.
    assert not list(out.glob("report.*"))


def test_report_file_symlink_is_followed(out: Path, tmp_path: Path) -> None:
    """As ``/dev/stdout`` is, which a rename would replace."""
    link = tmp_path / "table.csv"
    link.symlink_to(tmp_path / "elsewhere.csv")
    assert run(["report", str(out), "--csv", str(link)]) == 0
    assert link.is_symlink()
    assert "bert" in (tmp_path / "elsewhere.csv").read_text()


def test_unwritable_default_files_do_not_fail_report(
    out: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, _: bytes) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    # Permissions do not stop a user that may write everywhere, as in a container.
    monkeypatch.setattr("winml_dag.pipeline.jsonfile.write_whole", refuse)
    assert run(["report", str(out)]) == 0
    told = capsys.readouterr()
    assert "3 builds: 2 built, 1 failed." in told.out
    assert "note: not all files were written: " in told.err
    assert run(["report", str(out), "--csv", str(out / "x.csv")]) == 1
    assert "cannot be written: Permission denied" in capsys.readouterr().err


def test_compared_report_may_lack_filtered_axes(out: Path, tmp_path: Path) -> None:
    plain = put_build(tmp_path / "plain")
    assert run(["report", str(out), "--no-files", "--against", str(plain), "--filter", "target=npu"]) == 0


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--sort", "beauty"], "there is no such column"),
        (["--filter", "colour=red"], "there is no axis 'colour'"),
        (["--filter", "precision=x*"], "No build is left"),
        (["--bound", "size=+1%"], "--bound is about a comparison"),
        (["--against", "gone.json"], "cannot be read"),
    ],
)
def test_invalid_report_options_are_refused(
    out: Path, options: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["report", str(out), *options]) in (2, 3)
    assert expected in capsys.readouterr().err
    assert not list(out.glob("report.*"))


@pytest.mark.parametrize("words", [["--filter", "nothing"], ["--filter", "no=1"]], ids=["name", "axis"])
def test_control_characters_in_names_are_not_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    evil = replace(cell("evil"), name="\x1b]0;evil\x07", values={"\x1b[31m": "red"})
    put_sweep(tmp_path / "out", sweep([evil]), {})
    assert run(["report", str(tmp_path / "out"), *words]) == 2
    assert "\x1b" not in capsys.readouterr().err


def test_single_build_folder_gets_no_report_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build = put_build(tmp_path / "build")
    assert run(["report", str(build)]) == 0
    assert sorted(path.name for path in build.iterdir()) == ["build_manifest.json"]
    assert "written" not in capsys.readouterr().out
    assert run(["report", str(build), "--csv", str(tmp_path / "x.csv")]) == 0
    assert (tmp_path / "x.csv").is_file()


def test_report_imports_no_heavy_modules(out: Path) -> None:
    script = (
        "import sys\nfrom winml_dag.cli import run\n"
        f"assert run(['report', {str(out)!r}, '--against', {str(out)!r}]) == 0\n"
        "heavy = {'onnx', 'onnxruntime', 'torch', 'numpy', 'networkx', 'yaml'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
