"""A report of a real sweep matches the files and the measurements, and a comparison with a worse model exits with 1."""

from __future__ import annotations

from typing import Any

import pytest
from oneprocess import OneProcess
from onnx_samples import perceptron, samples
from scenario import Project

SWEEP: dict[str, Any] = {
    "ep": "cpu",
    "quant": {"calibration_data": "data.npz"},
    "perf": {"iterations": 5, "warmup": 1, "loads": 1},
    "measure": ["perf"],
    "matrix": {"model": ["one.onnx"], "precision": ["fp32", "w8a8"]},
    "goal": {"minimize": "size", "subject_to": {"cosine": ">=0.9"}, "folder": "best/{model}"},
}


@pytest.fixture(scope="module")
def project(commands: OneProcess | None, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A sweep of two cells, built and measured."""
    project = Project(tmp_path_factory.mktemp("reported"), commands)
    perceptron(project.folder / "one.onnx", width=16, classes=4)
    samples(project.folder / "data.npz", width=16)
    project.save("sweep.yaml", SWEEP)
    project.says("build", "-c", "sweep.yaml", "-o", "out", "--no-analyze")
    return project


def test_report_rows_match_files_and_measurements(project: Project) -> None:
    told = project.told("report", "out")
    rows = {row["precision"]: row for row in told["rows"]}
    assert set(rows) == {"fp32", "w8a8"}
    for row in rows.values():
        folder = project.folder / row["folder"]
        assert row["size"]["model"] == (folder / "model.onnx").stat().st_size
        assert row["latency"]["p50"] > 0
        assert (row["latency"]["inferences"], row["latency"]["warmup"], row["latency"]["measured"]) == (5, 1, "live")
        assert row["status"] == "built"
        assert row["quality"]["cosine"] > 0.9
        assert "onnxruntime" in row["versions"]
    smallest = min(rows.values(), key=lambda row: row["size"]["model"])
    assert [row["name"] for row in rows.values() if row["winner_of"]] == [smallest["name"]]
    assert rows["w8a8"]["nodes_quantized"] > 0
    assert rows["fp32"]["missing"]["nodes_quantized"]
    assert told["graph"]["stages"] < told["graph"]["stages_apart"]
    page = (project.out / "report.html").read_text(encoding="utf-8")
    assert "<script" in page
    assert "one/w8a8" in page


def test_regression_exits_1(project: Project) -> None:
    assert project.told("report", "out", "--json", "old.json")["rows"]
    perceptron(project.folder / "one.onnx", width=32, classes=4)
    samples(project.folder / "data.npz", width=32)
    project.says("build", "-c", "sweep.yaml", "-o", "new", "--no-analyze", "--filter", "precision=fp32")
    comparison = project.told("report", "new", "--against", "old.json", code=1)["comparison"]
    found = {row["name"]: row for row in comparison["rows"]}
    verdicts = {change["measure"]: change["verdict"] for change in found["one/fp32"]["changes"]}
    assert verdicts["size"] == "regression"
    assert found["one/w8a8"]["fate"] == "gone"  # not requested, so it did not fail
    assert (project.folder / "new" / "report.html").is_file()
