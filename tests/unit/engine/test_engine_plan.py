"""What a plan reports on each stage with its reason, and its assumptions where an output usually stays the same."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest
from engine_samples import Bench, join, node

from winml_dag.canonical import JsonObject
from winml_dag.engine.events import StageResult, Status
from winml_dag.engine.stage import InputSlot, Node, Source, Workspace

LINE = (node("export", "weights"), node("quantize", "export.out"), node("compile", "quantize.out"))


def explained(
    bench: Bench, nodes: Iterable[Node], sources: Sequence[Source] = (), *, scope: str = "here"
) -> dict[str, StageResult]:
    """Return the plan with complete reasons."""
    sources = sources or [bench.source("weights", "w")]
    return {result.node.id: result for result in bench.plan(nodes, sources, scope=scope, explain=True)}


@pytest.mark.parametrize("explain", [False, True])
def test_plan_only_reads_and_reports_status_with_reasons(bench: Bench, explain: bool) -> None:
    weights = bench.source("weights", "w")
    assert [(result.status, str(result.reason)) for result in bench.plan(LINE, [weights], explain=explain)] == [
        (Status.RAN, "never built before"),
        (Status.RAN, "depends on the output of export"),
        (Status.RAN, "depends on the output of quantize"),
    ]
    ran = bench.run(LINE, [weights])
    plan = bench.plan(LINE, [weights], explain=explain)
    assert {(result.status, str(result.reason)) for result in plan} == {(Status.REUSED, "up to date")}
    assert [result.record for result in plan] == [result.record for result in ran.results.values()]
    bench.store.calls.clear()
    edited = (LINE[0], node("quantize", "export.out", salt=1), LINE[2])
    plan = bench.plan(edited, [weights], explain=explain)
    assert [str(result.reason) for result in plan] == [
        "up to date",
        "text.salt: 0 -> 1",
        "depends on the output of quantize",
    ]
    took = [ran.results[name].elapsed_seconds for name in ("quantize", "compile")]
    assert [result.elapsed_seconds for result in plan[1:]] == took, "estimated by the last run"
    bench.plan(edited, [weights], scope="elsewhere", explain=explain)
    assert {method for method, _ in bench.store.calls} <= {"record", "latest", *(["records_of"] if explain else [])}


def test_waiting_stage_reports_roots_and_known_changes(bench: Bench) -> None:
    weights = bench.source("weights", "w")
    bench.run(LINE, [weights])
    edited = (node("export", "weights", salt=1), LINE[1], node("compile", "quantize.out", salt=2))
    found = explained(bench, edited, [weights])
    assert found["quantize"].reason.roots == ("export",)
    assert str(found["quantize"].reason) == "depends on the output of export"
    assert found["compile"].reason.roots == ("export",)
    assert str(found["compile"].reason) == "depends on the output of quantize; text.salt: 0 -> 2"


def test_waiting_stage_reports_its_changed_inputs(bench: Bench) -> None:
    line = (node("export", "weights"), node("calibrate", "export.out", "data"))
    bench.run(line, [bench.source("weights", "w"), bench.source("data", "old")])
    sources = [bench.source("weights", "other"), bench.source("data", "new")]
    reason = explained(bench, line, sources)["calibrate"].reason
    assert str(reason).startswith("depends on the output of export; input in1: data.txt changed (xxh3-128:")
    other_way_round = (line[0], node("calibrate", "export.out"))
    reason = explained(bench, other_way_round, sources)["calibrate"].reason
    assert str(reason) == "depends on the output of export; input in1 is gone"


def test_two_roots_are_each_named_once(bench: Bench) -> None:
    nodes = (
        node("left", "weights"),
        node("right", "weights"),
        node("join", "left.out", "right.out"),
        node("end", "join.out", "left.out"),
    )
    found = explained(bench, nodes, [bench.source("weights", "w")])
    assert found["join"].reason.roots == ("left", "right")
    assert found["end"].reason.roots == ("left", "right")


def test_only_explanations_read_near_records_once_per_stage(bench: Bench) -> None:
    weights = bench.source("weights", "w")
    nodes = [node(f"n{number}", "weights", of="same", salt=number) for number in range(20)]
    explained(bench, nodes, [weights])
    assert [about for method, about in bench.store.calls if method == "records_of"] == ["same"]
    bench.store.calls.clear()
    bench.run(nodes, [weights])
    bench.run([replace(each, config={"text": {"salt": 99}}) for each in nodes], [weights])
    assert "records_of" not in {method for method, _ in bench.store.calls}


def line(*, salt: int = 0, reader: int = 0) -> tuple[Node, ...]:
    analyze = node("analyze", "weights", salt=salt, outputs=("result", "flags"))
    analyze = replace(analyze, stage=replace(analyze.stage, likely_unchanged=("flags",)))
    return (analyze, node("optimize", "weights", "analyze.flags"), node("quantize", "optimize.out", salt=reader),
            node("report", "analyze.result"))  # fmt: skip


def constant_flags(node: Node, workspace: Workspace) -> JsonObject:
    if node.id == "analyze":
        (workspace.outputs["result"] / "result.txt").write_text(str(node.config))
        (workspace.outputs["flags"] / "flags.txt").write_text("{}")
        return {}
    return join(node, workspace)


def test_likely_unchanged_output_is_assumed_and_reported(bench: Bench) -> None:
    bench.run(line(), [bench.source("weights", "w")], work=constant_flags)
    found = explained(bench, line(salt=1, reader=1))
    assert (found["analyze"].status, str(found["analyze"].reason)) == (Status.RAN, "text.salt: 0 -> 1")
    assert (found["optimize"].status, found["optimize"].assumes) == (Status.REUSED, ("analyze",))
    assert (found["quantize"].status, str(found["quantize"].reason)) == (Status.RAN, "text.salt: 0 -> 1")
    assert found["quantize"].assumes == ("analyze",)
    assert str(found["report"].reason).startswith("depends on the output of analyze")
    ran = bench.run(line(salt=1, reader=1), [bench.source("weights", "w")], work=constant_flags)
    assert sorted(ran.calls) == ["analyze", "quantize", "report"]


def test_nothing_is_assumed_of_new_or_known_outputs(bench: Bench) -> None:
    assert explained(bench, line())["optimize"].assumes == ()
    bench.run(line(), [bench.source("weights", "w")], work=constant_flags)
    assert {result.assumes for result in explained(bench, line()).values()} == {()}


def test_never_run_stage_is_assumed_to_pass_its_input_through(bench: Bench) -> None:
    """As analyze passes on its input when it finds nothing: what follows is predictable although analyze is not."""
    first = node("optimize", "weights", "flags")
    analyze = replace(node("analyze", "weights", outputs=("result", "flags")), inputs={"flags": "flags"})
    analyze = replace(
        analyze, stage=replace(analyze.stage, likely_unchanged=("flags",), inputs={"flags": InputSlot(None)})
    )
    again = replace(node("again", "weights", "analyze.flags"), stage=first.stage, config=first.config)
    sources = [bench.source("weights", "w"), bench.source("flags", "{}")]
    bench.run((first,), sources)
    behind = node("behind", "again.out")
    found = explained(bench, (analyze, again, behind), sources)
    assert found["analyze"].status is Status.RAN
    assert (found["again"].status, found["again"].assumes) == (Status.REUSED, ("analyze",))
    assert (str(found["behind"].reason), found["behind"].assumes) == ("never built before", ("analyze",))
