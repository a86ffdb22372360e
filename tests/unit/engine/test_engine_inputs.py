"""What a stage reads: the sources in its folder, and how changes to them are detected."""

from __future__ import annotations

import sys
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from typing import cast

import pytest
from projects import Project

from winml_dag.engine.inputs import _lies_in, _source_text
from winml_dag.engine.stage import FileAccess, Source, SourceFile
from winml_dag.store.store import Store

FOLDERS = [PurePosixPath("/home/me/project"), PureWindowsPath("C:\\Users\\me\\project")]


@pytest.mark.parametrize("folder", FOLDERS, ids=["posix", "windows"])
@pytest.mark.parametrize(
    ("name", "path", "inside"),
    [
        ("notes.txt", "notes.txt", True),
        ("data/a/1.txt", "data/a/1.txt", True),
        ("1.txt", "data/a/1.txt", False),
        ("notes.txt", "../notes.txt", False),
    ],
)
def test_nested_source_is_inside_the_folder(folder: PurePath, name: str, path: str, inside: bool) -> None:
    place, file = cast(Path, folder), SourceFile(name, cast(Path, folder / path))
    assert _lies_in(place, file) is inside
    assert _source_text(Source(f"./{path}", "file", (file,)), place) == (name if inside else str(folder / path))


pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the commands are those of a POSIX shell")


@pytest.fixture
def project(tmp_path: Path) -> Project:
    project = Project(tmp_path)
    for version in ("one", "two"):
        project.write(f"{version}/text.txt", version)
        project.write(f"{version}/sub/text.txt", version)
    (project.folder / "cur").symlink_to("one", target_is_directory=True)
    return project


EDITS = {
    "edited, with its times": (
        "one/text.txt",
        "cp -p one/text.txt kept; echo other > one/text.txt; cat one/text.txt > {outputs.o}; cp -p kept one/text.txt",
    ),
    "replaced by rename": (
        "one/text.txt",
        "mv one/text.txt kept; cp two/text.txt one/text.txt; cat one/text.txt > {outputs.o}; mv kept one/text.txt",
    ),
    "edited, and not put back": ("one/text.txt", "cat one/text.txt > {outputs.o}; echo edited > one/text.txt"),
    "its folder a link to another": (
        "cur/text.txt",
        "ln -sfn two cur; cat cur/text.txt > {outputs.o}; ln -sfn one cur",
    ),
    "its folder renamed": (
        "one/text.txt",
        "mv one kept; mv two one; cat one/text.txt > {outputs.o}; mv one two; mv kept one",
    ),
    "a folder around its folder renamed": (
        "one/sub/text.txt",
        "mv one kept; mv two one; cat one/sub/text.txt > {outputs.o}; mv one two; mv kept one",
    ),
    "a file in its folder": (
        "one/",
        "cp -p one/sub/text.txt kept; echo other > one/sub/text.txt; cat one/sub/* > {outputs.o};"
        " cp -p kept one/sub/text.txt",
    ),
}


@pytest.mark.parametrize("how", EDITS)
def test_temporarily_changed_input_fails_the_stage(project: Project, how: str) -> None:
    read, script = EDITS[how]
    project.command("stage", "sh", "-c", script, inputs={"text": read}, outputs={"o": "o.txt"})
    error = project.build().error("stage")
    assert error.startswith(str(project.folder / read))
    assert error.endswith(" changed while it was being used, so nothing was stored.")
    assert Store(project.cache).records.keys() == []


def test_temporarily_changed_stage_output_fails_the_reader(project: Project) -> None:
    project.command("make", "sh", "-c", "echo made > {outputs.o}", outputs={"o": "made.txt"})
    script = "cp -p made.txt kept; echo other > made.txt; cat made.txt > {outputs.o}; cp -p kept made.txt"
    project.command("stage", "sh", "-c", script, inputs={"text": "make.o"}, outputs={"o": "o.txt"})
    assert "made.txt changed while it was being used" in project.build(keep_going=True, jobs=1).error("stage")


@pytest.mark.parametrize(
    "drop",
    [
        pytest.param("echo new > one/new.txt", id="a file"),
        pytest.param("mkdir one/sub/new; echo new > one/sub/new/new.txt", id="a folder in a folder in it"),
        pytest.param("ln -s ../../two/text.txt one/sub/new.txt", id="a link"),
        pytest.param("echo new > one/new.txt; cat one/* > {outputs.o}; rm one/new.txt", id="a file that goes again"),
    ],
)
def test_file_added_to_input_folder_fails_the_stage(project: Project, drop: str) -> None:
    script = f"{drop}; cat one/*.txt > {{outputs.o}}"
    project.command("stage", "sh", "-c", script, inputs={"data": "one/"}, outputs={"o": "o.txt"})
    assert "changed while it was being used, so nothing was stored" in project.build().error("stage")


def test_file_added_to_input_folder_before_start_fails_the_stage(project: Project) -> None:
    project.command("first", "sh", "-c", "echo new > one/new.txt; echo > {outputs.o}", outputs={"o": "first.txt"})
    inputs = {"data": "one/", "after": "first.o"}
    project.command("stage", "sh", "-c", "cat one/*.txt > {outputs.o}", inputs=inputs, outputs={"o": "o.txt"})
    assert "one changed while it was being used" in project.build(keep_going=True, jobs=1).error("stage")


def test_files_added_beside_an_input_are_ignored(project: Project) -> None:
    script = "echo > one/new.txt; cat one/text.txt cur/sub/text.txt > {outputs.o}; rm one/new.txt; echo > new.txt"
    inputs = {"text": "one/text.txt", "linked": "cur/sub/text.txt"}
    project.command("stage", "sh", "-c", script, inputs=inputs, outputs={"o": "o.txt"})
    assert project.build().ran == ["stage"]


def test_sandboxed_folder_copy_ignores_changing_siblings(project: Project) -> None:
    script = "cat one/*.txt > {outputs.o}"
    project.command("stage", "sh", "-c", script, inputs={"data": "one/"}, outputs={"o": "o.txt"})
    assert project.build(access=FileAccess.SANDBOX).ran == ["stage"]


@pytest.mark.parametrize("put_back", [False, True])
def test_module_edited_while_running_fails_its_stage(project: Project, put_back: bool) -> None:
    code = (
        "from pathlib import Path\n"
        "def work(inputs, outputs):\n"
        "    code = Path('tool.py').read_text()\n"
        "    Path('tool.py').write_text(code + '# edited')\n"
        "    Path(outputs['o']).write_text('done')\n"
    )
    project.write("tool.py", code + ("    Path('tool.py').write_text(code)\n" if put_back else ""))
    project.function("stage", "tool:work", outputs={"o": "o.txt"})
    assert "tool.py changed while it was being used" in project.build().error("stage")


def test_module_edited_while_waiting_fails_its_stage(project: Project) -> None:
    project.write("tool.py", "def work(inputs, outputs): open(outputs['o'], 'w').write('old')\n")
    script = "sed s/old/new/ tool.py > kept; mv kept tool.py; echo > {outputs.o}"
    project.command("edit", "sh", "-c", script, outputs={"o": "first.txt"})
    project.function("stage", "tool:work", inputs={"after": "edit.o"}, outputs={"o": "o.txt"})
    assert "tool.py changed while it was being used" in project.build(keep_going=True, jobs=1).error("stage")
