"""``plan`` of a sweep: a line per cell, totals of the merged graph, and the jobs of a CI that builds it."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from tiny_builds import save_model

from winml_dag.cli import run

SWEEP = """
ep: cpu
matrix:
  model: [one.onnx, two.onnx, nowhere.onnx]
  precision: [fp32, fp16, w8a8]
  exclude:
    - {model: nowhere, precision: fp*, because: it is not there}
"""


@pytest.fixture
def plan(folder: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Plans a sweep of two existing models and a missing one, and returns the exit code, stdout and stderr."""
    (folder / "sweep.yaml").write_text(SWEEP, encoding="utf-8")
    for name in ("one", "two"):
        save_model(folder / f"{name}.onnx", producer_name=name)

    def plan(*words: str) -> tuple[int, str, str]:
        code = run(["plan", "-c", "sweep.yaml", *words])
        told = capsys.readouterr()
        return code, told.out, told.err

    return plan


def test_plan_prints_line_per_cell_and_totals(plan: Any) -> None:
    code, out, err = plan()
    *cells, counted, kinds = out.splitlines()
    assert [re.split(" {2,}", line) for line in cells] == [
        ["one/fp32", "4 would run, 4 skipped"],
        ["one/fp16", "5 would run, 3 skipped"],
        ["one/w8a8", "6 would run, 2 skipped"],
        ["two/fp32", "4 would run, 4 skipped"],
        ["two/fp16", "5 would run, 3 skipped"],
        ["two/w8a8", "6 would run, 2 skipped"],
        ["nowhere/fp32", "skipped: it is not there"],
        ["nowhere/fp16", "skipped: it is not there"],
        ["nowhere/w8a8", "refused: The model nowhere.onnx does not exist. Check the path."],
    ]
    assert counted == "6 builds = 26 stages (30 one by one), 0 cached, 26 to run, which were never timed."
    assert kinds.startswith("These are ")
    assert sum(map(int, re.findall(r"\d+", kinds))) == 26
    assert (code, err) == (1, "error: nowhere/w8a8: The model nowhere.onnx does not exist. Check the path.\n")


def test_error_shared_by_cells_is_printed_once(plan: Any) -> None:
    Path("sweep.yaml").write_text(SWEEP.partition("  exclude")[0], encoding="utf-8")
    code, _, err = plan()
    names = "nowhere/fp32, nowhere/fp16, nowhere/w8a8"
    assert (code, err) == (1, f"error: {names}: The model nowhere.onnx does not exist. Check the path.\n")


def test_measurements_after_builds_are_mentioned_not_counted(plan: Any) -> None:
    Path("sweep.yaml").write_text(f"measure: [perf, eval]\n{SWEEP}", encoding="utf-8")
    _, out, _ = plan("--filter", "one/*")
    assert out.splitlines()[-1] == "Not included is what follows when all are built: perf and eval of each cell."


def test_cached_stages_are_counted_and_the_rest_is_estimated(plan: Any) -> None:
    only_finalize = ("--no-optimize", "--no-analyze", "--no-validate", "-o", "out")
    assert run(["build", "-c", "sweep.yaml", "--filter", "one/fp32", *only_finalize, "--quiet"]) == 0
    _, out, _ = plan("--filter", "one/fp32,two/fp32", *only_finalize)
    assert re.search(r"\n2 builds = 2 stages \(2 one by one\), 1 cached, 1 to run, about [\d.]+ s left\.\n", out)
    _, out, _ = plan("--filter", "one/fp32", *only_finalize)
    assert out.splitlines()[-2] == "1 build = 1 stage (1 one by one), 1 cached, nothing to do."
    _, out, _ = plan("--filter", "one/fp32,two/fp32", *only_finalize, "-f", "json")
    graph = json.loads(out)["graph"]
    assert (graph["by_status"], graph["never_timed"]) == ({"reused": 1, "ran": 1}, 0)
    assert graph["seconds_left"] > 0


