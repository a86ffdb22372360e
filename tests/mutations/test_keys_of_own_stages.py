"""User-defined stages: which of their fields, programs, scripts and files reach which stages.

One recipe has all kinds of work: a command, a function, a plug-in, and a built-in stage that reads their outputs.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from field_values import fields_of, values
from model_files import flip_a_bit, put, swap
from planned_keys import JsonRecipe, Stages, Warm, check_mutation, enter, keys, reached, stages_of
from reach import NOTHING, edited

from winml_dag.errors import WinmlDagError
from winml_dag.recipe.schema import StageEntry

RECIPE: JsonRecipe = {
    "model": "onnx/model.onnx",
    "stages": {
        "prepare": {
            "command": ["tool.exe", "script.txt", "{inputs.data}", "--level={config.level}", "{outputs.out}"],
            "inputs": {"data": "data/", "notes": "other.json"},
            "outputs": {"out": "build/out.txt"},
            "env": {"LEVEL": "1"},
            "config": {"level": 1, "depth": 2},
        },
        "tool": {"command": ["./local.exe", "{outputs.out}"], "outputs": {"out": "build/local.txt"}},
        "train": {
            "run": "steps:train",
            "inputs": {"texts": "prepare.out", "more": "tool.out"},
            "outputs": {"model": "build/model.onnx"},
            "config": {"rate": 0.5},
        },
        "shrink": {
            "uses": "shrink",
            "inputs": {"model": "train.model"},
            "outputs": {"model": "build/small.onnx"},
            "config": {"size": 1},
        },
        "report": {
            "command": ["tool.exe", "{inputs.model}", "{outputs.out}"],
            "inputs": {"model": "shrink.model"},
            "outputs": {"out": "build/report.txt"},
        },
        "optimize": {"inputs": {"model": "shrink.model"}},
    },
}

_PLUGIN = """
from dataclasses import dataclass
from winml_dag.engine.stage import InputSlot, Stage

@dataclass(frozen=True)
class Config:
    size: int = 1
    rounds: int = 3

SHRINK = Stage("shrink", 1, "shrink_plugin:run", "shrink_plugin:Config", {"model": InputSlot(None)}, {"model": "onnx"},
               packages=("pyarrow",))
"""

Change = Callable[[Path], object]


@pytest.fixture(scope="module")
def original(made_project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own")
    original = shutil.copytree(made_project, folder / "original")
    for program in ("bin/tool.exe", "local.exe"):
        put(original / program, program.encode())
        (original / program).chmod(0o755)
    put(original / "script.txt", b"script")
    function = b"def train(inputs, outputs, config): ...\n"
    put(original / "steps.py", function + function.replace(b"train", b"train_more"))
    put(original / "more.py", function)
    install_plugin(original / "packages", "shrink", "1.0")
    install_plugin(original / "packages", "flatten", "1.0")
    shutil.copytree(original, folder / "project")
    return original


def use(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", str(project / "bin"), prepend=os.pathsep)
    return enter(project, monkeypatch)


@pytest.fixture
def own(original: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project that all tests share, with its store. Those that change it restore it."""
    return use(original.with_name("project"), monkeypatch)


@pytest.fixture(scope="module")
def before(original: Path) -> Stages:
    """The stages of the recipe as it is."""
    with pytest.MonkeyPatch.context() as patch:
        return stages_of(RECIPE, use(original.with_name("project"), patch))


def install_plugin(folder: Path, name: str, version: str) -> None:
    put(folder / "shrink_plugin.py", _PLUGIN.encode())
    entry_point = f"[winml_dag.stages]\n{name} = shrink_plugin:SHRINK\n"
    put(folder / f"{name}-{version}.dist-info" / "entry_points.txt", entry_point.encode())


