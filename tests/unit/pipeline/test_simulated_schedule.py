"""Thousands of stages through the real planner and scheduler, on a virtual clock."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks" / "scale"))
from graphs import Planning, planned, together
from simulate import How, Left, Played, simulate
from virtualruns import Span
from world import Offer

from winml_dag.engine.graph import Merged
from winml_dag.engine.stage import Node

SLOW_SERVER = Offer(latency=0.01, per_second=2000, bandwidth=1e9, line=1e8)


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> Planning:
    return planned(1, tmp_path_factory.mktemp("planned"))


@pytest.fixture(scope="module")
def merged(cells: Planning) -> Merged:
    return together(cells.parts, 8)


@pytest.fixture(scope="module")
def few(cells: Planning) -> Merged:
    return together(cells.parts, 1)


@pytest.fixture(scope="module")
def run(merged: Merged) -> tuple[Played, Left, list[Span]]:
    return played(merged, How(20, jitter=0.3, seed=1))


def played(merged: Merged, how: How) -> tuple[Played, Left, list[Span]]:
    spans: list[Span] = []
    told, left = simulate(merged, how, told=spans.append)
    return told, left, spans


def test_distinct_stages_run_once_within_time_bounds(run: tuple[Played, Left, list[Span]]) -> None:
    told, left, spans = run
    assert told.stages > 2000
    assert told.ran == len(spans) == len(left.shelf.records)
    # The lower bound is the longest chain, and the total work over all machines; without idle machines the sum of both
    # is an upper bound.
    assert told.least <= told.seconds <= told.work / told.machines + told.chain


def test_stage_starts_after_its_inputs(merged: Merged, run: tuple[Played, Left, list[Span]]) -> None:
    spans = {span.node_id: span for span in run[2]}
    for node in merged.graph.nodes:
        for maker in merged.graph.needs(node):
            if node.id in spans and maker.id in spans:
                assert spans[node.id].began >= spans[maker.id].ended


def test_concurrency_never_exceeds_machine_count(run: tuple[Played, Left, list[Span]]) -> None:
    changes = sorted((moment, change) for span in run[2] for moment, change in ((span.began, 1), (span.ended, -1)))
    running = [0]
    for _, change in changes:
        running.append(running[-1] + change)
    assert max(running) == run[0].machines


def test_equal_seeds_give_equal_runs(few: Merged) -> None:
    first, again, other = (played(few, How(20, jitter=0.3, seed=seed))[2] for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_remote_round_trips_grow_with_graph_depth_only(merged: Merged, run: tuple[Played, Left, list[Span]]) -> None:
    told, _ = simulate(merged, How(20, Offer(latency=1.0)), run[1])
    assert told.ran == 0
    # One lookup for records and one for blobs per batch, and the contents of the folders at the end.
    assert told.seconds <= 2 * 12 + 1
    assert told.went.record_gets == len(run[1].shelf.records)
    finals = (record for record in run[1].shelf.records.values() if record.key_inputs.stage == "finalize")
    blobs = {file.digest: file.size for record in finals for file in record.files()}
    assert told.went.blob_gets == len(blobs)
    assert told.went.bytes_got == sum(run[1].shelf.sizes.values()) + sum(blobs.values())
    assert told.went.bytes_put == 0


def test_edit_runs_only_dependent_stages(tmp_path: Path, few: Merged) -> None:
    before, left = simulate(few, How(20))
    edited, _ = simulate(together(planned(1, tmp_path, edited=True).parts, 1), How(20), left)
    # For four models and two targets: calibrate once per model, and what depends on it in each of eight cells.
    assert 0 < edited.ran < before.ran / 3
    assert edited.went.bytes_put < before.went.bytes_put / 3


def test_slow_remote_delays_but_reruns_nothing(few: Merged) -> None:
    quick, left = simulate(few, How(20))
    slow, same = simulate(few, How(20, SLOW_SERVER, overhead=0.001))
    assert slow.ran == quick.ran
    assert slow.seconds > quick.seconds
    assert same.shelf.records.keys() == left.shelf.records.keys()


def test_scheduling_cost_per_stage_is_constant(cells: Planning) -> None:
    def calls_of_a_stage(times: int) -> float:
        graph = together(cells.parts, times)
        left = Left()
        calls = calls_of(lambda: simulate(graph, How(10), left))
        calls += calls_of(lambda: simulate(graph, How(10), left))
        return calls / len(graph.graph.nodes)

    few, many = calls_of_a_stage(1), calls_of_a_stage(4)
    assert many <= 1.15 * few


class Counted(tuple[Node, ...]):
    """Nodes that count iterations over all of them."""

    times = 0

    def __iter__(self) -> Iterator[Node]:
        Counted.times += 1
        return super().__iter__()


def test_stage_list_is_iterated_a_bounded_number_of_times(few: Merged) -> None:
    counted = replace(few, graph=replace(few.graph, nodes=Counted(few.graph.nodes)))
    _, left = simulate(counted, How(20))
    simulate(counted, How(20), left)
    assert Counted.times < 40


def calls_of(work: Callable[[], object]) -> int:
    """Return the number of calls of functions and resumptions of generators."""
    calls = 0

    def count(frame: object, event: str, arg: object) -> None:  # noqa: ARG001
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls
