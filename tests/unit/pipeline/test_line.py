"""A stage that is added to the line: its row decides where it stands and what decides its config."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
from pipeline_samples import save_model

from winml_dag.engine.stage import InputSlot, Skip, Stage
from winml_dag.pipeline import layout
from winml_dag.pipeline.buildgraph import BuildGraph
from winml_dag.pipeline.decisions import Decisions
from winml_dag.pipeline.plan_cache import plan_request
from winml_dag.pipeline.request import Overrides, Request
from winml_dag.stages import artifact_types, builtin
from winml_dag.store.store import Store

WHY = "only a model without integers can be pruned"


@dataclass(frozen=True)
class PruneConfig:
    ratio: float = 0.5


PRUNE = Stage(
    name="prune",
    version=1,
    work="winml_dag.stages.prune:run",
    config="winml_dag.stages.prune:PruneConfig",
    inputs={"model": InputSlot(artifact_types.ANY_MODEL), "data": InputSlot(None, required=False)},
    outputs={"model": artifact_types.FLOAT_MODEL},
    published={"model": "pruned.onnx"},
)


def decide(build: Decisions) -> PruneConfig | Skip:
    return Skip(WHY) if build.runs("quantize") else PruneConfig()


@pytest.fixture
def row(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file ``stages/prune.py``, and a row before the last."""
    module = ModuleType("winml_dag.stages.prune")
    vars(module).update(decide=decide)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for table, value in ((builtin.LINE, PRUNE), (builtin.DECIDED_BY, f"{module.__name__}:decide")):
        assert isinstance(table, dict)
        last = {"finalize": table["finalize"]}
        monkeypatch.delitem(table, "finalize")
        monkeypatch.setitem(table, "prune", value)
        table |= last


@pytest.mark.usefixtures("row")
def test_a_row_adds_a_stage(tmp_path: Path) -> None:
    def planned(precision: str) -> BuildGraph:
        overrides = Overrides(onnx=save_model(tmp_path / "tiny.onnx"), precision=precision)
        request = Request(None, overrides, tmp_path / "out")
        return plan_request(request, Store(tmp_path / "cache"), download=False)

    graph = planned("fp32")
    nodes = {node.id: node for node in graph.graph.nodes}
    before = [node_id for node_id in nodes if node_id.startswith("optimize")][-1]
    assert nodes["prune"].inputs == {"model": f"{before}.model"}
    assert nodes["prune"].config == {"ratio": 0.5}
    assert nodes["finalize"].inputs["model"] == "prune.model"
    assert list(layout.published_outputs(nodes["prune"], {})) == [("model", "")]
    assert "pruned.onnx" in layout.reserved({})
    assert [step.skipped for step in planned("w8a8").steps if step.stage == "prune"] == [WHY]
