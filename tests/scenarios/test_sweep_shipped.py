"""The bundled sweeps: a model of the small one is built, the one for real use is planned.

Real stages, in three precisions on two targets. Other models add minutes and no other kind of cell; `make bench-sweep`
builds all four.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from oneprocess import OneProcess
from scenario import Project, ran_in_cells

from winml_dag.cli import run
from winml_dag.recipe.load import shipped_path

MODEL = "resnet"
PRECISIONS = ("fp16", "w8a8", "w4a16")


def write(project: Project, **changes: Any) -> None:
    """Write the small sweep with some of its cells, without measurements, which cost as much as building."""
    sweep: dict[str, Any] = yaml.safe_load(shipped_path("sweeps/small").read_text(encoding="utf-8"))
    del sweep["measure"]
    sweep["matrix"]["model"] = [model for model in sweep["matrix"]["model"] if model["name"] == MODEL]
    sweep["matrix"]["precision"] = list(PRECISIONS)
    project.save("small.yaml", {**sweep, **changes})


def stages(result: dict[str, Any]) -> Counter[str]:
    """Return how often each stage ran, in all cells together."""
    return Counter(stage for ran in ran_in_cells(result).values() for stage in ran)


@pytest.mark.slow
def test_small_sweep_shares_work_and_reruns_only_edits(tmp_path: Path, commands: OneProcess | None) -> None:
    project = Project(tmp_path, commands)
    build = ("build", "-c", "small.yaml", "-o", "out", "-j", "2")
    write(project)
    first = project.told(*build)
    assert [cell["status"] for cell in first["cells"]] == ["built"] * 6
    assert {axis: len(labels) for axis, labels in first["axes"].items()} == {"model": 1, "precision": 3, "target": 2}
    counts = stages(first)
    # One export, one optimize since nothing is discovered, and ranges for all precisions and targets.
    assert (counts["export"], counts["optimize"], counts["calibrate"]) == (1, 1, 1)
    # Float16 is shared by both targets, and 4 bits on the CPU are two stages.
    assert (counts["quantize"], counts["compile"], counts["validate"], counts["finalize"]) == (6, 3, 6, 6)
    assert sum(counts.values()) == first["graph"]["stages"] < first["graph"]["stages_apart"]
    for precision in PRECISIONS:
        for target in ("cpu", "npu"):
            assert (project.out / MODEL / precision / target / "model.onnx").is_file()

    # Winners meet the bound and are in place.
    assert [goal["group"] for goal in first["goals"]] == [{"model": MODEL, "target": each} for each in ("cpu", "npu")]
    for goal in first["goals"]:
        sizes = {one["cell"]: one["values"]["size"] for one in goal["candidates"] if not one["why"]}
        assert goal["winner"] == min(sizes, key=lambda name: sizes[name])
        assert all(one["values"]["cosine"] < 0.999 for one in goal["candidates"] if one["why"])
        assert (project.out / f"best/{MODEL}-{goal['group']['target']}/model.onnx").is_file()

    again = project.told(*build)
    assert not ran_in_cells(again)
    assert {cell["status"] for cell in again["cells"]} == {"up to date"}
    write(project, overrides=[{"when": {"precision": "w8a8"}, "quant": {"samples": 5}}])
    edited = project.told(*build, "--filter", "precision=w8a8,w4a16")
    assert ran_in_cells(edited).keys() == {f"{MODEL}/w8a8/cpu", f"{MODEL}/w8a8/npu"}
    # Ranges are computed once for both targets.
    assert stages(edited) == {"calibrate": 1, "quantize": 2, "compile": 1, "validate": 2, "finalize": 2}


def test_devices_sweep_can_be_planned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["-c", "catalog:sweeps/devices", "--random-weights", "--cache-dir", str(tmp_path)]
    assert run(["plan", *arguments, "--format", "json"]) == 0
    graph = json.loads(capsys.readouterr().out)["graph"]
    assert (graph["builds"], graph["by_stage"]["export"]) == (72, 4)
