"""Reports collected from folders: rows of sweeps and builds, joined shards, and reasons for missing values."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from report_folders import (
    cell,
    digest,
    evaluated,
    failed,
    manifest,
    perf,
    put_build,
    put_sweep,
    skipped,
    stage,
    sweep,
    without,
)

from winml_dag.errors import InputError
from winml_dag.pipeline.sweep.result import (
    Candidate,
    CellResult,
    CellStatus,
    Failure,
    GoalResult,
    Measured,
    SharedGraph,
)
from winml_dag.report.collect import collect
from winml_dag.report.row import Report, Row, Size

_NPU = {"compiled": True}
_CPU = {"ep": "CPUExecutionProvider", "device": "cpu", "compiled": False}


def _row(report: Report, name: str) -> Row:
    return next(row for row in report.rows if row.name == name)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A sweep with a cell of every status."""
    cells = [
        cell("bert/w8a8/npu", perf=perf(3.0, emulated=True), eval=evaluated(0.88), saved_seconds=5.0),
        cell("bert/fp32/cpu", CellStatus.UP_TO_DATE, perf=perf(9.0), eval=Measured(error="eval has no data")),
        failed("bert/w4a16/npu"),
        cell("bert/int8/npu", CellStatus.REFUSED, why="int8 needs data"),
        cell("bert/fp32/npu", CellStatus.SKIPPED, why="QNN is for integers here"),
        cell("vit/w8a8/npu", CellStatus.NOT_REACHED, why="the run was interrupted"),
    ]
    candidates = tuple(Candidate(one.name, {"size": 1000.0}) for one in cells[:2])
    goal = GoalResult(
        {"model": "bert"}, "size", {"accuracy_drop": "<=0.01"}, "bert/w8a8/npu", candidates, folder="best/bert"
    )
    builds = {
        "bert/w8a8/npu": manifest(sidecar=400, **_NPU),
        "bert/fp32/cpu": manifest(precision="fp32", size=4000, cosine=1.0, **_CPU),
        "best/bert": manifest(sidecar=400),
    }
    return put_sweep(tmp_path / "out", sweep(cells, goals=(goal,), interrupted=True), builds)


def test_row_of_built_cell_is_complete(folder: Path) -> None:
    row = _row(collect([folder]), "bert/w8a8/npu")
    assert (row.model, row.precision, row.ep, row.device, row.task) == (
        "bert",
        "w8a8",
        "qnn",
        "npu",
        "text-classification",
    )
    # compiled.onnx has the bytes of model.onnx, and counts once.
    assert row.size == Size(model=1000, sidecar=400, folder=1000, embeds_binary=False)
    assert row.latency is not None
    assert (row.latency.p50, row.latency.inferences, row.latency.warmup, row.latency.emulated) == (3.0, 100, 10, True)
    assert (row.latency.measured, row.latency.host["memory"]) == ("live", "8 GiB")
    assert row.quality is not None
    assert (row.quality.cosine, row.quality.bound, row.quality.passed) == (0.99, 0.9, True)
    assert row.placement is not None
    assert (row.placement.partitions, row.placement.cpu_nodes) == (2, {"Gather": 3})
    assert (row.nodes_quantized, row.nodes_skipped, row.skipped_reasons) == (9, 1, {"no rule": 1})
    assert row.versions == {"SDK of the provider": "v2", "onnx": "1.23.2", "winml_dag": "0.1.0"}
    assert (row.made_in_seconds, row.saved_seconds, row.peak_memory_bytes) == (8.25, 5.0, 5000)
    assert (row.digest, row.notices, row.missing) == ("sha256:1000", ("Calibrating on random data.",), {})


def test_winner_copies_and_foreign_builds_are_not_rows(folder: Path) -> None:
    put_build(folder / "bert" / "old")
    report = collect([folder])
    assert [row.name for row in report.rows if row.winner_of] == ["bert/w8a8/npu"]
    assert len(report.rows) == 6
    assert report.notices[0] == "The run was interrupted, or is still running. To continue, build again."
    assert f"{folder / 'bert' / 'old'} has a build that is not a cell of the sweep; it was skipped." in report.notices


def test_preferred_accuracy_metric_is_checked_against_goal_bound(folder: Path) -> None:
    accuracy = _row(collect([folder]), "bert/w8a8/npu").accuracy
    assert accuracy is not None
    assert (accuracy.metric, accuracy.value, accuracy.reference, accuracy.samples) == ("accuracy", 0.88, 0.9, 50)
    assert accuracy.drop == pytest.approx(0.02)
    assert (accuracy.bound, accuracy.passed, accuracy.significant, accuracy.measured) == (0.01, False, False, "cached")


