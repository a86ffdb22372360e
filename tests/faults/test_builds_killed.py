"""Builds and sweeps that are killed or interrupted at any moment: the next run continues from there, and nothing runs
twice.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import onnx
import pytest
from memory_executor import MemoryExecutor

from winml_dag.api import build_onnx_model
from winml_dag.canonical import JsonObject
from winml_dag.engine.stage import Node, Workspace, read_config
from winml_dag.engine.worker import load
from winml_dag.pipeline.manifest import read_manifest
from winml_dag.pipeline.request import Overrides, Request
from winml_dag.pipeline.run import BuildOptions
from winml_dag.pipeline.sweep import ledger
from winml_dag.pipeline.sweep.cells import Selection
from winml_dag.pipeline.sweep.result import SweepResult, read_sweep
from winml_dag.pipeline.sweep.run import SilentWatcher, SweepRun, run_sweep
from winml_dag.store.digest import digest_file
from winml_dag.store.store import Store

KILLED = 9
KILLS = 6
SWEEP = "matrix: {model: [one.onnx, two.onnx], precision: [fp32, fp16]}"
CELLS = ("one/fp32", "one/fp16", "two/fp32", "two/fp16")

pytestmark = pytest.mark.slow


# One value for each model, so that they differ.
MODEL = """<ir_version: 10, opset_import: ["": 21]> small (float[1, 4] x) => (float[1, 4] y)
<float[4] weights = {%d, 1, 2, 3}> { product = Mul(x, weights) y = Relu(product) }"""


@pytest.fixture(autouse=True)
def _scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stages write temporary files to the current folder, which is normally a scratch folder."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for place, name in enumerate(("one", "two")):
        onnx.save(onnx.parser.parse_model(MODEL % place), folder / f"{name}.onnx")
    (folder / "sweep.yaml").write_text(SWEEP, encoding="utf-8")
    return folder


def is_of_one_piece(out: Path) -> bool:
    """Return whether the folder has exactly the files in the manifest."""
    manifest = read_manifest(out)
    assert manifest is not None
    digests = {path.name: digest_file(path) for path in out.iterdir()}
    del digests["build_manifest.json"], digests["winml_build_config.json"]
    return digests == {file.name: file.digest for file in manifest.files}


def build(models: Path, out: Path, *, optimize: bool) -> None:
    build_onnx_model(models / "one.onnx", out, optimize=optimize, cache_dir=models / "cache")


def build_killed_at(models: Path, out: Path, at: int) -> bool:
    """Build in a fork that is killed before it moves file number *at* in the output folder."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == KILLED
    moves = 0

    def at_move(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal moves
        # Inside an open folder, its descriptor is the last argument, and names are relative.
        if event == "os.rename" and (str(out) in str(arguments[1]) or arguments[3] != -1):
            moves += 1
            if moves > at:
                os._exit(KILLED)

    sys.addaudithook(at_move)
    try:
        build(models, out, optimize=True)
    finally:
        os._exit(0)


@pytest.mark.parametrize("is_same", [True, False])
def test_next_build_repairs_folder_of_killed_build(models: Path, tmp_path: Path, is_same: bool) -> None:
    for optimize in (True, False):  # so that everything is in the cache
        build(models, tmp_path / f"known{optimize}", optimize=optimize)
    at, killed = 0, True
    while killed:
        out = tmp_path / f"out{at}"
        killed = build_killed_at(models, out, at)
        build(models, out, optimize=is_same)
        assert is_of_one_piece(out)
        assert (out / "optimized.onnx").exists() == is_same
        at += 1
    assert at > 4


def work(node: Node, workspace: Workspace) -> JsonObject:
    """Do the work of a stage in this process: a thousand imports of onnx would take most of the time."""
    done: Callable[[object, Workspace], JsonObject] = load(node.stage.work)
    return done(read_config(load(node.stage.config), node.config) if node.stage.config else node.config, workspace)


def run(models: Path, folder: Path) -> SweepResult:
    overrides = Overrides(optimize=False, validate=False, analyze=False, compile=False)
    asked = SweepRun.of([models / "sweep.yaml"], Request(None, overrides, folder / "out"), Selection(), "build")
    options = BuildOptions(jobs=1, keep_going=True)
    return run_sweep(asked, Store(folder / "cache"), options, SilentWatcher(), MemoryExecutor(work)).result


def run_in_fork(models: Path, folder: Path, dies_at: int | None) -> tuple[bool, int]:
    """Run in a fork that is killed before it publishes file number *dies_at*.

    Returns whether it was killed, and the number of files it reached.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(writing)
        with os.fdopen(reading) as told:
            moves = len(told.read())
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == KILLED, moves
    moves = 0

    def at_move(event: str, _arguments: tuple[object, ...]) -> None:
        nonlocal moves
        if event == "os.rename":
            moves += 1
            os.write(writing, b".")
            if moves == dies_at:
                os._exit(KILLED)

    sys.addaudithook(at_move)
    try:
        run(models, folder)
    finally:
        os._exit(0)


def records(folder: Path) -> set[str]:
    """Return the keys of all records."""
    return {path.stem for path in (folder / "cache" / "records").rglob("*.json")}


def ran(sweep: SweepResult) -> list[str]:
    return [stage.cache_key or "" for cell in sweep.cells for stage in cell.stages if stage.status == "ran"]


def test_killed_sweep_resumes_and_runs_nothing_twice(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # After every cell, instead of periodically.
    monkeypatch.setattr(ledger, "_SECONDS_BETWEEN", 0.0)
    monkeypatch.setattr(ledger, "_TIMES_ITS_COST", 0)
    killed, moves = run_in_fork(models, tmp_path / "whole", None)
    assert not killed
    assert moves > KILLS
    whole = {name: digests(tmp_path / "whole" / "out" / name) for name in CELLS}
    chance = random.Random(5)
    for number in range(KILLS):
        folder = tmp_path / f"killed{number}"
        killed, _ = run_in_fork(models, folder, chance.randint(1, moves))
        assert killed
        before = records(folder)
        read_sweep(folder / "out")  # complete or missing
        after = run(models, folder)
        assert not before.intersection(ran(after))
        assert len(set(ran(after))) == len(ran(after))
        assert [cell.is_there for cell in after.cells] == [True] * len(CELLS)
        assert read_sweep(folder / "out") == after
        assert not after.interrupted
        for name in CELLS:
            assert is_of_one_piece(folder / "out" / name)
            assert digests(folder / "out" / name) == whole[name]


def digests(out: Path) -> Mapping[str, str]:
    return {path.name: digest_file(path) for path in out.glob("model*")}


# Reports that it runs, then hangs if told to. Each completed run appends a line.
PROGRAM = """
import sys, threading
out, pipe, ends, then = sys.argv[1:]
if then == "hang":
    open(pipe, "w").close()
    threading.Event().wait()
open(ends, "a").write(out + chr(10))
open(out, "w").write("done")
"""


class Recipes:
    """A folder of recipes, each with one user-defined stage."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ends = folder / "ends.txt"
        self.ends.touch()
        self.pipe = folder / "pipe"
        os.mkfifo(self.pipe)

    def write(self, name: str, then: str = "end") -> None:
        (self.folder / "recipes" / name).mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-c", PROGRAM, "{outputs.out}", str(self.pipe), str(self.ends), then]
        value = {"stages": {"note": {"command": command, "outputs": {"out": f"{name}.txt"}}}}
        (self.folder / "recipes" / name / f"{name}.json").write_text(json.dumps(value), encoding="utf-8")

    def start(self) -> subprocess.Popen[str]:
        arguments = ["build", "-c", "recipes", "-o", "out", "--cache-dir", "cache", "-j", "2"]
        return subprocess.Popen(
            [sys.executable, "-m", "winml_dag", *arguments],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def statuses(self) -> dict[str, str]:
        sweep = read_sweep(self.folder / "out")
        assert sweep is not None
        return {cell.name: str(cell.status) for cell in sweep.cells}


@pytest.fixture
def recipes(tmp_path: Path) -> Recipes:
    return Recipes(tmp_path)


def test_interrupted_sweep_reports_progress_and_resumes(recipes: Recipes) -> None:
    recipes.write("a")
    recipes.write("b", "hang")
    recipes.write("c")
    first = recipes.start()
    recipes.pipe.read_text()  # until it hangs
    first.send_signal(signal.SIGINT)
    _, messages = first.communicate()
    assert first.returncode == 130, messages
    assert "Results so far are in out. Run the same command again to continue." in messages.splitlines()
    assert recipes.statuses() == {"a": "built", "b": "not reached", "c": "not reached"}
    sweep = read_sweep(recipes.folder / "out")
    assert sweep is not None
    assert sweep.interrupted

    recipes.write("b")
    again = recipes.start()
    said, messages = again.communicate()
    assert again.returncode == 0, messages
    assert "3 cells in" in said
    assert recipes.statuses() == {"a": "up to date", "b": "built", "c": "built"}
    assert [Path(line).name for line in recipes.ends.read_text().splitlines()] == ["a.txt", "b.txt", "c.txt"]


def test_concurrent_runs_of_one_sweep_build_each_cell_once(recipes: Recipes) -> None:
    for name in "abc":
        recipes.write(name)
    runs = [recipes.start(), recipes.start()]
    for each in runs:
        _, messages = each.communicate()
        assert each.returncode == 0, messages
    assert sorted(Path(line).name for line in recipes.ends.read_text().splitlines()) == ["a.txt", "b.txt", "c.txt"]
    assert set(recipes.statuses()) == {"a", "b", "c"}
    assert set(recipes.statuses().values()) <= {"built", "up to date"}
