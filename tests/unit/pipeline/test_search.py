"""What is reported of a capability search: in settings, as notices, as an error, and which of its rounds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from winml_dag.canonical import JsonObject
from winml_dag.engine import events
from winml_dag.engine.events import Silent, StageResult, Status
from winml_dag.engine.stage import Node, Stage
from winml_dag.errors import StageError
from winml_dag.pipeline.buildgraph import BuildSummary
from winml_dag.pipeline.search import WithoutRounds, completed, folded, refuse_unsupported, searches
from winml_dag.stages.analyze import ANALYZE
from winml_dag.stages.compile import COMPILE
from winml_dag.store.records import KeyInputs, Record

CONFIG: JsonObject = {"target": {"execution_provider": "QNNExecutionProvider", "device": "npu"}}
ERF: JsonObject = {"operator": "OP/ai.onnx/Erf", "count": 3, "reason": "not taken", "nodes": ["a", "b"]}


def analyzed(node_id: str, key: str, *discovered: str, **metrics: Any) -> StageResult:
    told = {"nodes": {"supported": 5}, **metrics, "discovered": list(discovered)}
    record = Record(key, "", KeyInputs("analyze", 1, CONFIG, {}, {}), {}, told)
    return StageResult(Node(node_id, ANALYZE, CONFIG, {}), Status.RAN, events.FIRST_BUILD, key, record)


def summary(**settings: Any) -> BuildSummary:
    return BuildSummary("m", "onnx", None, "fp32", "QNNExecutionProvider", "qnn", "npu", Path("out"), settings, ())


CONVERGED = (
    analyzed("analyze.0", "first", "gelu_fusion"),
    analyzed("analyze.1", "second", "gelu_fusion"),
    analyzed("analyze.2", "second", "gelu_fusion"),
)


def test_discovered_capabilities_are_added_to_recipe_settings() -> None:
    (found,) = searches(CONVERGED)
    assert (found.iterations, found.discovered, found.left) == (2, ("gelu_fusion",), ())
    told = completed(summary(optim={"layer_norm_fusion": False}), CONVERGED)
    assert told.settings["optim"] == {"layer_norm_fusion": False, "gelu_fusion": True}
    assert told.notices == ()


def test_proposal_beyond_iteration_limit_is_reported_and_off() -> None:
    ended = (CONVERGED[0], analyzed("analyze.1", "second", "gelu_fusion", "matmul_add_fusion"))
    told = completed(summary(optim={}), ended)
    assert told.settings["optim"] == {"gelu_fusion": True}
    (notice,) = told.notices
    assert "max_optim_iterations: matmul_add_fusion would have come next" in notice


def test_each_component_has_its_own_discoveries() -> None:
    both = (analyzed("encoder.analyze.0", "e", "gelu_fusion"), analyzed("encoder.analyze.1", "f", "gelu_fusion"),
            analyzed("decoder.analyze.0", "d"), analyzed("decoder.analyze.1", "d"))  # fmt: skip
    told = completed(summary(components={"encoder": {"optim": {"layer_norm_fusion": True}}, "decoder": {}}), both)
    assert told.settings["components"] == {
        "encoder": {"optim": {"layer_norm_fusion": True, "gelu_fusion": True}},
        "decoder": {},
    }


@pytest.mark.parametrize("compiles", [False, True])
def test_nodes_left_to_cpu_are_reported_unless_compiled(compiles: bool) -> None:
    left = analyzed("analyze.0", "a", nodes={"supported": 5, "partial": 3}, partial=[ERF])
    compiled = StageResult(Node("compile", COMPILE, {}, {}), Status.RAN, events.FIRST_BUILD)
    told = completed(summary(), (left, compiled) if compiles else (left,))
    expected = () if compiles else ("QNNExecutionProvider (npu) leaves 3 nodes to the CPU: Erf (3).",)
    assert told.notices == expected


def test_unsupported_nodes_are_refused_with_reason() -> None:
    with pytest.raises(StageError) as refused:
        refuse_unsupported(CONFIG, {"nodes": {"unsupported": 3}, "unsupported": [ERF]})
    assert refused.value.message == (
        "QNNExecutionProvider (npu) cannot run 3 nodes of the model: Erf (3 nodes: a, b, ...; not taken)."
    )
    refuse_unsupported(CONFIG, {"nodes": {"supported": 3, "partial": 1, "unknown": 1}})


def result(
    node_id: str, key: str | None, status: Status = Status.REUSED, why: events.Reason = events.UP_TO_DATE
) -> StageResult:
    name = node_id.removeprefix("encoder.").partition(".")[0]
    return StageResult(Node(node_id, Stage(name, 1, "", "", {}, {}), {}, {}), status, why, key)


def line(*keys: tuple[str | None, str | None], prefix: str = "") -> list[StageResult]:
    """Return rounds with these keys of optimize and analyze."""
    return [
        result(f"{prefix}{name}.{number}", key)
        for number, pair in enumerate(keys)
        for name, key in zip(("optimize", "analyze"), pair, strict=True)
    ]


def reported(results: list[StageResult]) -> list[str]:
    return [one.node.id for one in folded(results).reported]


@settings(max_examples=40)
@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=5), st.integers(1, 4))
def test_round_is_reported_only_with_new_result(found: list[str], further: int) -> None:
    keys = [*found, *[found[-1]] * further]
    parted = folded([result("export", "e"), *line(*((f"o{key}", f"a{key}") for key in keys)), result("finalize", "f")])
    first = [number for number, key in enumerate(keys) if key not in keys[:number]]
    expected = [f"{name}.{number}" for number in first for name in ("optimize", "analyze")]
    assert [one.node.id for one in parted.reported] == ["export", *expected, "finalize"]
    assert {one.node.id for one in parted.like_before} == parted.like.keys()
    for node_id, other in parted.like.items():
        assert keys[int(node_id[-1])] == keys[int(other[-1])]


FIRST, SECOND = ["optimize.0", "analyze.0"], ["optimize.1", "analyze.1"]
REFUSED = replace(result("analyze.1", "a"), status=Status.FAILED)


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        (line(("o", None), (None, None)), FIRST),
        (line(("o", "a"), ("other", None), (None, None)), FIRST + SECOND),
        (
            [*line(("o", "a"), ("o", "a")), *line(("o", "a"), ("p", "b"), prefix="encoder.")],
            [*FIRST, *(f"encoder.{node_id}" for node_id in FIRST + SECOND)],
        ),
        ([*line(("o", "a")), result("optimize.1", "o"), REFUSED], [*FIRST, "analyze.1"]),
    ],
    ids=["not known", "certain to differ", "of two components", "a failure"],
)
def test_rounds_that_differ_or_fail_are_reported(results: list[StageResult], expected: list[str]) -> None:
    assert reported(results) == expected


def test_reasons_name_reported_stages_only() -> None:
    waiting = result("quantize", None, Status.RAN, events.waits(["optimize.1", "calibrate"]))
    stopped = result("compile", None, Status.SKIPPED, events.blocked(["optimize.1", "optimize.0"]))
    *_, first, second = folded([*line(("o", None), (None, None)), waiting, stopped]).reported
    assert str(first.reason) == "depends on the output of optimize.0, calibrate"
    assert str(second.reason) == "needs optimize.0, which did not finish"


class _Noted(Silent):
    def __init__(self) -> None:
        self.ids: list[str] = []

    def finished(self, result: StageResult) -> None:
        self.ids.append(result.node.id)


def test_observer_receives_reported_stages_only() -> None:
    results = [*line(("o", "a"), ("p", "b"), ("p", "b")), result("finalize", "f")]
    observer = WithoutRounds(heard := _Noted())
    for one in results:
        observer.finished(one)
    assert heard.ids == reported(results)
