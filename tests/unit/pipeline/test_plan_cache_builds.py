"""The plan cache after builds of a recipe's own stages: parts of a plan, and what changes during a build."""

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
from pipeline_samples import changed_before

from winml_dag import file_reading
from winml_dag.cli import run
from winml_dag.installed import forget_installed
from winml_dag.pipeline import build as pipeline_build
from winml_dag.pipeline import plan as pipeline_plan
from winml_dag.pipeline import plan_cache
from winml_dag.pipeline.request import Overrides, Request
from winml_dag.pipeline.uptodate import CurrentPlan, check

MANIFEST = Path(".winml-dag/recipe.yaml/build_manifest.json")
SPLIT = "import sys; from pathlib import Path; out = Path(sys.argv[2]); out.mkdir(exist_ok=True); " + (
    "[(out / word).write_text(word) for word in Path(sys.argv[1]).read_text().split()]"
)
COPY = "import sys, shutil; shutil.copyfile(sys.argv[1], sys.argv[2])"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder in which recently written files count as settled."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WINML_DAG_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(file_reading, "SETTLED_NS", 0)


def stage(command: list[str], read: str, made: str) -> dict[str, Any]:
    return {
        "command": [*command, "{inputs.read}", "{outputs.made}"],
        "inputs": {"read": read},
        "outputs": {"made": made},
    }


