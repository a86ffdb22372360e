"""Builds on a cluster of real processes: their results, and what happens when a machine dies or a build is stopped."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from cluster_lab import Lab, environment

from winml_dag.api import build_onnx_model
from winml_dag.engine.events import Status
from winml_dag.store.cache_folder import store_folder
from winml_dag.store.store import Store

sys.path.insert(0, str(Path(__file__).parents[1] / "scenarios"))
from onnx_samples import perceptron, samples

pytestmark = pytest.mark.slow

BASE = {"quant": {"calibration_data": "data.npz"}, "ep": "qnn", "precision": "w8a8"}
# Two models, so that at least one is optimized on a worker that can hang: one of the three cannot.
SWEEP = {"base": "base.yaml", "matrix": {"model": ["one.onnx", "two.onnx"]}}
FEW = ("--no-validate", "--no-analyze")


@pytest.fixture(scope="module")
def models(lab: Lab) -> Lab:
    for seed, name in enumerate(("one", "two", "three", "four", "five", "six")):
        perceptron(lab.folder / f"{name}.onnx", seed=seed)
    samples(lab.folder / "data.npz")
    (lab.folder / "base.yaml").write_text(yaml.safe_dump(BASE), encoding="utf-8")
    (lab.folder / "sweep.yaml").write_text(yaml.safe_dump(SWEEP), encoding="utf-8")
    return lab


def _files(folder: Path) -> dict[str, bytes]:
    """Return all files of the models; manifests are excluded, as they contain times and keys."""
    found = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".json"]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


def test_cluster_sweep_equals_local_when_worker_dies(models: Lab) -> None:
    lab = models
    lab.want_hanging()
    building = lab.start_build("there", "cache-of-builds", "-c", "sweep.yaml", *FEW, *lab.there)
    hanging = lab.await_hanging(building)
    os.kill(hanging.worker, signal.SIGKILL)
    hanging.wait_for_end()
    said, _ = building.communicate()
    assert building.returncode == 0, said
    here, said = lab.build("here", "cache-here", "-c", "sweep.yaml", *FEW, python=Path(sys.executable))
    assert here == 0, said
    made = _files(lab.folder / "there")
    assert len(made) >= 4
    assert made == _files(lab.folder / "here")


@pytest.mark.parametrize(("number", "model"), [(signal.SIGINT, "three"), (signal.SIGKILL, "four")])
def test_ended_build_leaves_no_running_stage(models: Lab, number: int, model: str) -> None:
    models.want_hanging()
    on_workers_that_can_hang = (*FEW, *models.there, "--worker-tag", "spare")
    building = models.start_build("ended", f"cache-{model}", "--onnx", f"{model}.onnx", *on_workers_that_can_hang)
    hanging = models.await_hanging(building)
    building.send_signal(number)
    hanging.wait_for_end()
    said, _ = building.communicate()
    assert building.returncode == (130 if number == signal.SIGINT else -number), said
    assert not (models.folder / "ended").exists()


def test_killed_build_ends_its_own_workers(models: Lab) -> None:
    import psutil  # comes with dask

    models.want_hanging()
    own = ("--executor", "dask", "--workers", "1")
    building = models.start_build("taken", "cache-taken", "--onnx", "six.onnx", *FEW, *own, hangs=True)
    hanging = models.await_hanging(building)
    building.kill()
    building.communicate()
    hanging.wait_for_end()
    with suppress(psutil.NoSuchProcess):
        psutil.Process(hanging.worker).wait(120)


def test_worker_with_other_versions_is_refused(models: Lab) -> None:
    other = environment(models.folder / "other", telling=("onnxruntime", "1.0.0"))
    code, said = models.build("refused", "cache-refused", "--onnx", "one.onnx", *FEW, *models.there, python=other)
    assert code == 1
    assert "No worker can run it" in said
    assert "not 1.0.0" in said


def test_python_build_runs_on_workers(models: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINML_DAG_REMOTE_ACCEPT_UNSIGNED", "1")
    result = build_onnx_model(
        models.folder / "five.onnx",
        models.folder / "from-python",
        analyze=False,
        validate=False,
        cache_dir=models.folder / "cache-python",
        scheduler=models.address,
        remote=(models.folder / "remote").as_uri(),
        remote_mode="read-write",
    )
    ran = [view.cache_key for view in result.stages if view.status is Status.RAN]
    assert len(ran) == 2
    caches = [Store(store_folder(models.folder / f"cache-{name}", "sha256")) for name in ("first", "second", "qnn")]
    assert all(any(key and cache.record(key) for cache in caches) for key in ran)


def test_build_can_start_its_own_workers(models: Lab) -> None:
    shared = models.folder / "shared"
    remote = ("--remote", shared.as_uri(), "--remote-mode", "read-write")
    code, said = models.build(
        "own", "cache-own", "--onnx", "two.onnx", *FEW, "--executor", "dask", "--workers", "1", *remote
    )
    assert code == 0, said
    # For two stages, the model, and the start of an optimization search.
    assert len([path for path in (shared / "ac").rglob("*") if path.is_file()]) == 4
    assert "1 worker, " in said
    assert "2 ran" in said
    assert list((models.folder / "cache-own" / "scratch").iterdir()) == []
