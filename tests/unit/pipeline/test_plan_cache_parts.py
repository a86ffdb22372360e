"""Updating part of a cached plan leaves an entry that is correct for the whole plan."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from winml_dag import file_reading
from winml_dag.cli import run
from winml_dag.engine import keys
from winml_dag.pipeline import build as pipeline_build
from winml_dag.pipeline.request import Overrides, Request
from winml_dag.pipeline.uptodate import CurrentPlan, check

MANIFEST = Path(".winml-dag/recipe.yaml/build_manifest.json")
SPLIT = "import sys; from pathlib import Path; out = Path(sys.argv[2]); out.mkdir(exist_ok=True); " + (
    "[(out / word).write_text(word) for word in Path(sys.argv[1]).read_text().split()]"
)
COPY = "import sys, shutil; shutil.copyfile(sys.argv[1], sys.argv[2])"


@pytest.fixture(autouse=True)
def _built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two independent stages, built; recently written files count as settled."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WINML_DAG_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(file_reading, "SETTLED_NS", 0)
    Path("words.txt").write_text("one two")
    Path("other.txt").write_text("other")
    stages = {
        name: {
            "command": [sys.executable, "-c", code, "{inputs.read}", "{outputs.made}"],
            "inputs": {"read": f"./{name}.txt"},
            "outputs": {"made": made},
        }
        for name, code, made in (("words", SPLIT, "build/words/"), ("other", COPY, "build/other.txt"))
    }
    Path("recipe.yaml").write_text(yaml.safe_dump({"stages": stages}))
    build()


def build() -> None:
    assert run(["build", "-c", "recipe.yaml"]) == 0


def stands() -> CurrentPlan | None:
    return check(str(Path("cache").absolute()), str(Request(Path("recipe.yaml"), Overrides()).words))


def is_up_to_date() -> bool:
    current_plan = stands()
    return current_plan is not None and current_plan.is_up_to_date


def stages_in_manifest() -> list[str]:
    return [stage["id"] for stage in json.loads(MANIFEST.read_text())["stages"]]


@pytest.mark.parametrize("edit", ["delete", "edit", "delete, with an output"])
def test_a_lost_manifest_is_made_anew_as_a_whole(edit: str) -> None:
    assert is_up_to_date()
    value = json.loads(MANIFEST.read_text())
    MANIFEST.unlink()
    if edit == "edit":
        MANIFEST.write_text(json.dumps({**value, "stages": value["stages"][:1]}))
    if edit == "delete, with an output":
        Path("build/other.txt").unlink()
    build()
    assert sorted(stages_in_manifest()) == ["other", "words"]
    assert is_up_to_date()


@pytest.mark.parametrize("words", ["two", "two three", "one two three", "two one"])
def test_a_folder_with_other_files_in_it_is_up_to_date_after_two_builds(words: str) -> None:
    """One plans a part, and one may have to plan everything since the output files differ."""
    Path("words.txt").write_text(words)
    build()
    assert sorted(path.name for path in Path("build/words").iterdir()) == sorted(words.split())
    build()
    assert is_up_to_date()
    Path("build/words/two").unlink()
    build()
    assert Path("build/words/two").read_text() == "two"


def test_a_file_that_was_touched_just_before_is_read_the_next_time_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another write within one tick of the file system's clock would not show in its times."""
    monkeypatch.setattr(file_reading, "SETTLED_NS", 10**12)
    monkeypatch.setattr(file_reading, "settled_ns", lambda _: 10**12)
    os.utime("other.txt")
    Path("words.txt").write_text("two one")
    build()
    current_plan = stands()
    assert current_plan is not None
    entry = current_plan.entry
    assert str(Path("other.txt").absolute()) in {entry.paths[place] for place in entry.header.racy}


def test_an_edit_of_a_part_that_is_taken_back_is_taken_back_in_the_manifest() -> None:
    """The first results are cached, so nothing runs."""

    def placed() -> list[Any]:
        value = json.loads(MANIFEST.read_text())
        return [value["sources"], *(stage["placed"] for stage in value["stages"])]

    first = placed()
    Path("other.txt").write_text("edited")
    build()
    assert placed() != first
    Path("other.txt").write_text("other")
    build()

    assert placed() == first
    assert run(["verify", str(MANIFEST.parent)]) == 0
    assert is_up_to_date()


def test_a_part_that_is_put_back_leaves_the_manifest_as_it_is() -> None:
    before = MANIFEST.read_bytes()
    Path("build/other.txt").unlink()
    build()
    assert Path("build/other.txt").read_text() == "other"
    assert MANIFEST.read_bytes() == before


def edit_source() -> None:
    Path("other.txt").write_text("edited")


def edit_output() -> None:
    Path("build/other.txt").write_text("edited")


def remove_output() -> None:
    Path("build/other.txt").unlink()


def install_package() -> None:
    Path("packages/some_package-1.0.dist-info").mkdir()
    keys._listed_here.cache_clear()


@pytest.mark.parametrize("first", [True, False], ids=["planned anew", "recalled"])
@pytest.mark.parametrize("edit", [edit_source, edit_output, remove_output, install_package])
def test_what_changes_at_the_end_of_a_long_build_is_not_vouched_for(
    monkeypatch: pytest.MonkeyPatch, edit: Callable[[], None], first: bool
) -> None:
    """After a source was read, after an output was verified, or after keys were computed from installed packages."""
    Path("packages").mkdir()
    monkeypatch.syspath_prepend(str(Path("packages").absolute()))
    if not first:
        build()  # the search path has changed, which is recorded
    Path("other.txt").write_text("another")
    keep_finished = pipeline_build.keep_finished

    def edit_and_note(*arguments: Any) -> None:
        edit()
        keep_finished(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(pipeline_build, "keep_finished", edit_and_note)
        build()
    assert not is_up_to_date()
    build()
    assert Path("build/other.txt").read_text() == Path("other.txt").read_text()
    assert is_up_to_date()


EDIT = """
import sys
from winml_dag.cli import run
code = run(["build", "-c", "recipe.yaml"])
heavy = {"networkx", "numpy", "onnx", "pydantic", "rich", "yaml", "winml_dag.recipe.schema", "winml_dag.stages.export"}
heavy &= sys.modules.keys()
print(code, sorted(heavy))
"""


def test_an_edit_imports_nothing_that_only_planning_needs() -> None:
    found = ""
    for text in ("one", "two"):  # the first one plans: this is another way of starting Python
        Path("other.txt").write_text(text)
        found = subprocess.run([sys.executable, "-c", EDIT], check=True, capture_output=True, text=True).stdout
    assert "1 ran, 1 reused" in found
    assert found.splitlines()[-1] == "0 []"
