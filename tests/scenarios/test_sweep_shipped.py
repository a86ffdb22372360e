"""The bundled sweeps: two models of the small one are built, the one for real use is planned.

Real stages, for two architectures in three precisions on two targets; built once for all tests. The other ones add
minutes and no other kind of cell; `make bench-sweep` builds all four architectures.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from oneprocess import OneProcess
from scenario import Project

from winml_dag.cli import run
from winml_dag.recipe.load import shipped_path

MODELS = ("bert", "resnet")
PRECISIONS = ("fp16", "w8a8", "w4a16")


@dataclass(frozen=True)
class Sweep:
    """A copy of the small sweep with some of its cells, without measurements, which cost as much as building."""

    project: Project

    @property
    def folder(self) -> Path:
        return self.project.folder

    @property
    def content(self) -> dict[str, Any]:
        value: dict[str, Any] = yaml.safe_load(shipped_path("sweeps/small").read_text(encoding="utf-8"))
        del value["measure"]
        value["matrix"]["model"] = [model for model in value["matrix"]["model"] if model["name"] in MODELS]
        value["matrix"]["precision"] = list(PRECISIONS)
        return value

    def write(self, **changes: Any) -> None:
        (self.folder / "small.yaml").write_text(yaml.safe_dump({**self.content, **changes}), encoding="utf-8")

    def build(self, *arguments: str) -> dict[str, Any]:
        words = ["build", "-c", "small.yaml", "-o", "out", "--format", "json", "-j", "2", *arguments]
        done = self.project.run(*words)
        assert done.returncode == 0, done.stderr
        value: dict[str, Any] = json.loads(done.stdout)
        return value


def ran(result: dict[str, Any]) -> Counter[tuple[str, str]]:
    """Return how often each stage ran in the run of *result*, by the cell that it ran for."""
    return Counter(
        (cell["name"], stage["stage"])
        for cell in result["cells"]
        for stage in cell["stages"]
        if cell["name"] in result["asked"] and stage["status"] == "ran"
    )


def stages(result: dict[str, Any]) -> Counter[str]:
    """Return how often each stage ran, in all cells together."""
    return Counter(stage for _, stage in ran(result).elements())


# One test for one build: otherwise each of several pytest processes would build the sweep.
@pytest.mark.slow
def test_twelve_cells_share_their_work_a_second_run_runs_nothing_and_an_edit_what_reads_it(
    tmp_path: Path, commands: OneProcess | None
) -> None:
    sweep = Sweep(Project(tmp_path, commands))
    sweep.write()
    first = sweep.build()
    all_are_built_and_what_they_share_ran_once(sweep, first)
    winners_meet_the_bound_and_are_in_place(sweep, first)
    again = sweep.build()
    assert not ran(again)
    assert {cell["status"] for cell in again["cells"]} == {"up to date"}
    sweep.write(overrides=[{"when": {"precision": "w8a8"}, "quant": {"samples": 5}}])
    edited = sweep.build("--filter", "model=resnet", "--filter", "precision=w8a8,w4a16")
    assert {cell for cell, _ in ran(edited)} == {"resnet/w8a8/cpu", "resnet/w8a8/npu"}
    # Ranges are computed once for both targets.
    assert stages(edited) == {"calibrate": 1, "quantize": 2, "compile": 1, "validate": 2, "finalize": 2}


def all_are_built_and_what_they_share_ran_once(sweep: Sweep, result: dict[str, Any]) -> None:
    assert [cell["status"] for cell in result["cells"]] == ["built"] * 12
    assert {axis: len(labels) for axis, labels in result["axes"].items()} == {"model": 2, "precision": 3, "target": 2}
    counts = stages(result)
    # Per model one export, one optimize since nothing is discovered, and ranges for all precisions and targets.
    assert (counts["export"], counts["optimize"], counts["calibrate"]) == (2, 2, 2)
    # Float16 is shared by both targets, and 4 bits on the CPU are two stages.
    assert (counts["quantize"], counts["compile"], counts["validate"], counts["finalize"]) == (12, 6, 12, 12)
    assert sum(counts.values()) == result["graph"]["stages"] < result["graph"]["stages_apart"]
    for model in result["axes"]["model"]:
        for precision in PRECISIONS:
            for target in ("cpu", "npu"):
                assert (sweep.folder / "out" / model / precision / target / "model.onnx").is_file()


def winners_meet_the_bound_and_are_in_place(sweep: Sweep, result: dict[str, Any]) -> None:
    assert len(result["goals"]) == 4
    for goal in result["goals"]:
        sizes = {one["cell"]: one["values"]["size"] for one in goal["candidates"] if not one["why"]}
        assert goal["winner"] == min(sizes, key=lambda name: sizes[name])
        assert all(one["values"]["cosine"] < 0.999 for one in goal["candidates"] if one["why"])
        group = goal["group"]
        assert (sweep.folder / "out" / f"best/{group['model']}-{group['target']}" / "model.onnx").is_file()


def test_the_sweep_for_real_use_plans(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["-c", "catalog:sweeps/devices", "--random-weights", "--cache-dir", str(tmp_path)]
    assert run(["plan", *arguments, "--format", "json"]) == 0
    graph = json.loads(capsys.readouterr().out)["graph"]
    assert (graph["builds"], graph["by_stage"]["export"]) == (72, 4)
