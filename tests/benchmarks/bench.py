"""``make bench``: measures the claims of the documentation, in comparison with other tools, and writes
``docs/benchmarks.md``.

``python bench.py --tools-folder DIR [--folder DIR] [--quick]``: *tools-folder* has the programs of the other build
tools. Each program is a complete process, each number a median of several runs, and each claim a ratio to something
measured in the same minutes. ``--quick`` measures less, as a trial run, and writes nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import ci_bench
import compile_bench
import precisions_bench
import quick_bench
import sweep_bench
from page import PAGE, kept_section, with_section
from tables import bytes_table, machine_table, memory_table, miss_table, peers_table

HERE = Path(__file__).resolve().parent
# With a thousand chains a single build with these takes five minutes to half an hour.
_FAST = "winml-dag,make,ninja,doit"
_SLOW = "winml-dag,snakemake"
_SLOWEST = "winml-dag,dvc"


def run_program(name: str, *arguments: str) -> Any:
    """Run one of the programs in this folder and return its JSON object."""
    command = [sys.executable, str(HERE / name), *arguments]
    print("running", " ".join(command[1:]), file=sys.stderr, flush=True)
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


def peers(folder: Path, tools_folder: str, chains: int, tools: str, runs: int) -> Any:
    return run_program(
        "peers_bench.py", "--folder", str(folder), "--chains", str(chains), "--runs", str(runs), "--tools", tools,
        "--tools-folder", tools_folder,
    )  # fmt: skip


def measure(folder: Path, tools_folder: str, *, quick: bool) -> dict[str, Any]:
    """Return all measurements, by the name of the table."""
    runs = 3 if quick else 9
    # The comparison with other tools comes first: peers_bench explains how removing many files slows down what follows.
    return {
        "quick": quick_bench.section(quick_bench.measure(folder / "quick")),
        "peers": peers(folder, tools_folder, 50 if quick else 1000, _FAST, runs),
        "slow_peers": peers(folder, tools_folder, 10 if quick else 100, _SLOW, 3),
        "slowest_peers": peers(folder, tools_folder, 10, _SLOWEST, 3),
        "large": peers(folder, tools_folder, 100 if quick else 10000, "winml-dag", 3),
        "bytes": run_program("bytes_bench.py", "--size-mib", "64" if quick else "2048", "--folder", str(folder)),
        "miss": run_program(
            "miss_bench.py", "--folder", str(folder), "--runs", "1" if quick else "3", "--size",
            "small" if quick else "full",
        ),
        "memory": run_program("memory_bench.py", "--folder", str(folder), *(["--quick"] if quick else [])),
    }  # fmt: skip


def machine(tools_folder: Path) -> dict[str, str]:
    """Return the machine and the versions used for the measurements."""
    named = {"system": f"{platform.system()} {platform.release()}, {platform.machine()}"}
    named["processors"] = f"{os.cpu_count()}, {_processor()}"
    named["Python"] = platform.python_version()
    packages = ("winml_dag", "torch", "transformers", "onnx", "onnxruntime", "onnxruntime-qnn", "xxhash", "click")
    named |= {name: version(name) for name in packages}
    for tool in ("make", "ninja", "doit", "snakemake", "dvc"):
        program = tools_folder / tool if (tools_folder / tool).exists() else Path(tool)
        shown = subprocess.run([str(program), "--version"], stdout=subprocess.PIPE, text=True, check=False).stdout
        named[tool] = next(iter(shown.splitlines()), "")
    return named


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def page(found: dict[str, Any], where: dict[str, str]) -> str:
    """Return the text of the page with its tables."""
    return _PAGE.format(
        day=date.today().isoformat(),
        quick=found["quick"],
        peers=peers_table(found["peers"]),
        slow_peers=peers_table(found["slow_peers"]),
        slowest_peers=peers_table(found["slowest_peers"]),
        large=peers_table(found["large"]),
        bytes=bytes_table(found["bytes"]),
        miss=miss_table(found["miss"]),
        memory=memory_table(found["memory"]),
        machine=machine_table(where),
    )


_PAGE = """# Benchmarks

Written by `make bench` on {day}. Every figure is the median of several whole processes, in seconds unless stated
otherwise. Compare ratios, which were measured within the same minutes, rather than absolute times.

{quick}## Chains of small stages

Every chain has four stages, and every stage copies 4 KiB and appends a line: `sh -c "(cat in; echo stage1) > out"`.
"full" is a build from scratch with two jobs, "again" the next one right after it, "null" a later build with nothing to
do, "edit" a build after one input changed, so that four stages run. 1000 chains, 4000 stages:

{peers}

100 chains, 400 stages, for tools that would take up to half an hour for more:

{slow_peers}

10 chains, 40 stages, for dvc, which takes seconds for each stage:

{slowest_peers}

10000 chains, 40000 stages:

{large}

The tools do not do the same. make and ninja compare times: they miss an edit that keeps the time, rebuild after a
`touch`, and restore nothing. doit, dvc and winml-dag compare contents; dvc and winml-dag also restore deleted outputs
and reuse older results. Only winml-dag includes a digest of the program, and of every file that a command names, in the
key.

## Hashing and copying

{bytes}

## Overhead of a full build

ResNet-50 with random weights, 224 x 224, w8a8, compiled for QNN, built with an empty cache, alternating with a script
that calls the same functions with the same settings in as many processes, on plain folders.

{miss}

## Memory

A BERT with 270.7 million parameters, 1.01 GiB in safetensors, for 128 tokens, in w8a8 on the CPU. The peak is resident
memory of the stage's process, including imports and pages of mapped files, which the system can reclaim.

{memory}

## Where it was measured

{machine}

## Measure it yourself

```sh
make bench
```

It installs the other tools into their own environment (`.venv-bench`), takes about a quarter of an hour, and writes
this page, except for the sections that `make bench-precisions`, `make bench-sweep`, `make bench-ci` and `make corpus`
write. The programs are in `tests/benchmarks/` and `tests/corpus/`. `make bench-quick` measures the first table alone,
in two minutes, and marks each ratio that is more than 15 % above the one on this page.
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tools-folder", type=Path, required=True)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--quick", action="store_true")
    asked = parser.parse_args()
    folder = asked.folder or Path(tempfile.mkdtemp(prefix="winml-dag-bench-"))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        found = measure(folder, str(asked.tools_folder), quick=asked.quick)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    text = page(found, machine(asked.tools_folder))
    if asked.quick:
        print(text)
    else:
        # Keep the sections that other benchmarks have written.
        before = PAGE.read_text(encoding="utf-8")
        for heading in (precisions_bench.HEADING, compile_bench.HEADING, sweep_bench.HEADING, ci_bench.HEADING):
            text = with_section(text, heading, kept_section(before, heading))
        PAGE.write_text(text, encoding="utf-8")
        print(f"Wrote {PAGE}.")


if __name__ == "__main__":
    main()
