"""An untrusted output folder: no command writes or removes a file outside of it."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from winml_dag.store.digest import digest_file

PRECIOUS = {".bashrc": "precious", "deep/letter.txt": "precious"}
COPY = "import shutil, sys; shutil.copy(sys.argv[1], sys.argv[2])"


def fill(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def contents(folder: Path) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


def entry(name: str, file: Path) -> dict[str, Any]:
    return {"name": name, "digest": digest_file(file), "size": file.stat().st_size}


def write_manifest(out: Path, **value: object) -> None:
    out.mkdir(parents=True, exist_ok=True)
    (out / "build_manifest.json").write_text(json.dumps({"schema_version": 1, "stages": [], "files": [], **value}))


def placed(*entries: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"id": "copy", "name": "command", "placed": list(entries)}]


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: a recipe that reads ``a.txt`` and writes ``b.txt`` next to it."""
    project = tmp_path / "project"
    command = [sys.executable, "-c", COPY, "{inputs.a}", "{outputs.b}"]
    stages = {"copy": {"command": command, "inputs": {"a": "./a.txt"}, "outputs": {"b": "made/b.txt"}}}
    fill(project, {"a.txt": "text", "recipe.yaml": yaml.safe_dump({"stages": stages})})
    monkeypatch.chdir(project)
    monkeypatch.setenv("WINML_DAG_CACHE_DIR", str(tmp_path / "cache"))
    return project


@pytest.fixture
def home(tmp_path: Path) -> Path:
    fill(tmp_path / "home", PRECIOUS)
    return tmp_path / "home"


COMMANDS = {"build": ("build", "-c", "recipe.yaml", "-o", "out", "-q"), "clean": ("clean", "-o", "out")}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
@pytest.mark.parametrize("name", ["journal.json", "taking-back.json"])
def test_planted_journal_is_not_resumed(home: Path, says, command: tuple[str, ...], name: str) -> None:
    journal = json.dumps({"put": ["assets/.bashrc"], "remove": ["assets/deep/letter.txt", "notes.txt"]})
    fill(Path("out"), {"notes.txt": "mine", f".winml-dag-new/{name}": journal})
    fill(Path("out/.winml-dag-new"), {"new/assets/.bashrc": "evil", "old/assets/.bashrc": "evil"})
    Path("out/assets").symlink_to(home, target_is_directory=True)
    says(*command)
    assert contents(home) == PRECIOUS
    assert Path("out/notes.txt").read_text() == "mine"
    assert not Path("out/.winml-dag-new").exists()


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_symlinked_manifest_files_are_kept(home: Path, says, command: tuple[str, ...]) -> None:
    files = [entry(f"assets/{name}", home / name) for name in PRECIOUS]
    write_manifest(Path("out"), files=files)
    Path("out/assets").symlink_to(home, target_is_directory=True)
    says(*command)
    assert contents(home) == PRECIOUS


@pytest.mark.parametrize("folder", ["../../home", "../..", "../../home/deep/.."])
def test_manifest_folder_outside_output_is_not_cleaned(home: Path, says, folder: str) -> None:
    inner = "home/" if folder == "../.." else ""
    write_manifest(Path("out"), folder=folder, stages=placed(*(entry(inner + name, home / name) for name in PRECIOUS)))
    told = says("clean", "-o", "out", code=2)
    assert contents(home) == PRECIOUS
    assert "Give the recipe with -c" in told
    says("clean", "-c", "recipe.yaml", "-o", "out")
    assert contents(home) == PRECIOUS


def test_symlinked_files_beside_recipe_are_kept(home: Path, says) -> None:
    for command in (("build", "-c", "recipe.yaml", "-q"), ("clean", "-c", "recipe.yaml")):
        entries = [entry(f"assets/{name}", home / name) for name in PRECIOUS]
        write_manifest(Path(".winml-dag/recipe.yaml"), folder="../..", stages=placed(*entries))
        Path("assets").unlink(missing_ok=True)
        Path("assets").symlink_to(home, target_is_directory=True)
        says(*command)
        assert contents(home) == PRECIOUS


@pytest.mark.parametrize("link", [".winml-dag", ".winml-dag/recipe.yaml"])
@pytest.mark.parametrize("command", ["build", "plan", "clean"])
def test_symlinked_state_folder_is_refused(home: Path, says, link: str, command: str) -> None:
    Path(link).parent.mkdir(exist_ok=True)
    Path(link).symlink_to(home, target_is_directory=True)
    assert "is reached by a link" in says(command, "-c", "recipe.yaml", code=2)
    assert contents(home) == PRECIOUS
