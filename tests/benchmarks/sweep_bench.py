"""``make bench-sweep``: a sweep as one graph, compared with separate builds of its cells and with caching whole builds.

``python sweep_bench.py [--recipe FILE] [--filter CHOICE]... [--folder DIR] [--write]``. Every build is a separate
process that starts with an empty cache. All use the same code, so that only the sharing differs:

- *one graph*: one call for all cells, with one cache;
- *one by one*: a call per cell, each with its own cache;
- *whole builds*: what a cache with one key per build over its whole config does. First all cells are built separately;
  with nothing changed none; after an edit every cell whose config changed is built completely.

It measures a first run, a second one with nothing changed, and one after an edit of ``quant.samples`` in one precision.
Wall time depends on other load of the machine; processor time and counts do not.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import yaml
from page import publish

ROOT = Path(__file__).resolve().parents[2]
HEADING = "## One graph for a sweep\n"
_RECIPE = ROOT / "recipes" / "sweeps" / "small.yaml"
_EDITED = "w8a8"
_PROGRAM = str(Path(sys.executable).parent / "winml-dag")


@dataclass(frozen=True)
class Cost:
    """The cost of building: wall and processor seconds, stages run, in total and by name, and bytes on disk."""

    wall: float = 0.0
    processor: float = 0.0
    stages: int = 0
    exports: int = 0
    stored: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(*(own + more for own, more in zip(vars(self).values(), vars(other).values(), strict=True)))


@dataclass(frozen=True)
class Found:
    """The cost of each way of building: first, with nothing changed, and after the edit."""

    cells: int
    edited: int
    one_graph: tuple[Cost, Cost, Cost]
    one_by_one: tuple[Cost, Cost, Cost]
    whole_builds: tuple[Cost, Cost, Cost]


class Bench:
    """A folder with a sweep that only builds, and the same sweep with one field edited."""

    def __init__(self, recipe: Path, filters: Sequence[str], folder: Path) -> None:
        self._folder = folder
        self._filters = [word for choice in filters for word in ("--filter", choice)]
        sweep = yaml.safe_load(recipe.read_text(encoding="utf-8"))
        for name in ("measure", "goal", "search"):
            sweep.pop(name, None)
        quant = {"samples": sweep.get("quant", {}).get("samples", 10) + 1}
        overrides = [*sweep.get("overrides", ()), {"when": {"precision": _EDITED}, "quant": quant}]
        self.sweep = self._write("sweep", sweep)
        self.edited = self._write("edited", {**sweep, "overrides": overrides})

    def measure(self) -> Found:
        cells = self._cells(self.sweep)
        edited = [name for name in cells if _EDITED in name.split("/")]
        graph = [self._build("graph", recipe, []) for recipe in (self.sweep, self.sweep, self.edited)]
        first = [self._build(f"alone-{place}", self.sweep, [name]) for place, name in enumerate(cells)]
        second = [self._build(f"alone-{place}", self.sweep, [name]) for place, name in enumerate(cells)]
        third = [
            self._build(f"alone-{place}", self.edited, [name]) for place, name in enumerate(cells) if name in edited
        ]
        wholly = [self._build(f"whole-{place}", self.edited, [name]) for place, name in enumerate(edited)]
        unedited = sum(self._stored(f"alone-{place}") for place, name in enumerate(cells) if name not in edited)
        kept = added(first).stored
        return Found(
            len(cells),
            len(edited),
            (graph[0], graph[1], graph[2]),
            (added(first), added(second), _with_stored(added(third), added(third).stored + unedited)),
            (added(first), Cost(stored=kept), _with_stored(added(wholly), added(wholly).stored + kept)),
        )

    def _write(self, name: str, sweep: dict[str, Any]) -> Path:
        path = self._folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(sweep, sort_keys=False), encoding="utf-8")
        return path

    def _cells(self, recipe: Path) -> list[str]:
        told = self._run("none", ["plan", "-c", str(recipe), *self._filters])
        return [build["name"] for build in told["builds"] if build.get("stages")]

    def _build(self, place: str, recipe: Path, names: Sequence[str]) -> Cost:
        """Build *recipe*, or only its cells with *names*, with the cache and output folder at *place*."""
        chosen = [word for name in names for word in ("--filter", name)] or self._filters
        began, spent = time.perf_counter(), processor_seconds()
        told = self._run(place, ["build", "-c", str(recipe), "-o", str(self._folder / place / "out"), *chosen])
        wall, processor = time.perf_counter() - began, processor_seconds() - spent
        assert not told["failed"], told["failed"]
        ran = [stage["stage"] for cell in told["cells"] for stage in cell["stages"] if stage["status"] == "ran"]
        print(f"{place}: {wall:.1f} s, {len(ran)} stages", file=sys.stderr, flush=True)
        return Cost(wall, processor, len(ran), ran.count("export"), self._stored(place))

    def _run(self, place: str, words: list[str]) -> Any:
        environment = {**os.environ, "WINML_DAG_CACHE_DIR": str(self._folder / place / "cache")}
        command = [_PROGRAM, *words, "--format", "json"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(command)}\n{done.stderr}{done.stdout[-2000:]}")
        return json.loads(done.stdout)

    def _stored(self, place: str) -> int:
        """Return the bytes of results in the cache at *place*."""
        blobs = self._folder / place / "cache" / "blobs"
        return sum(file.stat().st_size for file in blobs.rglob("*") if file.is_file())


def added(costs: Iterable[Cost]) -> Cost:
    return sum(costs, Cost())


def _with_stored(cost: Cost, stored: int) -> Cost:
    return Cost(cost.wall, cost.processor, cost.stages, cost.exports, stored)


def processor_seconds() -> float:
    """Return the processor seconds of all ended children and their descendants."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def section(found: Found, recipe: Path, filters: Sequence[str]) -> str:
    """Return the section of the benchmark page on *found*, with its heading."""
    named = recipe.relative_to(ROOT) if recipe.is_relative_to(ROOT) else recipe
    return _SECTION.format(
        heading=HEADING,
        measured=textwrap.fill(
            f"Written by `make bench-sweep` (`tests/benchmarks/sweep_bench.py`) on {date.today().isoformat()}, on "
            f"{os.cpu_count()} processors under {platform.system()}, {platform.machine()}, of `{named}`"
            f"{''.join(f' `--filter {choice}`' for choice in filters)}: {found.cells} cells, and {found.edited} of "
            "them read the field that is edited.",
            width=120,
            break_long_words=False,
            break_on_hyphens=False,
        ),
        precision=_EDITED,
        first=_table(found, 0),
        second=_table(found, 1),
        third=_table(found, 2),
    )


