"""What begins first, how long all of it takes, and how long the rest will: from seconds alone, nothing runs."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from engine_samples import Bench, node, properties
from hypothesis import given
from hypothesis import strategies as st

from winml_dag.engine.admission import Admission, Capacity, Need
from winml_dag.engine.criticalpath import chains, critical_path
from winml_dag.engine.dispatch import Dispatch
from winml_dag.engine.forecast import Forecast, Work, seconds_left
from winml_dag.engine.graph import Graph
from winml_dag.engine.keys import cache_key
from winml_dag.engine.stage import Node
from winml_dag.store.record import Ingredients, Record

# Two cells on one export, and one that shares nothing.
SWEEP = (
    node("export"),
    node("calibrate", "export.out"),
    node("w8a8", "export.out", "calibrate.out"),
    node("w8a16", "export.out", "calibrate.out"),
    node("other"),
)
SECONDS = {"export": 10.0, "calibrate": 5.0, "w8a8": 2.0, "w8a16": 3.0, "other": 1.0}


def test_a_chain_is_as_long_as_the_longest_way_to_the_end() -> None:
    graph = Graph.of(SWEEP)
    assert chains(graph, SECONDS) == {"export": 18.0, "calibrate": 8.0, "w8a8": 2.0, "w8a16": 3.0, "other": 1.0}
    assert chains(graph, {}) == dict.fromkeys(SECONDS, 0.0)


def test_the_critical_path_of_a_run_leaves_out_what_took_no_time() -> None:
    path = critical_path(Graph.of(SWEEP), {**SECONDS, "calibrate": 0.0})
    assert (path.ids, path.seconds) == (("export", "w8a16"), 13.0)
    assert critical_path(Graph.of(()), {}).ids == ()


def dispatched(seconds: Mapping[str, float], nodes: tuple[Node, ...], places: int, left: float) -> list[str]:
    """All *nodes* in the order in which they begin, as long as *left* is what is left."""
    admission = Admission(Capacity(places))
    order = {node.id: place for place, node in enumerate(nodes)}
    dispatch: Dispatch[str] = Dispatch(admission, order, chains(Graph.of(nodes), seconds))
    for each in nodes:
        dispatch.add(each.id, Need(), each.id)
    begun = []
    while (found := dispatch.next(left)) is not None:
        begun.append(found[0])
    return begun


def test_cells_are_finished_one_after_the_other_until_a_long_chain_has_to_begin() -> None:
    cells = tuple(node(f"cell {number}") for number in range(4))
    seconds = {"cell 0": 1.0, "cell 1": 1.0, "cell 2": 2.0, "cell 3": 10.0}
    assert dispatched(seconds, cells, places=2, left=1000.0) == ["cell 0", "cell 1", "cell 2", "cell 3"]
    assert dispatched(seconds, cells, places=2, left=14.0)[0] == "cell 3"
    assert dispatched(seconds, cells, places=1, left=14.0)[0] == "cell 0", "in one place no order is faster"


def test_what_is_removed_does_not_begin_and_is_waited_for_no_more() -> None:
    admission = Admission(Capacity(2, 100))
    dispatch: Dispatch[str] = Dispatch(admission, {}, {})
    admission.take(Need(60))
    for name, memory in (("large", 90), ("small", 20)):
        dispatch.add(name, Need(memory), name)
    assert dispatch.next(0.0) is None, "large is waited for, and small would keep it from beginning"
    dispatch.remove(["large", "nobody"])
    assert dispatch.next(0.0) == ("small", Need(20))
    assert len(dispatch) == 0


@pytest.mark.parametrize(("jobs", "first"), [(1, "quick 0"), (2, "long")])
def test_what_took_long_last_time_begins_first_where_that_helps(bench: Bench, jobs: int, first: str) -> None:
    for name, seconds in {"quick 0": 1.0, "quick 1": 1.0, "long": 60.0}.items():
        made = Ingredients(name, 0, {}, {}, {})
        key = cache_key(made)
        bench.store.publish(Record(key, made.config_hash, made, {}, elapsed_seconds=seconds), {})
        bench.store.remember(f"here\n{name}", key)
    ran = bench.run([node("quick 0"), node("quick 1"), node("long")], jobs=jobs)
    assert ran.told[0] == f"start {first}"


def work_of(nodes: tuple[Node, ...], seconds: Mapping[str, float], needs: Mapping[str, Need] | None = None) -> Work:
    return Work(Graph.of(nodes), seconds, needs or {}, {})


@pytest.mark.parametrize(("places", "seconds"), [(1, 21.0), (2, 18.0), (8, 18.0)])
def test_how_long_a_run_will_take(places: int, seconds: float) -> None:
    assert seconds_left(work_of(SWEEP, SECONDS), Capacity(places), frozenset(), {}) == seconds


def test_how_long_the_rest_will_take() -> None:
    work = work_of(SWEEP, SECONDS)
    left = seconds_left(work, Capacity(2), frozenset({"export", "other"}), {"calibrate": 4.0})
    assert left == 1.0 + 3.0
    late = seconds_left(work, Capacity(2), frozenset({"export", "other"}), {"calibrate": 400.0})
    assert late == 3.0, "what takes longer than expected may end at any moment"


def test_what_runs_is_not_begun_again_when_its_maker_is_said_to_end_later() -> None:
    """Whoever asks does so while it goes on, and may hear of a beginning before the end that it followed."""
    line = (node("a"), node("b", "a.out"), node("c", "b.out"))
    work = work_of(line, {"a": 5.0, "b": 4.0, "c": 1.0})
    assert seconds_left(work, Capacity(2), frozenset(), {"a": 5.0, "b": 0.0}) == 5.0


def test_memory_that_two_share_makes_a_run_longer() -> None:
    both = (node("a"), node("b"))
    work = work_of(both, {"a": 5.0, "b": 5.0}, {"a": Need(60), "b": Need(60)})
    assert seconds_left(work, Capacity(2, 1000), frozenset(), {}) == 5.0
    assert seconds_left(work, Capacity(2, 100), frozenset(), {}) == 10.0


def test_a_long_line_of_stages_that_take_no_time_is_no_trouble() -> None:
    line = [node("n0")] + [node(f"n{number}", f"n{number - 1}.out") for number in range(1, 3000)]
    assert seconds_left(work_of(tuple(line), {"n0": 1.0, "n2999": 2.0}), Capacity(2), frozenset(), {}) == 3.0


def test_a_forecast_follows_what_begins_and_ends() -> None:
    now = [0.0]
    forecast = Forecast(work_of(SWEEP, SECONDS), Admission(Capacity(2)), clock=lambda: now[0])
    assert (forecast.work_left_seconds, forecast.seconds_left()) == (21.0, 18.0)
    forecast.began("export")
    forecast.began("other")
    now[0] = 4.0
    forecast.ended("other")
    assert (forecast.work_left_seconds, forecast.seconds_left()) == (20.0, 14.0)
    forecast.ended("other")
    assert forecast.work_left_seconds == 20.0, "found again after it ran"


def test_what_a_failure_keeps_from_running_is_not_waited_for() -> None:
    forecast = Forecast(work_of(SWEEP, SECONDS), Admission(Capacity(1)), clock=lambda: 0.0)
    forecast.began("export")
    forecast.failed("export")
    assert (forecast.work_left_seconds, forecast.seconds_left()) == (1.0, 1.0)


def test_a_forecast_learns_from_stages_that_it_only_guessed_at() -> None:
    """Of export something is known from elsewhere, of compile nothing: nobody can tell how long that takes, until one
    has run.
    """
    now = [0.0]
    nodes = tuple(node(f"{stage} {number}", of=stage) for stage in ("export", "compile") for number in range(3))
    stages = {each.id: each.stage.name for each in nodes}
    work = Work(Graph.of(nodes), dict.fromkeys(stages, 2.0), {}, {}, stages, frozenset({"compile"}))
    forecast = Forecast(work, Admission(Capacity(1)), clock=lambda: now[0])
    assert forecast.seconds_left() == 12.0, "not more than half is unknown"
    for name, seconds in (("export 0", 4.0), ("compile 0", 20.0)):
        forecast.began(name)
        now[0] += seconds
        forecast.ended(name)
        if name == "export 0":
            assert forecast.seconds_left() == 2 * 4.0 + 3 * 2.0
            forecast.ended("export 1")
            assert forecast.seconds_left() is None, "what is left is mostly unknown"
    assert forecast.seconds_left() == 4.0 + 2 * 20.0


@properties
@given(st.lists(st.tuples(st.floats(0.1, 100), st.integers(0, 9)), min_size=1, max_size=10), st.integers(1, 4))
def test_a_forecast_is_between_what_no_order_can_beat_and_twice_that(
    made: list[tuple[float, int]], places: int
) -> None:
    nodes = tuple(
        node(f"n{at}", *([f"n{reads % at}.out"] if at and reads % 2 else [])) for at, (_, reads) in enumerate(made)
    )
    seconds = {f"n{at}": each for at, (each, _) in enumerate(made)}
    graph = Graph.of(nodes)
    least = max(sum(seconds.values()) / places, critical_path(graph, seconds).seconds)
    found = seconds_left(Work(graph, seconds, {}, {}), Capacity(places), frozenset(), {})
    assert least * 0.999 <= found <= 2 * least * 1.001
