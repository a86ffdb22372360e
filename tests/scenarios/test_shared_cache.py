"""Two machines and a remote: what the second one runs and fetches, and what happens when the remote loses data.

Machines are separate caches; the remote is a folder.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from oneprocess import OneProcess
from onnx_samples import perceptron, samples
from scenario import Project, Result

STAGES = ["optimize", "analyze", "calibrate", "quantize", "compile", "validate", "finalize"]


@dataclass
class Team:
    """A recipe for QNN, a remote that one machine has filled, and further machines with empty caches."""

    folder: Path
    commands: OneProcess | None

    @property
    def remote(self) -> Path:
        return self.folder / "remote"

    def machine(self, name: str, *, shares: bool = True) -> Machine:
        return Machine(self.folder, self.commands, name, self.remote if shares else None)


class Machine(Project):
    def __init__(self, folder: Path, commands: OneProcess | None, name: str, remote: Path | None) -> None:
        super().__init__(folder, commands)
        self.cache = folder / f"cache-{name}"
        self.out_name = f"out-{name}"
        self.remote = remote

    def environment(self) -> dict[str, str]:
        shared = {
            "WINML_DAG_REMOTE": "" if self.remote is None else self.remote.as_uri(),
            "WINML_DAG_REMOTE_MODE": "read-write",
            "WINML_DAG_REMOTE_ACCEPT_UNSIGNED": "1",
        }
        return {**super().environment(), **shared}

    def made(self, *arguments: str, recipe: str = "recipe.yaml") -> Result:
        result = self.build(*arguments, recipe=recipe, out=self.out_name)
        assert result.code == 0, result.messages
        return result

    def files(self) -> dict[str, bytes]:
        """Return the outputs, without times."""
        found = self.contents(self.out_name)
        found.pop("build_manifest.json")
        return found

    def blobs(self) -> set[str]:
        folder = self.cache / "blobs" / "sha256"
        return {path.parent.name + path.name for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory, commands: OneProcess | None) -> Team:
    folder = tmp_path_factory.mktemp("team")
    perceptron(folder / "model.onnx")
    samples(folder / "data.npz")
    quant = {"calibration_data": "data.npz", "samples": 8}
    recipe: dict[str, Any] = {"model": "model.onnx", "ep": "qnn", "precision": "w8a8", "quant": quant}
    for name, more in {"recipe": {}, "other": {"calibration_method": "percentile"}}.items():
        text = yaml.safe_dump({**recipe, "quant": {**recipe["quant"], **more}})
        (folder / f"{name}.yaml").write_text(text)
    strict = {**recipe, "quant": {**recipe["quant"], "symmetric": True}, "validate": {"min_cosine": 1}}
    (folder / "strict.yaml").write_text(yaml.safe_dump(strict))
    team = Team(folder, commands)
    assert team.machine("first").made().ran == STAGES
    return team


@pytest.fixture
def team(filled: Team, tmp_path: Path) -> Team:
    folder = tmp_path / "team"
    shutil.copytree(filled.folder, folder)
    return Team(folder, filled.commands)


def digests_of(machine: Machine, stage: str) -> set[str]:
    manifest: dict[str, Any] = json.loads((machine.folder / machine.out_name / "build_manifest.json").read_text())
    (entry,) = [each for each in manifest["stages"] if each["name"] == stage]
    return {file["digest"].removeprefix("sha256:") for slot in entry["outputs"].values() for file in slot["files"]}


def test_a_second_machine_runs_nothing_and_gets_what_it_asked_for_and_no_more(team: Team) -> None:
    first, second = team.machine("first"), team.machine("second")
    plan = second.plan(out=second.out_name)
    assert plan.ran == []
    assert plan.reason("compile").startswith("found in the remote, made ")
    assert "winml_dag" in plan.reason("compile")
    assert second.blobs() == set()
    result = second.made()
    assert result.ran == []
    assert " by winml_dag" in result.reason("compile")
    first.made()
    assert second.files() == first.files()
    assert {"model.onnx", "model_qnn.bin"} <= second.files().keys()
    assert second.blobs() < first.blobs()
    assert digests_of(second, "finalize") <= second.blobs()
    assert not digests_of(second, "calibrate") & second.blobs()


def test_what_runs_fetches_what_it_reads(team: Team) -> None:
    second = team.machine("second")
    result = second.made(recipe="other.yaml")
    assert result.with_status("reused") == ["optimize", "analyze"]
    assert "calibrate" in result.ran
    assert digests_of(second, "optimize") <= second.blobs()


def test_blobs_that_a_remote_has_lost_are_made_anew_and_nothing_is_lost(team: Team) -> None:
    second = team.machine("second")
    assert second.plan(out=second.out_name).ran == []
    shutil.rmtree(team.remote)
    result = second.made()
    assert result.ran == STAGES
    assert result.reason("finalize").startswith("missing or damaged in the cache, and in no remote")
    first = team.machine("first")
    first.made()
    assert second.files() == first.files()
    assert second.made().ran == []


def test_what_ended_well_is_shared_when_a_build_fails(team: Team) -> None:
    first, second = team.machine("first"), team.machine("second")
    failed = first.build(recipe="strict.yaml", out="out-strict")
    assert failed.with_status("failed") == ["validate"]
    planned = second.plan(recipe="strict.yaml", out="out-strict")
    assert set(STAGES) - set(planned.ran) == {"optimize", "analyze", "calibrate", "quantize", "compile"}


def test_a_cache_that_was_used_alone_gets_another_beside_it_for_builds_with_a_remote(team: Team) -> None:
    alone = team.machine("alone", shares=False)
    assert alone.made().ran == STAGES
    before = alone.files()
    shared = team.machine("alone")
    result = shared.made()
    assert result.ran == []
    assert f"with a remote the cache is {shared.cache / 'sha256'}, which begins empty" in result.messages
    assert shared.files() == before
    again = shared.made()
    assert again.ran == []
    assert "begins empty" not in again.messages
    assert team.machine("alone", shares=False).made().ran == []


def test_a_cache_that_was_shared_is_found_without_the_remote(team: Team) -> None:
    shutil.rmtree(team.remote)
    assert team.machine("once").made().ran == STAGES
    assert team.machine("once", shares=False).made().ran == []


def test_records_without_their_blobs_are_no_damage(team: Team) -> None:
    second = team.machine("second")
    second.plan(out=second.out_name)
    for machine in (second, team.machine("second", shares=False)):
        checked = machine.run("cache", "verify", "--repair")
        assert checked.returncode == 0, checked.stderr
        assert "0 records lack a blob" in checked.stdout
        assert "come from a remote when needed" in checked.stdout
    listed = json.loads(second.run("cache", "list", "--format", "json").stdout)
    key = next(entry["key"] for entry in listed["records"] if entry["stage"] == "compile")
    shown = second.run("cache", "show", key).stdout
    assert "compiled_qnn.bin" in shown
    assert "in a remote, not here" in shown
    assert "MISSING" not in shown
    assert second.plan(out=second.out_name).ran == []
    second.run("cache", "gc", "--older-than", "0d")
    assert "records        0" in second.run("cache", "info").stdout