def test_every_missing_value_has_a_reason(folder: Path) -> None:
    report = collect([folder])
    parts = ("size", "latency", "quality", "accuracy", "placement", "nodes_quantized")
    for row in report.rows:
        lacking = {part for part in parts if getattr(row, part) is None}
        assert lacking <= set(row.missing), row.name
        assert all(row.missing.values())
    assert _row(report, "bert/fp32/cpu").missing == {
        "accuracy": "eval has no data",
        "placement": "the CPU runs ONNX as it is",
        "nodes_quantized": "fp32 needs none",
    }
    lost = _row(report, "bert/w4a16/npu")
    assert lost.missing["size"] == "failed in quantize: It did not fit."
    assert (lost.ep, lost.device, lost.reached) == ("qnn", "npu", "export"), "the target of its neighbours"
    assert lost.failure is not None
    assert lost.failure.tail == ("line 1", "line 2")
    assert _row(report, "bert/fp32/npu").missing["latency"] == "skipped: QNN is for integers here"


def test_missing_reason_depends_on_interrupted_run(tmp_path: Path) -> None:
    cells, builds = [cell("bert/w8a8/npu")], {"bert/w8a8/npu": manifest()}
    through, ended = (
        collect([put_sweep(tmp_path / str(at), sweep(cells, interrupted=at == 1), builds)]).rows[0].missing["latency"]
        for at in range(2)
    )
    assert through == "perf was not requested (measure: [perf])"
    assert ended == f"the run ended before, or {through}"


def test_cell_without_build_uses_model_of_neighbours(tmp_path: Path) -> None:
    def of(name: str, values: dict[str, str], **fields: Any) -> CellResult:
        return replace(cell(name, **fields), values=values)

    failure = Failure("quantize", "It did not fit.")
    cells = [
        of("fp32/2", {"precision": "fp32", "quant.samples": "2"}),
        of("w8a8/4", {"precision": "w8a8", "quant.samples": "4"}, status=CellStatus.FAILED, failure=failure),
    ]
    one = put_sweep(tmp_path / "one", sweep(cells), {"fp32/2": manifest(model="/a/tiny.onnx")})
    assert {row.model for row in collect([one]).rows} == {"tiny"}
    # A custom axis may change the model, and so may the choice of recipe.
    other = [replace(each, values={"variant": each.name}) for each in cells]
    two = put_sweep(tmp_path / "two", sweep(other), {"fp32/2": manifest(model="/a/tiny.onnx")})
    assert {row.model for row in collect([two]).rows} == {"tiny", "w8a8/4"}
    several = [replace(each, values={}) for each in cells]
    three = put_sweep(tmp_path / "three", sweep(several), {"fp32/2": manifest(model="/a/tiny.onnx")})
    assert {row.model for row in collect([three]).rows} == {"tiny", "w8a8/4"}


def test_cell_outside_bounds_does_not_dominate_cell_within(tmp_path: Path) -> None:
    cells = [cell("bert/w8a8/npu", eval=evaluated(0.7)), cell("bert/w8a16/npu", eval=evaluated(0.7))]
    sizes = {"bert/w8a8/npu": manifest(size=1000), "bert/w8a16/npu": manifest(size=2000)}
    candidates = Candidate("bert/w8a8/npu", {}, "cosine is 0.8, below 0.9"), Candidate("bert/w8a16/npu", {})
    goal = GoalResult({"model": "bert"}, "size", {"cosine": ">=0.9"}, "bert/w8a16/npu", candidates)
    without_goal, with_goal = (
        collect([put_sweep(tmp_path / str(len(goals)), sweep(cells, goals=goals), sizes)]) for goals in ((), (goal,))
    )
    assert _row(without_goal, "bert/w8a16/npu").dominated_by == "bert/w8a8/npu"
    assert _row(with_goal, "bert/w8a16/npu").dominated_by is None


def test_missing_cell_folder_is_reported(folder: Path) -> None:
    (folder / "bert/fp32/cpu/build_manifest.json").unlink()
    row = _row(collect([folder]), "bert/fp32/cpu")
    assert row.size is None
    assert "has no manifest; build the cell again" in row.missing["size"]


def test_failed_cell_does_not_show_earlier_result(folder: Path) -> None:
    put_build(folder / "bert/w4a16/npu", manifest(precision="w4a16", size=1))
    row = _row(collect([folder]), "bert/w4a16/npu")
    assert (row.size, row.status) == (None, CellStatus.FAILED)


