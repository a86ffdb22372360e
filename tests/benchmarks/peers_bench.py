"""Compares winml-dag with other build tools: chains of four small stages, built from nothing, again, and after an edit.

``python peers_bench.py --folder DIR [--chains N] [--tools winml-dag,make,...] [--runs N]`` prints one JSON object. All
are complete processes, started as a user starts them, with two jobs where the tool has jobs. Outputs are compared with
the expected content.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from chains import edit_input, make_project, outputs_of

# The folder of programs installed with this Python.
_BESIDE = Path(sys.executable).parent


def _command(tool: str, tools_folder: Path) -> list[str]:
    match tool:
        case "winml-dag":
            return [str(_BESIDE / "winml-dag"), "build", "-c", "chains.yaml", "-j", "2", "-q"]
        case "make":
            return ["make", "-s", "-j2"]
        case "ninja":
            return [str(tools_folder / "ninja"), "-j2", "--quiet"]
        case "doit":
            return [str(tools_folder / "doit"), "-n", "2"]
        case "snakemake":
            return [str(tools_folder / "snakemake"), "-c2", "-q", "all"]
        case "dvc":
            return [str(tools_folder / "dvc"), "repro", "-q"]
    raise ValueError(tool)


def _environment(folder: Path, tools_folder: Path) -> dict[str, str]:
    # Keep compiled modules, as for every user. Otherwise Python compiles this package again for each process, but not
    # the other tools, which pip has compiled.
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {
        **inherited,
        "WINML_DAG_CACHE_DIR": str(folder.parent / f"{folder.name}-cache"),
        "PATH": f"{tools_folder}{os.pathsep}{os.environ['PATH']}",
        "DVC_NO_ANALYTICS": "1",
    }


def _seconds(command: list[str], folder: Path, environment: dict[str, str]) -> float:
    began = time.perf_counter()
    done = subprocess.run(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    seconds = time.perf_counter() - began
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout.decode()[-2000:]}")
    return seconds


def _several(runs: int, measure: Callable[[int], float]) -> dict[str, float]:
    found = [measure(number) for number in range(runs)]
    return {
        "median": round(statistics.median(found), 4),
        "min": round(min(found), 4),
        "max": round(max(found), 4),
    }


def bench(tool: str, chains: int, runs: int, folder: Path, tools_folder: Path) -> dict[str, object]:
    """Return the seconds of a full build, of the next one, of later ones with nothing to do, and of edits."""
    command, environment = _command(tool, tools_folder), _environment(folder, tools_folder)
    make_project(folder, tool, chains)
    if tool == "dvc":
        subprocess.run([str(tools_folder / "dvc"), "init", "--no-scm", "-q"], cwd=folder, env=environment, check=True)
    full = _seconds(command, folder, environment)
    wrong = [path.name for path, text in outputs_of(folder, chains) if path.read_bytes() != text]
    again = _seconds(command, folder, environment)

    def edited(number: int) -> float:
        edit_input(folder, number * 7 % chains)
        return _seconds(command, folder, environment)

    null = _several(runs, lambda _: _seconds(command, folder, environment))
    edit = _several(runs, edited)
    wrong += [path.name for path, text in outputs_of(folder, chains) if path.read_bytes() != text]
    return {
        "chains": chains,
        "full": round(full, 3),
        "again": round(again, 3),
        "null": null,
        "edit": edit,
        "wrong": wrong,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--chains", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--tools", default="winml-dag,make")
    parser.add_argument("--tools-folder", type=Path, default=_BESIDE)
    asked = parser.parse_args()
    # Removed after all measurements: for minutes after the removal of thousands of files, ext4 takes many times as long
    # to create new ones (it looks for inodes that were not deleted recently).
    with tempfile.TemporaryDirectory(dir=asked.folder) as name:
        result = {
            tool: bench(tool, asked.chains, asked.runs, Path(name) / tool, asked.tools_folder)
            for tool in asked.tools.split(",")
        }
        print(json.dumps(result))


if __name__ == "__main__":
    main()
