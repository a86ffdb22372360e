"""A single run: its checks, and its end, after which nothing touches the scratch folder."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from memory_executor import MemoryExecutor, Work
from memory_store import NotedStore

from winml_dag.canonical import JsonObject
from winml_dag.engine.graph import Graph
from winml_dag.engine.keys import key_inputs_of
from winml_dag.engine.plan import Run, decide
from winml_dag.engine.run import Runner
from winml_dag.engine.stage import Node, Stage, Workspace
from winml_dag.errors import Interrupted


def runner_of(node: Node, work: Work, store: NotedStore, scratch: Path) -> Runner:
    return Runner(
        Graph.of([node]),
        store,
        MemoryExecutor(work),
        store.fingerprints,
        scratch=scratch,
        failures=scratch.with_name("failures"),
        made_by="tests",
        rebuild=False,
    )


NODE = Node("only", Stage("only", 1, "", "", inputs={}, outputs={"out": "text"}), config={}, inputs={})


def test_stop_waits_for_what_runs_and_lets_nothing_begin(tmp_path: Path) -> None:
    started, may_end = threading.Event(), threading.Event()

    def work(node: Node, workspace: Workspace) -> JsonObject:
        started.set()
        may_end.wait()
        (workspace.outputs["out"] / f"{node.id}.txt").write_text("done", encoding="utf-8")
        return {}

    store = NotedStore()
    runner = runner_of(NODE, work, store, tmp_path)
    decision = decide(store.latest(["only"]).get("only"), key_inputs_of(NODE, {}), store)
    assert isinstance(decision, Run)
    running = threading.Thread(target=runner.run, args=(NODE, decision, {}))
    running.start()
    started.wait()
    stopping = threading.Thread(target=runner.stop)
    stopping.start()
    assert list(tmp_path.iterdir()), "it still works in the scratch folder"
    may_end.set()
    stopping.join()
    assert list(tmp_path.iterdir()) == []
    running.join()
    with pytest.raises(Interrupted):
        runner.run(NODE, decision, {})
    assert list(tmp_path.iterdir()) == []
