"""Edit, build, and exactly these stages ran: recipes with user-defined stages."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from oneprocess import OneProcess
from user_project import COUNT, TIDY, UserProject, notes_project

PYTHON = sys.executable
FAILS = [PYTHON, "-c", "raise SystemExit(3)"]
WAITS = [PYTHON, "-c", "import threading; threading.Event().wait()"]
needs_sh = pytest.mark.skipif(os.name == "nt", reason="sh is not on every Windows")


@pytest.fixture
def project(tmp_path: Path, commands: OneProcess | None) -> UserProject:
    return notes_project(tmp_path / "project", commands)


@pytest.fixture
def built(project: UserProject) -> UserProject:
    first = project.build()
    assert first.code == 0, first.messages
    assert first.ran == ["tidy", "count"]
    return project


def test_file_edit_runs_dependent_stages(built: UserProject) -> None:
    assert (built.read("build/notes.txt"), built.read("build/count.txt")) == ("one\ntwo\n", "2")
    assert sorted(path.name for path in built.folder.iterdir()) == [
        *(".winml-dag", "build", "raw", "recipe.yaml", "tools")
    ]
    before = {path: path.stat().st_mtime_ns for path in built.folder.rglob("*")}
    assert built.build().ran == []
    del before[built.folder / "recipe.yaml"]
    assert {path: path.stat().st_mtime_ns for path in before} == before

    built.write("raw/notes.txt", "  one\ntwo\nthree\n")
    told = built.run("plan", "-c", "recipe.yaml").stdout
    assert "raw/notes.txt" in told or "input text changed" in told
    assert "tidy: would run" in built.run("why", "tidy", "-c", "recipe.yaml").stdout
    assert '"tidy"' in built.run("graph", "-c", "recipe.yaml").stdout
    assert built.build().ran == ["tidy", "count"]
    assert built.read("build/count.txt") == "3"

    built.write("raw/notes.txt", "  one\ntwo  \n")
    assert built.build().ran == [], "reverted"
    assert built.read("build/notes.txt") == "one\ntwo\n"

    built.write("raw/notes.txt", "one  \n  two\n")
    assert built.build().ran == ["tidy"], "its output is the same"

    built.write("tools/tidy.py", f"# says the same\n{TIDY}")
    assert built.build().ran == ["tidy"]

    finished = built.run("build", "-c", str(built.folder / "recipe.yaml"), cwd=built.folder.parent)
    assert finished.stdout.splitlines()[-1].startswith("Up to date: 2 stages, checked in "), "from everywhere"
    assert built.build("--rebuild").ran == ["tidy", "count"]


def test_recipe_edit_runs_dependent_stages(built: UserProject) -> None:
    stages = built.recipe["stages"]
    for field, value, reason in (("env", {"LEVEL": "2"}, "env.LEVEL"), ("config", {"limit": 3}, "config.limit")):
        stages["tidy"][field] = value
        result = built.build()
        assert result.ran == ["tidy"]
        assert reason in result.stages["tidy"]["reason"]
    stages["tidy"]["timeout"] = 77
    assert built.build().ran == []
    stages["clean-up"] = stages.pop("tidy")
    stages["count"]["inputs"]["text"] = "clean-up.clean"
    assert built.build().ran == []
    assert [stage["id"] for stage in built.manifest()["stages"]] == ["clean-up", "count"]


def test_files_named_only_in_command_are_inputs(project: UserProject) -> None:
    """Even with a cached plan: files that did not exist during planning count."""
    optional = (
        "import sys; from pathlib import Path; extra = Path('settings.txt'); "
        "Path(sys.argv[1]).write_text(extra.read_text() if extra.exists() else 'none')"
    )
    stages = project.recipe["stages"]
    # An empty word names no file.
    stages["show"] = {"command": [PYTHON, "-c", optional, "{outputs.shown}", ""], "outputs": {"shown": "shown.txt"}}
    del stages["tidy"]["inputs"]["script"]
    assert sorted(project.build().ran) == ["count", "show", "tidy"]
    assert project.build().ran == []
    project.write("settings.txt", "there")
    project.write("tools/tidy.py", f"# edited\n{TIDY}")
    result = project.build()
    assert sorted(result.ran) == ["show", "tidy"]
    assert "tools/tidy.py" in result.stages["tidy"]["reason"]
    assert project.read("shown.txt") == "there"


@needs_sh
@pytest.mark.parametrize("sandbox", [False, True])
def test_executable_output_keeps_its_mode(project: UserProject, sandbox: bool) -> None:
    project.write("own.sh", "#!/bin/sh\ncat\n").chmod(0o755)
    project.recipe["stages"] = {
        "make": {
            "command": ["sh", "-c", "printf '#!/bin/sh\\necho made\\n' > {outputs.tool}; chmod +x {outputs.tool}"],
            "outputs": {"tool": "build/tool"},
        },
        "use": {
            "command": ["sh", "-c", "./{inputs.tool} | ./{inputs.own} > {outputs.said}"],
            "inputs": {"tool": "make.tool", "own": "./own.sh"},
            "outputs": {"said": "build/said.txt"},
        },
    }
    options = ["--sandbox"] if sandbox else []
    built = project.build(*options)
    assert built.ran == ["make", "use"], built.messages
    assert project.read("build/said.txt") == "made\n"

    tool = project.folder / "build/tool"
    tool.unlink()
    assert project.build(*options).ran == []
    assert os.access(tool, os.X_OK)
    tool.chmod(0o644)
    assert project.build(*options).ran == []
    assert os.access(tool, os.X_OK)


def test_outputs_are_restored_and_removed_unless_edited(built: UserProject) -> None:
    (built.folder / "build/notes.txt").unlink()
    built.write("build/count.txt", "edited")
    result = built.build()
    assert result.ran == []
    assert (built.read("build/notes.txt"), built.read("build/count.txt")) == ("one\ntwo\n", "2")
    assert "build/count.txt" in result.messages
    assert "build/notes.txt" in result.messages

    count = built.recipe["stages"].pop("count")
    assert built.build().code == 0
    assert not (built.folder / "build/count.txt").exists()
    assert (built.folder / "build/notes.txt").exists()

    built.recipe["stages"]["count"] = count
    assert built.build().ran == []
    built.write("build/count.txt", "mine now")
    del built.recipe["stages"]["count"]
    assert built.build().code == 0
    assert built.read("build/count.txt") == "mine now"

    (built.folder / ".winml-dag/recipe.yaml/build_manifest.json").unlink()
    assert built.build().code == 0, "a file with the very content of the output is in nobody's way"


def test_recipes_with_same_stem_do_not_interfere(built: UserProject) -> None:
    other = {
        "command": [PYTHON, "-c", COUNT, "{inputs.text}", "{outputs.n}"],
        "inputs": {"text": "raw/notes.txt"},
        "outputs": {"n": "build/other.txt"},
    }
    built.write("recipe.json", json.dumps({"stages": {"other": other}}))
    for _ in range(2):
        assert built.run("build", "-c", "recipe.json").returncode == 0
        assert built.build().ran == []
        assert sorted(path.name for path in built.folder.glob("build/*")) == ["count.txt", "notes.txt", "other.txt"]


def test_foreign_output_file_is_never_overwritten(project: UserProject) -> None:
    project.write("build/count.txt", "not ours")
    result = project.build()
    assert result.code == 2
    assert "count.txt is in the way" in result.messages
    assert project.read("build/count.txt") == "not ours"
    assert not (project.folder / "build/notes.txt").exists(), "nothing has run"


def test_unwritable_output_folder_is_named_in_error(built: UserProject) -> None:
    """A file in place of a folder is found earlier; here the file system fails."""
    folder = built.folder / "build"
    (folder / "count.txt").unlink()
    folder.chmod(0o555)
    try:
        if os.access(folder, os.W_OK):
            pytest.skip("this user may write everywhere")
        failed = built.run("build", "-c", "recipe.yaml")
    finally:
        folder.chmod(0o755)
    assert failed.returncode == 1
    assert "Cannot put build/count.txt" in failed.stderr
    assert "cache" not in failed.stderr.partition("Cannot put")[2]


def test_failed_build_keeps_finished_outputs(project: UserProject) -> None:
    count = project.recipe["stages"]["count"]
    works = count["command"]
    count["command"] = [*FAILS, "{outputs.n}"]
    failed = project.build()
    assert failed.code == 1
    assert failed.with_status("failed") == ["count"]
    assert project.read("build/notes.txt") == "one\ntwo\n"
    count["command"] = works
    project.write("raw/notes.txt", "three\n")
    assert project.build().ran == ["tidy", "count"]
    assert project.read("build/notes.txt") == "three\n"


def test_failure_log_is_printed_with_escaped_control_characters(project: UserProject) -> None:
    hostile = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202edne"
    project.write("tools/tidy.py", f"print({hostile!r})\nraise SystemExit(3)\n")
    project.save()
    for form in ("text", "json"):
        failed = project.run("build", "-c", "recipe.yaml", "--format", form)
        assert failed.returncode == 1
        for said in (failed.stdout, failed.stderr):
            assert not set(said) & set("\x1b\x07\x9b\u202e"), said
    assert "exit code 3" in failed.stderr
    assert "\\u001b]0;owned\\u0007" in failed.stderr
    tidy, count = json.loads(failed.stdout)["builds"][0]["stages"]
    assert hostile in Path(tidy["log"]).read_text(encoding="utf-8")
    assert count["status"] == "skipped"


def test_keep_going_runs_independent_stages(project: UserProject) -> None:
    stages = project.recipe["stages"]
    stages["tidy"]["command"] = [*FAILS, "{outputs.clean}"]
    stages["sleeper"] = {"command": WAITS, "timeout": 0.2}
    stages["other"] = {
        "command": [PYTHON, "-c", COUNT, "{inputs.text}", "{outputs.n}"],
        "inputs": {"text": "raw/notes.txt"},
        "outputs": {"n": "build/other.txt"},
    }
    result = project.build("-k", "-j", "1")
    assert result.code == 1
    assert sorted(result.with_status("failed")) == ["sleeper", "tidy"]
    assert (result.ran, result.with_status("skipped")) == (["other"], ["count"])
    assert project.read("build/other.txt") == "2"
    assert "limit of 0.2 s" in result.messages
    assert "timeout in the recipe" in result.messages


@needs_sh
def test_command_may_remove_its_temporary_folder(project: UserProject) -> None:
    """And so has the next one, which would have used that folder again."""
    for stage in project.recipe["stages"].values():
        (output,) = stage["outputs"]
        stage["command"] = ["sh", "-c", f'cat {{inputs.text}} > {{outputs.{output}}}; rm -r "$TMPDIR"']
        stage["inputs"] = {"text": stage["inputs"]["text"]}
    built = project.build("-j", "1")
    assert built.ran == ["tidy", "count"], built.messages
    assert project.build().ran == []


@needs_sh
def test_command_that_removes_its_working_folder_fails(project: UserProject) -> None:
    project.recipe["stages"] = {
        f"exits-{code}": {
            "command": ["sh", "-c", f'rm -r "$TMPDIR/.."; exit {code}', "{outputs.out}"],
            "outputs": {"out": f"{code}.txt"},
        }
        for code in (0, 3)
    }
    failed = project.build("-k", "-j", "1")
    assert failed.code == 1
    assert failed.with_status("failed") == ["exits-0", "exits-3"]
    assert "Traceback" not in failed.messages


def test_concurrent_builds_run_each_stage_once(project: UserProject) -> None:
    project.write("tools/tidy.py", f"import os\nopen(os.environ['RAN'], 'a').write('x')\n{TIDY}")
    ran = project.folder.parent / "ran"
    project.recipe["stages"]["tidy"]["env"] = {"RAN": str(ran)}
    project.save()
    for build in [project.start("build", "-c", "recipe.yaml") for _ in range(2)]:
        _, messages = build.communicate(timeout=60)
        assert build.returncode == 0, messages
    assert ran.read_text(encoding="utf-8") == "x"
    assert project.read("build/count.txt") == "2"


def test_function_stage_gets_paths_and_config(project: UserProject) -> None:
    project.write(
        "steps/joining.py",
        "def join(inputs, outputs, config):\n"
        "    lines = inputs['text'].read_text().split()\n"
        "    outputs['joined'].write_text(config['by'].join(lines))\n"
        "    return {'words': len(lines)}\n",
    )
    project.recipe["stages"]["join"] = {
        "run": "steps.joining:join",
        "inputs": {"text": "tidy.clean"},
        "outputs": {"joined": "build/joined.txt"},
        "config": {"by": "+"},
    }
    assert project.build().code == 0
    assert project.read("build/joined.txt") == "one+two"
    (stage,) = [stage for stage in project.manifest()["stages"] if stage["id"] == "join"]
    assert stage["metrics"]["words"] == 2
    assert project.build().ran == []
    project.write("steps/joining.py", project.read("steps/joining.py") + "# edited\n")
    assert project.build().ran == ["join"]
    project.recipe["stages"]["join"]["config"]["by"] = "-"
    assert project.build().ran == ["join"]
    assert project.read("build/joined.txt") == "one-two"