def test_builds_without_sweep_are_named_by_folder(tmp_path: Path) -> None:
    put_build(tmp_path / "out" / "a")
    put_build(tmp_path / "out" / "deep" / "b", manifest(precision="w8a16"))
    report = collect([tmp_path / "out"])
    assert [(row.name, row.precision, row.status) for row in report.rows] == [
        ("a", "w8a8", CellStatus.BUILT),
        ("deep/b", "w8a16", CellStatus.BUILT),
    ]
    assert [(run.id, run.status) for run in report.rows[0].stages][:2] == [("export", "reused"), ("quantize", "ran")]
    assert report.rows[0].saved_seconds == 5.0
    assert collect([tmp_path / "out" / "a"]).rows[0].name == "a"
    put_build(tmp_path / "other" / "a")
    names = [row.name for row in collect([tmp_path / "out", tmp_path / "other"]).rows]
    assert names == ["a", "deep/b", f"{tmp_path / 'other' / 'a'}: a"]


def test_shards_of_one_sweep_are_joined(tmp_path: Path) -> None:
    names = ("bert/w8a8/npu", "bert/w8a16/npu", "vit/w8a8/npu")
    whole = sweep([cell(name) for name in names], graph=SharedGraph(builds=3, stages=5, seconds_ran=2.0))
    one = put_sweep(tmp_path / "1", without(whole, *names[1:]), {names[0]: manifest()})
    two = replace(without(whole, names[0]), elapsed_seconds=50.0)
    other = put_sweep(tmp_path / "2", two, {name: manifest(precision="w8a16") for name in names[1:]})
    report = collect([one, other])
    assert [(row.name, row.status) for row in report.rows] == [(name, CellStatus.BUILT) for name in names]
    assert [row.folder for row in report.rows] == [str(one / names[0]), *(str(other / name) for name in names[1:])]
    assert (report.graph.seconds_ran, report.elapsed_seconds) == (4.0, 50.0)


def test_pending_goal_of_joined_shards_is_explained(tmp_path: Path) -> None:
    names = ("bert/w8a8/npu", "bert/w8a16/npu")
    whole = sweep([cell(name) for name in names])

    def part(has: str, lacks: str) -> Path:
        candidates = Candidate(has, {"size": 1000.0}), Candidate(lacks, {"size": None}, "not reached")
        goal = GoalResult({}, "size", {}, None, candidates, why="1 of 2 cells has no result yet", pending=True)
        return put_sweep(
            tmp_path / has.replace("/", "-"), replace(without(whole, lacks), goals=(goal,)), {has: manifest()}
        )

    parts = [part(*names), part(*reversed(names))]
    assert collect(parts[:1]).goals[0].why == "1 of 2 cells has no result yet"
    (goal,) = collect(parts).goals
    assert (goal.winner, goal.pending) == (None, True)
    assert goal.why == "its cells are in several shards; a build of the whole sweep chooses among them"
    assert [each.why for each in goal.candidates] == ["", ""]


def test_duplicate_cell_uses_later_shard(tmp_path: Path) -> None:
    early = sweep([cell("bert/w8a8/npu", perf=perf(3.0))], began_at="2026-11-22T10:00:00+00:00")
    late = sweep([cell("bert/w8a8/npu", perf=perf(4.0))], began_at="2026-11-22T12:00:00+00:00")
    folders = [
        put_sweep(tmp_path / name, part, {"bert/w8a8/npu": manifest()}) for name, part in (("2", late), ("1", early))
    ]
    report = collect(folders)
    assert [row.latency and row.latency.p50 for row in report.rows] == [4.0]
    assert report.notices == ()


def test_equal_cells_of_two_sweeps_are_both_kept(tmp_path: Path) -> None:
    name = "bert/w8a8/npu"
    goal = GoalResult({}, "size", {}, name, (Candidate(name, {"size": 1.0}),))
    one = put_sweep(tmp_path / "1", sweep([cell(name)], name="a", goals=(goal,)), {name: manifest()})
    two = put_sweep(tmp_path / "2", sweep([cell(name)], name="b", goals=(goal,)), {name: manifest()})
    report = collect([one, two])
    assert [row.name for row in report.rows] == [name, f"b: {name}"]
    assert [goal.winner for goal in report.goals] == [name, f"b: {name}"]
    assert all(row.winner_of for row in report.rows)


@pytest.mark.parametrize("text", ["", "{}", "[1]", "\x00", '{"schema_version": 1, "stages": [{"placed": 3}]}'])
def test_damaged_manifest_is_reported_and_skipped(tmp_path: Path, text: str) -> None:
    put_build(tmp_path / "good")
    (put_build(tmp_path / "bad") / "build_manifest.json").write_text(text, encoding="utf-8")
    report = collect([tmp_path])
    assert [row.name for row in report.rows] == ["good"]
    assert "bad" in report.notices[0]


def test_damaged_sweep_file_falls_back_to_its_builds(folder: Path) -> None:
    (folder / "sweep.json").write_text('{"format": 1, "cells": 3}', encoding="utf-8")
    report = collect([folder])
    assert {row.name for row in report.rows} == {"bert/w8a8/npu", "bert/fp32/cpu", "best/bert"}
    assert "Its builds are listed one by one." in report.notices[0]


