"""Computes the keys of all stages of a build without running them, for a project with every kind of input file.

Stage outputs are made up: one artifact per name. So each key is computed as in a build, and an edit changes the keys of
the stages that it reaches *directly*. Whether it propagates depends on their outputs.
"""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from memory_store import MemoryRows
from model_files import put_back
from onnx import TensorProto, helper

from winml_dag.canonical import json_hash
from winml_dag.engine.graph import Graph
from winml_dag.engine.plan import BuildState
from winml_dag.engine.stage import Node
from winml_dag.ep.providers.openvino import OPENVINO
from winml_dag.ep.registry import QNN, ExecutionProvider
from winml_dag.pipeline import plan, resolve
from winml_dag.pipeline.buildgraph import BuildGraph
from winml_dag.pipeline.decisions import BEGIN, ResolveContext
from winml_dag.pipeline.model import Known, find_model
from winml_dag.pipeline.onestage import build_of_one
from winml_dag.pipeline.plan_cache import plan_request
from winml_dag.pipeline.request import Overrides, Request
from winml_dag.pipeline.search import round_of
from winml_dag.recipe.load import LoadedRecipe, parse_recipe
from winml_dag.stages import optimize
from winml_dag.store.artifact import Artifact, FileEntry
from winml_dag.store.digest import Fingerprints, digest_bytes
from winml_dag.store.records import KeyInputs, Record, cache_key
from winml_dag.store.store import Store

# The key inputs of each stage.
Stages = Mapping[str, KeyInputs]
JsonRecipe = Mapping[str, Any]

LIBRARY = "provider.so"
NO_OPTIONS = Overrides()


def make_project(folder: Path) -> None:
    """Create model folders (``same`` has the bytes of ``model``), data, option files, and the folder ``packages`` for
    the search path, with two providers and their libraries.
    """
    for name, weights in (("model", b"weights"), ("same", b"weights"), ("other", b"other weights")):
        (folder / name).mkdir(parents=True)
        config = {"model_type": "bert", "architectures": ["BertForSequenceClassification"]}
        (folder / name / "config.json").write_text(json.dumps(config), encoding="utf-8")
        (folder / name / "model.safetensors").write_bytes(weights)
        (folder / name / "tokenizer.json").write_bytes(b"{}")
    for name in ("data.npz", "same.npz", "data.txt", "same.txt", "photo.png", "rows.parquet", "script.py"):
        (folder / name).write_bytes(b"content")
    (folder / "other.py").write_bytes(b"other content")
    ranges: dict[str, object] = {"method": "minmax", "from": {"seed": None, "distribution": None}}
    for name in ("affinity.json", "renamed.json"):
        (folder / name).write_text(json.dumps(ranges), encoding="utf-8")
    (folder / "other.json").write_text(json.dumps({**ranges, "other": True}), encoding="utf-8")
    (folder / "word").mkdir()
    (folder / "word" / "tokenizer.json").write_bytes(b'{"other": true}')
    for name in (
        "rows/train.jsonl",
        "rows/word/train.jsonl",
        "rows/other/train.jsonl",
        "rows/other-00000-of-00001.csv",
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(name.encode())
    (folder / "data").mkdir()
    for name in ("a.npz", "b.npz"):
        (folder / "data" / name).write_bytes(name.encode())
    make_onnx(folder / "onnx")
    make_open(folder / "open")
    for provider in (QNN, OPENVINO):
        package = folder / "packages" / plugin_of(provider)
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / LIBRARY).write_bytes(provider.name.encode())


