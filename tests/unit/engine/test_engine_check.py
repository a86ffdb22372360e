"""A result that is valid but not what a build needs: its stage fails, its record stays."""

from __future__ import annotations

from dataclasses import replace

import pytest
from engine_samples import Bench, node

from winml_dag.canonical import JsonObject
from winml_dag.engine.events import Status
from winml_dag.errors import StageError


def at_most_one_input(config: JsonObject, metrics: JsonObject) -> None:
    assert config == {"text": {"salt": 0}}
    if metrics["inputs"] != 1:
        raise StageError(f"It has {metrics['inputs']} inputs.", advice="Take one away.")


CHECK = f"{__name__}:at_most_one_input"
JUDGED = (
    node("export", "weights"),
    replace(node("analyze", "export.out", "weights"), check=CHECK),
    node("quantize", "export.out"),
    node("report", "analyze.out"),
)


def test_refused_result_stops_the_run_and_is_usable_without_check(bench: Bench) -> None:
    weights = bench.source("weights", "w")
    ran = bench.run(JUDGED, [weights])
    assert ran.calls == ["export", "analyze"], "what has not begun by then is not begun"
    refused = ran.results["analyze"]
    said = (Status.FAILED, "It has 2 inputs.", "Take one away.")
    assert (refused.status, refused.error, refused.advice) == said
    assert refused.record is not None
    assert bench.text(refused.record.files()[0]).startswith("analyze0")

    again = bench.run(JUDGED, [weights])
    planned = {result.node.id: result for result in bench.plan(JUDGED, [weights])}
    for found in (again.results["analyze"], planned["analyze"]):
        assert (found.status, found.error, found.advice) == said
    assert again.calls == [], "it is refused again without running"

    allowed = tuple(replace(one, check="") for one in JUDGED)
    assert bench.run(allowed, [weights]).calls == ["quantize", "report"]


@pytest.mark.parametrize("jobs", [1, 2])
def test_independent_stages_continue_with_keep_going(bench: Bench, jobs: int) -> None:
    ran = bench.run(JUDGED, [bench.source("weights", "w")], keep_going=True, jobs=jobs)
    assert ran.of(Status.RAN) == ["export", "quantize"]
    assert ran.of(Status.SKIPPED) == ["report"]
    assert ran.reason("report") == "needs analyze, which did not finish"


def test_accepted_result_is_reused_like_any_other(bench: Bench) -> None:
    line = (replace(node("export", "weights"), check=CHECK), node("quantize", "export.out"))
    weights = bench.source("weights", "w")
    assert bench.run(line, [weights]).calls == ["export", "quantize"]
    assert bench.run(line, [weights]).told == ["reused export", "reused quantize"]
