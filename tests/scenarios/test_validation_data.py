"""A result is run on the user's data; other inputs make only validate run again."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx_samples import perceptron, samples

pytestmark = pytest.mark.slow


def build(folder: Path, *arguments: str) -> dict[str, Any]:
    """Return the output of a build of ``recipe.yaml`` in *folder*, by stage."""
    command = [sys.executable, "-m", "winml_dag", "build", "--cache-dir", "cache", "--format", "json", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (built,) = json.loads(done.stdout)["builds"]
    return {stage["stage"]: stage for stage in built["stages"]}


def ran(stages: dict[str, Any]) -> set[str]:
    return {name for name, stage in stages.items() if stage["status"] == "ran"}


def test_other_inputs_to_validate_on_run_validate_alone(tmp_path: Path) -> None:
    perceptron(tmp_path / "model.onnx")
    samples(tmp_path / "calibration.npz")
    samples(tmp_path / "mine.npz", scale=0.5, count=5)
    (tmp_path / "recipe.yaml").write_text(
        "model: model.onnx\nprecision: w8a8\nquant: {calibration_data: calibration.npz}\n", encoding="utf-8"
    )
    first = build(tmp_path, "-c", "recipe.yaml", "-o", "out")
    assert {"calibrate", "quantize", "validate"} <= ran(first)
    assert (first["validate"]["metrics"]["inputs"], first["validate"]["metrics"]["samples"]) == (
        "quant.calibration_data",
        3,
    )
    mine = build(tmp_path, "-c", "recipe.yaml", "-o", "out", "--input-data", "mine.npz")
    assert ran(mine) == {"validate", "finalize"}
    report = mine["validate"]["metrics"]
    assert (report["inputs"], report["data"], report["samples"]) == ("validate.input_data", "npz", 5)
    assert report["held_out"] is True
    assert report["quality"]["cosine"] > 0.95
    # Calibration data proves nothing, wherever it is named.
    seen = build(tmp_path, "-c", "recipe.yaml", "-o", "out", "--input-data", "calibration.npz")
    assert seen["validate"]["metrics"]["held_out"] is False
    # The settings written by a build are those of the build, wherever they are.
    build(tmp_path, "-c", "recipe.yaml", "-o", "out", "--input-data", "mine.npz")
    assert ran(build(tmp_path, "-c", "out/winml_build_config.json", "-o", "out")) == set()


def test_nan_of_the_float_model_fails_a_build_unless_nothing_is_validated(tmp_path: Path) -> None:
    values = "(float[1, 4] x) => (float[1, 4] y) <float[4] four = {4, 4, 4, 1}>"
    text = f'<ir_version: 10, opset_import: ["": 21]> g {values} {{ less = Sub(x, four) y = Sqrt(less) }}'
    onnx.save(onnx.parser.parse_model(text), tmp_path / "nan.onnx")
    np.savez(tmp_path / "four.npz", x=np.full((4, 1, 4), 3.0, np.float32))
    arguments = ["--onnx", "nan.onnx", "--ep", "cpu", "--input-data", "four.npz", "-o", "out"]
    command = [sys.executable, "-m", "winml_dag", "build", "--cache-dir", "cache", *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Output 'y' of the float model has 12 NaN and 0 infinite values on 4 npz samples" in done.stderr
    assert not (tmp_path / "out" / "model.onnx").exists()
    assert "validate" not in ran(build(tmp_path, *arguments[:4], "--no-validate", "-o", "out"))
    assert (tmp_path / "out" / "model.onnx").exists()
