"""What is reported on a capability search: in settings, as notices, and as an error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from winml_dag.canonical import JsonObject
from winml_dag.engine import events
from winml_dag.engine.events import StageResult, Status
from winml_dag.engine.stage import Node
from winml_dag.errors import StageError
from winml_dag.pipeline.buildgraph import BuildSummary
from winml_dag.pipeline.search import completed, refuse_unsupported, searches
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


def test_what_is_on_in_the_last_model_goes_into_the_settings_beside_the_recipes_own() -> None:
    (found,) = searches(CONVERGED)
    assert (found.iterations, found.discovered, found.left) == (2, ("gelu_fusion",), ())
    told = completed(summary(optim={"layer_norm_fusion": False}), CONVERGED)
    assert told.settings["optim"] == {"layer_norm_fusion": False, "gelu_fusion": True}
    assert told.notices == ()


def test_what_the_last_analysis_would_add_is_not_on_and_is_told() -> None:
    ended = (CONVERGED[0], analyzed("analyze.1", "second", "gelu_fusion", "matmul_add_fusion"))
    told = completed(summary(optim={}), ended)
    assert told.settings["optim"] == {"gelu_fusion": True}
    (notice,) = told.notices
    assert "max_optim_iterations: matmul_add_fusion would have come next" in notice


def test_each_component_has_its_own() -> None:
    both = (analyzed("encoder.analyze.0", "e", "gelu_fusion"), analyzed("encoder.analyze.1", "f", "gelu_fusion"),
            analyzed("decoder.analyze.0", "d"), analyzed("decoder.analyze.1", "d"))  # fmt: skip
    told = completed(summary(components={"encoder": {"optim": {"layer_norm_fusion": True}}, "decoder": {}}), both)
    assert told.settings["components"] == {
        "encoder": {"optim": {"layer_norm_fusion": True, "gelu_fusion": True}},
        "decoder": {},
    }


@pytest.mark.parametrize("compiles", [False, True])
def test_what_is_left_to_the_cpu_is_told_unless_compile_knows_better(compiles: bool) -> None:
    left = analyzed("analyze.0", "a", nodes={"supported": 5, "partial": 3}, partial=[ERF])
    compiled = StageResult(Node("compile", COMPILE, {}, {}), Status.RAN, events.FIRST_BUILD)
    told = completed(summary(), (left, compiled) if compiles else (left,))
    expected = () if compiles else ("QNNExecutionProvider (npu) leaves 3 nodes to the CPU: Erf (3).",)
    assert told.notices == expected


def test_a_node_that_does_not_run_is_refused_with_its_name_and_the_reason() -> None:
    with pytest.raises(StageError) as refused:
        refuse_unsupported(CONFIG, {"nodes": {"unsupported": 3}, "unsupported": [ERF]})
    assert refused.value.message == (
        "QNNExecutionProvider (npu) cannot run 3 nodes of the model: Erf (3 nodes: a, b, ...; not taken)."
    )
    refuse_unsupported(CONFIG, {"nodes": {"supported": 3, "partial": 1, "unknown": 1}})
