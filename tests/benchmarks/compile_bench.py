"""Costs and results of compiling for QNN: partitions, CPU nodes, time, size, loading, quality, reproducible bytes.

``python compile_bench.py [--models minilm,resnet50] [--quick]`` writes its section of ``docs/benchmarks.md``;
``--quick`` measures less and prints it. Every model is built in w8a16. Its quantized model is then compiled again in
fresh processes, each in a separate folder and with another hash seed, at each optimization level, and for two text
lengths into one binary. Load times are measured in fresh processes, alternating between the quantized model (which QNN
compiles while loading) and the compiled one.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from page import publish
from precisions_bench import build, recipes
from tables import compile_table, levels_table, shared_table

HEADING = "## Compiling for QNN\n"
_LEVELS = (0, 1, 2, 3)
_LENGTHS = (64, 128)

# Loads a model for QNN once, with the options of its compilation, and prints the seconds of that alone.
_LOAD = """
import sys, time
from pathlib import Path
from winml_dag.ep.provider import complete_options
from winml_dag.ep.availability import resolve_target
from winml_dag.ep.session import register, session_options
import onnxruntime
target = resolve_target(sys.argv[2], None)
register(target.ep)
settings = session_options(target, complete_options(target, {}))
settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
began = time.perf_counter()
session = onnxruntime.InferenceSession(sys.argv[1], settings, enable_fallback=0)
print("seconds", time.perf_counter() - began)
"""


def load_seconds(model: Path, ep: str = "qnn") -> float:
    done = subprocess.run(
        [sys.executable, "-c", _LOAD, str(model), ep], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        check=True,
    )  # fmt: skip
    # QNN's own libraries print to stdout too.
    return float(next(line for line in done.stdout.splitlines() if line.startswith("seconds ")).split()[1])


def loading(output: Path, runs: int) -> dict[str, float]:
    """Return median load times, measured alternately."""
    quantized, compiled = output / "quantized.onnx", output / "model.onnx"
    found: dict[str, list[float]] = {"quantized": [], "compiled": []}
    for _ in range(runs):
        found["quantized"].append(load_seconds(quantized))
        found["compiled"].append(load_seconds(compiled))
    seconds = {name: round(statistics.median(all_of_it), 4) for name, all_of_it in found.items()}
    return {**seconds, "ratio": round(seconds["quantized"] / seconds["compiled"], 2)}


def compiled(models: Sequence[Path], folder: Path, *options: str, seed: int = 0) -> dict[str, Any]:
    """Return the metrics of a compilation in a separate process without cache, and the digests of its files."""
    folder.mkdir(parents=True)
    named = [argument for model in models for argument in ("-m", str(model.resolve()))]
    where = ["--output-dir", "out"] if len(models) > 1 else ["-o", "out/model.onnx"]
    command = [sys.executable, "-m", "winml_dag", "compile", *named, *where, "--ep", "qnn", "--no-validate"]
    done = subprocess.run(
        [*command, "--format", "json", "--cache-dir", "cache", *options],
        cwd=folder,
        env={**os.environ, "PYTHONHASHSEED": str(seed)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    metrics = next(stage for stage in json.loads(done.stdout)["stages"] if stage["stage"] == "compile")["metrics"]
    files = sorted((folder / "out").iterdir())
    digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    shutil.rmtree(folder)
    return {**metrics, "digests": digests}


def levels(model: Path, folder: Path, rounds: int) -> dict[str, dict[str, float]]:
    """Return bytes and seconds at each optimization level, the median of *rounds* alternating runs."""
    found: dict[int, list[dict[str, Any]]] = {level: [] for level in _LEVELS}
    for _ in range(rounds):
        for level, runs in found.items():
            runs.append(compiled([model], folder / "level", "--htp-optimization-level", str(level)))
    return {
        str(level): {
            "seconds": round(statistics.median(one["compile_time_seconds"] for one in runs), 2),
            "bytes": runs[0]["binary_size_bytes"],
        }
        for level, runs in found.items()
    }


def one_model(name: str, recipe: dict[str, Any], folder: Path, *, runs: int) -> dict[str, Any]:
    output = folder / name
    path = folder / f"{name}.json"
    path.write_text(json.dumps(recipe))
    manifest, _ = build(path, output, folder / "cache", "--ep", "qnn", "-p", "w8a16", "--compile")
    if "error" in manifest:
        raise RuntimeError(manifest["error"])
    stage = next(stage for stage in manifest["stages"] if stage["name"] == "compile")
    again = [compiled([output / "quantized.onnx"], folder / f"run{seed}", seed=seed) for seed in range(runs)]
    first = again[0]
    return {
        "partitions": stage["ep_context_partitions"],
        "nodes_on_cpu": stage["nodes_on_cpu"],
        "binary_bytes": stage["binary_size_bytes"],
        "sdk": stage["ep_sdk_version"],
        "compile_seconds": round(statistics.median(one["compile_time_seconds"] for one in again), 2),
        "processes": runs,
        "distinct_outputs": len({json.dumps(one["digests"], sort_keys=True) for one in again}),
        "same_as_build": sorted(first["digests"].values())
        == sorted(hashlib.sha256((output / file).read_bytes()).hexdigest() for file in ("model.onnx", "model_qnn.bin")),
        "loading": loading(output, 3 if runs < 10 else 5),
        "quality": manifest.get("quality"),
        "levels": levels(output / "quantized.onnx", folder, 1 if runs < 10 else 3),
    }


def shared(recipe: dict[str, Any], folder: Path, *, runs: int) -> dict[str, Any]:
    """Compile one text model in two lengths, separately and into one binary."""
    models = []
    for length in _LENGTHS:
        names = ("input_ids", "attention_mask", "token_type_ids")
        tensors = [{"name": name, "dtype": "int32", "shape": [1, length]} for name in names]
        path = folder / f"length{length}.json"
        path.write_text(json.dumps({**recipe, "export": {"input_tensors": tensors}, "validate": {"enabled": False}}))
        output = folder / f"length{length}"
        manifest, _ = build(path, output, folder / "cache", "--ep", "qnn", "-p", "w8a16", "--no-compile")
        if "error" in manifest:
            raise RuntimeError(manifest["error"])
        models.append((output / "quantized.onnx").rename(folder / f"length{length}.onnx"))
    alone = [compiled([model], folder / "alone")["binary_size_bytes"] for model in models]
    together = [compiled(models, folder / f"together{seed}", seed=seed) for seed in range(runs)]
    size = together[0]["binary_size_bytes"]
    return {
        "lengths": list(_LENGTHS),
        "alone_bytes": alone,
        "together_bytes": size,
        "ratio": round(size / sum(alone), 3),
        "distinct_outputs": len({json.dumps(one["digests"], sort_keys=True) for one in together}),
        "processes": runs,
    }


_SECTION = """## Compiling for QNN

