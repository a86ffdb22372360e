"""Sweeps: edit the recipe, build, and these stages ran in these cells.

Failures stay in their cell, nothing runs twice.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from oneprocess import OneProcess
from onnx_samples import perceptron, samples
from scenario import Project, changed, ran_in_cells

BASE: dict[str, Any] = {"quant": {"calibration_data": "data.npz"}}
SWEEP: dict[str, Any] = {
    "base": "base.yaml",
    "matrix": {
        "model": ["one.onnx", "two.onnx"],
        "precision": [{"name": "fp32", "quant": None}, "w8a8", "w8a16"],
        "exclude": [{"model": "two", "precision": "w8a16", "because": "two is small enough"}],
    },
}
# Only fast stages.
FEW = ("--no-validate", "--no-analyze")
CELLS = ["one/fp32", "one/w8a8", "one/w8a16", "two/fp32", "two/w8a8"]


class Sweeps(Project):
    """A folder with a sweep, and the output of the command line for it."""

    def write(self, **changes: Any) -> None:
        """Write the sweep with changed keys: ``write(matrix__precision=[...])``."""
        self.save("sweep.yaml", changed(SWEEP, changes))

    def told(self, *more: str, code: int = 0) -> dict[str, Any]:
        """Build and return the JSON."""
        return super().told("build", "-c", "sweep.yaml", "-o", "out", *FEW, *more, code=code)

    def said(self, *more: str, code: int = 0) -> str:
        """Build and return the printed lines, including errors."""
        return self.says("build", "-c", "sweep.yaml", "-o", "out", *FEW, *more, code=code)

    def kept(self) -> dict[str, Any]:
        """Return the contents of ``sweep.json``."""
        return self.json("out", "sweep.json")


def cells(told: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {cell["name"]: cell for cell in told["cells"]}


def statuses(told: dict[str, Any]) -> dict[str, str]:
    return {name: cell["status"] for name, cell in cells(told).items()}


@pytest.fixture(scope="module")
def built(commands: OneProcess | None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Sweeps, dict[str, Any]]:
    """The sweep after its first build, with its output. Do not change it."""
    project = Sweeps(tmp_path_factory.mktemp("sweep"), commands)
    perceptron(project.folder / "one.onnx", width=8, classes=4)
    perceptron(project.folder / "two.onnx", width=8, classes=4, seed=1)
    samples(project.folder / "data.npz", width=8)
    (project.folder / "base.yaml").write_text(yaml.safe_dump(BASE), encoding="utf-8")
    project.write()
    return project, project.told()


@pytest.fixture
def sweeps(built: tuple[Sweeps, dict[str, Any]], commands: OneProcess | None, tmp_path: Path) -> Sweeps:
    """A copy of the built sweep for one test.

    Builds are recorded by the path of their folders, so the copy is brought up to date once, which runs nothing.
    """
    shutil.copytree(built[0].folder, tmp_path / "project")
    copy = Sweeps(tmp_path / "project", commands)
    assert ran_in_cells(copy.told()) == {}
    return copy


def test_shared_stages_of_cells_run_once(built: tuple[Sweeps, dict[str, Any]]) -> None:
    project, told = built
    assert ran_in_cells(told) == {
        "one/fp32": ["optimize", "finalize"],
        "one/w8a8": ["calibrate", "quantize", "finalize"],
        "one/w8a16": ["quantize", "finalize"],
        "two/fp32": ["optimize", "finalize"],
        "two/w8a8": ["calibrate", "quantize", "finalize"],
    }
    assert told["failed"] == []
    assert statuses(told) == {**dict.fromkeys(CELLS, "built"), "two/w8a16": "skipped"}
    assert cells(told)["two/w8a16"]["why"] == "two is small enough"
    graph = told["graph"]
    assert (graph["builds"], graph["stages"], graph["stages_apart"]) == (5, 12, 16)
    assert graph["by_stage"] == {"calibrate": 2, "finalize": 5, "optimize": 2, "quantize": 3}
    for name in CELLS:
        assert (project.out / name / "model.onnx").is_file()
    # Only what one cell reused from another counts as saved.
    shared = [stage for name in CELLS for stage in cells(told)[name]["stages"] if stage["status"] == "reused"]
    assert [stage["stage"] for stage in shared] == ["optimize", "optimize", "calibrate", "optimize"]
    assert graph["seconds_saved"] == pytest.approx(sum(stage["made_in_seconds"] for stage in shared), abs=0.01)
    optimized = [stage for stage in cells(told)["one/w8a8"]["stages"] if stage["stage"] == "optimize"]
    assert optimized[0]["cells"] == 3

    # What is told is kept.
    own = ("command", "exit_code", "error", "warnings", "asked", "failed")
    assert project.kept() == {name: value for name, value in told.items() if name not in own}
    assert told["interrupted"] is False
    path = graph["critical_path"]
    assert path
    assert {name.rpartition("/")[0] for name in path} <= set(CELLS)


def test_second_run_touches_nothing(sweeps: Sweeps) -> None:
    before = {path: path.stat().st_mtime_ns for path in sweeps.out.rglob("*") if path.is_file()}
    for _ in range(2):
        lines = sweeps.said().splitlines()
        assert lines[0] == "skipped: two/w8a16: two is small enough"
        assert any(line.endswith("5 up to date, 1 skipped.") or "5 up to date, 1 skipped;" in line for line in lines)
    assert {path: path.stat().st_mtime_ns for path in sweeps.out.rglob("*") if path.is_file()} == before
    command = cells(sweeps.kept())["one/w8a8"]["command"]
    assert command == "winml-dag build -c sweep.yaml -o out --no-validate --no-analyze --filter one/w8a8"
    assert "1 up to date" in sweeps.says(*command.split()[1:])


def test_up_to_date_sweep_imports_no_heavy_modules(sweeps: Sweeps) -> None:
    script = """
