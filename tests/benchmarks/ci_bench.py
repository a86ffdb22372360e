"""``make bench-ci``: the work of a fresh CI machine for a sweep, with and without the results of others.

``python ci_bench.py [--recipe FILE] [--keep CHOICE]... [--folder DIR] [--write]``. Each row is a machine with an empty
cache, a separate process per command, and nginx as the remote, as in the documentation:

- *cold*: nothing is cached; all stages run and upload their results to the remote;
- *warm, all blobs*: ``cache pull --all-blobs`` and a build: everything that the cold machine had, including
  intermediates;
- *warm, the folders*: a build; it fetches only the intermediates in output folders;
- *warm, minimal*: a build with ``--final-only``: records and final outputs, nothing else. This is asserted against the
  contents of the folders;
- *no remote*: a cold machine without a remote, which shows the cost of one.

Bytes, requests and processor time are the relevant columns. nginx is on the same machine: a network without limits.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import yaml
from page import publish
from sweep_bench import processor_seconds

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests"))
HEADING = "## A fresh machine of CI\n"
_RECIPE = ROOT / "recipes" / "sweeps" / "small.yaml"
_PROGRAM = str(Path(sys.executable).parent / "winml-dag")
# Files that a build writes itself, not a stage.
_OWN = ("build_manifest.json", "winml_build_config.json", "sweep.json")


@dataclass(frozen=True)
class Found:
    """The work of one machine: number of stages run, wall and processor seconds, and traffic with the remote."""

    stages: int
    wall: float
    processor: float
    traffic: Mapping[str, int]


def _name(value: Any) -> str:
    """Return the name of a value of an axis."""
    return str(value["name"] if isinstance(value, dict) else value)


class Bench:
    """A folder with a sweep that only builds, and the machines in it."""

    def __init__(self, recipe: Path, choices: Sequence[str], folder: Path, url: str) -> None:
        self._folder, self._url = folder, url
        sweep = yaml.safe_load(recipe.read_text(encoding="utf-8"))
        for choice in choices:
            axis, _, names = choice.partition("=")
            sweep["matrix"][axis] = [each for each in sweep["matrix"][axis] if _name(each) in names.split(",")]
        for name in ("measure", "goal", "search"):
            sweep.pop(name, None)
        self._sweep = folder / "sweep.yaml"
        self._sweep.write_text(yaml.safe_dump(sweep, sort_keys=False), encoding="utf-8")

    def measure(self) -> dict[str, Found]:
        """Return the measurements by name of the row."""
        found = {"no remote": self._build("alone", url=""), "cold": self._build("cold")}
        found["warm, all blobs"] = self._pull_and_build("blobs")
        found["warm, the folders"] = self._build("folders")
        found["warm, minimal"] = self._build("minimal", "--final-only")
        self._assert_minimal(found["warm, minimal"])
        return found

    def _assert_minimal(self, found: Found) -> None:
        """Assert that the machine received exactly the files in its folders and records."""
        files = [path for path in (self._folder / "minimal" / "out").rglob("*.*") if path.name not in _OWN]
        outputs = {hashlib.sha256(path.read_bytes()).digest(): path.stat().st_size for path in files}
        traffic = found.traffic
        assert found.stages == 0, found
        assert (traffic["blobs_fetched"], traffic["bytes_fetched"]) == (len(outputs), sum(outputs.values())), found
        assert traffic["blobs_put"] == traffic["records_put"] == traffic["records_missed"] == 0, found

    def _build(self, machine: str, *options: str, url: str | None = None) -> Found:
        out = str(self._folder / machine / "out")
        words = ["build", "-c", str(self._sweep), "-o", out, *options]
        began, spent = time.perf_counter(), processor_seconds()
        told = self._run(machine, words, self._url if url is None else url)
        wall, processor = time.perf_counter() - began, processor_seconds() - spent
        assert not told["failed"], told["failed"]
        ran = {stage["cache_key"] for cell in told["cells"] for stage in cell["stages"] if stage["status"] == "ran"}
        print(f"{machine}: {wall:.1f} s, {len(ran)} stages", file=sys.stderr, flush=True)
        return Found(len(ran), wall, processor, told.get("remote", {}))

    def _pull_and_build(self, machine: str) -> Found:
        began, spent = time.perf_counter(), processor_seconds()
        pulled = self._run(machine, ["cache", "pull", "-c", str(self._sweep), "--all-blobs"], self._url)
        wall, processor = time.perf_counter() - began, processor_seconds() - spent
        built = self._build(machine)
        first, then = pulled["remote"], built.traffic
        traffic = {name: first[name] + then[name] for name in first}
        return Found(built.stages, wall + built.wall, processor + built.processor, traffic)

    def _run(self, machine: str, words: list[str], url: str) -> Any:
        remote = {
            "WINML_DAG_REMOTE": url,
            "WINML_DAG_REMOTE_MODE": "read-write",
            "WINML_DAG_REMOTE_NAMESPACE": "main",
            "WINML_DAG_REMOTE_KEYS": f"bench:{'A' * 43}=",
        }
        environment = {**os.environ, "WINML_DAG_CACHE_DIR": str(self._folder / machine / "cache"), **remote}
        command = [_PROGRAM, *words, "--format", "json"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(command)}\n{done.stderr}{done.stdout[-2000:]}")
        return json.loads(done.stdout)


def section(found: Mapping[str, Found], recipe: Path, choices: Sequence[str]) -> str:
    """Return the section of the benchmark page on *found*, with its heading."""
    named = recipe.relative_to(ROOT) if recipe.is_relative_to(ROOT) else recipe
    measured = (
        f"Written by `make bench-ci` (`tests/benchmarks/ci_bench.py`) on {date.today().isoformat()}, on "
        f"{os.cpu_count()} processors under {platform.system()}, {platform.machine()}, of `{named}`"
        f"{', with '.join(['', *(f'`{choice}`' for choice in choices)])}."
    )
    return _SECTION.format(
        heading=HEADING,
        measured=textwrap.fill(measured, width=120, break_long_words=False, break_on_hyphens=False),
        table=_table(found),
    )


_SECTION = """{heading}
{measured}

