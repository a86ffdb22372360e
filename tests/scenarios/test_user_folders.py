"""Folders that user-defined stages write and read: they contain exactly what they should."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from oneprocess import OneProcess
from user_project import UserProject, notes_project

PYTHON = sys.executable

SPLIT = "import sys; from pathlib import Path; out = Path(sys.argv[2]); out.mkdir(exist_ok=True); " + (
    "[(out / word).write_text(word) for word in Path(sys.argv[1]).read_text().split()]"
)
LIST = "import sys, os; open(sys.argv[2], 'w').write(' '.join(sorted(os.listdir(sys.argv[1]))))"


@pytest.fixture
def project(tmp_path: Path, commands: OneProcess | None) -> UserProject:
    return notes_project(tmp_path / "project", commands)


def test_a_stage_may_put_out_a_folder(project: UserProject) -> None:
    project.recipe["stages"]["split"] = {
        "command": [
            PYTHON,
            "-c",
            "import sys; from pathlib import Path; folder = Path(sys.argv[2]); (folder / 'sub').mkdir()\n"
            "for line in Path(sys.argv[1]).read_text().split(): (folder / 'sub' / line).write_text(line)",
            "{inputs.text}",
            "{outputs.parts}",
        ],
        "inputs": {"text": "tidy.clean"},
        "outputs": {"parts": "build/parts/"},
    }
    assert project.build().code == 0
    assert project.read("build/parts/sub/two") == "two"
    project.write("raw/notes.txt", "one\n")
    assert project.build().code == 0
    assert not (project.folder / "build/parts/sub/two").exists(), "it is no longer put out"


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


def test_who_reads_a_folder_finds_nothing_of_an_earlier_build_in_it(lister: UserProject) -> None:
    """Otherwise its output would be stored under a wrong key."""
    lister.write("raw/notes.txt", "two three")
    edited = lister.build()
    assert edited.ran == ["split", "list"]
    assert lister.read("build/names.txt") == "three two"
    assert "build/words/one" in edited.messages
    assert not (lister.folder / "build/words/one").exists()


def test_who_reads_a_folder_finds_nothing_of_a_failed_build_in_it(lister: UserProject) -> None:
    works = lister.recipe["stages"]["list"]["command"]
    lister.recipe["stages"]["list"]["command"] = [PYTHON, "-c", "raise SystemExit(3)"]
    lister.write("raw/notes.txt", "two half")
    assert lister.build().code == 1
    lister.recipe["stages"]["list"]["command"] = works
    lister.write("raw/notes.txt", "two three")
    assert lister.build().code == 0
    assert lister.read("build/names.txt") == "three two"


def test_a_file_of_somebody_elses_in_a_folder_that_is_read_is_named_and_left_alone(lister: UserProject) -> None:
    lister.write("build/words/mine", "my own")
    lister.write("raw/notes.txt", "two three")
    refused = lister.run("build", "-c", "recipe.yaml")
    assert refused.returncode == 1
    assert f"{Path('build/words/mine')} is in the way" in refused.stderr
    assert lister.read("build/words/mine") == "my own"
    (lister.folder / "build/words/mine").unlink()
    assert lister.build().ran == ["list"]
    assert lister.read("build/names.txt") == "three two"


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


@pytest.mark.parametrize("put", [_case_twin, _partial, _link_to_a_folder, _file_in_a_case_twin])
def test_whatever_lies_in_a_folder_that_is_read_and_is_no_part_of_it_is_in_the_way(
    lister: UserProject, put: Callable[[Path], Path]
) -> None:
    foreign = put(lister.folder / "build/words")
    lister.recipe["stages"]["list"]["command"][2] = f"{LIST}  # edited"
    lister.save()
    refused = lister.run("build", "-c", "recipe.yaml")
    assert refused.returncode == 1
    assert f"{foreign.relative_to(lister.folder)} is in the way" in refused.stderr
    assert os.path.lexists(foreign)
    foreign.unlink()
    assert lister.build().ran == ["list"]
    assert lister.read("build/names.txt") == "one two"


def test_an_empty_folder_in_a_folder_that_is_read_goes(lister: UserProject) -> None:
    """Artifacts have none: stored results must not depend on it."""
    (lister.folder / "build/words/empty/deep").mkdir(parents=True)
    lister.recipe["stages"]["list"]["command"][2] = f"{LIST}  # edited"
    assert lister.build().ran == ["list"]
    assert lister.read("build/names.txt") == "one two"


def test_a_folder_is_an_input_with_all_that_comes_and_goes_in_it(project: UserProject) -> None:
    listing = "import sys; from pathlib import Path; Path(sys.argv[2]).write_text(' '.join(sorted(" + (
        "str(file.as_posix()) for file in Path(sys.argv[1]).rglob('*.txt'))))"
    )
    project.write("raw/more/list.txt", "x\n")
    project.recipe["stages"] = {
        "list": {
            "command": [PYTHON, "-c", listing, "{inputs.all}", "{outputs.names}"],
            "inputs": {"all": "raw/"},
            "outputs": {"names": "names.txt"},
        }
    }
    assert project.build().code == 0
    assert project.read("names.txt") == "raw/more/list.txt raw/notes.txt"
    project.write("raw/more/new.txt", "x\n")
    assert project.build().ran == ["list"], "a file has come into the folder"
    (project.folder / "raw/more/new.txt").unlink()
    assert project.build().ran == []
