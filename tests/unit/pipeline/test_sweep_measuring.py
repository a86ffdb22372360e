"""Measurements of several cells as one graph: each cell is reported as soon as its last measurement is done."""

from __future__ import annotations

from pathlib import Path

from memory_executor import MemoryExecutor

from winml_dag.canonical import JsonObject
from winml_dag.engine.graph import Graph
from winml_dag.engine.stage import Node, Stage, Workspace
from winml_dag.pipeline.assess.measurement import Measurement, MeasurementGraph, MeasurementJob
from winml_dag.pipeline.run import Driver
from winml_dag.store.store import Store

MEASURE = Stage("measure", 1, "nobody:work", "", {}, {"report": "report"})


def _graph(name: str, *numbers: int) -> MeasurementGraph:
    nodes = [Node(f"measure.{number}", MEASURE, {"number": number}, {}) for number in numbers]
    return MeasurementGraph(Graph.of(nodes, []), {}, name)


def _work(node: Node, workspace: Workspace) -> JsonObject:
    (workspace.outputs["report"] / "report.json").write_text(str(node.config["number"]), encoding="utf-8")
    return {}


def test_cell_is_reported_when_complete_and_shared_stages_run_once(tmp_path: Path) -> None:
    executor = MemoryExecutor(_work)
    driver = Driver(Store(tmp_path / "cache"), executor=executor)
    # The third consists of what the first reads last; the second reads one more.
    graphs = {"first": _graph("first", 1, 2), "second": _graph("second", 2, 3), "third": _graph("third", 2)}
    told: list[tuple[str, int]] = []
    jobs = {name: MeasurementJob(graph, driver.store) for name, graph in graphs.items()}
    ended = driver.run(jobs, lambda name, _: told.append((name, len(executor.calls))))
    assert sorted(told) == [("first", 2), ("second", 3), ("third", 2)]
    assert [len(each.results) for each in ended.values() if isinstance(each, Measurement)] == [2, 2, 1]
    # Cached results are reported as well.
    told.clear()
    driver.run(jobs, lambda name, _: told.append((name, len(executor.calls))))
    assert sorted(told) == [("first", 3), ("second", 3), ("third", 3)]
