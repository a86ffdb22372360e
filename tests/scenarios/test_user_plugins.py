"""Stages from an installed package: found by its entry points, run in a worker, with its version in the key."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from user_project import UserProject

_DECLARATION = """\
from dataclasses import dataclass

from winml_dag.engine.stage import InputSlot, Stage


@dataclass(frozen=True)
class SortConfig:
    reverse: bool = False


SORT = Stage(
    name="sort-lines",
    version=1,
    work="tidy_plugin.work:run",
    config="tidy_plugin:SortConfig",
    inputs={"text": InputSlot(frozenset({"text"}))},
    outputs={"sorted": "text"},
)
"""
_WORK = """\
def run(config, workspace):
    lines = workspace.input_file("text", ".txt").read_text().splitlines()
    (workspace.outputs["sorted"] / "sorted.txt").write_text("\\n".join(sorted(lines, reverse=config.reverse)))
    return {"lines": len(lines)}
"""


@pytest.fixture
def project(tmp_path: Path) -> UserProject:
    """A project with a recipe that uses a plug-in, installed in a separate folder."""
    made = UserProject(tmp_path / "project")
    made.write("raw/notes.txt", "b\na\nc\n")
    made.recipe = {
        "stages": {
            "sort": {
                "uses": "sort-lines",
                "inputs": {"text": "raw/notes.txt"},
                "outputs": {"sorted": "build/notes.txt"},
            }
        }
    }
    site = tmp_path / "site"
    made.search_path = str(site)
    (site / "tidy_plugin").mkdir(parents=True)
    (site / "tidy_plugin/__init__.py").write_text(_DECLARATION, encoding="utf-8")
    (site / "tidy_plugin/work.py").write_text(_WORK, encoding="utf-8")
    install(site, "1.0")
    return made


def install(site: Path, version: str) -> None:
    for old in site.glob("*.dist-info"):
        for file in old.iterdir():
            file.unlink()
        old.rmdir()
    metadata = site / f"tidy_plugin-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: tidy-plugin\nVersion: {version}\n")
    (metadata / "entry_points.txt").write_text(
        "[console_scripts]\nsort-lines = tidy_plugin:main\n\n[winml_dag.stages]\nsort-lines = tidy_plugin:SORT\n"
    )


def test_plugin_stage_runs_with_config_and_version_in_key(project: UserProject) -> None:
    sort = project.recipe["stages"]["sort"]
    say = "import sys; _, text, said = sys.argv; open(said, 'w').write(text + open(text).read())"
    project.recipe["stages"]["say"] = {
        "command": [sys.executable, "-c", say, "{inputs.text}", "{outputs.said}"],
        "inputs": {"text": "sort.sorted"},
        "outputs": {"said": "said.txt"},
    }
    for options in ((), ("--sandbox", "--rebuild")):
        result = project.build(*options)
        assert result.ran == ["sort", "say"], result.messages
        assert project.read("said.txt") == "build/notes.txta\nb\nc", "a command reads the output where it lies"
    assert project.read("build/notes.txt") == "a\nb\nc"
    assert not (project.folder / "sorted.txt").exists()
    del project.recipe["stages"]["say"]
    sort["outputs"]["sorted"] = "build/sorted/"
    sort["config"] = {"reverse": False}
    assert project.build().ran == [], "the same in another place, with its default written out"
    assert project.read("build/sorted/sorted.txt") == "a\nb\nc"
    assert not (project.folder / "build/notes.txt").exists()
    sort["config"] = {"reverse": True}
    assert project.build().ran == ["sort"]
    assert project.read("build/sorted/sorted.txt") == "c\nb\na"
    install(Path(project.search_path), "1.1")
    result = project.build()
    assert result.ran == ["sort"]
    assert "1.0 -> 1.1" in result.stages["sort"]["reason"]


def test_invalid_plugin_stage_is_refused(project: UserProject) -> None:
    sort = project.recipe["stages"]["sort"]
    changes = {
        "a": {"uses": "sort-line"},
        "b": {"config": {"revers": True}},
        "c": {"inputs": {"txt": "raw/notes.txt"}},
        "d": {"outputs": {}},
        "e": {"env": {"A": "1"}},
    }
    project.recipe["stages"] = {
        name: {**sort, "outputs": {"sorted": f"{name}.txt"}, **change} for name, change in changes.items()
    }
    result = project.build()
    assert result.code == 2
    for complaint in (
        "stages.a.uses: there is no plug-in 'sort-line'; did you mean 'sort-lines'?",
        "stages.b.config: SortConfig has no field revers",
        "stages.c.inputs.txt: sort-lines has no input 'txt'",
        "stages.d: sort-lines writes 'sorted': give its path in outputs",
        "stages.e.env: sort-lines is a plug-in, which gets no variables",
    ):
        assert complaint in result.messages

    (Path(project.search_path) / "tidy_plugin/__init__.py").write_text("import no_such_module\n", encoding="utf-8")
    result = project.build()
    assert result.code == 2
    assert "tidy_plugin:SORT cannot be imported: No module named 'no_such_module'" in result.messages
