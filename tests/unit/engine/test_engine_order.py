"""Start order, total duration and time left, computed from durations without running anything."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from engine_samples import Bench, node

from winml_dag.engine.eta import Eta, Work, chains, critical_path
from winml_dag.engine.graph import Graph
from winml_dag.engine.resources import Admission, Capacity, ReadyQueue, ResourceRequest
from winml_dag.engine.stage import Node
from winml_dag.store.records import KeyInputs, Record, cache_key

# Two cells sharing one export, and one that shares nothing.
SWEEP = (
    node("export"),
    node("calibrate", "export.out"),
    node("w8a8", "export.out", "calibrate.out"),
    node("w8a16", "export.out", "calibrate.out"),
    node("other"),
)
SECONDS = {"export": 10.0, "calibrate": 5.0, "w8a8": 2.0, "w8a16": 3.0, "other": 1.0}


def test_chain_length_is_the_longest_path_to_the_end() -> None:
    graph = Graph.of(SWEEP)
    assert chains(graph, SECONDS) == {"export": 18.0, "calibrate": 8.0, "w8a8": 2.0, "w8a16": 3.0, "other": 1.0}
    assert chains(graph, {}) == dict.fromkeys(SECONDS, 0.0)


def test_critical_path_skips_stages_without_duration() -> None:
    path = critical_path(Graph.of(SWEEP), {**SECONDS, "calibrate": 0.0})
    assert (path.ids, path.seconds) == (("export", "w8a16"), 13.0)
    assert critical_path(Graph.of(()), {}).ids == ()


def dispatched(seconds: Mapping[str, float], nodes: tuple[Node, ...], places: int, left: float) -> list[str]:
    """Return all *nodes* in start order, while *left* is the time left."""
    admission = Admission(Capacity(places))
    order = {node.id: place for place, node in enumerate(nodes)}
    dispatch: ReadyQueue[str] = ReadyQueue(admission, order, chains(Graph.of(nodes), seconds))
    for each in nodes:
        dispatch.add(each.id, ResourceRequest(), each.id)
    begun = []
    while (found := dispatch.next(left)) is not None:
        begun.append(found[0])
    return begun


def test_cells_finish_in_order_until_a_long_chain_must_start() -> None:
    cells = tuple(node(f"cell {number}") for number in range(4))
    seconds = {"cell 0": 1.0, "cell 1": 1.0, "cell 2": 2.0, "cell 3": 10.0}
    assert dispatched(seconds, cells, places=2, left=1000.0) == ["cell 0", "cell 1", "cell 2", "cell 3"]
    assert dispatched(seconds, cells, places=2, left=14.0)[0] == "cell 3"
    assert dispatched(seconds, cells, places=1, left=14.0)[0] == "cell 0", "in one place no order is faster"


def test_removed_run_never_starts_and_blocks_nothing() -> None:
    admission = Admission(Capacity(2, 100))
    dispatch: ReadyQueue[str] = ReadyQueue(admission, {}, {})
    admission.take(ResourceRequest(60))
    for name, memory in (("large", 90), ("small", 20)):
        dispatch.add(name, ResourceRequest(memory), name)
    assert dispatch.next(0.0) is None, "large is waited for, and small would keep it from beginning"
    dispatch.remove(["large", "nobody"])
    assert dispatch.next(0.0) == ("small", ResourceRequest(20))
    assert len(dispatch) == 0


@pytest.mark.parametrize(("jobs", "first"), [(1, "quick 0"), (2, "long")])
def test_longest_previous_stage_starts_first_if_parallel(bench: Bench, jobs: int, first: str) -> None:
    for name, seconds in {"quick 0": 1.0, "quick 1": 1.0, "long": 60.0}.items():
        made = KeyInputs(name, 0, {}, {}, {})
        key = cache_key(made)
        bench.store.publish(Record(key, made.config_hash, made, {}, elapsed_seconds=seconds), {})
        bench.store.remember({f"here\n{name}": key})
    ran = bench.run([node("quick 0"), node("quick 1"), node("long")], jobs=jobs)
    assert ran.told[0] == f"start {first}"


def left_of(nodes: tuple[Node, ...], seconds: Mapping[str, float], places: int) -> Eta:
    """Return the time left for *nodes*, none of which has started, at a frozen time."""
    return Eta(Work(Graph.of(nodes), seconds), Admission(Capacity(places)), clock=lambda: 0.0)


@pytest.mark.parametrize(("places", "seconds"), [(1, 21.0), (2, 18.0), (8, 18.0)])
def test_time_left_depends_on_number_of_jobs(places: int, seconds: float) -> None:
    assert left_of(SWEEP, SECONDS, places).seconds_left() == seconds


@pytest.mark.parametrize(("passed", "left"), [(4.0, 1.0 + 3.0), (400.0, 3.0)])
def test_overdue_stage_is_expected_to_end_immediately(passed: float, left: float) -> None:
    now = [0.0]
    eta = Eta(Work(Graph.of(SWEEP), SECONDS), Admission(Capacity(2)), clock=lambda: now[0])
    eta.ended("export")
    eta.ended("other")
    eta.began("calibrate")
    now[0] = passed
    assert eta.seconds_left() == left


def test_long_chain_of_instant_stages_is_supported() -> None:
    line = [node("n0")] + [node(f"n{number}", f"n{number - 1}.out") for number in range(1, 3000)]
    assert left_of(tuple(line), {"n0": 1.0, "n2999": 2.0}, 2).seconds_left() == 3.0


def test_estimate_follows_started_and_ended_stages() -> None:
    now = [0.0]
    eta = Eta(Work(Graph.of(SWEEP), SECONDS), Admission(Capacity(2)), clock=lambda: now[0])
    assert (eta.work_left_seconds, eta.seconds_left()) == (21.0, 18.0)
    eta.began("export")
    eta.began("other")
    now[0] = 4.0
    eta.ended("other")
    assert (eta.work_left_seconds, eta.seconds_left()) == (20.0, 14.0)
    eta.ended("other")
    assert eta.work_left_seconds == 20.0, "found again after it ran"


def test_stages_blocked_by_failure_are_not_estimated() -> None:
    eta = left_of(SWEEP, SECONDS, 1)
    eta.began("export")
    eta.failed("export")
    assert (eta.work_left_seconds, eta.seconds_left()) == (1.0, 1.0)


def test_estimate_learns_durations_of_unknown_stages() -> None:
    """Durations of export are recorded elsewhere, of compile none: its duration is unknown until one has run."""
    now = [0.0]
    nodes = tuple(node(f"{stage} {number}", of=stage) for stage in ("export", "compile") for number in range(3))
    stages = {each.id: each.stage.name for each in nodes}
    work = Work(Graph.of(nodes), dict.fromkeys(stages, 2.0), stages, frozenset({"compile"}))
    eta = Eta(work, Admission(Capacity(1)), clock=lambda: now[0])
    assert eta.seconds_left() == 12.0, "not more than half is unknown"
    for name, seconds in (("export 0", 4.0), ("compile 0", 20.0)):
        eta.began(name)
        now[0] += seconds
        eta.ended(name)
        if name == "export 0":
            assert eta.seconds_left() == 2 * 4.0 + 3 * 2.0
            eta.ended("export 1")
            assert eta.seconds_left() is None, "what is left is mostly unknown"
    assert eta.seconds_left() == 4.0 + 2 * 20.0
