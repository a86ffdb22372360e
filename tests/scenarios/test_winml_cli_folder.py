"""Building into a folder made by winml-cli: nothing is overwritten without consent, and no other files are touched
then.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from scenario import Project

import winml_dag
from winml_dag.errors import UsageError

# As in winml-cli's documentation.
THEIR_MANIFEST: dict[str, Any] = {
    "schema_version": 1,
    "model_id": "microsoft/resnet-50",
    "task": "image-classification",
    "cache_key": "a1b2c3d4e5f6",
    "config_hash": "f7e8d9c0b1a2",
    "timestamp": "2026-01-15T10:30:00.000000+00:00",
    "elapsed_seconds": 45.1,
    "final_artifact": "model.onnx",
    "analyze_iterations": 2,
    "analyze_unsupported_node_count": 0,
    "analyze_details": {"lint": {}, "autoconf": {}},
    "stages": [
        {"name": "export", "status": "completed", "filename": "export.onnx", "elapsed_seconds": 12.5},
        {"name": "optimize", "status": "completed", "filename": "optimized.onnx", "elapsed_seconds": 8.2},
    ],
}
THEIRS = {
    "model.onnx": b"theirs",
    "export.onnx": b"theirs, exported",
    "optimized.onnx": b"theirs, optimized",
    "winml_build_config.json": b"{}",
    "analyze_result.json": b"{}",
    "build_manifest.json": json.dumps(THEIR_MANIFEST, indent=2).encode(),
}
MINE = {"notes.txt": b"mine", "mine.onnx": b"mine too"}


@pytest.fixture(scope="module")
def cached(shared: Project) -> Project:
    """A model whose stages are cached, so that the tests write files and run nothing."""
    shared.says("build", "--onnx", "model.onnx", "--no-validate", "-o", "first")
    return shared


@pytest.fixture
def project(cached: Project) -> Project:
    shutil.rmtree(cached.out, ignore_errors=True)
    cached.out.mkdir()
    for name, content in {**THEIRS, **MINE}.items():
        (cached.out / name).write_bytes(content)
    return cached


def build(project: Project, *arguments: str) -> tuple[int, str]:
    finished = project.run("build", "--onnx", "model.onnx", "--no-validate", "-o", "out", *arguments)
    return finished.returncode, finished.stderr


@pytest.mark.parametrize("arguments", [(), ("--rebuild",), ("--final-only",)])
def test_winml_cli_folder_is_refused_and_unchanged(project: Project, arguments: tuple[str, ...]) -> None:
    code, said = build(project, *arguments)
    assert code == 2
    assert "is in the way: this is the folder of a build of winml-cli, so it is not overwritten." in said
    assert "Give --overwrite, or choose another folder with -o." in said
    assert project.contents() == {**THEIRS, **MINE}


def test_overwrite_replaces_only_files_of_build(project: Project) -> None:
    code, said = build(project, "--overwrite")
    assert code == 0, said
    now, first = project.contents(), project.contents("first")
    assert {name: now[name] for name in ("model.onnx", "optimized.onnx")} == {
        name: first[name] for name in ("model.onnx", "optimized.onnx")
    }
    assert {entry["name"] for entry in project.manifest()["files"]} <= now.keys()
    kept = {**MINE, "export.onnx": THEIRS["export.onnx"]}
    assert {name: now[name] for name in kept} == kept
    # From now on the folder is owned.
    assert build(project)[0] == 0


def test_python_can_overwrite(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project.folder)
    with pytest.raises(UsageError, match="of a build of winml-cli"):
        winml_dag.build_onnx_model("model.onnx", "out", cache_dir="cache", validate=False)
    done = winml_dag.build_onnx_model("model.onnx", "out", cache_dir="cache", validate=False, overwrite=True)
    assert done.final_artifact == Path("out/model.onnx")
    assert project.contents()["notes.txt"] == b"mine"


def test_input_of_build_is_never_overwritten(project: Project) -> None:
    shutil.copyfile(project.folder / "model.onnx", project.out / "model.onnx")
    recipe = json.dumps({"export": None, "validate": {"enabled": False}}).encode()
    (project.out / "winml_build_config.json").write_bytes(recipe)
    before = project.contents()
    said = project.says("build", "--onnx", "out/model.onnx", "-o", "out", "--overwrite", code=2)
    assert f"{Path('out/model.onnx')} is in the way: this build reads it, so it is not overwritten." in said
    assert "Move it, or choose another folder" in said
    code, said = build(project, "-c", "out/winml_build_config.json", "--overwrite")
    assert code == 2
    assert "winml_build_config.json is in the way: this build reads it" in said
    assert project.contents() == before
    (project.out / "winml_build_config.json").rename(project.folder / "theirs.json")
    assert build(project, "-c", "theirs.json", "--overwrite")[0] == 0
    assert (project.folder / "theirs.json").read_bytes() == recipe


def test_failed_build_leaves_foreign_files_unchanged(project: Project) -> None:
    too_strict = ("-p", "w8a8", "--min-cosine", "1")
    project.says("build", "--onnx", "model.onnx", "-o", "out", "--overwrite", *too_strict, code=1)
    assert project.contents() == {**THEIRS, **MINE}


def test_folder_or_unlisted_file_blocks_output(project: Project) -> None:
    (project.out / "optimized.onnx").unlink()
    (project.out / "optimized.onnx").mkdir()
    code, said = build(project, "--overwrite")
    assert code == 2
    assert f"{Path('out/optimized.onnx')} is in the way" in said
    assert "Move it, or choose another folder" in said
    (project.out / "optimized.onnx").rmdir()
    (project.out / "build_manifest.json").unlink()
    code, said = build(project)
    assert code == 2
    assert "is in the way: no build_manifest.json beside it says that winml-dag wrote it" in said
    assert build(project, "--overwrite")[0] == 0
