"""Merges several builds into one graph, in which common stages are one node."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from winml_dag.canonical import canonical_json
from winml_dag.engine.execute import LocalExecutor
from winml_dag.engine.graph import Graph
from winml_dag.engine.run import LocalRuns, Runner
from winml_dag.engine.schedule import RunOptions, Scheduler
from winml_dag.engine.stage import Node, Source
from winml_dag.pipeline.build import build
from winml_dag.pipeline.buildgraph import BuildGraph
from winml_dag.pipeline.plan_cache import plan_request
from winml_dag.pipeline.request import Overrides, Request
from winml_dag.pipeline.run import Driver
from winml_dag.store.artifact import Artifact
from winml_dag.store.store import Store


def merged(builds: Sequence[BuildGraph]) -> tuple[Graph, dict[str, Artifact]]:
    """Return one graph of all nodes of *builds*. Nodes with equal inputs and work become one."""
    nodes: dict[str, Node] = {}
    sources: dict[str, Source] = {}
    digests: dict[str, Artifact] = {}
    for one in builds:
        digests |= one.sources
        sources |= one.graph.sources
        names = {name: name for name in one.sources}
        for node in one.graph.nodes:
            inputs = {slot: names[name] for slot, name in node.inputs.items()}
            does = [node.stage.name, node.config, inputs, dict(node.kinds), dict(node.toolchain)]
            twin = nodes.setdefault(canonical_json(does), replace(node, id=f"{node.id}-{len(nodes)}", inputs=inputs))
            names |= {node.output(slot): twin.output(slot) for slot in node.stage.outputs}
    return Graph.of(tuple(nodes.values()), tuple(sources.values())), digests


def run_as_one(recipe: Path, precisions: Sequence[str], folder: Path) -> tuple[int, int]:
    """Build *recipe* in all *precisions* into *folder* from nothing.

    Return the stages of the merged graph and of separate builds.
    """
    store = Store(folder / "cache")
    builds = [
        plan_request(
            Request(recipe, Overrides(ep="cpu", precision=precision), folder / precision), store, download=False
        )
        for precision in precisions
    ]
    graph, sources = merged(builds)
    with store.scratch.open() as scratch:
        runner = Runner(
            graph, store, LocalExecutor(), store.fingerprints,
            scratch=scratch, failures=store.failures, made_by="benchmark", rebuild=False,
        )  # fmt: skip
        options = RunOptions("benchmark", os.cpu_count() or 1)
        results = Scheduler(graph, sources, store, LocalRuns(runner, options.jobs), options).run()
    failed = [f"{result.node.id}: {result.error}" for result in results if result.error]
    assert not failed, failed
    for one in builds:
        done = build(one, Driver(store))
        assert not done.failed
    return len(graph.nodes), sum(len(one.graph.nodes) for one in builds)
