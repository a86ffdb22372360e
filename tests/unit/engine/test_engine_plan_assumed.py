"""A plan goes by what an output was before, where that is usually the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from engine_samples import Bench, join, node

from winml_dag.canonical import JsonObject
from winml_dag.engine.events import StageResult, Status
from winml_dag.engine.stage import InputSlot, Node, Source, Workspace


def line(*, salt: int = 0, reader: int = 0) -> tuple[Node, ...]:
    analyze = node("analyze", "weights", salt=salt, outputs=("result", "flags"))
    analyze = replace(analyze, stage=replace(analyze.stage, usually=("flags",)))
    return (analyze, node("optimize", "weights", "analyze.flags"), node("quantize", "optimize.out", salt=reader),
            node("report", "analyze.result"))  # fmt: skip


def constant_flags(node: Node, workspace: Workspace) -> JsonObject:
    if node.id == "analyze":
        (workspace.outputs["result"] / "result.txt").write_text(str(node.config))
        (workspace.outputs["flags"] / "flags.txt").write_text("{}")
        return {}
    return join(node, workspace)


def planned(bench: Bench, nodes: tuple[Node, ...], sources: Sequence[Source] = ()) -> dict[str, StageResult]:
    """With all that can be said as reasons."""
    sources = sources or [bench.source("weights", "w")]
    return {result.node.id: result for result in bench.plan(nodes, sources, explain=True)}


def test_what_reads_such_an_output_is_foreseen_and_says_what_it_stands_on(bench: Bench) -> None:
    bench.run(line(), [bench.source("weights", "w")], work=constant_flags)
    found = planned(bench, line(salt=1, reader=1))
    assert (found["analyze"].status, str(found["analyze"].reason)) == (Status.RAN, "text.salt: 0 -> 1")
    assert (found["optimize"].status, found["optimize"].assumes) == (Status.REUSED, ("analyze",))
    assert (found["quantize"].status, str(found["quantize"].reason)) == (Status.RAN, "text.salt: 0 -> 1")
    assert found["quantize"].assumes == ("analyze",)
    assert str(found["report"].reason).startswith("depends on what analyze will give")
    ran = bench.run(line(salt=1, reader=1), [bench.source("weights", "w")], work=constant_flags)
    assert sorted(ran.calls) == ["analyze", "quantize", "report"]


def test_nothing_is_assumed_of_what_never_ran_or_is_known(bench: Bench) -> None:
    assert planned(bench, line())["optimize"].assumes == ()
    bench.run(line(), [bench.source("weights", "w")], work=constant_flags)
    assert {result.assumes for result in planned(bench, line()).values()} == {()}


def test_where_it_never_ran_a_plan_goes_by_what_is_read_in_that_slot(bench: Bench) -> None:
    """As analyze hands on what it reads when it finds nothing: what follows is known although analyze is not."""
    first = node("optimize", "weights", "flags")
    analyze = replace(node("analyze", "weights", outputs=("result", "flags")), inputs={"flags": "flags"})
    analyze = replace(analyze, stage=replace(analyze.stage, usually=("flags",), inputs={"flags": InputSlot(None)}))
    again = replace(node("again", "weights", "analyze.flags"), stage=first.stage, config=first.config)
    sources = [bench.source("weights", "w"), bench.source("flags", "{}")]
    bench.run((first,), sources)
    behind = node("behind", "again.out")
    found = planned(bench, (analyze, again, behind), sources)
    assert found["analyze"].status is Status.RAN
    assert (found["again"].status, found["again"].assumes) == (Status.REUSED, ("analyze",))
    assert (str(found["behind"].reason), found["behind"].assumes) == ("never built before", ("analyze",))
