"""Measurements of several cells as one graph: each cell is told of as soon as nothing more of it is to be measured."""

from __future__ import annotations

from pathlib import Path

from memory_executor import MemoryExecutor

from winml_dag.canonical import JsonObject
from winml_dag.engine.graph import Graph
from winml_dag.engine.stage import Node, Stage, Workspace
from winml_dag.pipeline.finished.measurement import MeasurementGraph
from winml_dag.pipeline.sweep.measuring import Running, run_together
from winml_dag.store.local import LocalStore

MEASURE = Stage("measure", 1, "nobody:work", "", {}, {"report": "report"})


def _graph(name: str, *numbers: int) -> MeasurementGraph:
    nodes = [Node(f"measure.{number}", MEASURE, {"number": number}, {}) for number in numbers]
    return MeasurementGraph(Graph.of(nodes, []), {}, name)


def _work(node: Node, workspace: Workspace) -> JsonObject:
    (workspace.outputs["report"] / "report.json").write_text(str(node.config["number"]), encoding="utf-8")
    return {}


def test_each_is_told_of_when_it_has_all_its_results_and_what_is_shared_runs_once(tmp_path: Path) -> None:
    executor = MemoryExecutor(_work)
    running = Running(LocalStore(tmp_path / "cache"), executor=executor)
    # What the first reads last is what the third is made of; the second takes one more.
    graphs = {"first": _graph("first", 1, 2), "second": _graph("second", 2, 3), "third": _graph("third", 2)}
    told: list[tuple[str, int]] = []
    results = run_together(graphs, running, jobs=1, done=lambda name: told.append((name, len(executor.calls))))
    assert sorted(told) == [("first", 2), ("second", 3), ("third", 2)]
    assert {name: len(each) for name, each in results.items()} == {"first": 2, "second": 2, "third": 1}
    # What is known is told of as well.
    told.clear()
    run_together(graphs, running, jobs=1, done=lambda name: told.append((name, len(executor.calls))))
    assert sorted(told) == [("first", 3), ("second", 3), ("third", 3)]
