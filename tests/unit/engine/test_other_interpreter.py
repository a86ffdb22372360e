"""A stage in the Python of another environment uses that environment's packages, and only this package from here."""

from __future__ import annotations

import runpy
import sys
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

import winml_dag
from winml_dag.engine import elsewhere
from winml_dag.engine.exchange import Result
from winml_dag.engine.execute import Job, LocalExecutor, Outcome
from winml_dag.engine.stage import Node, Stage

RunThere = Callable[..., Outcome]

WORK = """
import importlib.util, os, sys
import winml_dag


def tell(config, workspace):
    (workspace.outputs["out"] / "text.txt").write_text(config["text"])
    return {
        "prefix": sys.prefix,
        "package": winml_dag.__file__,
        "found": [name for name in ("numpy", "xxhash", "of_the_user", "execute") if importlib.util.find_spec(name)],
        "hash_order": os.environ["PYTHONHASHSEED"],
    }


def need_what_is_not_there(config, workspace):
    import numpy
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real environment, with its own module and without the packages of this one."""
    folder = tmp_path_factory.mktemp("other") / "venv"
    venv.create(folder, with_pip=False, symlinks=sys.platform != "win32")
    next(path for path in folder.rglob("site-packages") if path.is_dir()).joinpath("only_there.py").write_text(WORK)
    return folder


def interpreter(environment: Path) -> Path:
    return environment / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")


@pytest.fixture
def run_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunThere:
    (tmp_path / "leading").mkdir()
    (tmp_path / "leading" / "of_the_user.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "leading"))

    def run_there(work: str, python: Path) -> Outcome:
        stage = Stage(work, version=1, work=f"only_there:{work}", config="", inputs={}, outputs={"out": "text"})
        folder = tmp_path / "job"
        folder.mkdir()
        return LocalExecutor().run(Job(Node(work, stage, {"text": "done"}, {}, interpreter=python), folder, 60.0))

    return run_there


def test_stage_uses_only_packages_of_its_environment(run_there: RunThere, environment: Path, tmp_path: Path) -> None:
    outcome = run_there("tell", interpreter(environment))
    assert outcome.error == ""
    assert (tmp_path / "job" / "outputs" / "out" / "text.txt").read_text() == "done"
    assert Path(str(outcome.metrics["prefix"])).resolve() == environment.resolve()
    assert Path(str(outcome.metrics["package"])).resolve() == Path(winml_dag.__file__).resolve()
    assert outcome.metrics["found"] == []
    assert outcome.metrics["hash_order"] == "0"


def test_missing_module_is_named_with_its_environment(run_there: RunThere, environment: Path) -> None:
    outcome = run_there("need_what_is_not_there", interpreter(environment))
    assert outcome.error == f"The environment {environment} has no module 'numpy', which this stage imports."
    assert str(interpreter(environment)) in outcome.advice


@pytest.mark.parametrize("made", ["nothing", "a file that is no program"])
def test_unusable_interpreter_is_reported_in_one_sentence(run_there: RunThere, tmp_path: Path, made: str) -> None:
    python = tmp_path / "python"
    if made != "nothing":
        python.write_text("no program")
    outcome = run_there("tell", python)
    assert outcome.error.startswith(f"The interpreter of tell, {python}, cannot be started: ")
    assert "environment" in outcome.advice


def test_too_old_python_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 4))
    monkeypatch.setattr(sys, "argv", ["elsewhere.py", "never read", str(tmp_path)])
    with pytest.raises(SystemExit):
        runpy.run_path(elsewhere.__file__, run_name="__main__")
    result = Result.read(tmp_path)
    assert result is not None
    assert result.error == f"The Python of {sys.prefix} is 3.10, and Python 3.11 is the oldest that can be used."
    assert result.advice