_SECTION = """{heading}
{measured}

"One graph" is one call with one cache. "One by one" is a call per cell, each with its own cache. "Whole builds" is a
cache with one key per build. All caches start empty. Compare processor times and counts, since other programs affect
wall time. "x" is relative to one graph.

First run:

{first}

Nothing changed:

{second}

`quant.samples` of {precision} edited:

{third}

"""

_COLUMNS = ("", "wall, s", "processor, s", "x", "stages run", "x", "exports run", "cache, MB", "x")


def _table(found: Found, run: int) -> str:
    ways = {"one graph": found.one_graph, "one by one": found.one_by_one, "whole builds": found.whole_builds}
    rows = [_cells(name, costs[run], found.one_graph[run]) for name, costs in ways.items()]
    lines = [_COLUMNS, ("---", *["---:"] * (len(_COLUMNS) - 1)), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cells(name: str, cost: Cost, ours: Cost) -> tuple[str, ...]:
    # Finding a key again was not timed.
    times = (f"{cost.wall:.1f}", f"{cost.processor:.1f}", _ratio(cost.processor, ours.processor))
    return (
        name,
        *(times if cost.wall else ("", "", "")),
        str(cost.stages),
        _ratio(cost.stages, ours.stages),
        str(cost.exports),
        f"{cost.stored / 1e6:.1f}",
        _ratio(cost.stored, ours.stored),
    )


def _ratio(value: float, base: float) -> str:
    return f"{value / base:.2f}" if base else ""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--recipe", type=Path, default=_RECIPE)
    parser.add_argument("--filter", dest="filters", action="append", default=[])
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--write", action="store_true", help="Into docs/benchmarks.md.")
    asked = parser.parse_args()
    folder = asked.folder or Path(tempfile.mkdtemp(prefix="winml-dag-bench-"))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        found = Bench(asked.recipe.resolve(), asked.filters, folder.resolve()).measure()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    text = section(found, asked.recipe.resolve(), asked.filters)
    publish(HEADING, text, writes=asked.write)


if __name__ == "__main__":
    main()
