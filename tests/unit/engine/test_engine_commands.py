"""Commands and functions of the user: what they see, what they may do, and what happens to their outputs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from projects import Project

from winml_dag.engine.command import fill
from winml_dag.engine.events import Status
from winml_dag.engine.sandbox import FileAccess
from winml_dag.engine.stage import Workspace
from winml_dag.engine.worker import call
from winml_dag.errors import StageError
from winml_dag.store.store import Store
from winml_dag.store.upkeep import verify

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the commands are those of a POSIX shell")

NOTES = {"text": "raw/notes.txt"}


@pytest.fixture
def project(tmp_path: Path) -> Project:
    project = Project(tmp_path)
    project.write("raw/notes.txt", "one\ntwo\n")
    return project


def tidy_and_count(project: Project) -> None:
    project.command("tidy", "sh", "-c", "sort -r {inputs.text} > {outputs.clean}", inputs=NOTES, outputs=CLEAN)
    project.command(
        "count", "sh", "-c", "wc -l < {inputs.text} > {outputs.n}", inputs={"text": "tidy.clean"}, outputs=COUNT
    )


CLEAN = {"clean": "build/notes.txt"}
COUNT = {"n": "build/count.txt"}


def test_a_chain_of_commands_puts_its_files_where_it_says(project: Project) -> None:
    tidy_and_count(project)
    built = project.build()
    assert built.ran == ["count", "tidy"]
    assert project.read("build/notes.txt") == "two\none\n"
    assert int(project.read("build/count.txt")) == 2
    assert built.put == {"build/notes.txt", "build/count.txt"}
    again = project.build()
    assert (again.of(Status.REUSED), again.put) == (["count", "tidy"], frozenset())


def test_what_a_reader_needs_is_put_back_before_it_reads_it(project: Project) -> None:
    tidy_and_count(project)
    project.build()
    project.write("build/notes.txt", "edited by hand\n")
    del project.nodes[1]
    project.command("list", "cp", "{inputs.text}", "{outputs.n}", inputs={"text": "tidy.clean"}, outputs=COUNT)
    built = project.build()
    assert built.ran == ["list"]
    assert project.read("build/count.txt") == project.read("build/notes.txt") == "two\none\n"
    assert built.put == {"build/notes.txt", "build/count.txt"}


def test_inputs_are_seen_by_their_relative_paths_and_folders_as_folders(project: Project) -> None:
    project.write("data/a/1.txt", "1")
    project.write("data/2.txt", "2")
    project.command(
        "tell",
        "sh",
        "-c",
        'echo "{inputs.text} {inputs.data} $(cat {inputs.data}/a/1.txt {inputs.data}/2.txt) $(pwd)" > {outputs.o}',
        inputs={**NOTES, "data": "data/"},
        outputs={"o": "told.txt"},
    )
    assert project.build().ran == ["tell"]
    assert project.read("told.txt") == f"raw/notes.txt data 12 {project.folder}\n"


def test_a_file_outside_of_the_folder_is_seen_by_its_whole_path(project: Project, tmp_path: Path) -> None:
    outside = tmp_path / "elsewhere.txt"
    outside.write_text("far")
    for access in (FileAccess.FREE, FileAccess.SANDBOX):
        project.nodes.clear()
        project.command(
            "tell",
            *("sh", "-c", f"echo {{inputs.far}} $(cat {{inputs.far}}) {access} > {{outputs.o}}"),
            inputs={"far": str(outside)},
            outputs={"o": "told.txt"},
        )
        assert project.build(access=access).ran == ["tell"]
        assert project.read("told.txt") == f"{outside} far {access}\n"


@pytest.mark.parametrize("access", [FileAccess.FREE, FileAccess.SANDBOX])
def test_a_declared_folder_is_there_and_all_in_it_is_the_output(project: Project, access: FileAccess) -> None:
    project.command(
        "split", "sh", "-c", "for n in 1 2; do echo $n > {outputs.parts}/$n; done", outputs={"parts": "build/parts/"}
    )
    project.command(
        "join", "sh", "-c", "cat {inputs.p}/* > {outputs.o}", inputs={"p": "split.parts"}, outputs={"o": "all.txt"}
    )
    assert project.build(access=access).ran == ["join", "split"]
    assert project.read("all.txt") == "1\n2\n"
    assert project.read("build/parts/2") == "2\n"


def test_only_a_minimum_of_the_environment_reaches_a_command(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "of the user")
    monkeypatch.setenv("LC_ALL", "tr_TR.UTF-8")
    for name in ("USER", "LOGNAME", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"):
        monkeypatch.setenv(name, "/nowhere")
    project.command("env", "sh", "-c", "env > {outputs.o}", outputs={"o": "env.txt"}, environment={"WANTED": "yes"})
    assert project.build().ran == ["env"]
    told = dict(line.split("=", 1) for line in project.read("env.txt").splitlines())
    assert told.keys() <= {
        "PATH",
        "HOME",
        "LANG",
        "TZ",
        "PYTHONHASHSEED",
        "WANTED",
    } | {
        *("PYTHONDONTWRITEBYTECODE", "PYTHONIOENCODING", "TMPDIR", "TEMP", "TMP", "PWD", "OLDPWD", "SHLVL", "_"),
    }
    assert (told["WANTED"], told["LANG"], told["TZ"], told["PYTHONHASHSEED"]) == ("yes", "C.UTF-8", "UTC", "0")
    assert told["TMPDIR"].startswith(str(project.cache / "scratch"))


def test_a_command_that_may_lack_a_library_path_is_told_how_to_have_one(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/nowhere")
    project.command("lost", "sh", "-c", "no-such-program > {outputs.o}", outputs={"o": "o.txt"})
    project.command("has", "sh", "-c", "exit 127", outputs={"o": "p.txt"}, environment={"LD_LIBRARY_PATH": "/lib"})
    results = project.build(keep_going=True).results
    assert "declare it under env" in results["lost"].advice
    assert "declare it under env" not in results["has"].advice


def test_standard_input_is_empty_and_what_is_printed_is_in_the_log(project: Project) -> None:
    project.command("ask", "sh", "-c", "cat; echo said; echo wrong >&2; : > {outputs.o}", outputs={"o": "o.txt"})
    built = project.build()
    record = built.results["ask"].record
    assert record is not None
    assert record.log is not None
    assert Store(project.cache).blobs.path(record.log.digest).read_text() == "said\nwrong\n"


def test_a_log_of_one_command_is_not_that_of_the_next(project: Project) -> None:
    project.command("loud", "sh", "-c", "echo loud; : > {outputs.o}", outputs={"o": "1.txt"})
    project.command("quiet", "sh", "-c", "cat {inputs.i} > {outputs.o}", inputs={"i": "loud.o"}, outputs={"o": "2.txt"})
    record = project.build().results["quiet"].record
    assert record is not None
    assert record.log is None


def test_temporary_files_of_one_command_are_not_there_for_the_next(project: Project) -> None:
    count = 'ls -A "$TMPDIR" | wc -l > {outputs.o}; echo x > "$TMPDIR/left"'
    project.command("first", "sh", "-c", count, outputs={"o": "1.txt"})
    project.command("second", "sh", "-c", f"cat {{inputs.i}}; {count}", inputs={"i": "first.o"}, outputs={"o": "2.txt"})
    assert project.build(jobs=1).ran == ["first", "second"]
    assert int(project.read("2.txt")) == 0


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ("echo out of cheese; exit 3", "stage ended with exit code 3."),
        ("kill -SEGV $$", "stage ended with signal SIGSEGV."),
        (": > raw/other.txt", "stage wrote no {outputs.o}."),
        ("mkdir -p build; echo x > build/o.txt", "stage wrote build/o.txt itself, and no {outputs.o}."),
        ("mkdir {outputs.o}", "stage made {outputs.o} a folder; build/o.txt is declared as a file."),
        ("echo 1 > {outputs.o}; echo 2 > {outputs.o}.data", "stage wrote build/o.txt.data beside {outputs.o}"),
        ("ln -s /etc/passwd {outputs.o}", "build/o.txt in output 'o' is a link."),
    ],
)
def test_what_goes_wrong_is_said_and_nothing_is_kept(project: Project, script: str, error: str) -> None:
    project.command("stage", "sh", "-c", script, outputs={"o": "build/o.txt"})
    built = project.build()
    result = built.results["stage"]
    assert built.error("stage").startswith(error)
    assert result.tail == (("out of cheese",) if "cheese" in script else ())
    assert result.log is not None
    assert result.log.read_text() == ("out of cheese\n" if "cheese" in script else "")
    if "wrote" in error and "beside" not in error:
        assert result.advice.startswith("Let the command write to {outputs.o}, not to build/o.txt.")
    store = Store(project.cache)
    assert store.records.keys() == []
    assert verify(store).clean
    assert built.put == frozenset()


def test_a_program_that_is_not_there_or_may_not_run_is_named(project: Project) -> None:
    project.write("tool.sh", "echo")
    project.command("absent", "no-such-program", outputs={"o": "1.txt"})
    project.command("forbidden", "./tool.sh", outputs={"o": "2.txt"})
    built = project.build(keep_going=True)
    assert built.error("absent") == "no-such-program was not found on PATH, or may not be run."
    assert built.error("forbidden") == "./tool.sh was not found in the project, or may not be run."


def test_a_program_of_the_project_is_found_from_its_folder(project: Project) -> None:
    project.write("tools/tool.sh", "#!/bin/sh\necho done > $1\n").chmod(0o755)
    project.command("stage", "tools/tool.sh", "{outputs.o}", outputs={"o": "o.txt"})
    assert project.build().ran == ["stage"]
    assert project.read("o.txt") == "done\n"


def test_a_command_that_takes_too_long_is_ended_with_its_children(project: Project, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    script = f"sleep 3600 & echo $! > {pipe}; wait"
    project.command("stage", "sh", "-c", script, outputs={"o": "o.txt"}, timeout_seconds=1.0)
    with ThreadPoolExecutor() as pool:
        building = pool.submit(project.build)
        child = int(pipe.read_text())
        assert building.result().error("stage") == "It took longer than its limit of 1 s and was ended."
    assert has_ended(child)


def test_children_that_a_command_leaves_are_ended_with_it(project: Project) -> None:
    project.command("stage", "sh", "-c", "sleep 3600 & echo $! > {outputs.o}", outputs={"o": "o.txt"})
    assert project.build().ran == ["stage"]
    assert has_ended(int(project.read("o.txt")))


def has_ended(pid: int) -> bool:
    """Return whether it ends soon; a zombie counts as ended."""
    for _ in range(3000):
        state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
        if state.stdout.strip()[:1] in ("", "Z"):
            return True
    return False


def test_an_input_that_is_edited_while_it_is_read_fails_the_stage_by_name(project: Project) -> None:
    script = "cat {inputs.text} > {outputs.o}; echo edited > {inputs.text}"
    project.command("stage", "sh", "-c", script, inputs=NOTES, outputs={"o": "o.txt"})
    path = project.folder / "raw/notes.txt"
    assert project.build().error("stage") == f"{path} changed while it was being used, so nothing was stored."
    assert Store(project.cache).records.keys() == []


def test_an_output_of_another_stage_that_is_edited_while_it_is_read_fails_the_stage_too(project: Project) -> None:
    tidy_and_count(project)
    script = "cat {inputs.text} > {outputs.o}; echo edited > {inputs.text}"
    project.command("stage", "sh", "-c", script, inputs={"text": "tidy.clean"}, outputs={"o": "o.txt"})
    built = project.build(keep_going=True, jobs=1)
    assert "build/notes.txt changed while it was being used" in built.error("stage")


def test_two_stages_of_one_key_run_once(project: Project) -> None:
    for name in ("one", "two", "three"):
        project.command(name, "sh", "-c", "echo x >> ledger; echo x > {outputs.o}", outputs={"o": "o.txt"})
    for rebuild in (False, True):
        project.write("ledger", "")
        built = project.build(jobs=3, rebuild=rebuild)
        assert len(built.of(Status.RAN)) == 1
        assert project.read("ledger") == "x\n"


def test_a_link_that_leads_out_of_the_folder_is_not_followed(project: Project, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (project.folder / "build").symlink_to(tmp_path / "outside", target_is_directory=True)
    project.command("stage", "sh", "-c", "echo x > {outputs.o}", outputs={"o": "build/o.txt"})
    assert "this is a link" in project.build().error("stage")
    assert list((tmp_path / "outside").iterdir()) == []


def test_a_folder_in_the_way_of_an_output_is_named_and_stays(project: Project) -> None:
    project.write("build/o.txt/mine.txt", "mine")
    project.command("stage", "sh", "-c", "echo x > {outputs.o}", outputs={"o": "build/o.txt"})
    assert "is a folder" in project.build().error("stage")
    assert project.read("build/o.txt/mine.txt") == "mine"


def test_a_large_output_is_stored_and_put_as_well(project: Project) -> None:
    project.command("stage", "sh", "-c", "head -c 5000000 /dev/zero > {outputs.o}", outputs={"o": "large.bin"})
    project.command("size", "sh", "-c", "wc -c < {inputs.i} > {outputs.o}", inputs={"i": "stage.o"}, outputs={"o": "n"})
    assert project.build().ran == ["size", "stage"]
    assert int(project.read("n")) == 5_000_000


def test_a_function_whose_folder_is_gone_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    with pytest.raises(StageError, match="The folder that it runs in is gone"):
        call({"run": "steps:make"}, Workspace({}, {}))


def test_a_function_gets_its_paths_and_its_config_and_gives_metrics(project: Project) -> None:
    project.write("tools/__init__.py", "")
    project.write(
        "tools/limit.py",
        "from tools.helper import shorten\n"
        "def limit(inputs, outputs, config):\n"
        "    outputs['o'].write_text(shorten(inputs['text'].read_text(), config['most']))\n"
        "    return {'most': config['most'], 'input': str(inputs['text'])}\n",
    )
    project.write("tools/helper.py", "def shorten(text, most): return text[:most]\n")
    project.function("limit", "tools.limit:limit", inputs=NOTES, outputs={"o": "build/o.txt"}, config={"most": 3})
    built = project.build()
    assert built.ran == ["limit"]
    assert project.read("build/o.txt") == "one"
    record = built.results["limit"].record
    assert record is not None
    assert (record.metrics["most"], record.metrics["input"]) == (3, "raw/notes.txt")
    assert not list(project.folder.rglob("__pycache__"))


def test_a_function_without_a_config_gets_two_arguments_and_may_return_nothing(project: Project) -> None:
    project.write("plain.py", "def work(inputs, outputs):\n    outputs['o'].write_text('done')\n")
    project.function("stage", "plain:work", outputs={"o": "o.txt"})
    assert project.build().ran == ["stage"]
    assert project.read("o.txt") == "done"


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("return 3", "broken:work returned int."),
        ("return {}", "stage wrote no {outputs.o}."),
        ("1 / 0", "broken:work failed: division by zero."),
    ],
)
def test_a_function_that_goes_wrong_is_told_apart(project: Project, body: str, error: str) -> None:
    project.write("broken.py", f"def work(inputs, outputs):\n    {body}\n")
    project.function("stage", "broken:work", outputs={"o": "o.txt"})
    assert project.build().error("stage") == error


def test_braces_that_are_no_placeholder_stay_and_doubled_ones_are_halved() -> None:
    names = {"inputs": {"a": "A"}, "outputs": {"b": "B"}, "config": {"n": "3"}}
    assert fill("awk '{print $1}' {inputs.a} > {outputs.b} # {config.n}", names) == "awk '{print $1}' A > B # 3"
    assert fill("{{inputs.a}} ${HOME} {inputs.other} {}", names) == "{inputs.a} ${HOME} {inputs.other} {}"


ENGINE = """
import sys
from pathlib import Path
from projects import Project
project = Project(Path(sys.argv[1]))
project.command("stage", "sh", "-c", sys.argv[2], outputs={"o": "o.txt"})
project.build()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere only the group of a command is ended")
@pytest.mark.parametrize("start", ["sleep 3600 &", "setsid sleep 3600 &", "nohup sleep 3600 &"])
def test_no_command_outlives_an_engine_that_is_killed(project: Project, tmp_path: Path, start: str) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    engine = subprocess.Popen(
        [sys.executable, "-c", ENGINE, str(tmp_path), f"{start} echo $$ $! > {pipe}; wait; sleep 3600"],
        cwd=Path(__file__).parent,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(str(Path(__file__).parents[up]) for up in (3, 2, 0))},
        stderr=subprocess.DEVNULL,
    )
    running = [int(pid) for pid in pipe.read_text().split()]
    assert len(running) == 2
    engine.send_signal(signal.SIGKILL)
    engine.wait()
    assert all(has_ended(pid) for pid in running)
    project.command("stage", "sh", "-c", "echo x > {outputs.o}", outputs={"o": "o.txt"})
    assert project.build().ran == ["stage"]
