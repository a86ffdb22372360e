"""The scheduler: what runs in parallel, what stops on a failure, and what does not have to run."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from engine_samples import Bench, join, node
from memory_executor import MemoryExecutor
from memory_store import NotedStore

from winml_dag.canonical import JsonObject
from winml_dag.engine.events import Status
from winml_dag.engine.graph import Graph
from winml_dag.engine.plan import Run, decide
from winml_dag.engine.run import LocalRuns, Runner
from winml_dag.engine.stage import Node, Workspace, key_inputs_of
from winml_dag.errors import InputError, Interrupted, StageError

LINE = (node("export", "weights"), node("quantize", "export.out"), node("compile", "quantize.out"))

# Long enough for any machine, and only waited for when a test fails.
PATIENCE = 60.0


def failing(*ids: str) -> Callable[[Node, Workspace], JsonObject]:
    def work(node: Node, workspace: Workspace) -> JsonObject:
        if node.id in ids:
            raise StageError(f"{node.id} cannot be done.", advice="Try another day.")
        return join(node, workspace)

    return work


def test_stages_run_in_dependency_order_on_previous_outputs(bench: Bench) -> None:
    ran = bench.run(LINE[::-1], [bench.source("weights", "w")])
    assert ran.calls == ["export", "quantize", "compile"]
    assert bench.text(ran.file("compile")) == "compile0:out(quantize0:out(export0:out(w)))"
    record = ran.results["compile"].record
    assert record is not None
    assert record.metrics == {"inputs": 1}
    assert record.made_by == "tests"
    assert ran.told == [f"{what} {name}" for name in ran.calls for what in ("start", "ran")]
    assert bench.run(LINE, [bench.source("weights", "w")], rebuild=True).calls == ran.calls


def test_second_of_two_equal_stages_is_reused(bench: Bench) -> None:
    """The unrolled loop: analyze adds nothing, so the second optimize has the key of the first."""
    twice = (node("optimize.0", "weights", of="optimize"), node("optimize.1", "weights", of="optimize"))
    for jobs in (1, 2):
        ran = bench.run(twice, [bench.source("weights", f"w{jobs}")], jobs=jobs)
        assert ran.calls == ["optimize.0"]
        assert ran.of(Status.REUSED) == ["optimize.1"]
        assert ran.reason("optimize.1").startswith("found in the cache")


@pytest.mark.parametrize("jobs", [1, 2, 3])
def test_concurrency_never_exceeds_jobs(bench: Bench, jobs: int) -> None:
    places = threading.Semaphore(jobs)
    full = threading.Barrier(jobs)

    def take_a_place(node: Node, workspace: Workspace) -> JsonObject:
        assert places.acquire(blocking=False)
        full.wait(PATIENCE)
        places.release()
        return join(node, workspace)

    nodes = [node(f"n{number}") for number in range(2 * jobs)]
    assert len(bench.run(nodes, work=take_a_place, jobs=jobs).of(Status.RAN)) == 2 * jobs


def test_ready_stage_takes_a_freed_slot_immediately(bench: Bench) -> None:
    """``slow`` cannot end before ``behind`` runs, which needs ``quick``: stages do not wait for a whole batch."""
    behind_runs = threading.Event()

    def work(node: Node, workspace: Workspace) -> JsonObject:
        if node.id == "slow":
            assert behind_runs.wait(PATIENCE)
        if node.id == "behind":
            behind_runs.set()
        return join(node, workspace)

    ran = bench.run([node("slow"), node("quick"), node("behind", "quick.out")], work=work, jobs=2)
    assert ran.of(Status.RAN) == ["behind", "quick", "slow"]


def test_failure_reports_reason_and_skipped_stages(bench: Bench) -> None:
    ran = bench.run(LINE, [bench.source("weights", "w")], work=failing("quantize"))
    failed = ran.results["quantize"]
    assert (failed.status, failed.error, failed.advice) == (
        Status.FAILED,
        "quantize cannot be done.",
        "Try another day.",
    )
    assert failed.log is not None
    assert failed.log.parent == bench.failures
    assert ran.of(Status.SKIPPED) == ["compile"]
    assert ran.reason("compile") == "needs quantize, which did not finish"


@pytest.mark.parametrize("keep_going", [False, True])
def test_keep_going_runs_only_independent_stages_after_failure(bench: Bench, keep_going: bool) -> None:
    nodes = [node("a"), node("b"), node("behind_b", "b.out"), node("both", "a.out", "b.out")]
    ran = bench.run(nodes, work=failing("a"), keep_going=keep_going)
    assert ran.of(Status.RAN) == (["b", "behind_b"] if keep_going else [])
    assert ran.of(Status.SKIPPED) == (["both"] if keep_going else ["b", "behind_b", "both"])
    if keep_going:
        assert ran.reason("both") == "needs a, which did not finish"
    else:
        assert ran.reason("b") == "not started, because a failed"


def test_running_stage_is_finished_and_stored_after_a_failure(bench: Bench) -> None:
    failed = threading.Event()

    def work(node: Node, workspace: Workspace) -> JsonObject:
        if node.id == "a":
            failed.set()
            raise StageError("no")
        assert failed.wait(PATIENCE)
        return join(node, workspace)

    ran = bench.run([node("a"), node("b")], work=work, jobs=2)
    assert ran.of(Status.RAN) == ["b"]
    assert bench.run([node("a"), node("b")]).calls == ["a"]


def test_unexpected_error_ends_the_run(bench: Bench) -> None:
    def broken(node: Node, workspace: Workspace) -> JsonObject:  # noqa: ARG001
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        bench.run(LINE, [bench.source("weights", "w")], work=broken)


def test_process_start_error_fails_the_stage(bench: Bench) -> None:
    def overloaded(node: Node, workspace: Workspace) -> JsonObject:
        if node.id == "a":
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        return join(node, workspace)

    ran = bench.run([node("a"), node("b")], work=overloaded, keep_going=True)
    assert ran.results["a"].error == "Cannot run a: Resource temporarily unavailable."
    assert ran.of(Status.RAN) == ["b"]


def test_unwritable_log_loses_only_the_log(bench: Bench) -> None:
    bench.failures.write_text("a file where the folder should be")
    ran = bench.run([node("a")], work=failing("a"))
    assert (ran.results["a"].error, ran.results["a"].log) == ("a cannot be done.", None)


@pytest.mark.parametrize("how", ["edited", "edited for a while", "removed"])
def test_source_changed_during_use_fails_the_stage_by_name(bench: Bench, how: str) -> None:
    """Also when the file is restored by the time that the stage ends, since what it read differs from its key."""
    weights, data = bench.source("weights", "w"), bench.source("data", "d")
    path = data.files[0].path

    def work(node: Node, workspace: Workspace) -> JsonObject:
        if how == "removed":
            path.unlink(missing_ok=True)
        elif how == "edited" or node.id == "export":
            path.write_text("edited")
        else:
            path.write_text("d")
        return join(node, workspace)

    ran = bench.run([LINE[0], node("calibrate", "export.out", "data")], [weights, data], work=work)
    assert ran.of(Status.RAN) == ["export"]
    error = ran.results["calibrate"].error
    assert str(path) in error
    assert error == f"{path} changed while it was being used, so nothing was stored." or how == "removed"
    assert ran.results["calibrate"].record is None


def test_missing_source_is_refused_before_running(bench: Bench) -> None:
    weights = bench.source("weights", "w")
    weights.files[0].path.unlink()
    with pytest.raises(InputError, match=r"weights\.txt"):
        bench.run(LINE, [weights])


def test_only_reused_records_are_marked_used(bench: Bench) -> None:
    weights = bench.source("weights", "w")
    bench.run(LINE[:2], [weights])
    assert [call for call in bench.store.calls if call[0] == "used"] == []
    ran = bench.run(LINE, [weights])
    used = [call[1] for call in bench.store.calls if call[0] == "used"]
    assert used == [ran.results[name].cache_key for name in ("export", "quantize")]


@pytest.mark.timeout(PATIENCE)
def test_stop_waits_for_running_stage_and_starts_nothing(tmp_path: Path) -> None:
    started, may_end = threading.Event(), threading.Event()

    def work(node: Node, workspace: Workspace) -> JsonObject:
        started.set()
        may_end.wait()
        return join(node, workspace)

    one, store = node("only"), NotedStore()
    runner = Runner(
        Graph.of([one]),
        store,
        MemoryExecutor(work),
        store.fingerprints,
        scratch=tmp_path,
        failures=tmp_path / "failures",
        made_by="tests",
        rebuild=False,
    )
    decision = decide(None, key_inputs_of(one, {}), store)
    assert isinstance(decision, Run)
    running = threading.Thread(target=runner.run, args=(one, decision, {}))
    running.start()
    started.wait()
    assert LocalRuns(runner, 1).wait() == [], "without an end for it, so that Python can handle an earlier interrupt"
    stopping = threading.Thread(target=runner.stop)
    stopping.start()
    assert list(tmp_path.iterdir()), "it still works in the scratch folder"
    may_end.set()
    stopping.join()
    assert list(tmp_path.iterdir()) == []
    running.join()
    with pytest.raises(Interrupted):
        runner.run(one, decision, {})
    assert list(tmp_path.iterdir()) == []