Every row is a machine with an empty cache and nginx as its remote. "Cold": the remote is empty, and results are
uploaded. "All blobs": `cache pull --all-blobs`, then a build. "The folders": a build with intermediate models in its
output folders. "Minimal": a build with `--final-only`; a check by digest asserts that it transfers only records and
final outputs. nginx runs on the same machine, and its processor time is not counted. "x" is processor time relative to
the cold machine.

{table}

"""

_COLUMNS = (
    "",
    "stages run",
    "requests",
    "records",
    "blobs",
    "fetched, MB",
    "put, MB",
    "records, MB",
    "wall, s",
    "processor, s",
    "x",
)


def _table(found: Mapping[str, Found]) -> str:
    base = found["cold"].processor
    rows = [
        (
            name,
            str(each.stages),
            *(str(each.traffic.get(column, 0)) for column in ("requests", "records_found", "blobs_fetched")),
            *(f"{each.traffic.get(column, 0) / 1e6:.2f}" for column in ("bytes_fetched", "bytes_put", "record_bytes")),
            f"{each.wall:.1f}",
            f"{each.processor:.1f}",
            f"{each.processor / base:.2f}",
        )
        for name, each in found.items()
    ]
    lines = [_COLUMNS, ("---", *["---:"] * (len(_COLUMNS) - 1)), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    from servers.nginx import nginx_server

    parser = argparse.ArgumentParser()
    parser.add_argument("--recipe", type=Path, default=_RECIPE)
    parser.add_argument("--keep", dest="choices", metavar="AXIS=NAMES", action="append", default=[])
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--write", action="store_true", help="Into docs/benchmarks.md.")
    asked = parser.parse_args()
    folder = (asked.folder or Path(tempfile.mkdtemp(prefix="winml-dag-bench-"))).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with nginx_server(folder / "nginx") as server:
            found = Bench(asked.recipe.resolve(), asked.choices, folder, server.url).measure()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    text = section(found, asked.recipe.resolve(), asked.choices)
    publish(HEADING, text, writes=asked.write)


if __name__ == "__main__":
    main()
