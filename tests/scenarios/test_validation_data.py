"""A result is run on the user's data; other inputs make only validate run again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from oneprocess import OneProcess
from onnx_samples import perceptron, samples
from scenario import Project

pytestmark = pytest.mark.slow


@pytest.fixture
def empty(tmp_path: Path, commands: OneProcess | None) -> Project:
    return Project(tmp_path, commands)


def build(project: Project, *arguments: str, recipe: str = "recipe.yaml") -> dict[str, Any]:
    """Return the output of a build of *recipe*, by stage."""
    result = project.build(*arguments, recipe=recipe)
    assert result.code == 0, result.messages
    return {stage["stage"]: stage for stage in result.stages}


def ran(stages: dict[str, Any]) -> set[str]:
    return {name for name, stage in stages.items() if stage["status"] == "ran"}


def test_other_validation_inputs_rerun_only_validate(empty: Project) -> None:
    perceptron(empty.folder / "model.onnx")
    samples(empty.folder / "calibration.npz")
    samples(empty.folder / "mine.npz", scale=0.5, count=5)
    (empty.folder / "recipe.yaml").write_text(
        "model: model.onnx\nprecision: w8a8\nquant: {calibration_data: calibration.npz}\n", encoding="utf-8"
    )
    first = build(empty)
    assert {"calibrate", "quantize", "validate"} <= ran(first)
    assert (first["validate"]["metrics"]["inputs"], first["validate"]["metrics"]["samples"]) == (
        "quant.calibration_data",
        3,
    )
    mine = build(empty, "--input-data", "mine.npz")
    assert ran(mine) == {"validate", "finalize"}
    report = mine["validate"]["metrics"]
    assert (report["inputs"], report["data"], report["samples"]) == ("validate.input_data", "npz", 5)
    assert report["held_out"] is True
    assert report["quality"]["cosine"] > 0.95
    # Calibration data proves nothing, wherever it is named.
    seen = build(empty, "--input-data", "calibration.npz")
    assert seen["validate"]["metrics"]["held_out"] is False
    # The settings written by a build are those of the build, wherever they are.
    build(empty, "--input-data", "mine.npz")
    assert ran(build(empty, recipe="out/winml_build_config.json")) == set()


def test_nan_of_float_model_fails_unless_validation_is_off(empty: Project) -> None:
    values = "(float[1, 4] x) => (float[1, 4] y) <float[4] four = {4, 4, 4, 1}>"
    text = f'<ir_version: 10, opset_import: ["": 21]> g {values} {{ less = Sub(x, four) y = Sqrt(less) }}'
    onnx.save(onnx.parser.parse_model(text), empty.folder / "nan.onnx")
    np.savez(empty.folder / "four.npz", x=np.full((4, 1, 4), 3.0, np.float32))
    arguments = ("build", "--onnx", "nan.onnx", "--ep", "cpu", "--format", "json", "-o", "out")
    done = empty.run(*arguments, "--input-data", "four.npz")
    assert done.returncode == 1
    assert "Output 'y' of the float model has 12 NaN and 0 infinite values on 4 npz samples" in done.stderr
    assert not (empty.folder / "out" / "model.onnx").exists()
    unchecked = empty.run(*arguments, "--no-validate")
    stages = json.loads(unchecked.stdout)["builds"][0]["stages"]
    assert [stage["status"] for stage in stages if stage["stage"] == "validate"] == ["skipped"]
    assert (empty.folder / "out" / "model.onnx").exists()
