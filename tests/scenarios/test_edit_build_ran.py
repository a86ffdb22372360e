"""Edit, build, and exactly the expected stages run, for the reason that was told before."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest
import yaml
from oneprocess import OneProcess
from onnx_samples import perceptron, samples
from scenario import Project

pytestmark = pytest.mark.slow

SMALL = {
    "model": "model.onnx",
    "ep": "cpu",
    "precision": "w8a8",
    "quant": {"samples": 4, "calibration_data": "data.npz"},
}
LINE = ["optimize", "analyze", "calibrate", "quantize", "validate", "finalize"]


@pytest.fixture(scope="module")
def small_built(tmp_path_factory: pytest.TempPathFactory, commands: OneProcess | None) -> Project:
    """A project with a finished build of a small ONNX model for the CPU. Do not change it; see ``small``."""
    project = Project(tmp_path_factory.mktemp("small"), commands)
    perceptron(project.folder / "model.onnx")
    samples(project.folder / "data.npz")
    project.save("recipe.yaml", SMALL)
    assert project.build().ran == LINE
    return project


@pytest.fixture
def small(small_built: Project, tmp_path: Path) -> Project:
    """A copy of the small project for one test."""
    folder = tmp_path / "project"
    shutil.copytree(small_built.folder, folder)
    copy = Project(folder, small_built.commands)
    assert copy.build().ran == []
    return copy


@pytest.fixture(scope="module")
def shared(built_project: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A copy of the transformer's project, whose recipe tests put back."""
    folder = tmp_path_factory.mktemp("edited") / "project"
    shutil.copytree(built_project.folder, folder)
    copy = Project(folder, built_project.commands)
    assert copy.build().ran == []
    return copy


def test_unchanged_build_touches_nothing(shared: Project) -> None:
    before = shared.times()
    assert shared.with_processes().build().ran == []
    assert shared.times() == before


@pytest.mark.parametrize(
    ("changes", "ran", "stage", "reason"),
    [
        (
            {"quant__samples": 16},
            ["calibrate", "quantize", "compile", "validate", "finalize"],
            "calibrate",
            "quant.samples: 8 -> 16",
        ),
        (
            {"precision": "w8a16"},
            ["analyze", "quantize", "compile", "validate", "finalize"],
            "quantize",
            "quant.activation_type: uint8 -> uint16",
        ),
        (
            {"compile__embed_context": True},
            ["compile", "validate", "finalize"],
            "compile",
            "compile.embed_context: false -> true",
        ),
        (
            {"optim__reshape_mergedreshape": True},
            ["optimize", "analyze"],
            "optimize",
            "optim.reshape_mergedreshape: not set -> true",
        ),
    ],
    ids=["more samples", "another precision", "embedded context", "an optimization that changes nothing here"],
)
def test_edit_runs_dependent_stages_and_revert_runs_nothing(
    shared: Project, changes: dict[str, Any], ran: list[str], stage: str, reason: str
) -> None:
    """``plan`` and ``why`` tell it before, and the build's messages and manifest afterwards."""
    recipe, models = shared.recipe, shared.models()
    shared.edit(**changes)
    planned = shared.plan()
    assert planned.ran[: len(ran)] == ran
    assert planned.reason(stage) == reason
    assert reason in shared.says("why", stage, "-c", "recipe.yaml", "-o", "out")
    assert re.search(rf"{len(planned.ran)} would run.*about", shared.says("plan", "-c", "recipe.yaml", "-o", "out"))
    built = shared.build()
    assert built.ran == ran
    assert re.search(rf"^{stage}(\.0)? +ran in [0-9.]+ s.*: {re.escape(reason)}", built.messages, re.MULTILINE)
    assert shared.stage(stage)["reason"] == reason
    assert ("model_qnn.bin" in shared.models()) == ("compile__embed_context" not in changes)
    assert (shared.models() == models) == ("compile" not in ran)
    shared.save("recipe.yaml", recipe)
    assert shared.build().ran == []
    assert shared.models() == models


def test_unchanged_ranges_stop_rebuild_at_calibrate(small: Project) -> None:
    small.edit(quant__samples=8)
    built = small.build()
    assert built.ran == ["calibrate", "quantize", "validate", "finalize"]
    assert re.search(r"^calibrate +ran in [0-9.]+ s \(5 samples, [0-9.]+/s\): quant", built.messages, re.MULTILINE)
    small.edit(quant__samples=20)
    assert small.build().ran == ["calibrate"]