@pytest.fixture
def _built() -> None:
    """Two independent stages, built."""
    Path("words.txt").write_text("one two")
    Path("other.txt").write_text("other")
    stages = {
        "words": stage([sys.executable, "-c", SPLIT], "./words.txt", "build/words/"),
        "other": stage([sys.executable, "-c", COPY], "./other.txt", "build/other.txt"),
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


@pytest.mark.usefixtures("_built")
def test_lost_manifest_is_rewritten_in_full() -> None:
    """Whether it is gone, alone or with an output, or was edited."""
    value = json.loads(MANIFEST.read_text())
    for lost in ([MANIFEST], [MANIFEST, Path("build/other.txt")], []):
        for path in lost:
            path.unlink()
        if not lost:
            MANIFEST.write_text(json.dumps({**value, "stages": value["stages"][:1]}))
        build()
        assert sorted(stage["id"] for stage in json.loads(MANIFEST.read_text())["stages"]) == ["other", "words"]
        assert is_up_to_date()


@pytest.mark.usefixtures("_built")
def test_folder_output_is_up_to_date_after_two_builds() -> None:
    """One plans a part, and one may have to plan everything since the output files differ."""
    for words in ("two", "two three", "one two three", "two one"):
        Path("words.txt").write_text(words)
        build()
        assert sorted(path.name for path in Path("build/words").iterdir()) == sorted(words.split())
        build()
        assert is_up_to_date(), words
    Path("build/words/two").unlink()
    build()
    assert Path("build/words/two").read_text() == "two"


@pytest.mark.usefixtures("_built")
def test_recently_touched_file_is_marked_racy(monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.usefixtures("_built")
def test_reverted_edit_is_reverted_in_manifest() -> None:
    """The first results are cached, so nothing runs; what is only put back leaves the manifest as it is."""

    def placed() -> list[Any]:
        value = json.loads(MANIFEST.read_text())
        return [value["sources"], *(stage["placed"] for stage in value["stages"])]

    first, text = placed(), MANIFEST.read_bytes()
    Path("build/other.txt").unlink()
    build()
    assert Path("build/other.txt").read_text() == "other"
    assert MANIFEST.read_bytes() == text
    Path("other.txt").write_text("edited")
    build()
    assert placed() != first
    Path("other.txt").write_text("other")
    build()
    assert placed() == first
    assert run(["verify", str(MANIFEST.parent)]) == 0
    assert is_up_to_date()


def install_package() -> None:
    Path(f"packages/package{len(list(Path('packages').iterdir()))}-1.0.dist-info").mkdir()
    forget_installed()


EDITS: dict[str, Callable[[], object]] = {
    "source": lambda: Path("other.txt").write_text("edited"),
    "output": lambda: Path("build/other.txt").write_text("edited"),
    "no output": lambda: Path("build/other.txt").unlink(),
    "package": install_package,
}


@pytest.mark.usefixtures("_built")
@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_edit_at_end_of_build_is_not_up_to_date(monkeypatch: pytest.MonkeyPatch, edit: Callable[[], object]) -> None:
    """After a source was read, after an output was verified, or after keys were computed from installed packages."""
    Path("packages").mkdir()
    monkeypatch.syspath_prepend(str(Path("packages").absolute()))
    for text in ("planned anew", "recalled"):
        Path("other.txt").write_text(text)
        with changed_before(pipeline_build, "keep_finished", edit):
            build()
        assert not is_up_to_date(), text
        build()
        assert Path("build/other.txt").read_text() == Path("other.txt").read_text()
        assert is_up_to_date(), text


EDIT = """
import sys
from winml_dag.cli import run
code = run(["build", "-c", "recipe.yaml"])
heavy = {"networkx", "numpy", "onnx", "pydantic", "rich", "yaml", "winml_dag.recipe.schema", "winml_dag.stages.export"}
heavy &= sys.modules.keys()
print(code, sorted(heavy))
"""


@pytest.mark.usefixtures("_built")
def test_rebuild_after_edit_imports_no_planning_modules() -> None:
    found = ""
    for text in ("one", "two"):  # the first one plans: this is another way of starting Python
        Path("other.txt").write_text(text)
        found = subprocess.run([sys.executable, "-c", EDIT], check=True, capture_output=True, text=True).stdout
    assert "1 ran, 1 reused" in found
    assert found.splitlines()[-1] == "0 []"


def recipe(read: str, program: list[str]) -> str:
    return yaml.safe_dump({"stages": {"copy": stage(program, read, "made.txt")}})


def two_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make two versions of everything, and ``cur``, a link to the first. Everything counts as old, even what is new."""
    monkeypatch.setattr(file_reading, "SETTLED_NS", -(10**18))
    for version in ("one", "two"):
        made = Path(version)
        (made / "sub").mkdir(parents=True)
        (made / "text.txt").write_text(version)
        (made / "sub" / "text.txt").write_text(version)
        tool = made / "tool"
        tool.write_text(f"#!/bin/sh\nprintf {version} > $2\n")
        tool.chmod(0o755)
        (made / "recipe.yaml").write_text(recipe("./note.txt", ["sh", "-c", f"printf {version} > $2", "sh"]))
    Path("note.txt").write_text("note")
    Path("cur").symlink_to("one", target_is_directory=True)


def switch_link() -> None:
    Path("new").symlink_to("two", target_is_directory=True)
    Path("new").replace("cur")


def rename_folder() -> None:
    Path("one").rename("away")
    Path("two").rename("one")


def rename_nested_folder() -> None:
    Path("one/sub").rename("away")
    Path("two/sub").rename("one/sub")


def edit() -> None:
    for path in Path("one").rglob("*.txt"):
        path.write_text("two")


def link_recipe() -> None:
    Path("recipe.yaml").unlink()
    Path("recipe.yaml").symlink_to("two/recipe.yaml")


JOIN = ["sh", "-c", 'find -L "$1" -name "*.txt" | sort | xargs cat > "$2"', "sh"]
CASES = [
    pytest.param("cur/text.txt", JOIN, switch_link, "two", id="a file behind a link"),
    pytest.param("one/text.txt", JOIN, rename_folder, "two", id="a file in a folder that is renamed"),
    pytest.param("one/text.txt", JOIN, edit, "two", id="an edited file"),
    pytest.param("one/", JOIN, rename_folder, "twotwo", id="a folder that is renamed"),
    pytest.param("one/", JOIN, rename_nested_folder, "twoone", id="a folder in an input folder"),
    pytest.param("cur/", JOIN, switch_link, "twotwo", id="an input folder that is a link"),
    pytest.param("./note.txt", ["cur/tool"], switch_link, "two", id="a tool of the project behind a link"),
    pytest.param("./note.txt", ["TMP/cur/tool"], switch_link, "two", id="a tool behind a link"),
    pytest.param("", [], link_recipe, "two", id="a recipe that is a link"),
]
# When the change happens: before this planning step.
MOMENTS = [
    pytest.param(pipeline_plan, "plan_build", id="while it is planned"),
    pytest.param(plan_cache, "save_plan", id="when it was planned"),
    pytest.param(pipeline_build, "keep_finished", id="at its end"),
]


@pytest.mark.skipif(sys.platform == "win32", reason="tools are shell scripts")
@pytest.mark.parametrize(("read", "program", "change", "expected"), CASES)
@pytest.mark.parametrize(("module", "name"), MOMENTS)
def test_edit_during_build_is_built_by_the_next(
    monkeypatch: pytest.MonkeyPatch,
    read: str,
    program: list[str],
    change: Callable[[], None],
    expected: str,
    module: Any,
    name: str,
) -> None:
    """Without leaving a young file: a link is retargeted, a folder is renamed, the file system has a late clock."""
    two_versions(monkeypatch)
    if read:
        program = [word.replace("TMP", str(Path.cwd())) for word in program]
        Path("recipe.yaml").write_text(recipe(read, program))
    else:
        Path("recipe.yaml").symlink_to("one/recipe.yaml")
    with changed_before(module, name, change):
        run(["build", "-c", "recipe.yaml"])
    build()
    assert Path("made.txt").read_text() == expected
