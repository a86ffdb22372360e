"""The line of stages: a row adds one, and keys have the packages that a provider needs in its environment."""

from __future__ import annotations

import os
import sys
import venv
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
from pipeline_samples import save_model

from winml_dag.configuration import ENVIRONMENTS_VARIABLE
from winml_dag.engine.stage import InputSlot, Skip, Stage
from winml_dag.ep.providers.nvtensorrtrtx import NV_TENSORRT_RTX
from winml_dag.ep.registry import CPU, QNN, Target
from winml_dag.pipeline import layout
from winml_dag.pipeline.buildgraph import BuildGraph
from winml_dag.pipeline.decisions import Decisions
from winml_dag.pipeline.line import ep_place
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
def test_stage_row_adds_a_stage(tmp_path: Path) -> None:
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


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The packages folder of an environment named for two providers."""
    folder = tmp_path / "other"
    venv.create(folder, with_pip=False)
    monkeypatch.setenv(ENVIRONMENTS_VARIABLE, os.pathsep.join(f"{ep}={folder}" for ep in ("qnn", "nvtensorrtrtx")))
    return next(path for path in folder.rglob("site-packages") if path.is_dir())


def install(packages: Path, name: str, version: str, module: str = "") -> None:
    for old in packages.glob(f"{name}-*.dist-info"):
        old.rmdir()
    (packages / f"{name}-{version}.dist-info").mkdir()
    if module:
        (packages / module).mkdir(exist_ok=True)
        (packages / module / "__init__.py").touch()
        (packages / module / f"lib{module}.so").write_bytes(b"library")


def toolchain(target: Target, folder: Path) -> dict[str, str]:
    return ep_place(target, Store(folder / "cache").fingerprints).toolchain(("onnxruntime", "numpy"))


def test_windowsml_is_not_in_key_of_other_provider_packages(packages: Path, tmp_path: Path) -> None:
    install(packages, "onnxruntime", "1.31.1")
    install(packages, "onnxruntime_qnn", "2.7.0", "onnxruntime_qnn")
    install(packages, "windowsml", "2.4", "windowsml")
    target = Target(QNN, "npu")
    found = toolchain(target, tmp_path)
    assert {name: found[name] for name in ("onnxruntime", "onnxruntime-qnn", "numpy")} == {
        "onnxruntime": "1.31.1",
        "onnxruntime-qnn": "2.7.0",
        "numpy": "not installed",
    }
    assert found.keys() - {"onnxruntime", "onnxruntime-qnn", "numpy"} == {"qnn library libonnxruntime_qnn.so"}
    install(packages, "windowsml", "2.5")
    assert toolchain(target, tmp_path) == found
    install(packages, "onnxruntime_qnn", "2.8.0")
    assert toolchain(target, tmp_path) == {**found, "onnxruntime-qnn": "2.8.0"}


def test_installed_distribution_of_a_module_is_in_toolchain(packages: Path, tmp_path: Path) -> None:
    install(packages, "onnxruntime_ep_nv_tensorrt_rtx_cu12", "0.5.0", "onnxruntime_ep_nv_tensorrt_rtx")
    assert toolchain(Target(NV_TENSORRT_RTX, "gpu"), tmp_path)["onnxruntime-ep-nv-tensorrt-rtx-cu12"] == "0.5.0"


def test_real_devices_are_exclusive_and_emulators_are_not(
    packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(packages, "onnxruntime_qnn", "2.7.0", "onnxruntime_qnn")
    fingerprints = Store(tmp_path / "cache").fingerprints
    pools = {}
    for machine in ("x86_64", "aarch64"):
        monkeypatch.setattr("platform.machine", lambda machine=machine: machine)
        for ep, device in ((QNN, "npu"), (QNN, "gpu"), (CPU, "cpu")):
            pools[machine, device] = ep_place(Target(ep, device), fingerprints).pools
    assert {place: found for place, found in pools.items() if found} == {
        ("x86_64", "gpu"): ("gpu",),
        ("aarch64", "npu"): ("npu",),
        ("aarch64", "gpu"): ("gpu",),
    }
