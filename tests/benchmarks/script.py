"""What a build with nothing cached does, as a plain script: the same functions with the same settings, each in a
process of its own, on plain folders; no keys, no digests, no store, nothing that could be reused.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from winml_dag.engine.inputs import place_source
from winml_dag.pipeline.plan_cache import plan_request
from winml_dag.pipeline.request import Overrides, Request
from winml_dag.store.store import Store

# A stage's own function, with folders where a build has copies.
_CALL = """
import json, os, sys
from pathlib import Path
from winml_dag.engine.stage import Workspace, read_config
from winml_dag.engine.worker import load
work, config_class, config, inputs, outputs = json.loads(sys.argv[1])
workspace = Workspace({slot: Path(path) for slot, path in inputs.items()}, {s: Path(p) for s, p in outputs.items()})
load(work)(read_config(load(config_class), config), workspace)
os._exit(0)
"""


def script_steps(project: Path, recipe: Path) -> list[list[Any]]:
    """Return the script's calls: function, config class, config, folder by input slot, folder by output slot."""
    with closing(Store(project / "plan-cache")) as store:
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