# Wrong values that a manifest may contain: other programs write such files too.
_ODD: tuple[Any, ...] = (None, True, -1, 1e999, "text", [], {}, [None, 1], {"a": 1})


@pytest.mark.parametrize(
    "field", ["stages", "precision", "notices", "components", "elapsed_seconds", "execution_provider"]
)
def test_odd_manifest_values_do_not_break_report(tmp_path: Path, field: str) -> None:
    for at, odd in enumerate(_ODD):
        put_build(tmp_path / str(at), {**manifest(), field: odd})
    for at, name in enumerate(
        ("outputs", "metrics", "toolchain", "cached", "elapsed_seconds", "ep_context_partitions")
    ):
        for place, odd in enumerate(_ODD):
            stages = [{**each, name: odd} for each in manifest()["stages"]]
            put_build(tmp_path / f"stage-{at}-{place}", manifest(stages=stages))
    put_build(tmp_path / "good")
    report = collect([tmp_path])
    json.dumps([row.made_in_seconds for row in report.rows], allow_nan=False)
    assert "good" in {row.name for row in report.rows}


def test_composite_model_is_one_row_with_worst_quality_and_total_size(tmp_path: Path) -> None:
    def part(name: str, size: int, cosine: float) -> list[dict[str, Any]]:
        file = {"name": f"{name}_model.onnx", "digest": digest(name), "size": size}
        quality = {"cosine": cosine, "samples": 3, "data": "random"}
        return [
            stage("quantize", stage_id=f"{name}.quantize", nodes_quantized=5, nodes_skipped=0),
            stage("validate", stage_id=f"{name}.validate", metrics={"quality": quality}),
            stage("finalize", stage_id=f"{name}.finalize", outputs={"model": {"digest": "sha256:1", "files": [file]}}),
        ]

    stages = [stage("export"), *part("encoder", 100, 0.999), *part("decoder", 50, 0.9)]
    components = {"encoder": {"precision": "w8a8"}, "decoder": {"precision": "w8a8"}}
    put_build(tmp_path / "out", manifest(stages=stages, components=components))
    row = collect([tmp_path / "out"]).rows[0]
    assert row.components == ("encoder", "decoder")
    assert (row.size and row.size.model, row.quality and row.quality.cosine, row.nodes_quantized) == (150, 0.9, 10)


@pytest.mark.parametrize(
    ("models", "expected"),
    [
        (["/home/me/models/bert"], ["bert"]),
        (["/home/me/bert.onnx", "C:\\models\\vit.ONNX"], ["bert", "vit"]),
        (["/a/first/model.onnx", "/a/second/model.onnx"], ["first/model", "second/model"]),
        (["/a/bert", "bert", "org/bert"], ["a/bert", "bert", "org/bert"]),
        (["/a/bert layers.0", "org/bert layers.0"], ["bert layers.0", "org/bert layers.0"]),
    ],
    ids=["one", "files", "alike", "hub", "modules"],
)
def test_model_path_is_shortened_to_unique_name(tmp_path: Path, models: list[str], expected: list[str]) -> None:
    for place, model in enumerate(models):
        put_build(tmp_path / f"{place}", manifest(model=model))
    assert [row.model for row in collect([tmp_path]).rows] == expected


def test_modules_of_one_model_are_separate_models(tmp_path: Path) -> None:
    for at in range(2):
        exported = stage("export", config={"loader": {"module_path": f"encoder.layer.{at}"}})
        others = [each for each in manifest(size=1000 + at)["stages"] if each["name"] != "export"]
        put_build(tmp_path / str(at), manifest(stages=[exported, *others]))
    rows = collect([tmp_path]).rows
    assert [row.model for row in rows] == ["tiny encoder.layer.0", "tiny encoder.layer.1"]
    assert [row.dominated_by for row in rows] == [None, None]


def test_command_stage_build_is_row_without_model(tmp_path: Path) -> None:
    placed = [{"name": "a.txt", "digest": digest("a"), "size": 3}]
    value = {
        "schema_version": 1,
        "source": "stages",
        "stages": [stage("label", placed=placed), skipped("quantize", "no model")],
        "files": [],
    }
    put_build(tmp_path / "wine" / ".winml-dag" / "labels", value)
    row = collect([tmp_path / "wine"]).rows[0]
    assert (row.name, row.model, row.precision) == ("labels", "labels", "")
    assert row.missing["size"] == "the recipe's own stages put 1 file in place, and none is its model"


def test_folder_without_builds_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No winml-dag build was found"):
        collect([tmp_path])
    with pytest.raises(InputError, match="does not exist"):
        collect([tmp_path / "gone"])
