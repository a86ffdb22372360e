"""Whatever is in the place of an owned file, every command ends with a message."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from oneprocess import OneProcess
from user_project import UserProject, notes_project

from winml_dag import file_reading
from winml_dag.cli import run

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such files in folders"),
]

KEPT = ".winml-dag/recipe.yaml"
DEEP = "[" * 100_000
DEEP_OBJECT = '{"schema_version": 1, "files": ' + '{"a":' * 900 + "1" + "}" * 900 + "}"

HOSTILE: dict[str, Callable[[Path], object]] = {
    "a pipe that nobody writes to": os.mkfifo,
    "a device that never ends": lambda path: path.symlink_to("/dev/zero"),
    "a folder": lambda path: path.mkdir(),
    "lists in lists": lambda path: path.write_text(DEEP),
    "objects in objects": lambda path: path.write_text(DEEP_OBJECT),
}

# The replaced file, and the commands that read it; all of them end within seconds.
READERS: dict[str, tuple[list[str], ...]] = {
    "recipe.yaml": (["build", "-c", "recipe.yaml"], ["plan", "-c", "recipe.yaml"], ["why", "-c", "recipe.yaml"]),
    "recipe.json": (["build", "-c", "recipe.json"], ["graph", "-c", "recipe.json"], ["clean", "-c", "recipe.json"]),
    "winml_dag.toml": (["build", "-c", "recipe.yaml"], ["cache", "info"]),
    f"{KEPT}/build_manifest.json": (
        ["verify", KEPT],
        ["provenance", KEPT],
        ["inspect", KEPT],
        ["report", KEPT],
        ["reproduce", KEPT],
        ["clean", "-c", "recipe.yaml"],
        ["build", "-c", "recipe.yaml"],
    ),
    "sweep.json": (["report", "."], ["build", "-c", "recipe.yaml", "-o", "."]),
    "report.json": (["report", ".", "--against", "report.json"],),
    "bom.json": (["verify", KEPT, "--against", "bom.json"],),
    "../cache/FORMAT": (["build", "-c", "recipe.yaml"], ["cache", "info"]),
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, commands: OneProcess) -> UserProject:
    """A built project with its cache. Its folder ``saved`` is a copy of both, from which each test restores them."""
    project = notes_project(tmp_path_factory.mktemp("hostile") / "live" / "project", commands)
    assert project.build().code == 0
    shutil.copytree(project.folder.parent, project.folder.parents[1] / "saved")
    return project


@pytest.fixture
def project(saved: UserProject, monkeypatch: pytest.MonkeyPatch) -> UserProject:
    """The current folder. Recently written files count as settled."""
    live = saved.folder.parent
    shutil.rmtree(live)
    shutil.copytree(live.with_name("saved"), live)
    monkeypatch.chdir(saved.folder)
    for name, value in saved.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(file_reading, "SETTLED_NS", 0)
    return saved


@pytest.mark.parametrize("hostile", HOSTILE)
@pytest.mark.parametrize("name", READERS)
@pytest.mark.usefixtures("project")
def test_every_command_survives_hostile_file(name: str, hostile: str) -> None:
    path = Path(name)
    path.unlink(missing_ok=True)
    HOSTILE[hostile](path)
    for arguments in READERS[name]:
        assert run(arguments) in (0, 1, 2, 3)


@pytest.mark.parametrize("hostile", HOSTILE)
@pytest.mark.parametrize("kind", ["records", "standing"])
def test_hostile_cache_files_are_recreated(project: UserProject, kind: str, hostile: str) -> None:
    files = [path for path in (project.cache / kind).rglob("*") if path.is_file()]
    assert files
    for file in [*files, *(project.cache / "index").glob("*")]:
        file.unlink()
    for file in files:
        HOSTILE[hostile](file)
    assert run(["plan", "-c", "recipe.yaml"]) == 0
    assert run(["cache", "verify"]) in (0, 1)
    assert run(["cache", "list"]) == 0
    assert run(["build", "-c", "recipe.yaml"]) == 0
