"""A plan makes the decisions that a run would make, as far as they can be made now, and changes nothing."""

from __future__ import annotations

from engine_samples import Bench, node

from winml_dag.engine.events import Status

LINE = (node("export", "weights"), node("quantize", "export.out"), node("compile", "quantize.out"))


def test_before_the_first_build_everything_would_run(bench: Bench) -> None:
    plan = bench.plan(LINE, [bench.source("weights", "w")])
    assert [str(result.reason) for result in plan] == [
        "never built before",
        "depends on what export will give",
        "depends on what quantize will give",
    ]
    assert {result.status for result in plan} == {Status.RAN}


def test_after_a_build_nothing_would_run(bench: Bench) -> None:
    weights = bench.source("weights", "w")
    ran = bench.run(LINE, [weights])
    plan = bench.plan(LINE, [weights])
    assert {(result.status, str(result.reason)) for result in plan} == {(Status.REUSED, "up to date")}
    assert [result.record for result in plan] == [ran.results[result.node.id].record for result in plan]


def test_an_edit_reaches_the_stages_behind_it(bench: Bench) -> None:
    weights = bench.source("weights", "w")
    bench.run(LINE, [weights])
    edited = (LINE[0], node("quantize", "export.out", salt=1), LINE[2])
    assert [(result.node.id, str(result.reason)) for result in bench.plan(edited, [weights])] == [
        ("export", "up to date"),
        ("quantize", "text.salt: 0 -> 1"),
        ("compile", "depends on what quantize will give"),
    ]


def test_what_will_be_recomputed_is_estimated_by_its_last_run(bench: Bench) -> None:
    weights = bench.source("weights", "w")
    ran = bench.run(LINE, [weights])
    edited = (node("export", "weights", salt=1), *LINE[1:])
    took = [ran.results[result.node.id].elapsed_seconds for result in bench.plan(edited, [weights])]
    assert [result.elapsed_seconds for result in bench.plan(edited, [weights])] == took


def test_a_plan_only_reads(bench: Bench) -> None:
    weights = bench.source("weights", "w")
    bench.run(LINE, [weights])
    bench.store.calls.clear()
    bench.plan((node("export", "weights", salt=1), *LINE[1:]), [weights], scope="elsewhere")
    assert {method for method, _ in bench.store.calls} <= {"record", "latest"}
