"""The sandbox: undeclared files are invisible and not writable."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from projects import Project

from winml_dag.engine import sandbox
from winml_dag.engine.events import Status
from winml_dag.engine.stage import FileAccess
from winml_dag.store.store import Store

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the commands are those of a POSIX shell")

OUT = {"o": "build/o.txt"}
needs_landlock = pytest.mark.skipif(not sandbox.watches_absolute_paths(), reason="this kernel has no Landlock")


@pytest.fixture(params=["watched", "relative only"])
def project(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """With and without a kernel that watches absolute paths."""
    if request.param == "relative only":
        monkeypatch.setattr(sandbox, "watches_absolute_paths", lambda: False)
    elif not sandbox.watches_absolute_paths():
        pytest.skip("this kernel has no Landlock")
    return filled(tmp_path)


def filled(root: Path) -> Project:
    project = Project(root)
    project.write("raw/notes.txt", "notes")
    project.write("raw/secret.txt", "secret")
    project.write("tools/helper.py", "print('helped')")
    return project


def cat(project: Project, *what: str) -> None:
    project.command(
        "stage", "sh", "-c", f"cat {' '.join(what)} > {{outputs.o}}", inputs={"text": "raw/notes.txt"}, outputs=OUT
    )


def test_sandboxed_stages_have_same_keys_and_outputs(project: Project) -> None:
    cat(project, "{inputs.text}", "raw/notes.txt")
    script = 'f=$(mktemp); cat build/o.txt {inputs.i} > "$f"; cat "$f" > {outputs.o}'
    project.command("next", "sh", "-c", script, inputs={"i": "stage.o"}, outputs={"o": "n.txt"})
    assert project.build(access=FileAccess.SANDBOX).ran == ["next", "stage"]
    assert project.read("build/o.txt") == "notesnotes"
    assert project.read("n.txt") == "notesnotes" * 2
    assert project.build().of(Status.REUSED) == ["next", "stage"]


def test_undeclared_relative_path_is_missing_and_named(project: Project) -> None:
    cat(project, "raw/secret.txt")
    built = project.build(access=FileAccess.SANDBOX)
    assert built.error("stage") == (
        "stage ended with exit code 1. raw/secret.txt is in the project but not among its inputs."
    )
    assert built.results["stage"].advice == "Declare what it reads under inputs."
    assert Store(project.cache).records.keys() == []


def test_undeclared_python_import_fails_and_is_named(project: Project) -> None:
    project.write("tools/main.py", "import helper")
    project.command("stage", sys.executable, "tools/main.py", inputs={"script": "tools/main.py"}, outputs=OUT)
    built = project.build(access=FileAccess.SANDBOX)
    assert "No module named 'helper'" in built.results["stage"].tail[-1]
    assert "tools/helper.py is in the project but not among its inputs." in built.error("stage")


@needs_landlock
def test_undeclared_absolute_path_is_denied(tmp_path: Path) -> None:
    project = filled(tmp_path)
    cat(project, str(project.folder / "raw/secret.txt"))
    built = project.build(access=FileAccess.SANDBOX)
    assert "raw/secret.txt is in the project but not among its inputs." in built.error("stage")
    assert "Permission denied" in built.results["stage"].tail[-1]


@needs_landlock
def test_project_folder_is_not_writable(tmp_path: Path) -> None:
    project = filled(tmp_path)
    bad = "".join(f"echo bad > {project.folder}/{name}; " for name in ("raw/notes.txt", "new.txt", "build/o.txt"))
    project.command("stage", "sh", "-c", f"{bad}echo good > {{outputs.o}}", outputs=OUT)
    assert project.build(access=FileAccess.SANDBOX).ran == ["stage"]
    assert project.read("raw/notes.txt") == "notes"
    assert not (project.folder / "new.txt").exists()
    assert project.read("build/o.txt") == "good\n"


@needs_landlock
def test_function_cannot_read_undeclared_files(tmp_path: Path) -> None:
    project = filled(tmp_path)
    project.write(
        "pack/work.py",
        "def work(inputs, outputs, config):\n    outputs['o'].write_text(open(config['path']).read())\n",
    )
    for name, path in {"fine": "raw/notes.txt", "bad": str(project.folder / "raw/secret.txt")}.items():
        project.function(
            name,
            "pack.work:work",
            inputs={"text": "raw/notes.txt"},
            outputs={"o": f"build/{name}.txt"},
            config={"path": path},
        )
    built = project.build(access=FileAccess.SANDBOX, keep_going=True)
    assert built.of(Status.RAN) == ["fine"]
    assert built.error("bad").startswith("pack.work:work failed: Permission denied: ")
    assert built.results["bad"].tail[-1].startswith("PermissionError")


def test_undeclared_write_fails_the_stage_and_is_named(project: Project) -> None:
    project.command("stage", "sh", "-c", "echo x > extra.log; echo x > {outputs.o}", outputs=OUT)
    built = project.build(access=FileAccess.SANDBOX)
    assert built.error("stage") == "stage wrote extra.log in its folder, and does not declare it."
    assert not (project.folder / "extra.log").exists()
    assert built.put == frozenset()


def test_edited_input_fails_the_stage_and_user_file_is_unchanged(project: Project) -> None:
    project.command(
        "stage",
        *("sh", "-c", "echo y > {outputs.o}; echo edited > {inputs.text}"),
        inputs={"text": "raw/notes.txt"},
        outputs=OUT,
    )
    assert "raw/notes.txt changed while it was being used" in project.build(access=FileAccess.SANDBOX).error("stage")
    assert project.read("raw/notes.txt") == "notes"


def test_quoted_undeclared_files_are_found_in_log(tmp_path: Path) -> None:
    project = filled(tmp_path)
    tail = [
        "cat: './raw/secret.txt': No such file",
        f'File "{project.folder}/tools/helper.py", line 3.',
        "raw/notes.txt",
    ]
    found = sandbox.not_declared(tail, project.folder, tmp_path / "elsewhere", {"raw/notes.txt"})
    assert found == ["raw/secret.txt", "tools/helper.py"]


def test_sandbox_files_are_not_reported_when_cache_is_in_project(tmp_path: Path) -> None:
    project = tmp_path / "cache/scratch/run/project"
    for name in ("tools/tidy.py", "tools/words.py", "cache/scratch/run/project/tools/tidy.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    tail = [f'  File "{(project / "tools/tidy.py").as_posix()}", line 5', "cat: tools/words.py: No such file"]
    assert sandbox.not_declared(tail, tmp_path, project, {"tools/tidy.py"}) == ["tools/words.py"]
