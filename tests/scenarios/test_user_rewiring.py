"""A user-defined stage between built-in ones: quantize reads its version of the optimized model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oneprocess import OneProcess
from onnx_samples import save
from user_project import UserProject

pytestmark = pytest.mark.slow

# Another model than the original: validate must compare the result with this one.
SURGERY = """\
import sys
import onnx
from onnx import numpy_helper

model = onnx.load(sys.argv[1])
for tensor in model.graph.initializer:
    tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * FACTOR, tensor.name))
onnx.save(model, sys.argv[2])
"""


@pytest.fixture
def project(tmp_path: Path, commands: OneProcess | None) -> UserProject:
    made = UserProject(tmp_path / "project", commands)
    made.folder.mkdir()
    weights = np.random.default_rng(0).normal(size=(16, 8)).astype(np.float32)
    save(made.folder / "small.onnx", "small (float[1, 16] x) => (float[1, 8] y) { y = MatMul(x, w) }", w=weights)
    made.write("surgery.py", SURGERY.replace("FACTOR", "2"))
    made.recipe = {
        "model": "small.onnx",
        "quant": {"samples": 2},
        "stages": {
            "surgery": {
                "command": [sys.executable, "surgery.py", "{inputs.model}", "{outputs.model}"],
                "inputs": {"model": "optimize.model"},
                "outputs": {"model": "build/surgery.onnx"},
            },
            "quantize": {"inputs": {"model": "surgery.model"}},
            "validate": {"inputs": {"reference": "surgery.model"}},
        },
    }
    return made


def inputs(project: UserProject, stage: str) -> dict[str, Any]:
    (found,) = [entry for entry in project.manifest("out")["stages"] if entry.get("id") == stage]
    return {slot: f"{given['from']}.{given['name']}" for slot, given in found["inputs"].items()}


def test_later_stages_read_output_of_inserted_stage(project: UserProject) -> None:
    result = project.build("-o", "out")
    assert result.code == 0, result.messages
    assert result.ran == ["optimize.0", "analyze.0", "surgery", "calibrate", "quantize", "validate", "finalize"]
    assert inputs(project, "surgery")["model"] == "optimize.0.model"
    assert inputs(project, "calibrate")["model"] == "surgery.model", "ranges are of the model that is quantized"
    assert inputs(project, "quantize")["model"] == "surgery.model"
    assert (project.folder / "build/surgery.onnx").is_file()
    assert (project.folder / "out/model.onnx").is_file()
    assert not (project.folder / "out/surgery.onnx").exists()
    assert project.build("-o", "out").ran == []

    project.write("surgery.py", SURGERY.replace("FACTOR", "2.0"))
    assert project.build("-o", "out").ran == ["surgery"], "the same model: the edit stops there"
    project.write("surgery.py", SURGERY.replace("FACTOR", "3"))
    result = project.build("-o", "out")
    assert result.ran == ["surgery", "calibrate", "quantize", "validate", "finalize"], result.messages


@pytest.mark.parametrize(
    ("stages", "complaint"),
    [
        ({"compile": {"inputs": {"model": "surgery.model"}}}, "there is no compile in this build: there is nothing"),
        ({"quantise": {"inputs": {"model": "surgery.model"}}}, "did you mean 'quantize'?"),
        ({"quantize": {"inputs": {"modle": "surgery.model"}}}, "quantize has no input 'modle'; did you mean 'model'?"),
        ({"quantize": {"inputs": {"model": "surgery.modle"}}}, "surgery has no output 'modle'"),
        ({"quantize": {"inputs": {"model": "small.onnx"}}}, "'small.onnx' is not an output of a stage (stage.output)"),
        ({"calibrate": {"inputs": {"data": "surgery.model"}}}, "takes from the settings of the recipe alone"),
        ({"quantize": {"inputs": {"model": "surgery.model"}, "config": {}}}, "an entry of that name has only inputs"),
        ({"optimize": {"inputs": {"model": "surgery.model"}}}, "these stages wait for each other"),
        ({"finalize": {"inputs": {"model": "optimize.modle"}}}, "optimize has no output 'modle'"),
    ],
)
def test_invalid_rewiring_is_refused(project: UserProject, stages: dict[str, Any], complaint: str) -> None:
    project.recipe["stages"].update(stages)
    result = project.build("-o", "out")
    assert result.code == 2
    assert complaint in result.messages
