"""Whatever is in the place of an owned file, every command ends with a message."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from user_project import notes_project

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


@pytest.fixture
def run_in(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """The command line, in this process, in a built project. Recently written files count as settled."""
    project = notes_project(tmp_path_factory.mktemp("hostile") / "project")
    project.save()
    monkeypatch.chdir(project.folder)
    for name, value in project.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(file_reading, "SETTLED_NS", 0)
    assert run(["build", "-c", "recipe.yaml"]) == 0
    return run


@pytest.mark.parametrize("hostile", HOSTILE)
@pytest.mark.parametrize("name", READERS)
def test_every_command_ends_in_words(run_in: Callable[..., int], name: str, hostile: str) -> None:
    path = Path(name)
    path.unlink(missing_ok=True)
    HOSTILE[hostile](path)
    for arguments in READERS[name]:
        assert run_in(arguments) in (0, 1, 2, 3)


@pytest.mark.parametrize("hostile", HOSTILE)
@pytest.mark.parametrize("kind", ["records", "standing"])
def test_what_the_cache_has_written_is_made_anew(run_in: Callable[..., int], kind: str, hostile: str) -> None:
    """The index has a copy of each record, so it is removed too."""
    cache = Path(os.environ["WINML_DAG_CACHE_DIR"])
    files = [path for path in (cache / kind).rglob("*") if path.is_file()]
    assert files
    for file in [*files, *(cache / "index").glob("*")]:
        file.unlink()
    for file in files:
        HOSTILE[hostile](file)
    assert run_in(["plan", "-c", "recipe.yaml"]) == 0
    assert run_in(["cache", "verify"]) in (0, 1)
    assert run_in(["cache", "list"]) == 0
    assert run_in(["build", "-c", "recipe.yaml"]) == 0