def enter(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make *folder*, which has the files of a project, the current one and its providers the installed ones."""
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder / "packages")
    return folder


def plugin_of(provider: ExecutionProvider) -> str:
    """Return the module of *provider* that has a library to register."""
    return next(package.plugin for package in provider.packages if package.plugin)


def make_onnx(folder: Path) -> None:
    """Save ``model.onnx`` with two weights, each in a separate file."""
    folder.mkdir()
    weights = []
    for name, content in (("one", 1.0), ("two", 2.0)):
        (folder / f"{name}.data").write_bytes(struct.pack("<256f", *[content] * 256))
        weight = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[256])
        weight.data_location = TensorProto.EXTERNAL
        weight.external_data.add(key="location", value=f"{name}.data")
        weights.append(weight)
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [256])
    result = helper.make_tensor_value_info("z", TensorProto.FLOAT, [256])
    nodes = [helper.make_node("Add", ["x", "one"], ["y"]), helper.make_node("Add", ["y", "two"], ["z"])]
    model = helper.make_model(helper.make_graph(nodes, "g", [value], [result], weights))
    (folder / "model.onnx").write_bytes(model.SerializeToString())


def make_open(folder: Path) -> None:
    """Save ``model.onnx`` with two open dimensions, the second one named, in an old opset."""
    folder.mkdir()
    value, result = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, "word"]) for name in ("input_ids", "z")
    )
    graph = helper.make_graph([helper.make_node("Relu", ["input_ids"], ["z"])], "g", [value], [result])
    opset = helper.make_opsetid("", 11)
    (folder / "model.onnx").write_bytes(helper.make_model(graph, opset_imports=[opset]).SerializeToString())


def ingredients_of_all(graph: Graph, sources: Mapping[str, Artifact]) -> dict[str, KeyInputs]:
    """Return key inputs by stage. Nothing is discovered, so all rounds of optimize and analyze are the first."""
    known = BuildState(graph, sources)
    for name, maker in graph.makers.items():
        begin = maker.stage.name == "analyze" and name.endswith(".flags")
        known.artifacts[name] = sources[BEGIN.name] if begin else made_up(name.replace(maker.id, stage_of(maker)))
    found: dict[str, KeyInputs] = {}
    for node in graph.nodes:
        key_inputs = known.key_inputs(node)
        assert key_inputs is not None
        assert found.setdefault(stage_of(node), key_inputs) == key_inputs
    return found


def stage_of(node: Node) -> str:
    place = round_of(node)
    return node.id if place is None else place[0]


def made_up(name: str) -> Artifact:
    return Artifact((FileEntry("output", digest_bytes(name.encode()), 0),))


def stages_of(recipe: JsonRecipe, folder: Path, overrides: Overrides = NO_OPTIONS) -> Stages:
    """Return the stages of *recipe*, as if it were in *folder*. Calls share no state."""
    loaded = LoadedRecipe(folder / "recipe.json", parse_recipe(json.dumps(recipe), "recipe.json", "json"), "json")
    context = ResolveContext.of(loaded, overrides, folder / "out")
    build = resolve.resolve_one(context, find_model(context.with_loader(), Known()))
    planned = plan.plan_build(build, Fingerprints(MemoryRows()))
    return ingredients_of_all(planned.graph, planned.sources)


def ranked(folder: Path) -> Stages:
    """Return the stages of a model in *folder* that is quantized by itself, with its nodes ranked by quality loss."""
    asked = Overrides(onnx=folder / "onnx" / "model.onnx", ep="cpu", precision="w8a8", sensitivity=True)
    request = Request(None, asked, command="quantize", output_file=folder / "quantized.onnx")
    build = build_of_one(request, download=False)
    planned = plan.plan_build(build, Fingerprints(MemoryRows()))
    return ingredients_of_all(planned.graph, planned.sources)


def keys(stages: Stages) -> dict[str, str]:
    return {name: cache_key(key_inputs) for name, key_inputs in stages.items()}


def reached(before: Stages, after: Stages) -> set[str]:
    """Return the stages whose key differs, or that only one of the two has.

    This includes stages whose model now comes from an earlier stage because one was removed: that is another input.
    """
    return differing(keys(before), keys(after))


def differing(one: Mapping[str, str], other: Mapping[str, str]) -> set[str]:
    return {name for name in {*one, *other} if one.get(name) != other.get(name)}


class Warm:
    """A recipe file, and a store that has planned it: digests are recorded, and the plan is valid if nothing
    changed.
    """

    def __init__(self, folder: Path, recipe: JsonRecipe, *, name: str = "recipe") -> None:
        self.recipe = folder / f"{name}.json"
        self.recipe.write_text(json.dumps(recipe), encoding="utf-8")
        self.request = Request(self.recipe, NO_OPTIONS, folder / "out")
        self.store = Store(folder.parent / "cache")

    def stages(self) -> Stages:
        return _stages(plan_request(self.request, self.store, download=False))

    def stands(self) -> bool:
        """Return whether it is planned without resolving the recipe."""

        def not_needed(*_: object, **__: object) -> None:
            raise AssertionError("the plan was made anew")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(resolve, "build_of", not_needed)
            try:
                self.stages()
            except AssertionError:
                return False
        return True

    def cold(self) -> Stages:
        """Plan it without any cached state."""
        build = resolve.build_of(self.request, self.store.folder, download=False)
        return _stages(plan.plan_build(build, Fingerprints(MemoryRows())))


def check_mutation(warm: Warm, original: Path, change: Callable[[], object], expected: str) -> None:
    """Check that *change* reaches the stages *expected*, and none any more when all files are restored."""
    before = warm.stages()
    assert warm.stands()
    recipe = warm.recipe.read_bytes()
    try:
        change()
        after = warm.stages()
        assert reached(before, after) == set(expected.split())
        assert keys(warm.cold()) == keys(after)
    finally:
        put_back(warm.recipe.parent, original)
    warm.recipe.write_bytes(recipe)
    assert keys(warm.stages()) == keys(before)


def _stages(planned: BuildGraph) -> Stages:
    return ingredients_of_all(planned.graph, planned.sources)


def pretend_built(planned: BuildGraph, store: Store, scratch: Path) -> dict[str, str]:
    """Store a record with made-up outputs for every stage of *planned*. Nothing is discovered.

    Returns the keys by node; of rounds only the first.
    """
    known = BuildState(planned.graph, planned.sources)
    for node in planned.graph.nodes:
        key_inputs = known.key_inputs(node)
        assert key_inputs is not None
        folders = {slot: scratch / node.id / slot for slot in node.stage.outputs}
        for slot, folder in folders.items():
            folder.mkdir(parents=True)
            name = "model.onnx" if node.id == planned.final else f"{stage_of(node)}-{slot}.onnx"
            if (node.stage.name, slot) == ("analyze", "flags"):
                shutil.copy(optimize.NOTHING, folder)
            else:
                (folder / name).write_text(name, encoding="utf-8")
        record = Record(cache_key(key_inputs), json_hash(node.config), key_inputs, {}, made_at="2026-01-01")
        known.settle(node, store.publish(record, folders))
    first = [node for node in planned.graph.nodes if (round_of(node) or ("", 0))[1] == 0]
    return {node.id: known.records[node.id].cache_key for node in first}