# Field, its new value, and the stages that it reaches.
EDITS: tuple[tuple[str, Any, str], ...] = (
    ("prepare.command", ["tool.exe", "{inputs.data}", "{outputs.out}"], "prepare"),
    ("prepare.command", ["tool.exe", "script.txt", "{inputs.notes}", "{outputs.out}"], "prepare"),
    ("prepare.command", ["./local.exe", "{outputs.out}"], "prepare"),
    ("prepare.inputs", {"data": "data/"}, "prepare"),
    ("prepare.inputs", {"data": "data/", "notes": "affinity.json"}, "prepare"),
    ("prepare.inputs", {"data": "other.json", "notes": "data/"}, "prepare"),
    ("prepare.inputs", {"data": "data/", "comments": "other.json"}, "prepare"),
    ("prepare.inputs", {"notes": "./other.json", "data": "data/"}, NOTHING),
    ("prepare.outputs", {"out": "build/renamed.txt"}, "prepare"),
    ("prepare.outputs", {"out": "build/out.txt", "log": "build/log.txt"}, "prepare"),
    ("prepare.env", {"LEVEL": "2"}, "prepare"),
    ("prepare.env", {"LEVEL": "1", "MORE": ""}, "prepare"),
    ("prepare.env", None, "prepare"),
    ("prepare.config", {"level": 2, "depth": 2}, "prepare"),
    ("prepare.config", {"level": 1, "depth": 3}, "prepare"),
    ("prepare.config", {"level": 1.0, "depth": 2}, "prepare"),
    ("prepare.config", {"level": "1", "depth": 2}, "prepare"),
    ("prepare.config", {"depth": 2, "level": 1}, NOTHING),
    ("prepare.timeout", 60, NOTHING),
    ("tool.env", {"LEVEL": "1"}, "tool"),
    ("tool.config", {}, "tool"),
    ("train.run", "steps:train_more", "train"),
    ("train.run", "more:train", "train"),
    ("train.inputs", {"texts": "tool.out", "more": "prepare.out"}, "train"),
    ("train.inputs", {"texts": "prepare.out"}, "train"),
    ("train.outputs", {"model": "build/first.onnx"}, "train"),
    ("train.config", {"rate": 0.25}, "train"),
    ("train.config", None, "train"),
    ("train.timeout", 1.5, NOTHING),
    ("shrink.uses", "flatten", "shrink"),
    ("shrink.inputs", {"model": "tool.out"}, "shrink"),
    ("shrink.outputs", {"model": "build/tiny.onnx"}, "report"),
    ("shrink.config", {"size": 2}, "shrink"),
    ("shrink.config", {"size": 1, "rounds": 3}, NOTHING),
    ("shrink.config", {"size": 1, "rounds": 4}, "shrink"),
    ("shrink.config", None, NOTHING),
    ("shrink.timeout", 60, NOTHING),
    ("optimize.inputs", {"model": "train.model"}, "optimize"),
)


@pytest.mark.parametrize("edit", EDITS, ids=[f"{field}-{value}" for field, value, _ in EDITS])
def test_field_edit_reaches_exactly_its_stages(own: Path, before: Stages, edit: tuple[str, Any, str]) -> None:
    field, value, expected = edit
    assert reached(before, stages_of(edited(RECIPE, f"stages.{field}", value), own)) == set(expected.split())


def test_every_stage_field_is_in_table() -> None:
    assert {field.partition(".")[2] for field, *_ in EDITS} == {field.path for field in fields_of(StageEntry)}


@pytest.mark.parametrize("field", list(fields_of(StageEntry)), ids=lambda field: field.path)
@pytest.mark.parametrize("stage", ["prepare", "tool", "train", "shrink"])
def test_field_values_reach_only_their_stage(own: Path, before: Stages, stage: str, field: Any) -> None:
    """No two values share a key, unless the field is the time limit."""
    found: list[Stages] = []
    for value in values(field.type):
        if (stage, field.path, value) == ("shrink", "config", None):
            continue  # a plug-in always has a config
        try:
            found.append(stages_of(edited(RECIPE, f"stages.{stage}.{field.path}", value), own))
        except WinmlDagError:
            continue
    # A plug-in names its files freely; their destination concerns only their readers.
    reads = {"timeout": None, "outputs": "report" if stage == "shrink" else stage}.get(field.path, stage)
    assert all(reached(before, after) <= {reads} for after in found)
    different = {keys(after).get(reads) for after in found}
    assert len(different) == (len(found) if reads else min(len(found), 1))


