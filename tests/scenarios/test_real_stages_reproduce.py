"""A finished build of the real stages is reproduced byte for byte, and deviations are found."""

from __future__ import annotations

import json
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scenario import Project

from winml_dag.onnxmodel.files import load_model, save_model
from winml_dag.store.store import Store

pytestmark = pytest.mark.slow

LINE = ["export", "optimize.0", "analyze.0", "calibrate", "quantize", "compile", "validate", "finalize"]


def reproduce(project: Project, *arguments: str) -> tuple[int, dict[str, Any]]:
    finished = project.run("reproduce", *arguments, "-c", "recipe.yaml", "-o", "out", "--format", "json", "-q")
    assert finished.stderr == "" or finished.returncode > 1, finished.stderr
    return finished.returncode, json.loads(finished.stdout)


def stored(project: Project) -> dict[str, bytes]:
    folders = [project.cache / name for name in ("blobs", "records")]
    return {str(path): path.read_bytes() for folder in folders for path in folder.rglob("*") if path.is_file()}


def test_every_stage_reproduces_identically_without_side_effects(project: Project) -> None:
    """Even where a build has nothing to do, since that is the build in question."""
    kept, contents, times = stored(project), project.contents(), project.times()
    code, found = reproduce(project)
    assert [(stage["id"], stage["verdict"], stage["differences"]) for stage in found["stages"]] == [
        (node_id, "equal", []) for node_id in LINE
    ]
    assert found["equal"] is True
    assert code == 0
    assert stored(project) == kept
    assert (project.contents(), project.times()) == (contents, times)
    assert list((project.cache / "scratch").iterdir()) == []


def test_selected_stages_are_run_several_times(project: Project) -> None:
    code, found = reproduce(project, "compile", "calibrate", "--runs", "3")
    assert code == 0
    assert [(stage["id"], stage["runs"]) for stage in found["stages"]] == [("calibrate", 3), ("compile", 3)]


def test_wrong_record_is_detected(project: Project, tmp_path: Path) -> None:
    """As if a machine with a broken library had filled the cache: one weight differs, and the keys are correct."""
    old, new = _exchange_a_weight(project, "optimize", "optimized.onnx", tmp_path)
    finished = project.run("reproduce", "optimize", "calibrate", "-c", "recipe.yaml", "-o", "out", "-q", "--runs", "2")
    assert finished.returncode == 1
    assert "optimize.0  differs" in finished.stdout
    where = f"initializer '{old[0]}' (float32 {old[1]}), element {[0] * len(old[1])}: {new} -> {old[2]}"
    assert f"  optimized.onnx, the record -> runs 1, 2: {where}\n" in finished.stdout
    assert "All runs gave the same: only the record is different." in finished.stdout
    # The build was made from the original bytes, and for a build from the current ones there is no record.
    assert "calibrate   cannot be reproduced: it has no record" in finished.stdout
    assert finished.stdout.splitlines()[-1].startswith("Not reproduced: 1 differs, 1 cannot be reproduced, in ")


def test_unknown_or_skipped_stage_is_refused(project: Project) -> None:
    code, found = reproduce(project, "quantise")
    assert code == 2
    assert "no stage 'quantise'" in found["error"]
    code, found = reproduce(project, "analyze", "--no-analyze")
    assert code == 2
    assert "analyze is skipped" in found["error"]


def test_reproduce_before_any_build_fails(empty_project: Project) -> None:
    finished = empty_project.run("reproduce", "export", "-c", "recipe.yaml", "-o", "out", "-q")
    assert finished.returncode == 1
    assert "export  cannot be reproduced: it has no record (never built before); build first" in finished.stdout
    assert not empty_project.out.exists()


@pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX")
def test_interrupted_reproduce_exits_130_and_leaves_nothing(project: Project) -> None:
    kept = stored(project)
    process = project.start("reproduce", "export", "-c", "recipe.yaml", "-o", "out")
    assert process.stderr is not None
    assert "export       running" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    told, messages = process.communicate()
    assert process.returncode == 130
    assert "Interrupted" in messages
    assert told == "", "a result that is not whole is none"
    assert stored(project) == kept
    assert list((project.cache / "scratch").iterdir()) == []


def _exchange_a_weight(
    project: Project, stage: str, name: str, tmp_path: Path
) -> tuple[tuple[str, list[int], str], str]:
    """Change the first weight in the recorded output of *stage*.

    Returns that weight's name, shape and old value, and its new value.
    """
    from onnx import numpy_helper

    store = Store(project.cache)
    key = next(entry["cache_key"] for entry in project.manifest()["stages"] if entry["name"] == stage)
    record = store.record(key)
    assert record is not None
    store.fetch(record.outputs["model"], tmp_path / "model")
    model = load_model(tmp_path / "model" / name)
    weight = next(tensor for tensor in model.graph.initializer if tensor.data_type == 1 and len(tensor.dims) == 2)
    values = numpy_helper.to_array(weight).copy()
    before = (weight.name, list(weight.dims), str(values[0, 0]))
    values[0, 0] = np.float32(values[0, 0]) + np.float32(1)
    weight.CopyFrom(numpy_helper.from_array(values, weight.name))
    save_model(model, tmp_path / "model" / name)
    store.publish(replace(record, outputs={}, log=None), {"model": tmp_path / "model"})
    store.close()
    return before, str(values[0, 0])
