"""Interfaces that scripts rely on: the form of every command's JSON, and the inputs of keys. A change shows in a diff.

``python tests/golden/test_golden.py`` regenerates the files.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import onnx
import pytest
from oneprocess import OneProcess
from onnx import TensorProto, helper, numpy_helper

from winml_dag.canonical import json_hash
from winml_dag.pipeline.plan_cache import plan_request
from winml_dag.pipeline.request import Overrides, Request
from winml_dag.recipe.load import shipped_recipes
from winml_dag.store.store import Store

HERE = Path(__file__).parent
TARGETS = {
    "cpu fp32": Overrides(ep="cpu", precision="fp32", random_weights=True),
    "cpu w8a8": Overrides(ep="cpu", precision="w8a8", random_weights=True),
    "qnn w8a16": Overrides(ep="qnn", precision="w8a16", compile=True, random_weights=True),
}
COPY = "import shutil, sys; shutil.copyfile(*sys.argv[1:])"
RECIPE = {
    "stages": {
        "copy": {
            "command": [sys.executable, "-c", COPY, "{inputs.i}", "{outputs.o}"],
            "inputs": {"i": "notes.txt"},
            "outputs": {"o": "made/notes.txt"},
        }
    }
}
# Run in this order, in one folder.
COMMANDS = (
    "plan --onnx small.onnx --ep cpu -p w8a8 -o out",
    "build --onnx small.onnx --ep cpu -p w8a8 -o out",
    "build -c own.json",
    "build -c missing.json",
    "why --onnx small.onnx --ep cpu -p w8a8 -o out quantize",
    "inspect out",
    "verify out",
    "analyze small.onnx --ep cpu",
    "validate out",
    "perf out --iterations 2 --warmup 0",
    "optimize -m small.onnx -o optimized.onnx",
    "config --onnx small.onnx --ep cpu -p w8a8",
    "build -c sweep.json -o swept",
    "report swept",
    "reproduce --onnx small.onnx --ep cpu -p w8a8 -o out",
    "catalog",
    "cache info",
    "cache list",
    "cache verify",
    "clean -o out",
)


def stages(_: OneProcess) -> object:
    """Return the hash of each stage's config, without tool versions, for each shipped recipe and target."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder))
        found = {
            f"{shipped.name} {name}": _stages(Request(shipped.path, overrides), store)
            for shipped in shipped_recipes()
            for name, overrides in TARGETS.items()
        }
        store.close()
    return found


def _stages(request: Request, store: Store) -> dict[str, str]:
    graph = plan_request(request, store, download=False, needs_folder=False).graph
    return {node.id: f"{node.stage.version} {json_hash(node.config)[:16]}" for node in graph.nodes}


def forms(commands: OneProcess) -> object:
    """Return exit code and form of the JSON by command: names and types; for a list, those of all its members."""
    found = {}
    with tempfile.TemporaryDirectory() as name:
        folder, environment = Path(name), {**os.environ, "WINML_DAG_CACHE_DIR": f"{name}/cache"}
        _small_model(folder / "small.onnx")
        (folder / "notes.txt").write_text("notes", encoding="utf-8")
        (folder / "own.json").write_text(json.dumps(RECIPE), encoding="utf-8")
        sweep = {"model": "small.onnx", "ep": "cpu", "matrix": {"precision": ["fp32", "w8a8"]}}
        (folder / "sweep.json").write_text(json.dumps(sweep), encoding="utf-8")
        for command in COMMANDS:
            arguments = command.split()
            form = [] if arguments[0] in {"config", "clean"} else ["--format", "json"]
            said = commands.run([*arguments, *form], folder, environment)
            is_json = said.out.startswith(("{", "["))
            value = json.loads(said.out) if is_json else said.messages if said.code else said.out
            found[command] = {"exit": said.code, "json": form_of(value)}
        manifest = folder / "swept" / "w8a8" / "build_manifest.json"
        found["build_manifest.json"] = form_of(json.loads(manifest.read_text(encoding="utf-8")))
    return found


def form_of(value: object) -> object:
    if isinstance(value, dict):
        return {key: form_of(each) for key, each in sorted(value.items())}
    if isinstance(value, list):
        distinct = {json.dumps(form_of(each)): form_of(each) for each in value}
        return [distinct[text] for text in sorted(distinct)]
    return type(value).__name__


def _small_model(path: Path) -> None:
    """Save y = relu(x W), 8 by 8."""
    weight = numpy_helper.from_array(np.eye(8, dtype=np.float32), "weight")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "weight"], ["xw"]), helper.make_node("Relu", ["xw"], ["y"])],
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8])],
        [weight],
    )
    onnx.save_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)


GOLDEN: dict[str, Callable[[OneProcess], object]] = {"stages.json": stages, "forms.json": forms}


@pytest.mark.parametrize("name", GOLDEN)
def test_interface_matches_golden_file(name: str, commands: OneProcess) -> None:
    assert GOLDEN[name](commands) == json.loads((HERE / name).read_text(encoding="utf-8"))


if __name__ == "__main__":
    with closing(OneProcess()) as commands:
        for name, make in GOLDEN.items():
            text = json.dumps(make(commands), indent=1, sort_keys=True, ensure_ascii=False)
            (HERE / name).write_text(f"{text}\n", encoding="utf-8", newline="\n")