MUST_CHANGE: Mapping[str, tuple[Change, str]] = {
    "a byte of the program": (lambda at: flip_a_bit(at / "bin/tool.exe"), "prepare report"),
    "another program of that name comes first": (lambda at: put_program(at / "first" / "tool.exe"), "prepare report"),
    "a byte of a program of the project": (lambda at: flip_a_bit(at / "local.exe"), "tool"),
    "a byte of a script that is only named": (lambda at: flip_a_bit(at / "script.txt"), "prepare"),
    "a script that is named is gone": (lambda at: (at / "script.txt").unlink(), "prepare"),
    "a byte of an input": (lambda at: flip_a_bit(at / "other.json"), "prepare"),
    "a byte in a folder": (lambda at: flip_a_bit(at / "data/a.npz"), "prepare"),
    "one more file in a folder": (lambda at: put(at / "data/c.npz", b""), "prepare"),
    "one more file further down": (lambda at: put(at / "data/d/e.txt", b"e"), "prepare"),
    "one file less in a folder": (lambda at: (at / "data/b.npz").unlink(), "prepare"),
    "two files in a folder swapped": (lambda at: swap(at / "data/a.npz", at / "data/b.npz"), "prepare"),
    "a file in a folder renamed": (lambda at: (at / "data/a.npz").rename(at / "data/z.npz"), "prepare"),
    "a byte of the function's module": (lambda at: put(at / "steps.py", b"def train(*_): pass"), "train"),
    "a package in place of the module": (lambda at: put(at / "steps/__init__.py", b"def train(*_): pass"), "train"),
    "the reference of our own stages": (lambda at: flip_a_bit(at / "onnx/one.data"), "validate"),
}

MUST_NOT_CHANGE: Mapping[str, Change] = {
    "another time": lambda at: [os.utime(path, (1, 1)) for path in at.rglob("*")],
    "the program elsewhere": lambda at: (at / "bin").rename(at / "first"),
    "files beside the recipe": lambda at: put(at / "notes.txt", b"new"),
    "programs that are not used": lambda at: put_program(at / "first" / "other.exe"),
    "outputs of an earlier build": lambda at: put(at / "build/out.txt", b"old"),
}


def put_program(path: Path) -> None:
    put(path, b"another program")
    path.chmod(0o755)


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize("mutation", [*MUST_CHANGE, *MUST_NOT_CHANGE])
def test_file_change_reaches_exactly_its_readers(
    own: Path, original: Path, monkeypatch: pytest.MonkeyPatch, mutation: str
) -> None:
    change, expected = MUST_CHANGE[mutation] if mutation in MUST_CHANGE else (MUST_NOT_CHANGE[mutation], NOTHING)
    monkeypatch.setenv("PATH", str(own / "first"), prepend=os.pathsep)
    check_mutation(Warm(own, RECIPE), original, lambda: change(own), expected)


def test_plugin_or_package_version_reaches_its_stage(
    own: Path, before: Stages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_plugin(tmp_path / "newer", "shrink", "1.1")
    monkeypatch.syspath_prepend(tmp_path / "newer")
    newer = stages_of(RECIPE, own)
    assert reached(before, newer) == {"shrink"}
    (tmp_path / "installed" / "pyarrow-98.0.dist-info").mkdir(parents=True)
    monkeypatch.syspath_prepend(tmp_path / "installed")
    assert reached(newer, stages_of(RECIPE, own)) == {"shrink"}


def test_location_user_and_order_do_not_reach_keys(
    own: Path, before: Stages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEVEL", "9")
    monkeypatch.setenv("HOME", str(tmp_path))
    elsewhere = tmp_path / "elsewhere, and dëeper" / "project"
    shutil.copytree(own, elsewhere)
    monkeypatch.chdir(tmp_path)
    assert keys(stages_of(RECIPE, elsewhere)) == keys(before)
    turned = {**RECIPE, "stages": dict(reversed(RECIPE["stages"].items()))}
    assert keys(stages_of(turned, own)) == keys(before)


def test_renamed_stage_keeps_its_key(own: Path, before: Stages) -> None:
    stages = RECIPE["stages"]
    named = {"first": stages["tool"], **{name: entry for name, entry in stages.items() if name != "tool"}}
    named["train"] = {**stages["train"], "inputs": {**stages["train"]["inputs"], "more": "first.out"}}
    assert keys(stages_of({**RECIPE, "stages": named}, own))["first"] == keys(before)["tool"]
