"""``make bench-sweep`` and ``make bench-ci``: a sweep as one graph, and on fresh machines with a remote.

``sweep_bench.py sweep`` compares one graph with a build per cell, each with its own cache, and with what a cache with
one key per whole build would do: at first, with nothing changed, and after an edit of ``quant.samples`` in one
precision. ``sweep_bench.py ci`` builds on machines with empty caches, with nginx as the remote. Wall time depends on
other load of the machine; processor time, counts and bytes do not. ``--smoke`` takes two cells and writes nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any

import yaml
from page import publish, table, where

ROOT = Path(__file__).resolve().parents[2]
_EDITED = "w8a8"
# Files that a build writes itself, not a stage.
_OWN = ("build_manifest.json", "winml_build_config.json", "sweep.json")


@dataclass(frozen=True)
class Cost:
    """Wall and processor seconds, stages and exports that ran, bytes in the cache, traffic with the remote."""

    wall: float = 0.0
    processor: float = 0.0
    stages: int = 0
    exports: int = 0
    stored: int = 0
    traffic: Mapping[str, int] = field(default_factory=dict)


def added(costs: Iterable[Cost], kept: int = 0) -> Cost:
    """Return the sum of *costs*, with *kept* more bytes in caches."""
    columns = [sum(column) for column in zip(*(astuple(cost)[:5] for cost in costs), strict=True)]
    return Cost(*columns[:4], columns[4] + kept)


class Bench:
    """A folder with `sweeps/small`, of *keep* alone, that only builds, and the same with one field edited."""

    def __init__(self, folder: Path, keep: Mapping[str, Sequence[str]], remote: str = "") -> None:
        self._folder, self._remote = folder, remote
        sweep = yaml.safe_load((ROOT / "recipes" / "sweeps" / "small.yaml").read_text(encoding="utf-8"))
        sweep = {name: value for name, value in sweep.items() if name not in ("measure", "goal", "search")}
        for axis, names in keep.items():
            values = sweep["matrix"][axis]
            sweep["matrix"][axis] = [
                each for each in values if (each["name"] if isinstance(each, dict) else each) in names
            ]
        edit = {"when": {"precision": _EDITED}, "quant": {"samples": sweep.get("quant", {}).get("samples", 10) + 1}}
        self.sweep, self.edited = folder / "sweep.yaml", folder / "edited.yaml"
        self.sweep.write_text(yaml.safe_dump(sweep, sort_keys=False), encoding="utf-8")
        edited = {**sweep, "overrides": [*sweep.get("overrides", ()), edit]}
        self.edited.write_text(yaml.safe_dump(edited, sort_keys=False), encoding="utf-8")

    def cells(self) -> list[str]:
        planned, _ = self._run("none", ["plan", "-c", str(self.sweep)])
        return [build["name"] for build in planned["builds"] if build.get("stages")]

    def build(self, machine: str, recipe: Path, *options: str, cell: str = "", remote: bool = True) -> Cost:
        """Build *recipe*, or only its *cell*, with the cache and the output folder of *machine*."""
        out = str(self._folder / machine / "out")
        chosen = ["--filter", cell] if cell else []
        told, cost = self._run(machine, ["build", "-c", str(recipe), "-o", out, *options, *chosen], remote=remote)
        assert not told["failed"], told["failed"]
        stages = [stage for cell in told["cells"] for stage in cell["stages"] if stage["status"] == "ran"]
        ran = {stage["cache_key"]: stage["stage"] for stage in stages}
        print(f"{machine}: {cost.wall:.1f} s, {len(ran)} stages", file=sys.stderr, flush=True)
        exports, stored = [*ran.values()].count("export"), self.stored(machine)
        return Cost(cost.wall, cost.processor, len(ran), exports, stored, told.get("remote", {}))

    def pull_and_build(self, machine: str) -> Cost:
        words = ["cache", "pull", "-c", str(self.sweep), "--all-blobs"]
        told, pulled = self._run(machine, words)
        built = self.build(machine, self.sweep)
        traffic = {name: count + built.traffic[name] for name, count in told["remote"].items()}
        both = added((pulled, built))
        return Cost(both.wall, both.processor, both.stages, both.exports, both.stored, traffic)

    def outputs(self, machine: str) -> dict[bytes, int]:
        """Return the digest and size of each file that a stage wrote into the output folder of *machine*."""
        files = [path for path in (self._folder / machine / "out").rglob("*.*") if path.name not in _OWN]
        return {hashlib.sha256(path.read_bytes()).digest(): path.stat().st_size for path in files}

    def stored(self, machine: str) -> int:
        """Return the bytes of results in the cache of *machine*."""
        caches = [self._folder / machine / "cache" / part / "blobs" for part in ("", "sha256")]
        return sum(file.stat().st_size for blobs in caches for file in blobs.rglob("*") if file.is_file())

    def _run(self, machine: str, words: list[str], *, remote: bool = True) -> tuple[Any, Cost]:
        names = ("REMOTE", "REMOTE_MODE", "REMOTE_NAMESPACE", "REMOTE_KEYS")
        values = (self._remote if remote else "", "read-write", "main", f"bench:{'A' * 43}=")
        environment = os.environ | {f"WINML_DAG_{name}": value for name, value in zip(names, values, strict=True)}
        environment["WINML_DAG_CACHE_DIR"] = str(self._folder / machine / "cache")
        command = [str(Path(sys.executable).parent / "winml-dag"), *words, "--format", "json"]
        began, spent = time.perf_counter(), processor_seconds()
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        cost = Cost(time.perf_counter() - began, processor_seconds() - spent)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}\n{done.stderr}{done.stdout[-2000:]}")
        return json.loads(done.stdout), cost


def processor_seconds() -> float:
    """Return the processor seconds of all ended children and their descendants."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def sweep_tables(bench: Bench) -> dict[str, str]:
    cells = bench.cells()
    edited = [name for name in cells if _EDITED in name.split("/")]
    graph = [bench.build("graph", recipe) for recipe in (bench.sweep, bench.sweep, bench.edited)]

    def each(prefix: str, recipe: Path, names: Sequence[str]) -> Cost:
        return added(bench.build(f"{prefix}-{cells.index(name)}", recipe, cell=name) for name in names)

    first, second = each("alone", bench.sweep, cells), each("alone", bench.sweep, cells)
    unedited = sum(bench.stored(f"alone-{place}") for place, name in enumerate(cells) if name not in edited)
    third, whole = each("alone", bench.edited, edited), each("whole", bench.edited, edited)
    third, whole = added([third], unedited), added([whole], first.stored)
    # Finding a whole build again was not timed.
    ways = {
        "one graph": graph,
        "one by one": [first, second, third],
        "whole builds": [first, Cost(stored=first.stored), whole],
    }
    head = ["", "wall, s", "processor, s", "x", "stages run", "x", "exports run", "cache, MB", "x"]

    def row(name: str, cost: Cost, ours: Cost) -> list[object]:
        times = (f"{cost.wall:.1f}", f"{cost.processor:.1f}", _ratio(cost.processor, ours.processor))
        stages, stored = _ratio(cost.stages, ours.stages), _ratio(cost.stored, ours.stored)
        megabytes = f"{cost.stored / 1e6:.1f}"
        return [name, *(times if cost.wall else [None] * 3), cost.stages, stages, cost.exports, megabytes, stored]

    names = ("sweep at first", "sweep unchanged", "sweep edited")
    tables = [table(head, [row(way, costs[run], graph[run]) for way, costs in ways.items()]) for run in range(3)]
    return dict(zip(names, [f"{where()}\n\n{tables[0]}", *tables[1:]], strict=True))


