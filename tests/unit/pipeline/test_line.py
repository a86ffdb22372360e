"""A stage that is added to the line: its declaration decides what it reads, what follows it, and what is published."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from pipeline_samples import save_model

from winml_dag.engine.stage import InputSlot, Stage
from winml_dag.pipeline import layout, line, resolve
from winml_dag.pipeline.request import Overrides, Request
from winml_dag.pipeline.variant import Build
from winml_dag.stages import artifact_types, builtin
from winml_dag.store.store import Store


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


@dataclass(frozen=True)
class PrunedBuild(Build):
    prune: PruneConfig = PruneConfig()


def test_a_row_of_the_line_adds_a_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = dict(builtin.LINE)
    finalize = rows.pop("finalize")
    for module in (builtin, line):
        monkeypatch.setattr(module, "LINE", {**rows, "prune": PRUNE, "finalize": finalize})
    request = Request(None, Overrides(onnx=save_model(tmp_path / "tiny.onnx")), tmp_path / "out")
    store = Store(tmp_path / "cache")
    build = resolve.build_of(request, store.folder, download=False)
    assert isinstance(build, Build)
    nodes = {node.id: node for node in line.Line(PrunedBuild(**vars(build)), store.fingerprints, {}).nodes()}
    before = [node_id for node_id in nodes if node_id.startswith("optimize")][-1]
    assert nodes["prune"].inputs == {"model": f"{before}.model"}
    assert nodes["prune"].config == {"ratio": 0.5}
    assert nodes["finalize"].inputs["model"] == "prune.model"
    assert list(layout.published_outputs(nodes["prune"], {})) == [("model", "")]
    assert "pruned.onnx" in layout.reserved({})
