"""The graph of a sweep as drawn: shared stages appear once, and all details of a stage are correct."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from onnx_samples import perceptron

from winml_dag.cli import run
from winml_dag.pipeline.sweep.result import CellResult, CellStatus, Failure, StageRun, SweepResult, write_sweep

SWEEP: dict[str, Any] = {
    "model": "m.onnx",
    "matrix": {
        "precision": ["fp32", "w8a8", "fp16"],
        "target": [{"name": "cpu", "ep": "cpu"}, {"name": "npu", "ep": "qnn", "compile": {}}],
        "exclude": [{"precision": "fp32", "target": "npu", "because": "integers are what it is for"}],
    },
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WINML_DAG_CACHE_DIR", str(tmp_path / "cache"))
    perceptron(tmp_path / "m.onnx")
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(SWEEP), encoding="utf-8")
    return tmp_path


def content(path: Path) -> dict[str, Any]:
    page = path.read_text(encoding="ascii")
    found = re.search(r'<script type="application/json" id="content">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    value: dict[str, Any] = json.loads(found[1])
    return value


def drawn(folder: Path, *arguments: str) -> dict[str, Any]:
    assert run(["graph", "-c", "sweep.yaml", "-o", "out", "--html", "graph.html", *arguments]) == 0
    return content(folder / "graph.html")


def boxes(page: dict[str, Any], step: str) -> list[dict[str, Any]]:
    return [box for box in page["views"]["full"]["boxes"] if box["step"] == step]


def test_shared_stages_are_one_box(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = drawn(folder)
    assert page["cells"] == ["fp32/cpu", "w8a8/cpu", "w8a8/npu", "fp16/cpu", "fp16/npu"]
    (model,) = boxes(page, "m.onnx")
    assert model["status"] == "source"
    assert model["cells"] == [0, 1, 2, 3, 4]
    assert sorted(box["cells"] for box in boxes(page, "finalize")) == [[0], [1], [2], [3], [4]]
    assert all(box["status"] == "ran" and box["reason"] for box in boxes(page, "finalize"))
    told = capsys.readouterr().out
    assert re.match(r"5 builds = \d+ stages \(\d+ one by one\), \d+ shared by several builds: \d+ would run\.", told)
    assert "fp32/npu is skipped: integers are what it is for" in (folder / "graph.html").read_text(encoding="ascii")


def test_rounds_without_effect_are_not_drawn(folder: Path) -> None:
    page = drawn(folder, "--filter", "w8a8/cpu")
    steps = [box["step"] for box in page["views"]["full"]["boxes"]]
    assert {"optimize.0", "analyze.0"} <= set(steps)
    assert not {"optimize.1", "analyze.1"} & set(steps)
    lines = {(steps[maker], steps[reader]) for maker, reader, *_ in page["views"]["full"]["lines"]}
    assert {("optimize.0", "calibrate"), ("optimize.0", "quantize"), ("calibrate", "quantize")} <= lines


def test_last_failure_is_drawn_as_failed(folder: Path) -> None:
    failed = CellResult(
        "w8a8/cpu",
        {},
        "w8a8/cpu",
        CellStatus.FAILED,
        stages=(StageRun("calibrate", "calibrate", "ran", "new"), StageRun("gone", "gone", "ran", "")),
        failure=Failure("quantize", "<b>no</b> memory", "Buy some."),
    )
    write_sweep(folder / "out", SweepResult("sweep", "sweep.yaml", "", 1.0, {}, (failed,)))
    page = drawn(folder)
    (box,) = [box for box in boxes(page, "quantize") if box["status"] == "failed"]
    assert (box["label"], box["error"]) == ("w8a8/cpu", "<b>no</b> memory")
    last = {box["label"]: (box.get("last"), box.get("last_reason")) for box in boxes(page, "calibrate")}
    assert last == {"w8a8/cpu": ("ran", "new"), "w8a8/npu": (None, None)}
    assert "<b>no" not in (folder / "graph.html").read_text(encoding="ascii")


def test_own_page_is_replaced_and_foreign_file_is_kept(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    drawn(folder)
    drawn(folder)
    (folder / "graph.html").write_text("mine", encoding="ascii")
    assert run(["graph", "-c", "sweep.yaml", "--html", "graph.html"]) == 2
    assert "graph.html exists, and winml-dag did not write it" in capsys.readouterr().err
    assert (folder / "graph.html").read_text(encoding="ascii") == "mine"


def test_dot_output_merges_builds_into_one_graph(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["graph", "-c", "sweep.yaml", "--format", "dot"]) == 0
    told = capsys.readouterr().out
    assert told.count('"m.onnx" [shape=ellipse]') == 1
    assert '"fp32/cpu/finalize"' in told
    assert '"w8a8/npu/compile"' in told
    (folder / "one.yaml").write_text("{model: m.onnx, ep: cpu}", encoding="utf-8")
    assert run(["graph", "-c", "one.yaml", "--format", "dot"]) == 0
    assert '"finalize"' in capsys.readouterr().out
    assert run(["graph", "-c", "one.yaml", "--filter", "precision=fp32"]) == 2
    assert "this is not one" in capsys.readouterr().err
