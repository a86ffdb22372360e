"""Folders that user-defined stages write and read: they contain exactly what they should."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from oneprocess import OneProcess
from user_project import UserProject, notes_project

PYTHON = sys.executable

# Words of more than three letters go to a folder in the folder.
SPLIT = """
import sys
from pathlib import Path
for word in Path(sys.argv[1]).read_text().split():
    file = Path(sys.argv[2], "sub" if len(word) > 3 else "", word)
    file.parent.mkdir(exist_ok=True)
    file.write_text(word)
"""
LIST = """
import sys
from pathlib import Path
root = Path(sys.argv[1])
Path(sys.argv[2]).write_text(" ".join(sorted(path.relative_to(root).as_posix() for path in root.rglob("*"))))
"""


@pytest.fixture
def project(tmp_path: Path, commands: OneProcess | None) -> UserProject:
    return notes_project(tmp_path / "project", commands)


@pytest.fixture
def lister(project: UserProject) -> UserProject:
    """A stage that outputs a folder with a file per word, and one that lists that folder."""
    project.recipe = {
        "stages": {
            "split": {
                "command": [PYTHON, "-c", SPLIT, "{inputs.text}", "{outputs.words}"],
                "inputs": {"text": "raw/notes.txt"},
                "outputs": {"words": "build/words/"},
            },
            "list": {
                "command": [PYTHON, "-c", LIST, "{inputs.words}", "{outputs.names}"],
                "inputs": {"words": "split.words"},
                "outputs": {"names": "build/names.txt"},
            },
        }
    }
    assert project.build().ran == ["split", "list"]
    assert project.read("build/names.txt") == "one two"
    return project


def test_folder_reader_sees_only_folder_outputs(lister: UserProject) -> None:
    """Otherwise its output would be stored under a wrong key."""
    lister.write("raw/notes.txt", "two three")
    edited = lister.build()
    assert edited.ran == ["split", "list"]
    assert lister.read("build/names.txt") == "sub sub/three two"
    assert "build/words/one" in edited.messages
    assert not (lister.folder / "build/words/one").exists(), "it is of an earlier build"

    listing = lister.recipe["stages"]["list"]
    works = listing["command"]
    listing["command"] = [PYTHON, "-c", "raise SystemExit(3)"]
    lister.write("raw/notes.txt", "two half")
    assert lister.build().code == 1
    listing["command"] = works
    lister.write("raw/notes.txt", "two four")
    assert lister.build().code == 0
    assert lister.read("build/names.txt") == "sub sub/four two", "nothing of the failed build"

    (lister.folder / "build/words/empty/deep").mkdir(parents=True)
    works[2] = f"{LIST}  # edited"
    assert lister.build().ran == ["list"]
    assert lister.read("build/names.txt") == "sub sub/four two", "artifacts have no empty folders, so it went"


def _own(folder: Path) -> Path:
    (folder / "mine").write_text("mine")
    return folder / "mine"


def _case_twin(folder: Path) -> Path:
    twin = folder / "TWO"
    if twin.exists():
        pytest.skip("this file system has no names that differ in case only")
    twin.write_text("mine")
    return twin


def _partial(folder: Path) -> Path:
    (folder / "z.partial").write_text("mine")
    return folder / "z.partial"


def _link_to_a_folder(folder: Path) -> Path:
    (folder.parent / "outside").mkdir(exist_ok=True)
    (folder / "link").symlink_to("../outside", target_is_directory=True)
    return folder / "link"


def _file_in_a_case_twin(folder: Path) -> Path:
    (folder / "Deep").mkdir()
    (folder / "Deep" / "mine").write_text("mine")
    return folder / "Deep" / "mine"


def test_foreign_file_in_read_folder_blocks_build(lister: UserProject) -> None:
    for number, put in enumerate((_own, _case_twin, _partial, _link_to_a_folder, _file_in_a_case_twin)):
        foreign = put(lister.folder / "build/words")
        lister.recipe["stages"]["list"]["command"][2] = f"{LIST}  # {number}"
        lister.save()
        refused = lister.run("build", "-c", "recipe.yaml")
        assert refused.returncode == 1
        assert f"{foreign.relative_to(lister.folder)} is in the way" in refused.stderr
        assert os.path.lexists(foreign)
        foreign.unlink()
        assert lister.build().ran == ["list"]
        assert lister.read("build/names.txt") == "one two"


def test_folder_input_tracks_added_and_removed_files(project: UserProject) -> None:
    project.write("raw/more/list.txt", "x\n")
    project.recipe["stages"] = {
        "list": {
            "command": [PYTHON, "-c", LIST, "{inputs.all}", "{outputs.names}"],
            "inputs": {"all": "raw/"},
            "outputs": {"names": "names.txt"},
        }
    }
    assert project.build().code == 0
    assert project.read("names.txt") == "more more/list.txt notes.txt"
    project.write("raw/more/new.txt", "x\n")
    assert project.build().ran == ["list"], "a file has come into the folder"
    (project.folder / "raw/more/new.txt").unlink()
    assert project.build().ran == []
