"""Graphs to simulate: cells of a real sweep from the real planner, and above a certain size copies with other keys."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import yaml
from recorded import only_builds

from winml_dag.canonical import JsonValue
from winml_dag.engine.graph import Graph, Merged, Part, merge
from winml_dag.engine.stage import Node
from winml_dag.pipeline.buildgraph import BuildGraph
from winml_dag.pipeline.plan_cache import look_at_each
from winml_dag.pipeline.request import Overrides, Request
from winml_dag.pipeline.sweep.cells import request_of
from winml_dag.recipe.matrix import load_sweep
from winml_dag.store.store import Store

# In one group of 40 cells, merged: ten per model, with at most two rounds of optimize.
STAGES_OF_A_GROUP = 272
EDITED = "w8a8"


@dataclass(frozen=True)
class Planning:
    """Parts of a graph, one per cell, with the number planned and the processor seconds of planning."""

    parts: tuple[Part, ...]
    planned: int
    seconds: float


def planned(groups: int, folder: Path, *, edited: bool = False) -> Planning:
    """Plan `recipes/sweeps/small.yaml` with *groups* seeds of the random weights of its models: each is different work.

    *edited*: with one more calibration sample in one of the precisions.
    """
    sweep = only_builds()
    seeds = [{"name": f"seed{seed}", "loader": {"random_weights": {"seed": seed}}} for seed in range(groups)]
    sweep["matrix"] = {"seed": seeds, **sweep["matrix"]}
    if edited:
        sweep["overrides"] = [{"when": {"precision": EDITED}, "quant": {"samples": sweep["quant"]["samples"] + 1}}]
    folder.mkdir(parents=True, exist_ok=True)
    recipe = folder / "sweep.yaml"
    recipe.write_text(yaml.safe_dump(sweep, sort_keys=False), encoding="utf-8")
    store = Store(folder / "cache")
    began = time.process_time()
    try:
        cells = load_sweep(recipe).cells
        request = Request(None, Overrides())
        asked = [(cell.name, request_of(cell, request, folder / "out")) for cell in cells]
        graphs = look_at_each(asked, store)
    finally:
        store.close()
    return Planning(tuple(_parts(graphs)), len(graphs), time.process_time() - began)


def multiplied(parts: tuple[Part, ...], times: int) -> Iterator[Part]:
    """Yield *parts*, followed by copies of them with other keys, *times* sets in total: each copy exports with other
    seeds.
    """
    yield from parts
    for copy in range(1, times):
        for part in parts:
            nodes = tuple(_other(node, copy) if node.stage.name == "export" else node for node in part.graph.nodes)
            own = {node.id: node for node in nodes}
            makers = {name: own[maker.id] for name, maker in part.graph.makers.items()}
            yield Part(f"copy{copy}:{part.label}", Graph(nodes, part.graph.sources, makers), part.sources)


def together(parts: tuple[Part, ...], times: int) -> Merged:
    return merge(tuple(multiplied(parts, times)))


def cell_of(node_id: str) -> tuple[str, str]:
    """Return the cell of the recorded sweep that corresponds to a node of a merged graph, and its id there."""
    cell, _, own = node_id.rpartition("/")
    return cell.partition("/")[2], own


def _parts(graphs: Mapping[str, object]) -> Iterator[Part]:
    for name, graph in graphs.items():
        assert isinstance(graph, BuildGraph), graph
        yield Part(name, graph.graph, graph.sources)


def _other(node: Node, copy: int) -> Node:
    return replace(node, config=_with_seed(node.config, copy))


def _with_seed(config: Mapping[str, JsonValue], copy: int) -> dict[str, JsonValue]:
    loader = config["loader"]
    assert isinstance(loader, Mapping)
    weights = loader["random_weights"]
    assert isinstance(weights, Mapping)
    seed = weights["seed"]
    assert isinstance(seed, int)
    return {**config, "loader": {**loader, "random_weights": {**weights, "seed": seed + 1_000_000 * copy}}}
