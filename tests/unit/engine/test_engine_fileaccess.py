"""Checked inputs: every undeclared file that a stage reads is named, however the command refers to it."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from projects import Project

from winml_dag.engine.events import Status
from winml_dag.engine.sandbox import find_tracer
from winml_dag.engine.stage import FileAccess
from winml_dag.errors import UsageError
from winml_dag.store.store import Store

needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
OUT = {"o": "build/o.txt"}


@pytest.fixture
def project(tmp_path: Path) -> Project:
    project = Project(tmp_path)
    project.write("raw/notes.txt", "notes")
    return project


def read_besides(project: Project, text: str, *, inputs: dict[str, str] | None = None) -> str:
    """Return the files that the shell command *text* reads undeclared; empty if its result is stored."""
    project.nodes.clear()
    project.command("stage", "sh", "-c", f"{text} > {{outputs.o}}", inputs=inputs, outputs=OUT)
    built = project.build(access=FileAccess.TRACE)
    if built.results["stage"].status is Status.RAN:
        return ""
    assert built.results["stage"].advice == "Declare it under inputs, so that an edit of it is noticed."
    assert Store(project.cache).records.keys() == []
    return built.error("stage").removeprefix("stage read ").removesuffix(", and does not declare that.")


@needs_strace
def test_undeclared_reads_are_named_with_special_characters(project: Project) -> None:
    names = ("my file.txt", "a,b.csv", "r#1.txt", "a=b.txt", "v1[2].txt", "@args.txt", "größe>1.txt", 'a"b\\c.txt')
    paths = sorted(f"data{number}/{name}" for number, name in enumerate(names))
    for path in paths:
        project.write(path, "text")
    assert read_besides(project, "cat data*/*") == ", ".join(paths)


@needs_strace
@pytest.mark.parametrize("call", ["../tools/gen.py", "-m gen"])
def test_external_script_and_its_imports_are_named(project: Project, call: str) -> None:
    for name, text in {"gen": "import words; print(words.STOP)", "words": "STOP = 1"}.items():
        project.write(f"../tools/{name}.py", text)
    program = f"PYTHONPATH=../tools {sys.executable} {call}"
    both = f"{project.root}/tools/gen.py, {project.root}/tools/words.py"

    assert read_besides(project, program) == both
    # By now Python has a compiled module, and opens only that.
    assert list(project.root.glob("tools/__pycache__/*")) == []
    assert read_besides(project, f"PYTHONDONTWRITEBYTECODE= {program}") == both
    assert list(project.root.glob("tools/__pycache__/*"))
    assert read_besides(project, program) == both


@needs_strace
def test_declared_and_own_files_are_not_named(project: Project) -> None:
    project.write("data/one.txt", "one")
    (project.folder / "link.txt").symlink_to("data/one.txt")
    text = 'cat raw/notes.txt data/one.txt link.txt && date > "$TMPDIR/t" && cat "$TMPDIR/t" && echo > new && cat new'
    assert read_besides(project, text, inputs={"text": "raw/notes.txt", "data/": "data/"}) == ""


@needs_strace
def test_only_user_programs_are_named(project: Project) -> None:
    tool = project.write("tools/tool", "#!/bin/sh\ntouch -r /etc/passwd nothing; ls -l | sort\n")
    tool.chmod(0o755)
    assert read_besides(project, f"./tools/tool; {sys.executable} -c 'import json, numpy'") == "tools/tool"


@needs_strace
def test_many_undeclared_files_are_counted(project: Project) -> None:
    for number in range(20):
        project.write(f"data/{number}.txt", "text")
    project.write("other/x.txt", "text")
    assert read_besides(project, "cat data/* other/*") == "data/ (20 files), other/x.txt"


@needs_strace
def test_function_is_checked_and_its_module_is_declared(project: Project) -> None:
    project.write("raw/secret.txt", "secret")
    project.write(
        "steps.py", "def make(inputs, outputs):\n    outputs['o'].write_bytes(open('raw/secret.txt', 'rb').read())\n"
    )
    project.function("stage", "steps:make", inputs={"text": "raw/notes.txt"}, outputs=OUT)
    built = project.build(access=FileAccess.TRACE)
    assert built.error("stage") == "stage read raw/secret.txt, and does not declare that."


@needs_strace
def test_other_stage_outputs_are_declared_but_leftovers_are_not(project: Project) -> None:
    project.command("make", "sh", "-c", "echo 1 > {outputs.o}; echo 2 > left.txt", outputs={"o": "build/made.txt"})
    project.command("stage", "sh", "-c", "cat {inputs.i} left.txt > {outputs.o}", inputs={"i": "make.o"}, outputs=OUT)
    assert project.build(access=FileAccess.TRACE).error("stage") == "stage read left.txt, and does not declare that."


@needs_strace
@pytest.mark.parametrize(("text", "said"), [("exit 3", "exit code 3"), ("kill -9 $$", "SIGKILL"), ("sleep 60", "1 s")])
def test_failing_stage_reports_its_own_error_when_traced(project: Project, text: str, said: str) -> None:
    project.command("stage", "sh", "-c", text, outputs=OUT, timeout_seconds=1)
    assert said in project.build(access=FileAccess.TRACE).error("stage")


def test_missing_strace_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UsageError, match="--check-inputs needs strace"):
        find_tracer()
