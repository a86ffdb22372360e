"""The scheduler: what runs in parallel, what stops on a failure, and what does not have to run."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable

import pytest
from engine_samples import Bench, join, node, read

from winml_dag.canonical import JsonObject
from winml_dag.engine.events import Status
from winml_dag.engine.stage import Node, Workspace
from winml_dag.errors import InputError, StageError

LINE = (node("export", "weights"), node("quantize", "export.out"), node("compile", "quantize.out"))

# Long enough for any machine, and only waited for when a test fails.
PATIENCE = 60.0


def failing(*ids: str) -> Callable[[Node, Workspace], JsonObject]:
    def work(node: Node, workspace: Workspace) -> JsonObject:
        if node.id in ids:
            raise StageError(f"{node.id} cannot be done.", advice="Try another day.")
        return join(node, workspace)

    return work


def test_a_line_of_stages_runs_in_its_order_each_on_what_the_one_before_gave(bench: Bench) -> None:
    ran = bench.run(LINE[::-1], [bench.source("weights", "w")])
    assert ran.calls == ["export", "quantize", "compile"]
    assert bench.text(ran.file("compile")) == "compile0:out(quantize0:out(export0:out(w)))"
    record = ran.results["compile"].record
    assert record is not None
    assert record.metrics == {"inputs": 1}
    assert record.made_by == "tests"


def test_an_observer_is_told_of_each_start_and_end_in_turn(bench: Bench) -> None:
    ran = bench.run(LINE[:2], [bench.source("weights", "w")])
    assert ran.told == ["start export", "ran export", "start quantize", "ran quantize"]


def test_rebuild_runs_everything_again(bench: Bench) -> None:
    weights = bench.source("weights", "w")
    bench.run(LINE, [weights])
    assert bench.run(LINE, [weights], rebuild=True).calls == ["export", "quantize", "compile"]


def test_only_what_reads_an_edited_setting_runs(bench: Bench) -> None:
    sources = [bench.source("weights", "w"), bench.source("data", "d")]
    nodes = (*LINE, node("calibrate", "export.out", "data"))
    bench.run(nodes, sources)
    edited = (*LINE, node("calibrate", "export.out", "data", salt=1))
    again = bench.run(edited, sources)
    assert again.calls == ["calibrate"]
    assert again.reason("calibrate") == "text.salt: 0 -> 1"


def test_a_rerun_that_gives_the_same_bytes_stops_there(bench: Bench) -> None:
    def uppercase(node: Node, workspace: Workspace) -> JsonObject:
        if node.id != "export":
            return join(node, workspace)
        (workspace.outputs["out"] / "model.txt").write_text(read(workspace)[0].upper())
        return {}

    bench.run(LINE, [bench.source("weights", "w")], work=uppercase)
    again = bench.run(LINE, [bench.source("weights", "W")], work=uppercase)
    assert again.calls == ["export"]
    assert again.reason("quantize") == "up to date"


def test_the_second_of_two_equal_stages_is_a_hit(bench: Bench) -> None:
    """The unrolled loop: analyze adds nothing, so the second optimize has the key of the first."""
    twice = (node("optimize.0", "weights", of="optimize"), node("optimize.1", "weights", of="optimize"))
    for jobs in (1, 2):
        ran = bench.run(twice, [bench.source("weights", f"w{jobs}")], jobs=jobs)
        assert ran.calls == ["optimize.0"]
        assert ran.of(Status.REUSED) == ["optimize.1"]
        assert ran.reason("optimize.1").startswith("found in the cache")


def test_what_was_found_in_the_cache_is_up_to_date_the_next_time(bench: Bench) -> None:
    weights = bench.source("weights", "w")
    bench.run(LINE, [weights], scope="elsewhere")
    assert bench.run(LINE, [weights]).reason("compile").startswith("found in the cache")
    assert bench.run(LINE, [weights]).reason("compile") == "up to date"


def test_independent_stages_run_beside_each_other(bench: Bench) -> None:
    together = threading.Barrier(2)

    def meet(node: Node, workspace: Workspace) -> JsonObject:
        together.wait(PATIENCE)
        return join(node, workspace)

    ran = bench.run([node("a"), node("b"), node("c"), node("d")], work=meet, jobs=2)
    assert ran.of(Status.RAN) == ["a", "b", "c", "d"]


@pytest.mark.parametrize("jobs", [1, 2, 3])
def test_no_more_run_at_once_than_there_are_jobs(bench: Bench, jobs: int) -> None:
    places = threading.Semaphore(jobs)
    full = threading.Barrier(jobs)

    def take_a_place(node: Node, workspace: Workspace) -> JsonObject:
        assert places.acquire(blocking=False)
        full.wait(PATIENCE)
        places.release()
        return join(node, workspace)

    nodes = [node(f"n{number}") for number in range(2 * jobs)]
    assert len(bench.run(nodes, work=take_a_place, jobs=jobs).of(Status.RAN)) == 2 * jobs


def test_a_stage_that_becomes_ready_takes_the_place_that_became_free(bench: Bench) -> None:
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


def test_a_failure_tells_its_reason_and_what_it_keeps_from_running(bench: Bench) -> None:
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


def test_a_failure_is_never_taken_for_a_result(bench: Bench) -> None:
    weights = bench.source("weights", "w")
    bench.run(LINE, [weights], work=failing("quantize"))
    again = bench.run(LINE, [weights])
    assert again.calls == ["quantize", "compile"]
    assert again.reason("quantize") == "never built before"


def test_after_a_failure_nothing_more_is_started(bench: Bench) -> None:
    ran = bench.run([node("a"), node("b"), node("c", "b.out")], work=failing("a"))
    assert ran.calls == ["a"]
    assert ran.of(Status.SKIPPED) == ["b", "c"]
    assert ran.reason("b") == "not started, because a failed"
    assert ran.reason("c") == "needs b, which did not finish"


def test_what_runs_when_another_fails_is_finished_and_kept(bench: Bench) -> None:
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


def test_keep_going_runs_whatever_does_not_need_what_failed(bench: Bench) -> None:
    nodes = [node("a"), node("behind_a", "a.out"), node("b"), node("behind_b", "b.out"), node("both", "a.out", "b.out")]
    ran = bench.run(nodes, work=failing("a"), keep_going=True)
    assert ran.of(Status.RAN) == ["b", "behind_b"]
    assert ran.of(Status.SKIPPED) == ["behind_a", "both"]
    assert ran.reason("both") == "needs a, which did not finish"


def test_an_error_that_is_nobodys_fault_ends_the_run(bench: Bench) -> None:
    def broken(node: Node, workspace: Workspace) -> JsonObject:  # noqa: ARG001
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        bench.run(LINE, [bench.source("weights", "w")], work=broken)


def test_a_system_that_cannot_start_another_process_fails_the_stage_in_words(bench: Bench) -> None:
    def overloaded(node: Node, workspace: Workspace) -> JsonObject:
        if node.id == "a":
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        return join(node, workspace)

    ran = bench.run([node("a"), node("b")], work=overloaded, keep_going=True)
    assert ran.results["a"].error == "Cannot run a: Resource temporarily unavailable."
    assert ran.of(Status.RAN) == ["b"]


def test_a_log_that_cannot_be_kept_costs_only_the_log(bench: Bench) -> None:
    bench.failures.write_text("a file where the folder should be")
    ran = bench.run([node("a")], work=failing("a"))
    assert (ran.results["a"].error, ran.results["a"].log) == ("a cannot be done.", None)


def test_a_source_that_changes_while_it_is_used_fails_the_stage_by_name(bench: Bench) -> None:
    weights = bench.source("weights", "w")

    def edit(node: Node, workspace: Workspace) -> JsonObject:
        weights.files[0].path.write_text("edited")
        return join(node, workspace)

    ran = bench.run(LINE, [weights], work=edit)
    path = weights.files[0].path
    assert ran.results["export"].error == f"{path} changed while it was being used, so nothing was stored."
    assert list(bench.store.blobs.all()) == []


def test_a_source_that_is_changed_for_a_while_only_fails_the_stage_too(bench: Bench) -> None:
    """The stage's input differs from its key, although the file is restored by the time it ends."""
    weights = bench.source("weights", "w")

    def work(node: Node, workspace: Workspace) -> JsonObject:
        weights.files[0].path.write_text("v" if node.id == "first" else "w")
        return join(node, workspace)

    ran = bench.run([node("first"), node("second", "first.out", "weights")], [weights], work=work)
    assert ran.of(Status.FAILED) == ["second"]
    assert str(weights.files[0].path) in ran.results["second"].error


