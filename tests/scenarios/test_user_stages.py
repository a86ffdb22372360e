"""Edit, build, and exactly these stages ran: recipes with user-defined stages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from oneprocess import OneProcess
from user_project import COUNT, TIDY, UserProject, notes_project

PYTHON = sys.executable


@pytest.fixture
def project(tmp_path: Path, commands: OneProcess | None) -> UserProject:
    return notes_project(tmp_path / "project", commands)


@pytest.fixture
def built(project: UserProject) -> UserProject:
    first = project.build()
    assert first.code == 0, first.messages
    assert first.ran == ["tidy", "count"]
    return project


def test_outputs_lie_where_the_recipe_says_and_nothing_runs_twice(built: UserProject) -> None:
    assert built.read("build/notes.txt") == "one\ntwo\n"
    assert built.read("build/count.txt") == "2"
    assert sorted(path.name for path in built.folder.iterdir()) == [
        ".winml-dag",
        "build",
        "raw",
        "recipe.yaml",
        "tools",
    ]
    before = {path: path.stat().st_mtime_ns for path in built.folder.rglob("*")}
    assert built.build().ran == []
    del before[built.folder / "recipe.yaml"]
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_an_edited_source_runs_all_that_its_change_reaches(built: UserProject) -> None:
    built.write("raw/notes.txt", "  one\ntwo\nthree\n")
    assert built.build().ran == ["tidy", "count"]
    assert built.read("build/count.txt") == "3"


def test_an_edit_that_leaves_an_output_the_same_stops_there(built: UserProject) -> None:
    built.write("raw/notes.txt", "one  \n  two\n")
    assert built.build().ran == ["tidy"]


def test_a_comment_in_the_script_stops_at_its_stage(built: UserProject) -> None:
    built.write("tools/tidy.py", f"# says the same\n{TIDY}")
    assert built.build().ran == ["tidy"]


def test_a_script_that_is_only_named_on_the_command_line_is_an_input(project: UserProject) -> None:
    del project.recipe["stages"]["tidy"]["inputs"]["script"]
    assert project.build().ran == ["tidy", "count"]
    project.write("tools/tidy.py", f"# edited\n{TIDY}")
    result = project.build()
    assert result.ran == ["tidy"]
    assert "tools/tidy.py" in result.stages["tidy"]["reason"]


def test_a_reverted_edit_runs_nothing(built: UserProject) -> None:
    built.write("raw/notes.txt", "other\n")
    assert built.build().ran == ["tidy", "count"]
    built.write("raw/notes.txt", "  one\ntwo  \n")
    assert built.build().ran == []
    assert built.read("build/notes.txt") == "one\ntwo\n"


def test_a_renamed_stage_runs_nothing(built: UserProject) -> None:
    stages = built.recipe["stages"]
    stages["clean-up"] = stages.pop("tidy")
    stages["count"]["inputs"]["text"] = "clean-up.clean"
    assert built.build().ran == []
    assert [stage["id"] for stage in built.manifest()["stages"]] == ["clean-up", "count"]


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [("env", {"LEVEL": "2"}, "env.LEVEL"), ("config", {"limit": 3}, "config.limit")],
)
def test_a_variable_and_a_setting_reach_their_stage(
    built: UserProject, field: str, value: dict[str, object], reason: str
) -> None:
    built.recipe["stages"]["tidy"][field] = value
    result = built.build()
    assert result.ran == ["tidy"]
    assert reason in result.stages["tidy"]["reason"]


def test_a_timeout_reaches_nothing(built: UserProject) -> None:
    built.recipe["stages"]["tidy"]["timeout"] = 77
    assert built.build().ran == []


def test_a_command_gets_its_settings_and_only_its_variables(
    project: UserProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "from outside")
    show = (
        "import os, sys; from pathlib import Path; "
        'Path(sys.argv[1]).write_text(f\'{sys.argv[2]} {os.environ.get("LEVEL")} {os.environ.get("SECRET")}\')'
    )
    project.recipe = {
        "stages": {
            "show": {
                "command": [PYTHON, "-c", show, "{outputs.shown}", "{config.limit}"],
                "outputs": {"shown": "shown.txt"},
                "env": {"LEVEL": "3"},
                "config": {"limit": 10},
            }
        }
    }
    assert project.build().code == 0
    assert project.read("shown.txt") == "10 3 None"


@pytest.mark.skipif(os.name == "nt", reason="on Windows a name says what may be run")
@pytest.mark.parametrize("sandbox", [False, True])
def test_an_output_that_may_be_run_is_run_by_the_next_stage_and_comes_back_so(
    project: UserProject, sandbox: bool
) -> None:
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


def test_a_deleted_and_an_edited_output_come_back_and_nothing_runs(built: UserProject) -> None:
    (built.folder / "build/notes.txt").unlink()
    built.write("build/count.txt", "edited")
    result = built.build()
    assert result.ran == []
    assert (built.read("build/notes.txt"), built.read("build/count.txt")) == ("one\ntwo\n", "2")
    assert "build/count.txt" in result.messages
    assert "build/notes.txt" in result.messages


def test_an_output_that_is_no_longer_declared_goes_unless_it_was_edited(built: UserProject) -> None:
    del built.recipe["stages"]["count"]
    assert built.build().code == 0
    assert not (built.folder / "build/count.txt").exists()
    assert (built.folder / "build/notes.txt").exists()


def test_recipes_that_differ_in_their_suffix_only_leave_each_other_alone(built: UserProject) -> None:
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


def test_an_edited_output_that_is_no_longer_declared_stays(built: UserProject) -> None:
    built.write("build/count.txt", "mine now")
    del built.recipe["stages"]["count"]
    assert built.build().code == 0
    assert built.read("build/count.txt") == "mine now"


def test_a_file_of_somebody_elses_is_never_overwritten(project: UserProject) -> None:
    project.write("build/count.txt", "not ours")
    result = project.build()
    assert result.code == 2
    assert "count.txt is in the way" in result.messages
    assert project.read("build/count.txt") == "not ours"
    assert not (project.folder / "build/notes.txt").exists(), "nothing has run"


def test_a_file_with_the_very_content_of_the_output_is_in_nobodys_way(built: UserProject) -> None:
    (built.folder / ".winml-dag/recipe.yaml/build_manifest.json").unlink()
    assert built.build().code == 0


def test_a_failed_build_leaves_what_had_finished_and_the_next_may_replace_it(project: UserProject) -> None:
    good = project.recipe["stages"]["count"]["command"]
    project.recipe["stages"]["count"]["command"] = [PYTHON, "-c", "raise SystemExit(3)", "{outputs.n}"]
    failed = project.build()
    assert failed.code == 1
    assert failed.with_status("failed") == ["count"]
    assert project.read("build/notes.txt") == "one\ntwo\n"
    project.recipe["stages"]["count"]["command"] = good
    project.write("raw/notes.txt", "three\n")
    assert project.build().ran == ["tidy", "count"]
    assert project.read("build/notes.txt") == "three\n"


def test_a_failure_is_told_with_the_end_of_its_log(project: UserProject) -> None:
    project.write("tools/tidy.py", "print('the last words')\nraise SystemExit(3)\n")
    result = project.build()
    assert result.code == 1
    assert "exit code 3" in result.messages
    assert "the last words" in result.messages
    assert result.with_status("skipped") == ["count"]
    log = Path(result.stages["tidy"]["log"])
    assert "the last words" in log.read_text(encoding="utf-8")


# The kernel rejects one system call, as older ones and many containers do, for this process and all its children.
REFUSING = """
import ctypes, struct, sys
program = b"".join(struct.pack("=HBBI", *line) for line in (
    (0x20, 0, 0, 0),  # load the number of the call
    (0x15, 0, 1, 434),  # pidfd_open
    (0x06, 0, 0, 0x00050000 | 1),  # EPERM
    (0x06, 0, 0, 0x7FFF0000),  # allowed
))
text = ctypes.create_string_buffer(program)
lines = ctypes.create_string_buffer(struct.pack("@HP", 4, ctypes.addressof(text)))
system = ctypes.CDLL(None, use_errno=True)
assert system.prctl(38, 1, 0, 0, 0) == 0 and system.prctl(22, 2, lines, 0, 0) == 0
from winml_dag.cli import main
main(sys.argv[1:])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="of Linux")
@pytest.mark.parametrize("jobs", ["1", "3"])
def test_commands_run_where_the_kernel_gives_no_descriptor_of_a_process(project: UserProject, jobs: str) -> None:
    project.recipe["stages"]["slow"] = {
        "command": [PYTHON, "-c", "import threading; threading.Event().wait()"],
        "timeout": 0.2,
    }
    project.save()
    arguments = ["build", "-c", "recipe.yaml", "-k", "-j", jobs]
    refused = subprocess.run(
        [PYTHON, "-c", REFUSING, *arguments],
        cwd=project.folder,
        env=project.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode == 1, refused.stderr
    assert "limit of 0.2 s" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert project.read("build/count.txt") == "2"


def test_what_a_stage_has_written_is_printed_and_never_obeyed_by_the_terminal(project: UserProject) -> None:
    hostile = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202edne"
    project.write("tools/tidy.py", f"print({hostile!r})\nraise SystemExit(3)\n")
    project.save()
    for form in ("text", "json"):
        failed = project.run("build", "-c", "recipe.yaml", "--format", form)
        for said in (failed.stdout, failed.stderr):
            assert not set(said) & set("\x1b\x07\x9b\u202e"), said
    assert "\\u001b]0;owned\\u0007" in failed.stderr
    log = Path(json.loads(failed.stdout)["builds"][0]["stages"][0]["log"])
    assert hostile in log.read_text(encoding="utf-8")


@pytest.mark.skipif(os.name == "nt", reason="sh is not on every Windows")
def test_a_command_that_removes_its_temporary_folder_has_done_its_work(project: UserProject) -> None:
    """And so has the next one, which would have used that folder again."""
    for stage in project.recipe["stages"].values():
        stage["command"] = [
            "sh",
            "-c",
            "cat {inputs.text} > {outputs." + next(iter(stage["outputs"])) + '}; rm -r "$TMPDIR"',
        ]
        stage["inputs"] = {"text": stage["inputs"]["text"]}
    built = project.build("-j", "1")
    assert built.ran == ["tidy", "count"], built.messages
    assert project.build().ran == []


@pytest.mark.skipif(os.name == "nt", reason="sh is not on every Windows")
@pytest.mark.parametrize("code", [0, 3])
def test_a_command_that_removes_its_whole_folder_fails_in_words(project: UserProject, code: int) -> None:
    project.recipe["stages"]["tidy"]["command"] = ["sh", "-c", f'rm -r "$TMPDIR/.."; exit {code}', "{outputs.clean}"]
    failed = project.build("-k")
    assert failed.code == 1
    assert failed.with_status("failed") == ["tidy"]
    assert "Traceback" not in failed.messages


@pytest.mark.parametrize("words", [["", "{outputs.clean}"], ["{inputs.text}", "", "{outputs.clean}"]])
def test_an_empty_word_of_a_command_names_no_file(project: UserProject, words: list[str]) -> None:
    write = "import sys; from pathlib import Path; Path(sys.argv[-1]).write_text(repr(sys.argv[1:-1].count('')))"
    project.recipe["stages"]["tidy"]["command"] = [PYTHON, "-c", write, *words]
    built = project.build()
    assert built.code == 0, built.messages
    assert project.read("build/notes.txt") == "1"


def test_keep_going_runs_what_does_not_depend_on_the_failure(project: UserProject) -> None:
    project.recipe["stages"]["tidy"]["command"] = [PYTHON, "-c", "raise SystemExit(1)", "{outputs.clean}"]
    project.recipe["stages"]["other"] = {
        "command": [PYTHON, "-c", COUNT, "{inputs.text}", "{outputs.n}"],
        "inputs": {"text": "raw/notes.txt"},
        "outputs": {"n": "build/other.txt"},
    }
    result = project.build("-k", "-j", "1")
    assert result.code == 1
    assert (result.with_status("failed"), result.ran, result.with_status("skipped")) == (["tidy"], ["other"], ["count"])
    assert project.read("build/other.txt") == "2"


def test_rebuild_runs_all(built: UserProject) -> None:
    assert built.build("--rebuild").ran == ["tidy", "count"]


def test_two_builds_at_once_run_each_stage_once(project: UserProject) -> None:
    project.write("tools/tidy.py", f"import os\nPath_ = os.environ['RAN']\nopen(Path_, 'a').write('x')\n{TIDY}")
    ran = project.folder.parent / "ran"
    project.recipe["stages"]["tidy"]["env"] = {"RAN": str(ran)}
    project.save()
    builds = [project.start("build", "-c", "recipe.yaml") for _ in range(3)]
    for build in builds:
        _, messages = build.communicate(timeout=60)
        assert build.returncode == 0, messages
    assert ran.read_text(encoding="utf-8") == "x"
    assert project.read("build/count.txt") == "2"


def test_a_function_gets_paths_and_its_config(project: UserProject) -> None:
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


def test_a_recipe_means_the_same_from_everywhere(built: UserProject, tmp_path: Path) -> None:
    finished = built.run("build", "-c", str(built.folder / "recipe.yaml"), cwd=tmp_path)
    assert finished.stdout.splitlines()[-1].startswith("Up to date: 2 stages, checked in ")


def test_typing_errors_are_told_all_at_once(project: UserProject) -> None:
    project.recipe["stages"]["count"]["inputs"] = {"text": "tidi.clean"}
    project.recipe["stages"]["count"]["outputs"] = {"n": "../count.txt"}
    result = project.build()
    assert result.code == 2
    assert "stages.count.inputs.text: there is no file tidi.clean; did you mean 'tidy.clean'?" in result.messages
    assert "stages.count.outputs.n: ../count.txt leaves the recipe's folder" in result.messages


def test_plan_why_and_graph_know_the_stages(built: UserProject) -> None:
    built.write("raw/notes.txt", "x\n")
    told = built.run("plan", "-c", "recipe.yaml").stdout
    assert "raw/notes.txt" in told or "input text changed" in told
    assert "tidy: would run" in built.run("why", "tidy", "-c", "recipe.yaml").stdout
    assert '"tidy"' in built.run("graph", "-c", "recipe.yaml").stdout


@pytest.mark.skipif(os.name == "nt", reason="sh is not on every Windows")
def test_the_shell_may_be_the_command(project: UserProject) -> None:
    project.recipe["stages"]["count"]["command"] = ["sh", "-c", "awk 'END {print NR}' {inputs.text} > {outputs.n}"]
    assert project.build().code == 0
    assert project.read("build/count.txt") == "2\n"


def test_a_sandbox_shows_a_stage_its_declared_inputs_only(project: UserProject) -> None:
    peek = "import os, sys; from pathlib import Path; Path(sys.argv[1]).write_text(' '.join(sorted(os.listdir('raw'))))"
    project.write("raw/secret.txt", "undeclared\n")
    project.recipe["stages"] = {
        "peek": {
            "command": [PYTHON, "-c", peek, "{outputs.seen}"],
            "inputs": {"text": "raw/notes.txt"},
            "outputs": {"seen": "seen.txt"},
        }
    }
    assert project.build("--sandbox").code == 0
    assert project.read("seen.txt") == "notes.txt"
    assert project.build().ran == [], "the key is the same with and without"


def test_a_file_that_turns_up_under_a_name_in_a_command_is_noticed(project: UserProject) -> None:
    """Even with a cached plan: files that did not exist during planning count."""
    optional = (
        "import sys; from pathlib import Path; extra = Path('settings.txt'); "
        "Path(sys.argv[1]).write_text(extra.read_text() if extra.exists() else 'none')"
    )
    project.recipe["stages"] = {
        "show": {"command": [PYTHON, "-c", optional, "{outputs.shown}"], "outputs": {"shown": "shown.txt"}}
    }
    assert project.build().ran == ["show"]
    assert project.build().ran == []
    project.write("settings.txt", "there")
    assert project.build().ran == ["show"]
    assert project.read("shown.txt") == "there"


@pytest.mark.skipif(os.name == "nt", reason="making a link needs a right on Windows")
def test_no_output_leaves_the_folder_by_a_link(project: UserProject, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (project.folder / "build").symlink_to(outside, target_is_directory=True)
    result = project.build()
    assert result.code == 1
    assert "this is a link, and what lies behind links is left alone" in result.messages
    assert list(outside.iterdir()) == []


def test_a_stage_that_takes_too_long_is_told_where_its_limit_is(project: UserProject) -> None:
    sleeper = [PYTHON, "-c", "import threading; threading.Event().wait()"]
    project.recipe = {"stages": {"sleeper": {"command": sleeper, "timeout": 0.2}}}
    project.save()
    failed = project.run("build", "-c", "recipe.yaml")
    assert failed.returncode == 1
    assert "limit of 0.2 s" in failed.stderr
    assert "timeout in the recipe" in failed.stderr


def test_an_output_that_cannot_be_put_in_place_says_so_of_its_folder(built: UserProject) -> None:
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