import sys
from winml_dag import file_reading
file_reading.SETTLED_NS = -10**18  # the files of the test are young
from winml_dag.cli import run
assert run(["build", "-c", "sweep.yaml", "-o", "out", "--no-validate", "--no-analyze"]) == 0
heavy = {"torch", "transformers", "onnx", "onnxruntime", "numpy", "networkx", "rich"} & set(sys.modules)
assert not heavy, heavy
assert %s or not {"pydantic", "yaml", "sqlite3"} & set(sys.modules)
"""
    for is_first in (True, False):
        said = sweeps.python(script % is_first)
    assert "5 up to date, 1 skipped." in said


def test_python_builds_same_sweep(sweeps: Sweeps) -> None:
    said = sweeps.python("""
from winml_dag import SweepResult, build_sweep
few = {"validate": False, "analyze": False}
sweep = build_sweep("sweep.yaml", "out", filters=["precision=fp32"], **few)
assert isinstance(sweep, SweepResult)
print([(cell.name, str(cell.status)) for cell in sweep.cells if cell.name.endswith("fp32")], sweep.cells[0].command)
how = {"force_rebuild": True, "stage_timeout_seconds": 0.01, "memory_bytes": 1 << 30}
timed = build_sweep("sweep.yaml", "timed", filters=["one/fp32"], **few, **how)
print(*(cell.failure.error for cell in timed.cells if cell.failure))
""")
    command = "winml-dag build -c sweep.yaml -o out --no-validate --no-analyze --filter one/fp32"
    built, timed = said.splitlines()
    assert built == f"{[('one/fp32', 'up to date'), ('two/fp32', 'up to date')]} {command}"
    assert "0.01 s" in timed


def test_edit_runs_only_affected_cells(sweeps: Sweeps) -> None:
    # Of the base. Of cells that were not asked for, what is known stays.
    before = cells(sweeps.kept())
    sweeps.save("base.yaml", {"quant": {"calibration_data": "data.npz", "samples": 4}})
    told = sweeps.told("--filter", "model=two")
    assert told["asked"] == ["two/fp32", "two/w8a8"]
    assert ran_in_cells(told) == {"two/w8a8": ["calibrate", "quantize", "finalize"]}
    after = cells(sweeps.kept())
    for name in ("one/fp32", "one/w8a8", "one/w8a16"):
        assert after[name] == before[name]
    assert ran_in_cells(sweeps.told()) == {
        "one/w8a8": ["calibrate", "quantize", "finalize"],
        "one/w8a16": ["quantize", "finalize"],
    }
    assert sweeps.told("--filter", "two/w8a8")["asked"] == ["two/w8a8"]

    # Of a value, and a further one.
    fp32 = {"name": "fp32", "quant": None}
    reduced = {"name": "w8a8", "precision": "w8a8", "quant": {"reduce_range": True}}
    sweeps.write(matrix__precision=[fp32, reduced, "w8a16", "fp16"])
    told = sweeps.told()
    assert ran_in_cells(told) == {
        "one/w8a8": ["quantize", "finalize"],
        "two/w8a8": ["quantize", "finalize"],
        "one/fp16": ["quantize", "finalize"],
        "two/fp16": ["quantize", "finalize"],
    }
    assert statuses(told)["one/w8a16"] == "up to date"

    # Of one model.
    perceptron(sweeps.folder / "two.onnx", width=8, classes=4, seed=2)
    sweeps.write()
    assert ran_in_cells(sweeps.told()) == {
        "two/fp32": ["optimize", "finalize"],
        "two/w8a8": ["calibrate", "quantize", "finalize"],
    }
    options_hold_for_every_cell = sweeps.told("--filter", "precision=fp32", "--no-optimize")
    assert ran_in_cells(options_hold_for_every_cell) == {"one/fp32": ["finalize"], "two/fp32": ["finalize"]}


def test_failed_or_refused_cell_does_not_affect_others(sweeps: Sweeps) -> None:
    samples(sweeps.folder / "wide.npz", width=9)
    sweeps.write(
        overrides=[
            {"when": {"model": "one", "precision": "w8a8"}, "quant": {"calibration_data": "wide.npz"}},
            {"when": {"model": "one", "precision": "w8a16"}, "quant": {"calibration_data": "missing.npz"}},
        ]
    )
    perceptron(sweeps.folder / "two.onnx", width=8, classes=4, seed=2)
    told = sweeps.told(code=1)
    assert statuses(told) == {
        "one/fp32": "up to date",
        "one/w8a8": "failed",
        "one/w8a16": "refused",
        "two/fp32": "built",
        "two/w8a8": "built",
        "two/w8a16": "skipped",
    }
    assert told["failed"] == ["one/w8a8", "one/w8a16"]
    failed = cells(told)["one/w8a8"]
    assert failed["reached"] == "optimize.0"
    assert failed["failure"]["stage"] == "calibrate"
    assert failed["failure"]["error"]
    assert Path(failed["failure"]["log"]).is_file()
    assert "missing.npz" in cells(told)["one/w8a16"]["why"]

    # Every run retries all of them, and on request only them.
    samples(sweeps.folder / "wide.npz", width=8)
    said = sweeps.said("--retry-failed", code=3)
    assert "missing.npz" in said
    assert "2 cells in" in said
    assert "1 built, 1 refused" in said
    sweeps.write()
    told = sweeps.told("--retry-failed")
    assert told["asked"] == ["one/w8a16"]
    # The failure left its folder unchanged, which equals what the sweep requests again.
    assert statuses(told)["one/w8a16"] == "up to date"
    assert set(statuses(told).values()) == {"built", "up to date", "skipped"}


def test_shared_failure_is_reported_once(sweeps: Sweeps) -> None:
    samples(sweeps.folder / "data.npz", width=9)
    said = sweeps.said(code=1).splitlines()
    (line,) = [line for line in said if line.startswith("error: one/")]
    assert line.startswith("error: one/w8a8, one/w8a16: calibrate failed: ")
    (total,) = [line for line in said if line.startswith("6 cells in ")]
    # Five cells reused optimize's result, two of them finalize's; a shared failure is not reused.
    assert "2 up to date, 3 failed, 1 skipped; 0 stages run, 7 shared or found" in total
    kept = cells(sweeps.kept())
    assert kept["one/w8a8"]["elapsed_seconds"] > kept["one/w8a16"]["elapsed_seconds"] == 0


def test_no_keep_going_stops_at_first_failure(sweeps: Sweeps) -> None:
    samples(sweeps.folder / "wide.npz", width=9)
    perceptron(sweeps.folder / "two.onnx", width=8, classes=4, seed=3)
    sweeps.write(overrides=[{"when": {"model": "one", "precision": "w8a8"}, "quant": {"calibration_data": "wide.npz"}}])
    told = sweeps.told("--no-keep-going", "--jobs", "1", code=1)
    assert statuses(told)["one/w8a8"] == "failed"
    assert statuses(told)["two/w8a8"] == "not reached"


def test_stale_result_cannot_win_goal(sweeps: Sweeps) -> None:
    sweeps.write(goal={"minimize": "size"})
    told = sweeps.told("--filter", "precision=w8a8")
    assert [one["winner"] for one in told["goals"]] == ["one/fp32", "two/fp32"]
    before = (sweeps.out / "best" / "one" / "model.onnx").read_bytes()
    perceptron(sweeps.folder / "one.onnx", width=8, classes=4, seed=7)
    one, two = sweeps.told("--filter", "precision=w8a8")["goals"]
    assert (one["winner"], one["pending"], two["winner"]) == (None, True, "two/fp32")
    assert one["why"] == "2 of 3 cells have no result yet"
    whys = {candidate["cell"]: candidate["why"] for candidate in one["candidates"]}
    assert "this run was not for it" in whys["one/fp32"]
    assert whys["one/w8a8"] == ""
    assert (sweeps.out / "best" / "one" / "model.onnx").read_bytes() == before


def test_shards_together_cover_sweep(sweeps: Sweeps) -> None:
    shutil.rmtree(sweeps.out)
    asked = [sweeps.told("--shard", f"{number}/2")["asked"] for number in (1, 2)]
    assert sorted([*asked[0], *asked[1]]) == sorted(CELLS)
    assert all(asked)
    assert statuses(sweeps.kept()) == {**dict.fromkeys(CELLS, "built"), "two/w8a16": "skipped"}


def test_outputs_of_removed_cells_are_kept_and_noted(sweeps: Sweeps) -> None:
    sweeps.write(matrix__model=["one.onnx"], matrix__exclude=[])
    said = sweeps.said()
    gone = f"{Path('out', 'two', 'fp32')}, {Path('out', 'two', 'w8a8')}"
    assert f"note: {gone} belong to cells that no longer exist." in said.splitlines()
    assert (sweeps.out / "two" / "w8a8" / "model.onnx").is_file()
    assert list(cells(sweeps.kept())) == ["one/fp32", "one/w8a8", "one/w8a16"]


def test_foreign_file_is_not_overwritten(sweeps: Sweeps) -> None:
    other = sweeps.folder / "other"
    other.mkdir()
    (other / "sweep.json").write_text('{"wheels": 4}', encoding="utf-8")
    assert "name is missing" in sweeps.says("build", "-c", "sweep.yaml", "-o", "other", code=2)
    assert [path.name for path in other.iterdir()] == ["sweep.json"]
    assert (other / "sweep.json").read_text(encoding="utf-8") == '{"wheels": 4}'


def test_recipe_folder_is_a_sweep(sweeps: Sweeps) -> None:
    folder = sweeps.folder / "recipes"
    folder.mkdir()
    for name in ("one", "two"):
        recipe = {**BASE, "model": f"../{name}.onnx", "quant": None}
        (folder / f"{name}.json").write_text(json.dumps(recipe), encoding="utf-8")
    common = ("-o", "all", *FEW)
    told = Project.told(sweeps, "build", "-c", "recipes", *common)
    assert statuses(told) == {"one": "built", "two": "built"}
    assert ran_in_cells(told) == {}
    again = Project.told(sweeps, "build", "-c", "recipes/one.json", "-c", "recipes/two.json", *common)
    assert statuses(again) == {"one": "up to date", "two": "up to date"}


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        pytest.param(("-c", "sweep.yaml"), 2, "need a folder", id="no folder"),
        pytest.param(("-c", "sweep.yaml", "-o", "out", "--filter", "precision=w9"), 2, "not a value", id="no value"),
        pytest.param(("-c", "sweep.yaml", "-o", "new", "--retry-failed"), 2, "No sweep was run", id="nothing to retry"),
        pytest.param(
            ("-c", "base.yaml", "-m", "one.onnx", "-o", "new", "--filter", "x"), 2, "is not one", id="no sweep"
        ),
        pytest.param(("-c", "sweep.yaml", "-o", "data.npz"), 1, "is a file, not a folder", id="file for a folder"),
        pytest.param(("-c", "empty", "-o", "new"), 3, "no recipe in empty", id="empty folder"),
    ],
)
def test_invalid_sweep_arguments_are_refused(
    built: tuple[Sweeps, dict[str, Any]], arguments: tuple[str, ...], code: int, said: str
) -> None:
    project = built[0]
    (project.folder / "empty").mkdir(exist_ok=True)
    finished = project.run("build", *arguments, "-f", "json")
    assert finished.returncode == code
    assert said in finished.stderr
    assert said in json.loads(finished.stdout)["error"]
    assert not (project.folder / "new").exists()
