"""Recorded durations, inputs and outputs of each stage of a real sweep, the basis of simulations.

``python recorded.py`` runs `recipes/sweeps/small.yaml` once, one stage at a time, with an empty cache, and writes
``recorded.json`` next to this file.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[3]
RECIPE = ROOT / "recipes" / "sweeps" / "small.yaml"
FILE = Path(__file__).with_name("recorded.json")


@dataclass(frozen=True)
class File:
    """An output file. ``copied``: the input slot and index of the file that it equals."""

    size: int
    copied: tuple[str, int] | None = None


@dataclass(frozen=True)
class Ran:
    """One run: ``seconds`` of work; bytes of its record and its log; the files of each slot, ordered by name."""

    seconds: float
    record_bytes: int
    log_bytes: int
    outputs: Mapping[str, tuple[File, ...]]


@dataclass(frozen=True)
class Recorded:
    """``cells``: by cell name and node id, the index in ``runs``."""

    runs: tuple[Ran, ...]
    cells: Mapping[str, Mapping[str, int]]

    def of(self, cell: str, node_id: str) -> Ran:
        """Return the run of a node. A missing further round of optimize or analyze gets the run of the first."""
        runs = self.cells[cell]
        return self.runs[runs[node_id] if node_id in runs else runs[f"{node_id.partition('.')[0]}.0"]]

    def with_stage(self, stage: str) -> list[Ran]:
        """Return all runs of *stage*, each once."""
        found = {
            run for cell in self.cells.values() for node_id, run in cell.items() if node_id.partition(".")[0] == stage
        }
        return [self.runs[run] for run in sorted(found)]


def only_builds(recipe: Path = RECIPE) -> dict[str, Any]:
    """Return the sweep in *recipe* without measurements and goals."""
    sweep: dict[str, Any] = yaml.safe_load(recipe.read_text(encoding="utf-8"))
    return {name: value for name, value in sweep.items() if name not in ("measure", "goal", "search")}


@lru_cache
def recorded() -> Recorded:
    told = json.loads(FILE.read_text(encoding="utf-8"))
    runs = tuple(
        Ran(
            run["seconds"],
            run["record"],
            run["log"],
            {slot: tuple(map(_file, run["outputs"][slot])) for slot in run["outputs"]},
        )
        for run in told["runs"]
    )
    return Recorded(runs, told["cells"])


def _file(told: list[Any]) -> File:
    return File(told[0], (told[1], told[2]) if len(told) > 1 else None)


def record(folder: Path) -> dict[str, Any]:
    recipe = folder / "sweep.yaml"
    recipe.write_text(yaml.safe_dump(only_builds(), sort_keys=False), encoding="utf-8")
    environment = {**os.environ, "WINML_DAG_CACHE_DIR": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "winml_dag", "build", "-c", str(recipe), "-o", str(folder / "out"), "-j", "1"]
    done = subprocess.run([*command, "--format", "json"], env=environment, capture_output=True, text=True, check=True)
    return summed_up(json.loads(done.stdout), folder / "cache")


def summed_up(told: Mapping[str, Any], cache: Path) -> dict[str, Any]:
    """Summarize the runs in *told*, the JSON of a build with *cache*, with the data in the cache."""
    places: dict[str, int] = {}
    runs: list[dict[str, Any]] = []
    cells: dict[str, dict[str, int]] = {}
    for cell in told["cells"]:
        cells[cell["name"]] = own = {}
        for stage in cell["stages"]:
            if (key := stage["cache_key"]) is None:
                continue
            if key not in places:
                places[key] = len(runs)
                runs.append(_run(cache / "records" / key[:2] / f"{key[2:]}.json"))
            own[stage["id"]] = places[key]
    return {"runs": runs, "cells": cells}


def _run(path: Path) -> dict[str, Any]:
    record = json.loads(path.read_text(encoding="utf-8"))[1]
    read = {
        file["digest"]: (slot, place)
        for slot, files in record["input_files"].items()
        for place, file in enumerate(files)
    }
    outputs = {
        slot: [[file["size"], *read.get(file["digest"], ())] for file in files]
        for slot, files in record["outputs"].items()
    }
    log = record["log"]
    return {
        "seconds": record["elapsed_seconds"],
        "record": path.stat().st_size,
        "log": 0 if log is None else log["size"],
        "outputs": outputs,
    }


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = record(Path(folder))
    lines = ",\n".join(json.dumps(run, separators=(",", ":")) for run in found["runs"])
    cells = ",\n".join(
        f"{json.dumps(name)}:{json.dumps(cell, separators=(',', ':'))}" for name, cell in found["cells"].items()
    )
    FILE.write_text(f'{{"runs":[\n{lines}\n],\n"cells":{{\n{cells}\n}}}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