def test_a_source_that_goes_away_before_it_is_used_fails_the_stage_by_name(bench: Bench) -> None:
    weights, data = bench.source("weights", "w"), bench.source("data", "d")

    def remove(node: Node, workspace: Workspace) -> JsonObject:
        data.files[0].path.unlink(missing_ok=True)
        return join(node, workspace)

    ran = bench.run([LINE[0], node("calibrate", "export.out", "data")], [weights, data], work=remove)
    assert str(data.files[0].path) in ran.results["calibrate"].error


def test_a_source_that_is_not_there_is_refused_before_anything_runs(bench: Bench) -> None:
    weights = bench.source("weights", "w")
    weights.files[0].path.unlink()
    with pytest.raises(InputError, match=r"weights\.txt"):
        bench.run(LINE, [weights])


def test_a_stage_that_writes_nothing_fails(bench: Bench) -> None:
    ran = bench.run([node("export")], work=lambda *_: {})
    assert "Output 'out' is empty" in ran.results["export"].error
    assert ran.of(Status.FAILED) == ["export"]


def test_the_store_is_told_what_is_reused_and_nothing_else(bench: Bench) -> None:
    weights = bench.source("weights", "w")
    bench.run(LINE[:2], [weights])
    assert [call for call in bench.store.calls if call[0] == "used"] == []
    ran = bench.run(LINE, [weights])
    used = [call[1] for call in bench.store.calls if call[0] == "used"]
    assert used == [ran.results[name].cache_key for name in ("export", "quantize")]
