"""Edit, build, and exactly the expected stages run: the central promise, with the real stages."""

from __future__ import annotations

import json
import re
import signal
import sys
from pathlib import Path

import pytest
import yaml
from scenario import Project

pytestmark = pytest.mark.slow

LINE = ["export", "optimize", "analyze", "calibrate", "quantize", "compile", "validate", "finalize"]


def test_nothing_changed_and_nothing_is_touched(project: Project) -> None:
    before = project.times()
    assert project.with_processes().build().ran == []
    assert project.times() == before


def test_more_samples_reach_calibrate_and_the_rest_only_if_the_ranges_changed(project: Project) -> None:
    old_ranges = _output_digest(project, "calibrate")
    project.edit(quant__samples=16)
    result = project.build()
    changed = _output_digest(project, "calibrate") != old_ranges
    assert changed, "twice the samples should widen a range"
    assert result.ran[:2] == ["calibrate", "quantize"]
    assert result.reason("calibrate") == "quant.samples: 8 -> 16"
    assert not {"export", "optimize"} & set(result.ran)
    assert re.search(r"^calibrate +ran in [0-9.]+ s \(16 samples, [0-9.]+/s\): quant", result.messages, re.MULTILINE)


def test_same_ranges_from_a_changed_setting_stop_at_calibrate(project: Project) -> None:
    """A data file with fewer samples than requested: the samples are the same, and so are the ranges."""
    _write_samples(project.folder / "data.npz", count=8)
    project.edit(quant__calibration_data="data.npz")
    assert "calibrate" in project.build().ran
    project.edit(quant__samples=20)
    assert project.build().ran == ["calibrate"]


def test_another_precision_needs_no_new_calibration_and_back_to_the_first_nothing_runs(project: Project) -> None:
    """Only the operators are analyzed again, in the new precision."""
    before = project.contents()
    project.edit(precision="w8a16")
    assert project.build().ran == ["analyze", "quantize", "compile", "validate", "finalize"]
    assert project.contents()["model.onnx"] != before["model.onnx"]
    project.edit(precision="w8a8")
    assert project.build().ran == []
    after = project.contents()
    assert {name: after[name] for name in after if name.endswith((".onnx", ".bin"))} == {
        name: before[name] for name in before if name.endswith((".onnx", ".bin"))
    }


def test_embedding_the_context_reaches_compile_and_what_follows(project: Project) -> None:
    project.edit(compile__embed_context=True)
    assert project.build().ran == ["compile", "validate", "finalize"]
    assert not list(project.out.glob("*.bin")), "the sidecar of the build before is gone"


def test_an_optimization_that_changes_nothing_here_stops_at_optimize(project: Project) -> None:
    project.edit(optim__reshape_mergedreshape=True)
    result = project.build()
    assert result.ran == ["optimize", "analyze"]
    assert result.reason("optimize") == "optim.reshape_mergedreshape: not set -> true"


def test_a_comment_key_order_json_jobs_and_verbosity_change_nothing(project: Project) -> None:
    text = project.recipe_file.read_text(encoding="utf-8")
    project.recipe_file.write_text(f"# a comment\n{text}", encoding="utf-8")
    assert project.build().ran == []
    reordered = dict(reversed(project.recipe.items()))
    project.recipe_file.write_text(yaml.safe_dump(reordered, sort_keys=False), encoding="utf-8")
    assert project.build("--jobs", "3").ran == []
    (project.folder / "recipe.json").write_text(json.dumps(reordered), encoding="utf-8")
    assert project.build("--verbose", recipe="recipe.json").ran == []


def test_another_output_folder_runs_nothing_and_gets_all_files(project: Project) -> None:
    assert project.build(out="elsewhere/deep").ran == []
    here, there = project.contents(), project.contents("elsewhere/deep")
    assert here.keys() == there.keys()
    models = [name for name in here if name.endswith((".onnx", ".bin"))]
    assert {name: here[name] for name in models} == {name: there[name] for name in models}


def test_a_harmed_output_is_restored_and_the_user_is_told(project: Project) -> None:
    model = project.out / "model.onnx"
    good = model.read_bytes()
    for harm in (model.unlink, lambda: model.write_bytes(good + b"x")):
        harm()
        result = project.build()
        assert result.ran == []
        assert model.read_bytes() == good
        assert "restored" in result.messages
        assert "model.onnx" in result.messages


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL is POSIX")
def test_killed_during_quantize_the_next_build_goes_on_from_there(project: Project) -> None:
    before = project.contents()
    project.edit(precision="w8a16")
    process = project.start("build", "-c", "recipe.yaml", "-o", "out", "-v")
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("quantize") and "running" in line:
            break
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert project.contents() == before
    result = project.with_processes().build()
    assert result.code == 0, result.messages
    assert result.ran == ["quantize", "compile", "validate", "finalize"]
    assert list((project.cache / "scratch").iterdir()) == []
    assert project.run("cache", "verify").returncode == 0
    assert not [name for name in project.contents() if name.startswith(".")]


@pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_ends_with_130_and_leaves_nothing(empty_project: Project, number: signal.Signals) -> None:
    process = empty_project.start("build", "-c", "recipe.yaml", "-o", "out", "-v")
    assert process.stdout is not None
    assert "running" in process.stdout.readline()
    process.send_signal(number)
    _, messages = process.communicate()
    assert process.returncode == 130
    assert "Interrupted" in messages
    assert not empty_project.out.exists()
    assert list((empty_project.cache / "scratch").iterdir()) == []
    assert list((empty_project.cache / "blobs").rglob("*")) == []


def test_rebuild_runs_everything_and_keeps_the_users_files(project: Project) -> None:
    note = project.out / "notes.onnx"
    note.write_text("mine", encoding="utf-8")
    before = project.contents()
    result = project.build("--rebuild")
    assert result.ran == LINE
    assert {result.reason(stage) for stage in LINE} == {"--rebuild was given"}
    after = project.contents()
    assert note.read_text(encoding="utf-8") == "mine"
    # Every stage has given the very same bytes again, in other folders.
    assert {name for name in after if after[name] != before.get(name)} <= {"build_manifest.json"}


def test_two_builds_at_once_run_what_they_share_once(project: Project) -> None:
    project.edit(quant__samples=16)
    other = {**project.recipe, "precision": "w8a16"}
    (project.folder / "other.yaml").write_text(yaml.safe_dump(other), encoding="utf-8")
    first = project.start("build", "-c", "recipe.yaml", "-o", "out", "--format", "json")
    second = project.start("build", "-c", "other.yaml", "-o", "other", "--format", "json")
    ran: list[str] = []
    for process in (first, second):
        output, messages = process.communicate()
        assert process.returncode == 0, messages
        stages = json.loads(output)["builds"][0]["stages"]
        ran += [stage["stage"] for stage in stages if stage["status"] == "ran"]
    assert [ran.count(stage) for stage in LINE] == [0, 0, 1, 1, 2, 2, 2, 2]


def _output_digest(project: Project, stage: str) -> str:
    entry = next(entry for entry in project.manifest()["stages"] if entry["name"] == stage)
    return str([output["digest"] for output in entry["outputs"].values()])


def _write_samples(path: Path, count: int) -> None:
    import numpy as np

    generator = np.random.default_rng(0)
    shape = (count, 1, 32)
    np.savez(
        path,
        input_ids=generator.integers(0, 200, shape, dtype=np.int32),
        attention_mask=np.ones(shape, np.int32),
        token_type_ids=np.zeros(shape, np.int32),
    )
