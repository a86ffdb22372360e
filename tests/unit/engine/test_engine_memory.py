"""Memory limits: processes too large to run together never do, by their declared and measured sizes."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

from engine_samples import TEXT, Bench, join, node
from hypothesis import given
from hypothesis import strategies as st
from memory_store import NotedStore

from winml_dag.canonical import JsonObject
from winml_dag.engine.eta import UNKNOWN_SECONDS, CostModel, expected_work, repeats
from winml_dag.engine.graph import Graph
from winml_dag.engine.resources import Capacity, container_limits, memory_for_runs, physical_memory_bytes
from winml_dag.engine.stage import InputSlot, Memory, Node, Source, Stage, Workspace
from winml_dag.store.artifact import Artifact, FileEntry
from winml_dag.store.records import KeyInputs, Record

MB = 10**6
BUDGET = 300 * MB


def test_oversized_runs_never_overlap_and_small_ones_run_beside(bench: Bench) -> None:
    """A large one ends only when a small one runs in parallel, and fails when it meets the other large one."""
    beside, one_large = threading.Barrier(2), threading.Semaphore(1)

    def work(node: Node, workspace: Workspace) -> JsonObject:
        is_large = node.stage.name == "large"
        assert not is_large or one_large.acquire(blocking=False)
        beside.wait(60.0)
        if is_large:
            one_large.release()
        return join(node, workspace)

    def sized(name: str, number: int, memory_bytes: int) -> Node:
        one = node(f"{name} {number}", of=name, salt=number)
        return replace(one, stage=replace(one.stage, memory=Memory(memory_bytes)))

    nodes = [*(sized("large", number, 200 * MB) for number in (1, 2)), *(sized("small", at, 10 * MB) for at in (1, 2))]
    order = {node.id: place for place, node in enumerate(nodes)}
    ran = bench.run(nodes, work=work, jobs=2, memory_bytes=BUDGET, order=order)
    assert {result.error for result in ran.results.values()} == {""}


def test_measured_memory_applies_to_waiting_runs(bench: Bench) -> None:
    """No sizes are recorded when the first two start; their measured size is too large for two."""
    first_two = threading.Barrier(2)

    def work(node: Node, workspace: Workspace) -> JsonObject:
        if node.id in ("n0", "n1"):
            first_two.wait(60.0)
        join(node, workspace)
        return {"peak_memory_bytes": 200 * MB}

    nodes = [node(f"n{number}", of="export", salt=number) for number in range(8)]
    told = bench.run(nodes, work=work, jobs=2, memory_bytes=BUDGET).told
    assert told[:2] == ["start n0", "start n1"]
    alone = [line for line in told if line.split()[1] not in ("n0", "n1", "n2")]
    assert alone == [f"{what} n{number}" for number in range(3, 8) for what in ("start", "ran")]


def record(stage: str, seconds: float, peak: int | None, read: int, salt: int = 0) -> Record:
    file = FileEntry("model.onnx", f"xxh3-128:{salt:032x}", read)
    artifact = Artifact.of([file])
    made = KeyInputs(stage, 1, {"salt": salt}, {"in": artifact.digest}, {})
    metrics = {} if peak is None else {"peak_memory_bytes": peak}
    return Record(f"{salt:064x}", made.config_hash, made, {}, metrics, seconds, input_files={"in": artifact.to_json()})


def stored(*records: Record) -> NotedStore:
    store = NotedStore()
    for each in records:
        store.publish(each, {})
    return store


OPTIMIZE = Node("a", Stage("optimize", 1, "", "", {}, {}, memory=Memory(100, 3.0)), {}, {})
SHARED = Capacity(2, BUDGET)


def test_memory_request_prefers_own_record_then_stage_then_declared() -> None:
    last = record("optimize", 7.0, 5000, 1000)
    found = CostModel(stored(), SHARED)
    assert found.request(OPTIMIZE, last, 1000).memory_bytes == 5500, "and a margin"
    assert found.request(OPTIMIZE, last, 9000).memory_bytes == 100 + 27000, "its model was another one"
    assert found.seconds(OPTIMIZE, last) == 7.0
    assert found.seconds(OPTIMIZE, None) == UNKNOWN_SECONDS
    records = [record("optimize", float(salt), 1000 * salt, 100 * salt, salt) for salt in (1, 2, 3, 9)]
    known = CostModel(stored(*records, record("quantize", 90.0, 9, 9, 10)), SHARED)
    assert known.request(OPTIMIZE, None, 200).memory_bytes == 3300, "the largest of those with about as much to read"
    assert known.seconds(OPTIMIZE, None) == 2.5


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=20), st.integers(1, 20))
def test_memory_estimate_is_the_largest_peak_of_similar_inputs(shown: list[tuple[int, int]], read: int) -> None:
    """Regardless of what came in between, and how often: *shown* are peaks and input sizes."""
    found = CostModel(stored(), SHARED)
    for place, (peak, size) in enumerate(shown):
        known = max((each for each, _ in shown[:place]), default=0)
        assert found.learn(OPTIMIZE, record("optimize", 1.0, 1000 * peak, size)) is (peak > known * 1.1)
    like_it = [peak for peak, size in shown if max(size, read) <= 2 * min(size, read)]
    expected = 1100 * max(like_it) if like_it else 100 + 3 * read
    assert found.request(OPTIMIZE, None, read).memory_bytes == expected


def test_records_are_not_read_where_memory_does_not_matter() -> None:
    store = stored(record("optimize", 1.0, 10, 10))
    store.calls.clear()
    for capacity in (Capacity(1, BUDGET), Capacity(2)):
        assert CostModel(store, capacity).request(OPTIMIZE, None, 10).memory_bytes == 0
    assert not store.calls


def test_unchanged_rounds_are_expected_to_take_no_time() -> None:
    """optimize.1 reads flags that analyze rarely changes, and is then reused, with everything downstream."""
    slots = {"model": InputSlot(None), "flags": InputSlot(None)}
    optimize = Stage("optimize", 1, "", "", slots, {"model": TEXT})
    analyze = Stage("analyze", 1, "", "", slots, {"flags": TEXT}, likely_unchanged=("flags",))
    nodes = (
        Node("optimize.0", optimize, {}, {"model": "weights", "flags": "none"}),
        Node("analyze.0", analyze, {}, {"model": "optimize.0.model", "flags": "none"}),
        Node("optimize.1", optimize, {}, {"model": "weights", "flags": "analyze.0.flags"}),
        Node("analyze.1", analyze, {}, {"model": "optimize.1.model", "flags": "analyze.0.flags"}),
        Node("other", optimize, {"of": "another"}, {"model": "weights", "flags": "analyze.1.flags"}),
    )
    graph = Graph.of(nodes, [Source("weights", TEXT, ()), Source("none", TEXT, ())])
    assert repeats(graph) == {"optimize.1", "analyze.1"}
    store = stored()
    names = {node.id: node.id for node in nodes}
    work = expected_work(graph, names, store.latest(names), CostModel(store, SHARED))
    assert sum(work.seconds.values()) == 3 * UNKNOWN_SECONDS


def test_container_limits_include_all_enclosing_groups(tmp_path: Path) -> None:
    own = tmp_path / "cgroup"
    own.write_text("4:memory:/docker/abc\n1:cpu:/\n0::/service\n")
    group = tmp_path / "memory" / "docker" / "abc"
    group.mkdir(parents=True)
    (group / "memory.limit_in_bytes").write_text("4000\n")
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("9000\n")
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "service").mkdir()
    (tmp_path / "service" / "memory.max").write_text("5000\n")
    assert sorted(container_limits(tmp_path, own)) == [4000, 5000, 9000]
    own.write_text("4:memory:/a/group/that/is/outside\n")
    assert list(container_limits(tmp_path, own)) == [9000], "of a container seen from inside"
    assert list(container_limits(tmp_path, tmp_path / "absent")) == []


def test_runs_get_only_part_of_physical_memory() -> None:
    assert 0 < memory_for_runs() < physical_memory_bytes()
