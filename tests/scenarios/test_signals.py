"""On any termination signal at any time, the command line ends its children and leaves nothing behind."""

from __future__ import annotations

import os
import select
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from user_project import UserProject, notes_project

from winml_dag.errors import ENDING_SIGNALS

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX")


@pytest.fixture
def project(tmp_path: Path) -> UserProject:
    """A project whose only stage writes its process id, and then waits for a line."""
    project = notes_project(tmp_path / "project")
    os.mkfifo(project.folder / "said")
    os.mkfifo(project.folder / "go")
    said, go = project.folder / "said", project.folder / "go"
    project.recipe["stages"] = {
        "wait": {
            "command": ["sh", "-c", f"echo $$ > {said}; cat {go} > {{outputs.o}}"],
            "outputs": {"o": "o.txt"},
        }
    }
    project.save()
    return project


def start(project: UserProject, ignoring: str = "") -> tuple[subprocess.Popen[str], int]:
    """Start a build and return it with the process id of its running stage; *ignoring*: a signal that it ignores."""
    command = shlex.join(project.command("build", "-c", "recipe.yaml", "-q"))
    trap = f"trap '' {ignoring}; " if ignoring else ""
    # What this process ignores, as under nohup, its children would ignore too.
    before = {number: signal.signal(number, signal.SIG_DFL) for number in ENDING_SIGNALS}
    try:
        process = subprocess.Popen(
            ["sh", "-c", f"{trap}exec {command}"],
            cwd=project.folder,
            env=project.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return process, int((project.folder / "said").read_text())


@pytest.mark.parametrize("number", ENDING_SIGNALS)
def test_terminated_build_leaves_nothing_behind(project: UserProject, number: signal.Signals) -> None:
    process, stage = start(project)
    watched = os.pidfd_open(stage) if sys.platform == "linux" else None
    process.send_signal(number)
    _, messages = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Interrupted" in messages
    assert "Traceback" not in messages
    assert list((project.cache / "scratch").iterdir()) == []
    if watched is None:
        with pytest.raises(ProcessLookupError):
            os.kill(stage, 0)
    else:
        # It has ended, though its new parent may not have collected its exit status yet.
        ended, _, _ = select.select([watched], [], [], 60)
        os.close(watched)
        assert ended == [watched]


def test_nohup_build_survives_hangup(project: UserProject) -> None:
    process, _ = start(project, ignoring="HUP")
    process.send_signal(signal.SIGHUP)
    (project.folder / "go").write_text("done")
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert project.read("o.txt") == "done"


def test_interrupt_during_imports_prints_nothing(tmp_path: Path, project: UserProject) -> None:
    """Imitate a slow library, imported before there is code to print a message."""
    said = project.folder / "said"
    (tmp_path / "click.py").write_text(
        f"import signal\nwith open({str(said)!r}, 'w') as said:\n    said.write('here')\nsignal.pause()\n"
    )
    project.search_path = str(tmp_path)
    process = project.start("build", "-c", "recipe.yaml")
    assert said.read_text() == "here"
    process.send_signal(signal.SIGINT)
    output, messages = process.communicate(timeout=60)
    assert (output, messages) == ("", "")
    assert process.returncode == -signal.SIGINT
