"""Keys of an environment with an execution provider contain the packages it needs, and nothing else."""

from __future__ import annotations

import os
import venv
from pathlib import Path

import pytest

from winml_dag.configuration import ENVIRONMENTS_VARIABLE
from winml_dag.ep.providers.nvtensorrtrtx import NV_TENSORRT_RTX
from winml_dag.ep.registry import CPU, QNN, Target
from winml_dag.pipeline.line import ep_place
from winml_dag.store.store import Store


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


def test_another_way_to_the_same_provider_is_in_no_key_of_it(packages: Path, tmp_path: Path) -> None:
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


def test_the_distribution_that_is_there_counts_among_those_of_one_module(packages: Path, tmp_path: Path) -> None:
    install(packages, "onnxruntime_ep_nv_tensorrt_rtx_cu12", "0.5.0", "onnxruntime_ep_nv_tensorrt_rtx")
    assert toolchain(Target(NV_TENSORRT_RTX, "gpu"), tmp_path)["onnxruntime-ep-nv-tensorrt-rtx-cu12"] == "0.5.0"


def test_a_real_device_is_one_run_s_at_a_time_and_an_emulator_is_not(
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
