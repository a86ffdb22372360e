"""User-defined stages are run again in a separate folder: their outputs in the user's folder stay unchanged."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from oneprocess import OneProcess
from user_project import UserProject

NOISE = """\
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

def make(inputs, outputs):
    weight = numpy_helper.from_array(np.random.default_rng().standard_normal((2, 3)).astype(np.float32), "w")
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])
    graph = helper.make_graph([helper.make_node("Identity", ["w"], ["y"])], "noise", [], [y], [weight])
    onnx.save(helper.make_model(graph), outputs["model"])
"""
COUNT = "import sys, pathlib; pathlib.Path(sys.argv[2]).write_text(str(len(pathlib.Path(sys.argv[1]).read_bytes())))"


@pytest.fixture
def built(tmp_path: Path, commands: OneProcess | None) -> UserProject:
    """An unseeded random function, followed by a reproducible command."""
    project = UserProject(tmp_path / "project", commands)
    project.write("noise.py", NOISE)
    project.recipe = {
        "stages": {
            "noise": {"run": "noise:make", "outputs": {"model": "build/noise.onnx"}},
            "count": {
                "command": [sys.executable, "-c", COUNT, "{inputs.model}", "{outputs.bytes}"],
                "inputs": {"model": "noise.model"},
                "outputs": {"bytes": "build/bytes.txt"},
            },
        }
    }
    first = project.build()
    assert first.code == 0, first.messages
    return project


def test_nondeterministic_stage_is_named_and_outputs_are_unchanged(built: UserProject) -> None:
    (built.folder / "build" / "bytes.txt").write_text("edited")
    (built.folder / "build" / "noise.onnx").unlink()
    before = _files(built.folder)
    finished = built.run("reproduce", "-c", "recipe.yaml", "--runs", "2", "-q")
    assert finished.returncode == 1, finished.stderr
    lines = finished.stdout.splitlines()
    weight = r"initializer 'w' \(float32 \[2, 3\]\), element \[0, 0\]: (\S+) -> (\S+)"
    told = [
        re.fullmatch(rf"  build/noise\.onnx, (.+) -> run (\d): {weight}", line)
        for line in lines
        if "noise.onnx" in line
    ]
    assert all(told), lines
    assert [(match[1], match[2]) for match in told if match] == [
        ("the record", "1"),
        ("the record", "2"),
        ("run 1", "2"),
    ]
    values = [(match[3], match[4]) for match in told if match]
    (recorded, first), (_, second), between = values
    assert between == (first, second)
    assert len({recorded, first, second}) == 3
    assert any(re.fullmatch(r"count +equal +1 file, \d+ bytes, 2 runs in .*", line) for line in lines), lines
    assert lines[-1].startswith("Not reproduced: 1 differs, 1 equal, in ")
    assert _files(built.folder) == before
    assert list((built.cache / "scratch").iterdir()) == []

    found = built.told("reproduce", "noise", "-c", "recipe.yaml", "-q", code=1)
    (stage,) = found["stages"]
    assert (found["equal"], stage["id"], stage["verdict"], stage["runs"]) == (False, "noise", "differs", 1)
    (difference,) = stage["differences"]
    assert (difference["file"], difference["other"], difference["runs"]) == ("build/noise.onnx", "the record", [1])
    built.says("reproduce", "count", "-c", "recipe.yaml")


def _files(folder: Path) -> dict[str, tuple[bytes, int]]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}