w8a16 for the NPU of a Snapdragon X Elite. "load raw" is a session of the quantized model, which QNN compiles while it
loads; both loads are medians of fresh processes, alternating. Times are of this machine, not of an NPU; the ratio is
what compiling ahead of time saves here. The cosine is to the float model, on QNN's emulated NPU. "different outputs"
counts distinct outputs of that many processes, each in another folder and with another hash seed: 1 means all equal.

{compiled}

Optimization levels (`compile.htp_optimization_level`), medians of three, alternating:

{levels}

all-MiniLM-L6-v2 for 64 and for 128 tokens:

{shared}

"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", default="minilm,resnet50")
    parser.add_argument("--quick", action="store_true")
    asked = parser.parse_args()
    runs = 2 if asked.quick else 10
    models, both = {}, ""
    with tempfile.TemporaryDirectory(prefix="winml-dag-bench-") as name_of_folder:
        folder = Path(name_of_folder).resolve()
        known = recipes(folder, asked.models.split(","))
        for name, recipe in known.items():
            models[name] = one = one_model(name, recipe, folder, runs=runs)
            print(name, json.dumps(one), file=sys.stderr, flush=True)
        if "minilm" in known:
            both = shared_table(shared(known["minilm"], folder, runs=min(runs, 3)))
    section = _SECTION.format(compiled=compile_table(models), levels=levels_table(models), shared=both)
    publish(HEADING, section, writes=not asked.quick)


if __name__ == "__main__":
    main()