def test_plan_json_has_values_and_reasons(plan: Any) -> None:
    code, out, _ = plan("--filter", "model=one,nowhere", "--filter", "precision!=fp16", "-f", "json")
    told = json.loads(out)
    assert code == 1
    assert [(build["name"], build["values"]) for build in told["builds"]] == [
        ("one/fp32", {"model": "one", "precision": "fp32"}),
        ("one/w8a8", {"model": "one", "precision": "w8a8"}),
        ("nowhere/fp32", {"model": "nowhere", "precision": "fp32"}),
        ("nowhere/w8a8", {"model": "nowhere", "precision": "w8a8"}),
    ]
    assert told["builds"][2]["left_out"] == "it is not there"
    assert "does not exist" in told["builds"][3]["error"]
    assert told["failed"] == ["nowhere/w8a8"]
    assert (told["graph"]["builds"], told["graph"]["by_status"]) == (2, {"ran": told["graph"]["stages"]})


def test_all_refused_cells_are_listed(plan: Any) -> None:
    code, out, err = plan("--filter", "model=nowhere")
    assert (code, err) == (3, "error: nowhere/w8a8: The model nowhere.onnx does not exist. Check the path.\n")
    assert [line.partition(":")[0].split() for line in out.splitlines()] == [
        ["nowhere/fp32", "skipped"],
        ["nowhere/fp16", "skipped"],
        ["nowhere/w8a8", "refused"],
    ]


def test_option_making_cells_identical_is_refused(plan: Any) -> None:
    code, _, err = plan("--precision", "w8a8")
    assert code == 2
    assert err.startswith("error: --precision sets one precision for all cells, and the matrix has several: fp16, ")
    assert plan("--device", "cpu", "--filter", "one/fp32")[0] == 0


def test_ci_matrix_shards_cover_all_cells_once(plan: Any) -> None:
    code, out, _ = plan("--matrix", "--shards", "2", "--device", "cpu", "--filter", "model=one,two", "-o", "out dir")
    jobs = json.loads(out)["include"]
    assert code == 0
    assert [(job["shard"], job["cells"]) for job in jobs] == [("1/2", 3), ("2/2", 3)]
    found = []
    for job in jobs:
        command, _, _, *words = shlex.split(job["arguments"])
        assert (command, words[-2:]) == ("build", ["--shard", job["shard"]])
        _, told, _ = plan(*words, "-f", "json")
        found += [build["name"] for build in json.loads(told)["builds"]]
    assert found == ["one/fp32", "one/fp16", "one/w8a8", "two/fp32", "two/fp16", "two/w8a8"]


def test_ci_matrix_job_has_cell_values(plan: Any) -> None:
    _, out, _ = plan("--matrix", "--filter", "two/*")
    assert json.loads(out)["include"][1] == {
        "name": "two/fp16",
        "values": {"model": "two", "precision": "fp16"},
        "arguments": "build -c sweep.yaml --filter two/fp16",
    }


def test_azure_matrix_has_same_jobs_as_github(plan: Any) -> None:
    _, of_github, _ = plan("--matrix", "github", "--filter", "two/*")
    code, of_azure, _ = plan("--matrix", "azure", "--filter", "two/*")
    expected = {
        f"job_{place}": {"name": job["name"], "arguments": job["arguments"]}
        for place, job in enumerate(json.loads(of_github)["include"], 1)
    }
    assert (code, json.loads(of_azure)) == (0, expected)


def test_ci_matrix_job_keeps_catalog_recipe_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "-c", "catalog:sweeps/small", "--matrix", "--shards", "1"]) == 0
    (job,) = json.loads(capsys.readouterr().out)["include"]
    assert job["arguments"] == "build -c catalog:sweeps/small --shard 1/1"


def test_empty_shard_has_nothing_to_build(plan: Any) -> None:
    code, out, err = plan("--filter", "one/fp16", "--shard", "1/2")
    assert (code, "Nothing to build" in out, err) == (0, True, "")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--shard", "9/8"), "There is no shard 9/8"),
        (("--filter", "modle=one"), "there is no axis 'modle'; did you mean 'model'?"),
        (("--shards", "8"), "--shards is the number of jobs of --matrix"),
        (("--matrix", "--shards", "2", "--shard", "1/2"), "--shard selects one part"),
    ],
    ids=["shard", "filter", "shards alone", "shard of shards"],
)
def test_invalid_sweep_options_are_refused(words: tuple[str, ...], message: str, plan: Any) -> None:
    code, out, err = plan(*words)
    assert (code, out, message in err) == (2, "", True)


def test_matrix_of_single_recipe_is_refused(plan: Any) -> None:
    Path("sweep.yaml").write_text("model: one.onnx", encoding="utf-8")
    code, _, err = plan("--matrix")
    assert (code, "this is not one" in err) == (2, True)
