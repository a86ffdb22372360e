"""Progress reports of stages that process samples."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from quantization_samples import image_model, inside, pixels, put

from winml_dag.engine.stage import Workspace
from winml_dag.stages.calibrate import CalibrateConfig, CalibrateFields
from winml_dag.stages.calibrate.observe import run as run_calibrate
from winml_dag.stages.target import RunTarget
from winml_dag.stages.validate import ValidateConfig, ValidateFields
from winml_dag.stages.validate import run as run_validate

Told = list[tuple[int, int | None, str]]


def workspace(inputs: dict[str, Path], output: str, told: Told) -> Workspace:
    def progress(done: int, total: int | None, unit: str) -> None:
        told.append((done, total, unit))

    Path(output).mkdir()
    return Workspace(inputs, {output: Path(output)}, progress)


@pytest.mark.parametrize(
    ("method", "total", "unit"),
    [("minmax", 10, "samples"), ("percentile", 20, "samples in two passes"), ("entropy", 20, "samples in two passes")],
)
def test_calibrate_tells_how_many_samples_are_done(tmp_path: Path, method: str, total: int, unit: str) -> None:
    told: Told = []
    with inside(tmp_path):
        inputs = {"model": put(Path("model"), image_model()), "data": Path("data")}
        inputs["data"].mkdir()
        np.savez(inputs["data"] / "samples.npz", **pixels(12))
        config = CalibrateConfig(CalibrateFields(10, method, seed=None, distribution=None))
        metrics = run_calibrate(config, workspace(inputs, "ranges", told))
    assert metrics["samples"] == 10
    assert [entry for number, entry in enumerate(told) if entry not in told[:number]] == [
        (done, total, unit) for done in range(total + 1)
    ]


def test_validate_tells_how_many_samples_are_done_and_not_the_one_of_ones(tmp_path: Path) -> None:
    told: Told = []
    with inside(tmp_path):
        inputs = {"model": put(Path("model"), image_model()), "reference": put(Path("reference"), image_model())}
        config = ValidateConfig(ValidateFields(0.9, samples=3), RunTarget("CPUExecutionProvider", "cpu"))
        metrics = run_validate(config, workspace(inputs, "report", told))
    assert metrics["samples"] == 3
    assert told == [(done, 3, "samples") for done in range(4)]