def test_one_changed_byte_of_model_is_named_in_plan_log_and_manifest(small: Project) -> None:
    """Even with size and time unchanged: the change time reveals it, since writing sets it and nothing resets it."""
    model = small.folder / "model.onnx"
    status = model.stat()
    data = bytearray(model.read_bytes())
    data[data.index(onnx.load(model).graph.initializer[0].raw_data) + 3] ^= 1
    model.write_bytes(data)
    os.utime(model, ns=(status.st_atime_ns, status.st_mtime_ns))
    changed = r"input model: model\.onnx changed \(xxh3-128:[0-9a-f]{8} -> [0-9a-f]{8}\)"
    why = small.says("why", "finalize", "-c", "recipe.yaml", "-o", "out")
    assert re.search(rf"^  optimize\.0 would run: {changed}$", why, re.MULTILINE), why
    planned = small.plan().reason("optimize")
    assert re.fullmatch(changed, planned)
    built = small.says("build", "-c", "recipe.yaml", "-o", "out")
    assert re.search(rf"^optimize(\.0)? +ran in [0-9.]+ s: {re.escape(planned)}$", built, re.MULTILINE)
    assert re.search(r": input model: optimized\.onnx changed \(xxh3-128:", built)
    assert small.stage("optimize")["reason"] == planned
    assert set(re.findall(r"^(\w+)(?:\.0)? +ran in ", built, re.MULTILINE)) == set(LINE)


def test_variant_in_new_folder_is_compared_with_existing_build(project: Project) -> None:
    key = project.stage("quantize")["cache_key"]
    project.edit(precision="w8a16")
    quantize = next(stage for stage in project.plan(out="other").stages if stage["stage"] == "quantize")
    assert quantize["kind"] == "first build"
    assert quantize["nearest"]["cache_key"] == key
    (change,) = quantize["nearest"]["changes"]
    assert change == {"kind": "config", "name": "quant.activation_type", "old": "uint8", "new": "uint16"}
    stages = project.told("why", "-c", "recipe.yaml", "-o", "other")["builds"][0]["stages"]
    assert [stage["stage"] for stage in stages] == ["analyze", "quantize", "compile", "validate", "finalize"]
    assert [stage.get("roots") for stage in stages] == [None, None, *[["quantize"]] * 3]


def test_comments_key_order_format_jobs_and_verbosity_change_nothing(small: Project) -> None:
    text = small.recipe_file.read_text(encoding="utf-8")
    small.recipe_file.write_text(f"# a comment\n{text}", encoding="utf-8")
    assert small.build().ran == []
    reordered = dict(reversed(small.recipe.items()))
    small.recipe_file.write_text(yaml.safe_dump(reordered, sort_keys=False), encoding="utf-8")
    assert small.build("--jobs", "3").ran == []
    (small.folder / "recipe.json").write_text(json.dumps(reordered), encoding="utf-8")
    assert small.build("--verbose", recipe="recipe.json").ran == []


def test_other_output_folder_runs_nothing_and_gets_all_files(small: Project) -> None:
    assert small.build(out="elsewhere/deep").ran == []
    assert small.contents().keys() == small.contents("elsewhere/deep").keys()
    assert small.models() == small.models("elsewhere/deep")


def test_damaged_output_is_restored_and_reported(small: Project) -> None:
    model = small.out / "model.onnx"
    good = model.read_bytes()
    for harm in (model.unlink, lambda: model.write_bytes(good + b"x")):
        harm()
        result = small.build()
        assert result.ran == []
        assert model.read_bytes() == good
        assert "restored" in result.messages
        assert "model.onnx" in result.messages


def test_rebuild_runs_all_stages_and_keeps_user_files(small: Project) -> None:
    (small.out / "notes.onnx").write_text("mine", encoding="utf-8")
    before = small.contents()
    result = small.build("--rebuild")
    assert result.ran == LINE
    assert {result.reason(stage) for stage in LINE} == {"--rebuild was given"}
    after = small.contents()
    # Every stage has given the very same bytes again, in other folders.
    assert {name for name in before if after.get(name) != before[name]} <= {"build_manifest.json"}


@pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_build_resumes_after_interrupt_during_quantize(small: Project, number: signal.Signals) -> None:
    before = small.contents()
    small.edit(precision="w8a16")
    process = small.start("build", "-c", "recipe.yaml", "-o", "out", "-v")
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("quantize") and "running" in line:
            break
    process.send_signal(number)
    _, messages = process.communicate()
    assert small.contents() == before
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert "Interrupted" in messages
        assert list((small.cache / "scratch").iterdir()) == []
    result = small.build()
    assert result.code == 0, result.messages
    assert result.ran == ["quantize", "validate", "finalize"]
    assert list((small.cache / "scratch").iterdir()) == []
    small.says("cache", "verify")
    assert not [name for name in small.contents() if name.startswith(".")]


def test_concurrent_builds_run_shared_stages_once(small: Project) -> None:
    small.edit(quant__samples=8)
    small.save("other.yaml", {**small.recipe, "precision": "w8a16"})
    first = small.start("build", "-c", "recipe.yaml", "-o", "out", "--format", "json")
    second = small.start("build", "-c", "other.yaml", "-o", "other", "--format", "json")
    ran: list[str] = []
    for process in (first, second):
        output, messages = process.communicate()
        assert process.returncode == 0, messages
        stages = json.loads(output)["builds"][0]["stages"]
        ran += [stage["stage"] for stage in stages if stage["status"] == "ran"]
    assert [ran.count(stage) for stage in LINE] == [0, 1, 1, 2, 2, 2]
