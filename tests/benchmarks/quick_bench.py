"""``make bench-quick``: the ratios that a change worsens first, in about two minutes.

Each row compares one of our commands with something that takes its time from the same machine in the same minutes, in
turns. ``docs/benchmarks.md`` has the same rows, written by ``make bench``; a row that is more than 15 % above the one
there is marked.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bytes_bench import MIB, hashing, storing
from chains import edit_input, make_project, outputs_of
from miss_bench import RECIPES, run_build, run_script, script_steps
from page import PAGE, kept_section, publish
from tables import table

HEADING = "## At a glance\n"
_PROGRAM = str(Path(sys.executable).parent / "winml-dag")
_PYTHON = [sys.executable, "-c", "pass"]
_WORSE = 1.15
_CHAINS = 250
_BIG_MIB = 512

_ONE_MODEL = """
import sys, numpy, onnx
from onnx import TensorProto, helper, numpy_helper
weights = numpy_helper.from_array(numpy.ones((512, 512), numpy.float32), "w")
value = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 512])
graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [value("x")], [value("y")], [weights])
onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), sys.argv[1])
"""


@dataclass(frozen=True)
class Row:
    """Our median seconds, those of *beside*, and the median of the ratios of each round."""

    what: str
    beside: str
    ours: float
    other: float
    ratio: float


def compared(what: str, beside: str, pairs: Sequence[tuple[float, float]]) -> Row:
    """Return the row of *pairs* of seconds, ours and those of *beside*, of one round each."""
    ours, other = (statistics.median(each) for each in zip(*pairs, strict=True))
    return Row(what, beside, ours, other, statistics.median(one / two for one, two in pairs))


def seconds_of(command: Sequence[str], folder: Path) -> float:
    """Return the seconds of a complete process in *folder*, whose cache is in *folder* too."""
    # Without bytecode, Python would compile this package again for each process.
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    began = time.perf_counter()
    subprocess.run(
        command,
        cwd=folder,
        env={**inherited, "WINML_DAG_CACHE_DIR": str(folder / "cache")},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    return time.perf_counter() - began


def in_turns(ours: Callable[[], float], other: Callable[[], float], rounds: int) -> list[tuple[float, float]]:
    return [(ours(), other()) for _ in range(rounds)]


def commands(folder: Path, rounds: int) -> list[Row]:
    """Measure the help and an up-to-date build of one model of 1 MB, beside Python's start."""
    folder.mkdir()
    subprocess.run([sys.executable, "-c", _ONE_MODEL, str(folder / "model.onnx")], check=True)
    build = [_PROGRAM, "build", "--onnx", "model.onnx", "-o", "out", "-p", "w8a8", "--ep", "cpu", "-q"]
    first = []
    for number in range(3):
        shutil.rmtree(folder / "cache", ignore_errors=True)
        shutil.rmtree(folder / "out", ignore_errors=True)
        (folder / "model.onnx").touch()
        seconds_of(build, folder)
        first.append((seconds_of(build, folder), seconds_of(_PYTHON, folder)))
        assert (folder / "out" / "model.onnx").exists(), number
    return [
        compared("`--help`", "`python -c pass`", in_turns(*_timers([_PROGRAM, "--help"], folder), rounds)),
        compared("second build of a model, right after the first", "`python -c pass`", first),
        compared("later builds of it, up to date", "`python -c pass`", in_turns(*_timers(build, folder), rounds)),
    ]


def _timers(command: Sequence[str], folder: Path) -> tuple[Callable[[], float], Callable[[], float]]:
    return lambda: seconds_of(command, folder), lambda: seconds_of(_PYTHON, folder)


def stages(folder: Path, rounds: int) -> list[Row]:
    """Measure 1000 command stages: from nothing beside make, with nothing to do, and after an edit of four."""
    full, first, null, edit = [], [], [], []
    for number in range(rounds):
        ours, other = folder / f"stages{number}" / "winml-dag", folder / f"stages{number}" / "make"
        make_project(ours, "winml-dag", _CHAINS)
        make_project(other, "make", _CHAINS)
        build = [_PROGRAM, "build", "-c", "chains.yaml", "-j", "2", "-q"]
        full.append((seconds_of(build, ours), seconds_of(["make", "-s", "-j2"], other)))
        first.append((seconds_of(build, ours), seconds_of(_PYTHON, ours)))
        null += in_turns(*_timers(build, ours), 5)
        for chain in range(3):
            edit_input(ours, chain)
            edit.append((seconds_of(build, ours), seconds_of(_PYTHON, ours)))
        assert all(path.read_bytes() == text for path, text in outputs_of(ours, _CHAINS))
    return [
        compared("1000 command stages from nothing, 2 jobs", "`make -j2`", full),
        compared("... again, right after", "`python -c pass`", first),
        compared("... nothing to do", "`python -c pass`", null),
        compared("... one input edited, 4 stages run", "`python -c pass`", edit),
    ]


