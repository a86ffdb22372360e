"""Commands and functions of the user: what they see, what they may do, and what happens to their outputs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from projects import Project

from winml_dag.engine.command import fill
from winml_dag.engine.events import Status
from winml_dag.engine.stage import FileAccess, Workspace
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


def test_edited_output_is_restored_before_a_reader_runs(project: Project) -> None:
    clean = {"clean": "build/notes.txt"}
    project.command("tidy", "sh", "-c", "sort -r {inputs.text} > {outputs.clean}", inputs=NOTES, outputs=clean)
    assert project.build().put == {"build/notes.txt"}
    assert project.build().put == frozenset()
    project.write("build/notes.txt", "edited by hand\n")
    copy = {"o": "build/copy.txt"}
    project.command("copy", "cp", "{inputs.text}", "{outputs.o}", inputs={"text": "tidy.clean"}, outputs=copy)
    built = project.build()
    assert built.ran == ["copy"]
    assert project.read("build/copy.txt") == project.read("build/notes.txt") == "two\none\n"
    assert built.put == {"build/notes.txt", "build/copy.txt"}


def test_inputs_have_relative_paths_and_folders_are_folders(project: Project) -> None:
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


def test_external_file_input_has_its_absolute_path(project: Project, tmp_path: Path) -> None:
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


def test_folder_output_is_created_and_includes_all_its_files(project: Project) -> None:
    project.command(
        "split", "sh", "-c", "for n in 1 2; do echo $n > {outputs.parts}/$n; done", outputs={"parts": "build/parts/"}
    )
    project.command(
        "join", "sh", "-c", "cat {inputs.p}/* > {outputs.o}", inputs={"p": "split.parts"}, outputs={"o": "all.txt"}
    )
    assert project.build(access=FileAccess.SANDBOX).ran == ["join", "split"]
    assert project.read("all.txt") == "1\n2\n"
    assert project.read("build/parts/2") == "2\n"


def test_command_gets_minimal_environment(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_possibly_missing_library_path_gives_env_advice(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/nowhere")
    project.command("lost", "sh", "-c", "no-such-program > {outputs.o}", outputs={"o": "o.txt"})
    project.command("has", "sh", "-c", "exit 127", outputs={"o": "p.txt"}, environment={"LD_LIBRARY_PATH": "/lib"})
    results = project.build(keep_going=True).results
    assert "declare it under env" in results["lost"].advice
    assert "declare it under env" not in results["has"].advice


def test_command_has_empty_stdin_and_own_log_and_temp_folder(project: Project) -> None:
    script = 'cat; echo said; echo wrong >&2; echo x > "$TMPDIR/left"; : > {outputs.o}'
    project.command("loud", "sh", "-c", script, outputs={"o": "1.txt"})
    script = 'ls -A "$TMPDIR" | wc -l > {outputs.o}'
    project.command("quiet", "sh", "-c", script, inputs={"i": "loud.o"}, outputs={"o": "2.txt"})
    built = project.build(jobs=1)
    assert built.ran == ["loud", "quiet"]
    loud, quiet = (built.results[name].record for name in ("loud", "quiet"))
    assert loud is not None
    assert loud.log is not None
    assert Store(project.cache).blobs.path(loud.log.digest).read_text() == "said\nwrong\n"
    assert quiet is not None
    assert quiet.log is None
    assert int(project.read("2.txt")) == 0


def test_project_program_is_found_and_unusable_program_is_named(project: Project) -> None:
    project.write("tools/tool.sh", "#!/bin/sh\necho done > $1\n").chmod(0o755)
    project.write("tool.sh", "echo")
    project.command("found", "tools/tool.sh", "{outputs.o}", outputs={"o": "o.txt"})
    project.command("absent", "no-such-program", outputs={"o": "1.txt"})
    project.command("forbidden", "./tool.sh", outputs={"o": "2.txt"})
    built = project.build(keep_going=True)
    assert built.of(Status.RAN) == ["found"]
    assert project.read("o.txt") == "done\n"
    assert built.error("absent") == "no-such-program was not found on PATH, or may not be run."
    assert built.error("forbidden") == "./tool.sh was not found in the project, or may not be run."


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
def test_failed_command_is_reported_and_nothing_is_stored(project: Project, script: str, error: str) -> None:
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


def test_child_processes_are_killed_with_their_command(project: Project) -> None:
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


def test_stages_with_equal_keys_run_once(project: Project) -> None:
    for name in ("one", "two", "three"):
        project.command(name, "sh", "-c", "echo x >> ledger; echo x > {outputs.o}", outputs={"o": "o.txt"})
    for rebuild in (False, True):
        project.write("ledger", "")
        built = project.build(jobs=3, rebuild=rebuild)
        assert len(built.of(Status.RAN)) == 1
        assert project.read("ledger") == "x\n"


def test_folder_in_place_of_output_is_named_and_kept(project: Project) -> None:
    project.write("build/o.txt/mine.txt", "mine")
    project.command("stage", "sh", "-c", "echo x > {outputs.o}", outputs={"o": "build/o.txt"})
    assert "is a folder" in project.build().error("stage")
    assert project.read("build/o.txt/mine.txt") == "mine"


def test_function_gets_paths_and_config_and_its_errors_are_distinguished(project: Project) -> None:
    project.write("tools/__init__.py", "")
    project.write("tools/helper.py", "def shorten(text, most): return text[:most]\n")
    project.write(
        "tools/work.py",
        "from tools.helper import shorten\n"
        "def limit(inputs, outputs, config):\n"
        "    outputs['o'].write_text(shorten(inputs['text'].read_text(), config['most']))\n"
        "    return {'most': config['most'], 'input': str(inputs['text'])}\n"
        "def plain(inputs, outputs):\n    outputs['o'].write_text('done')\n"
        "def number(inputs, outputs):\n    return 3\n"
        "def nothing(inputs, outputs):\n    return {}\n"
        "def broken(inputs, outputs):\n    1 / 0\n",
    )
    limit = {"o": "build/limit.txt"}
    project.function("limit", "tools.work:limit", inputs=NOTES, outputs=limit, config={"most": 3})
    for name in ("plain", "number", "nothing", "broken"):
        project.function(name, f"tools.work:{name}", outputs={"o": f"build/{name}.txt"})
    built = project.build(keep_going=True)
    assert built.of(Status.RAN) == ["limit", "plain"]
    assert (project.read("build/limit.txt"), project.read("build/plain.txt")) == ("one", "done")
    record = built.results["limit"].record
    assert record is not None
    assert (record.metrics["most"], record.metrics["input"]) == (3, "raw/notes.txt")
    assert built.error("number") == "tools.work:number returned int."
    assert built.error("nothing") == "nothing wrote no {outputs.o}."
    assert built.error("broken") == "tools.work:broken failed: division by zero."
    assert not list(project.folder.rglob("__pycache__"))


def test_function_in_deleted_folder_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    with pytest.raises(StageError, match="The folder that it runs in is gone"):
        call({"run": "steps:make"}, Workspace({}, {}))


def test_unknown_braces_are_kept_and_doubled_ones_unescaped() -> None:
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
def test_commands_are_killed_with_their_engine(project: Project, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    start = "; ".join(f"{how} sleep 3600 & p{place}=$!" for place, how in enumerate(("", "setsid", "nohup")))
    engine = subprocess.Popen(
        [sys.executable, "-c", ENGINE, str(tmp_path), f"{start}; echo $$ $p0 $p1 $p2 > {pipe}; wait; sleep 3600"],
        cwd=Path(__file__).parent,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(str(Path(__file__).parents[up]) for up in (3, 2, 0))},
        stderr=subprocess.DEVNULL,
    )
    running = [int(pid) for pid in pipe.read_text().split()]
    assert len(running) == 4
    engine.send_signal(signal.SIGKILL)
    engine.wait()
    assert all(has_ended(pid) for pid in running)
    project.command("stage", "sh", "-c", "echo x > {outputs.o}", outputs={"o": "o.txt"})
    assert project.build().ran == ["stage"]