def ci_table(bench: Bench) -> dict[str, str]:
    found = {
        "no remote": bench.build("alone", bench.sweep, remote=False),
        "cold": bench.build("cold", bench.sweep),
        "warm, all blobs": bench.pull_and_build("blobs"),
        "warm, the folders": bench.build("folders", bench.sweep),
        "warm, minimal": bench.build("minimal", bench.sweep, "--final-only"),
    }
    minimal, outputs = found["warm, minimal"], bench.outputs("minimal")
    traffic = minimal.traffic
    assert minimal.stages == 0, minimal
    assert (traffic["blobs_fetched"], traffic["bytes_fetched"]) == (len(outputs), sum(outputs.values())), minimal
    assert traffic["blobs_put"] == traffic["records_put"] == traffic["records_missed"] == 0, minimal
    counts = {"requests": "requests", "records": "records_found", "blobs": "blobs_fetched"}
    sizes = {"fetched, MB": "bytes_fetched", "put, MB": "bytes_put", "records, MB": "record_bytes"}
    rows = [
        [
            name,
            each.stages,
            *(each.traffic.get(column, 0) for column in counts.values()),
            *(f"{each.traffic.get(column, 0) / 1e6:.2f}" for column in sizes.values()),
            f"{each.wall:.1f}",
            f"{each.processor:.1f}",
            _ratio(each.processor, found["cold"].processor),
        ]
        for name, each in found.items()
    ]
    columns = table(["", "stages run", *counts, *sizes, "wall, s", "processor, s", "x"], rows)
    return {"ci": f"{where()}\n\n{columns}"}


def _ratio(value: float, base: float) -> str | None:
    return f"{value / base:.2f}" if base else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["sweep", "ci"])
    parser.add_argument("--smoke", action="store_true")
    asked = parser.parse_args()
    keep: dict[str, Sequence[str]] = {}
    if asked.smoke:
        keep = {"precision": ("fp32", "w8a8"), "model": ("bert",), "target": ("cpu",)}
    elif asked.what == "sweep":
        keep = {"precision": ("fp32", "w8a8", "w8a16")}
    with tempfile.TemporaryDirectory(prefix="winml-dag-bench-") as name:
        folder = Path(name).resolve()
        if asked.what == "sweep":
            texts = sweep_tables(Bench(folder, keep))
        else:
            sys.path.append(str(ROOT / "tests"))
            from servers.nginx import nginx_server

            with nginx_server(folder / "nginx") as server:
                texts = ci_table(Bench(folder, keep, server.url))
    publish(texts, writes=not asked.smoke)


if __name__ == "__main__":
    main()