def plans(folder: Path, rounds: int) -> list[Row]:
    """Measure the first plan of a sweep of 72 cells, and of 300 cells over one ONNX model."""
    folder.mkdir()
    subprocess.run([sys.executable, "-c", _ONE_MODEL, str(folder / "model.onnx")], check=True)
    matrix = {"quant.samples": list(range(1, 101)), "precision": ["w8a8", "w8a16", "w16a16"]}
    (folder / "cells.json").write_text(json.dumps({"model": "model.onnx", "ep": "cpu", "matrix": matrix}))
    rows = []
    for what, recipe in (
        ("first plan of 300 cells of an ONNX model", ["cells.json"]),
        ("first plan of the 72 cells of `sweeps/devices`", ["catalog:sweeps/devices", "--random-weights"]),
    ):

        def plan(recipe: Sequence[str] = recipe) -> float:
            shutil.rmtree(folder / "cache", ignore_errors=True)
            return seconds_of([_PROGRAM, "plan", "-c", *recipe, "-o", "out"], folder)

        rows.append(compared(what, "`python -c pass`", in_turns(plan, lambda: seconds_of(_PYTHON, folder), rounds)))
    return rows


def files(folder: Path, rounds: int) -> list[Row]:
    """Measure hashing and restoring a file of 512 MiB."""
    folder.mkdir()
    big = folder / "big"
    with big.open("wb") as file:
        for _ in range(_BIG_MIB):
            file.write(os.urandom(MIB))
    hashed, stored = hashing(big, rounds), storing(big, folder, rounds)
    gigabytes = _BIG_MIB * MIB / 1e9
    speed, plain = hashed["gb_per_second"], hashed["plain_mmap_gb_per_second"]
    return [
        Row("hash 512 MiB", "xxhash over the mapped file", gigabytes / speed, gigabytes / plain, plain / speed),
        Row("restore 512 MiB", "`cp`", stored["restore_seconds"], stored["cp_seconds"], stored["restore_to_cp"]),
    ]


def miss(folder: Path, rounds: int) -> list[Row]:
    """Measure a small ResNet in w8a8 for QNN with an empty cache, beside a script with the same library calls."""
    folder.mkdir()
    recipe = folder / "resnet.json"
    recipe.write_text(json.dumps(RECIPES["small"]))
    steps = script_steps(folder, recipe)
    pairs = []
    for number in range(rounds):
        script = run_script(folder / f"script{number}", steps)
        pairs.append((run_build(folder / f"build{number}", recipe)[0], script))
    return [compared("small ResNet, w8a8 for QNN, empty cache", "script of the same calls", pairs)]


def measure(folder: Path) -> list[Row]:
    folder.mkdir(exist_ok=True)
    return [
        *commands(folder / "commands", 15),
        *stages(folder, 3),
        *plans(folder / "plans", 3),
        *files(folder / "files", 3),
        *miss(folder / "miss", 2),
    ]


def section(rows: Sequence[Row]) -> str:
    """Return the section of the page, with its heading."""
    head = ["what", "seconds", "beside it", "seconds", "ratio"]
    cells = [(row.what, f"{row.ours:.3f}", row.beside, f"{row.other:.3f}", f"{row.ratio:.2f}") for row in rows]
    return f"{HEADING}\n{table(head, cells)}\n\n"


def ratios(page: str) -> dict[str, float]:
    """Return the ratios in the section of *page*, by what they measure."""
    rows = re.findall(r"^\| (.+?) \|.*\| ([0-9.]+) \|$", kept_section(page, HEADING), re.MULTILINE)
    return {what: float(ratio) for what, ratio in rows}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--write", action="store_true", help="Into docs/benchmarks.md.")
    asked = parser.parse_args()
    before = ratios(PAGE.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory(prefix="winml-dag-bench-", dir=asked.folder) as name:
        rows = measure(Path(name))
    worse = 0
    for row in rows:
        old = before.get(row.what)
        mark = " slower" if old and row.ratio > old * _WORSE else ""
        worse += bool(mark)
        known = f"{old:6.2f}" if old else "     -"
        print(f"{row.what:50} {row.ours:8.3f} s {row.ratio:7.2f} x {row.beside:30} docs: {known}{mark}")
    if asked.write:
        publish(HEADING, section(rows), writes=True)
    print(f"{worse} of {len(rows)} are more than {_WORSE - 1:.0%} above docs/benchmarks.md.")


if __name__ == "__main__":
    main()
