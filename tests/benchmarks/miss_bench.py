"""The overhead of a build with nothing cached over a script that makes the same library calls.

``python miss_bench.py --folder DIR [--runs N] [--size SMALL|FULL]`` prints one JSON object. ResNet-50 with random
weights at 224 x 224, w8a8, compiled for QNN, is built with an empty cache. In alternation, a plain script calls the
functions of the same stages with the same settings, each in a separate process, on plain folders: no keys, no digests,
no store, nothing reusable.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from winml_dag.engine.inputs import place_source
from winml_dag.pipeline.plan_cache import plan_request
from winml_dag.pipeline.request import Overrides, Request
from winml_dag.store.store import Store

RECIPES = {
    "full": {
        "loader": {"model_type": "resnet", "task": "image-classification", "random_weights": {"seed": 0}},
        "export": {"input_tensors": [{"name": "pixel_values", "dtype": "float32", "shape": [1, 3, 224, 224]}]},
        "precision": "w8a8",
        "ep": "qnn",
        "validate": {"enabled": False},
        # The script would run every round of the search for capabilities, of which the build reuses all but the first.
        "auto": False,
    },
}
RECIPES["small"] = RECIPES["full"] | {
    "loader": {
        "model_type": "resnet",
        "task": "image-classification",
        "random_weights": {"config": {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1]}},
    },
    "export": {"input_tensors": [{"name": "pixel_values", "dtype": "float32", "shape": [1, 3, 32, 32]}]},
}

# What the script runs for each stage: the stage's own function, with folders where a build has copies.
_CALL = """
import json, os, sys
from pathlib import Path
from winml_dag.engine.stage import read_config
from winml_dag.engine.stage import Workspace
from winml_dag.engine.worker import load
work, config_class, config, inputs, outputs = json.loads(sys.argv[1])
workspace = Workspace({slot: Path(path) for slot, path in inputs.items()}, {s: Path(p) for s, p in outputs.items()})
load(work)(read_config(load(config_class), config), workspace)
os._exit(0)
"""


def script_steps(project: Path, recipe: Path) -> list[list[Any]]:
    """Return the script's calls: function, config class, config, folder by input slot, folder by output slot."""
    store = Store(project / "plan-cache")
    planned = plan_request(Request(recipe, Overrides(), project / "unused"), store, download=False)
    graph = planned.graph
    folders: dict[str, str] = {}
    for number, source in enumerate(graph.sources.values()):
        folder = project / f"source{number}"
        folder.mkdir()
        place_source(source, planned.sources[source.name], folder)
        folders[source.name] = str(folder)
    steps = []
    for node in graph.nodes:
        for slot in node.stage.outputs:
            folders[node.output(slot)] = f"../{node.id}/{slot}"
        steps.append(
            [
                node.id,
                node.stage.work,
                node.stage.config,
                node.config,
                {slot: folders[name] for slot, name in node.inputs.items()},
                {slot: folders[node.output(slot)] for slot in node.stage.outputs},
            ]
        )
    return steps


def run_script(folder: Path, steps: list[list[Any]]) -> float:
    """Return the seconds that the script takes in the empty *folder*."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment = {**inherited, "HF_HUB_OFFLINE": "1", "PYTHONHASHSEED": "0", "TOKENIZERS_PARALLELISM": "false"}
    began = time.perf_counter()
    for name, *call in steps:
        work = folder / "work"
        work.mkdir(parents=True)
        for path in call[-1].values():
            (work / path).resolve().mkdir(parents=True)
        with (folder / f"{name}.log").open("wb") as log:
            subprocess.run(
                [sys.executable, "-P", "-c", _CALL, json.dumps(call)],
                cwd=work, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=True,
            )  # fmt: skip
        shutil.rmtree(work)
    return time.perf_counter() - began


def run_build(folder: Path, recipe: Path) -> tuple[float, dict[str, float]]:
    """Return the seconds that ``winml-dag build`` takes with an empty cache, and those of each stage."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    arguments = ["build", "-c", str(recipe), "-o", str(folder / "out"), "--cache-dir", str(folder / "cache"), "-j", "1"]
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "winml_dag", *arguments, "--format", "json"],
        env=environment,
        stdout=subprocess.PIPE,
        check=True,
    )
    seconds = time.perf_counter() - began
    stages = json.loads(done.stdout)["builds"][0]["stages"]
    return seconds, {stage["id"]: stage["elapsed_seconds"] for stage in stages if stage["status"] == "ran"}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--size", choices=sorted(RECIPES), default="full")
    asked = parser.parse_args()
    project = asked.folder / "miss"
    shutil.rmtree(project, ignore_errors=True)
    project.mkdir(parents=True)
    recipe = project / "resnet50.json"
    recipe.write_text(json.dumps(RECIPES[asked.size]))
    steps = script_steps(project, recipe)
    script, build, stages = [], [], {}
    for number in range(asked.runs):
        # Alternate, and let each go first in every other round, so that a machine that slows down affects both.
        for kind in ("script", "build") if number % 2 == 0 else ("build", "script"):
            folder = project / f"{kind}-{number}"
            if kind == "script":
                script.append(run_script(folder, steps))
            else:
                seconds, stages = run_build(folder, recipe)
                build.append(seconds)
            shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(project)
    result = {
        "stages": [step[0] for step in steps],
        "script_seconds": [round(seconds, 3) for seconds in script],
        "build_seconds": [round(seconds, 3) for seconds in build],
        "stage_seconds": stages,
        "ratio": round(statistics.median(build) / statistics.median(script), 4),
        "ratios": [round(one / other, 4) for one, other in zip(build, script, strict=True)],
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
