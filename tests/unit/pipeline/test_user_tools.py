"""Keys of user-defined stages cover what does the work: programs, modules, and the contents of folders."""

from __future__ import annotations

import importlib.machinery
import os
import py_compile
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from winml_dag import file_reading
from winml_dag.cli import run

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="programs are shell scripts")


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two folders on PATH, ``late`` after ``early``. Everything counts as old, so that only differences are read."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WINML_DAG_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(file_reading, "SETTLED_NS", -(10**18))
    for name in ("early", "late"):
        Path(name).mkdir()
    search = [str(tmp_path / "early"), str(tmp_path / "late"), os.environ["PATH"]]
    monkeypatch.setenv("PATH", os.pathsep.join(search))


def program(path: str, says: str, *, first: str = "") -> None:
    Path(path).write_text(f"#!/bin/sh\n{first}\nprintf {says} > $1\n")
    Path(path).chmod(0o755)


def stage(command: list[str], **more: Any) -> dict[str, Any]:
    return {"command": [*command, "{outputs.made}"], "outputs": {"made": "made.txt"}, **more}


def build(stages: dict[str, Any], *, code: int = 0) -> str:
    """Build and return the output of the stage."""
    text = yaml.safe_dump({"stages": stages})
    if not Path("recipe.yaml").exists() or Path("recipe.yaml").read_text() != text:
        Path("recipe.yaml").write_text(text)
    assert run(["build", "-c", "recipe.yaml"]) == code
    return Path("made.txt").read_text() if code == 0 else ""


def test_program_appearing_earlier_on_path_counts_from_next_build() -> None:
    program("late/tool", "late")
    drop = "cd early; printf '#!/bin/sh\\nprintf early > $1\\n' > tool; chmod +x tool; echo > $0"
    first = {"command": ["sh", "-c", drop, "{outputs.o}"], "outputs": {"o": "first.txt"}}
    stages = {"first": first, "tool": stage(["tool"], inputs={"after": "first.o"})}
    assert build(stages) == "late"
    assert build(stages) == "early"


def function(module: str) -> dict[str, Any]:
    return {"stage": {"run": f"{module}:work", "outputs": {"made": "made.txt"}}}


def code(path: str, says: str) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(f"def work(inputs, outputs): open(outputs['made'], 'w').write('{says}')\n")


@pytest.fixture
def search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put ``early`` and ``late`` on Python's module search path, here and in workers."""
    folders = [str(Path(name).absolute()) for name in ("early", "late")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(folders))
    monkeypatch.setattr(sys, "path", [*folders, *sys.path])


@pytest.mark.usefixtures("search")
def test_regular_package_precedes_namespace_package() -> None:
    code("early/tools/work.py", "space")
    code("late/tools/work.py", "package")
    Path("late/tools/__init__.py").write_text("")
    assert build(function("tools.work")) == "package"
    code("late/tools/work.py", "edited")
    assert build(function("tools.work")) == "edited"
    Path("early/tools/__init__.py").write_text("")
    assert build(function("tools.work")) == "space"


@pytest.mark.usefixtures("search")
def test_package_init_code_is_in_the_key() -> None:
    Path("pack").mkdir()
    Path("pack/work.py").write_text(
        "from pack import SAYS\ndef work(inputs, outputs): open(outputs['made'], 'w').write(SAYS)\n"
    )
    for says in ("one", "two"):
        Path("pack/__init__.py").write_text(f"SAYS = '{says}'")
        assert build(function("pack.work")) == says


@pytest.mark.usefixtures("search")
def test_compiled_module_is_used_without_source() -> None:
    code("fast.py", "source")
    py_compile.compile("fast.py", "late/other.pyc")
    code("fast.py", "edited")
    assert build(function("other")) == "source"
    extension = Path(f"fast{importlib.machinery.EXTENSION_SUFFIXES[0]}")
    extension.write_bytes(b"no library")
    build(function("fast"), code=1)  # which is what Python would load


@pytest.mark.usefixtures("search")
def test_module_appearing_earlier_on_path_fails_the_stage() -> None:
    code("late/mine.py", "late")
    code("early/kept", "early")
    first = {"command": ["sh", "-c", "cd early; mv kept mine.py; echo > $0", "{outputs.o}"], "outputs": {"o": "o.txt"}}
    stages = {"first": first, **function("mine")}
    stages["stage"]["inputs"] = {"after": "first.o"}
    build(stages, code=1)
    assert build(stages) == "early"


@pytest.mark.usefixtures("search")
@pytest.mark.parametrize("sandbox", [False, True])
def test_module_is_imported_from_the_keyed_file(sandbox: bool) -> None:
    code("pack/real.py", "real")
    code("pack/work.py", "planned")
    Path("pack/__init__.py").write_text("import sys\nfrom pack import real\nsys.modules['pack.work'] = real\n")
    Path("recipe.yaml").write_text(yaml.safe_dump({"stages": function("pack.work")}))
    assert run(["build", "-c", "recipe.yaml", *(["--sandbox"] if sandbox else [])]) == 1


def test_link_target_in_input_folder_is_in_the_key(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("data/own", "elsewhere"):
        Path(name).mkdir(parents=True)
        Path(name, "text.txt").write_text(name[-1])
    Path("data/linked").symlink_to("../elsewhere", target_is_directory=True)
    Path("data/own/later.txt").symlink_to("../../later.txt")
    stages = {"stage": stage(["sh", "-c", "cat data/*/*.txt > $0 || true"], inputs={"data": "data/"})}
    assert build(stages) == "en"
    assert build(stages) == "en"
    Path("elsewhere/text.txt").write_text("edited")
    assert build(stages) == "editedn"
    Path("elsewhere/two.txt").write_text("new")
    assert build(stages) == "editednewn"
    Path("later.txt").write_text("later")
    assert build(stages) == "editednewlatern", "a link that leads to something by now"
    Path("data/own/up").symlink_to("..", target_is_directory=True)
    build(stages, code=2)
    assert "link to a folder that it lies in" in capsys.readouterr().err


@pytest.mark.parametrize("named", ["tool", "ABSOLUTE", "bin/tool"])
def test_program_named_by_setting_is_in_the_key(named: str) -> None:
    Path("bin").mkdir()
    path = "late/tool" if named == "tool" else "bin/tool"
    program(path, "one")
    tool = str(Path("bin/tool").absolute()) if named == "ABSOLUTE" else named
    stages = {"stage": stage(["{config.tool}"], config={"tool": tool})}
    assert build(stages) == "one"
    program(path, "two")
    assert build(stages) == "two"


def test_first_executable_program_on_path_is_in_the_key() -> None:
    stages = {"stage": stage(["tool"])}
    program("late/tool", "late")
    Path("early/tool").symlink_to("../coming")
    assert build(stages) == "late"
    program("coming", "early")
    assert build(stages) == "early", "the link leads to a program by now"
    Path("coming").chmod(0o644)
    assert build(stages) == "late"
    Path("coming").chmod(0o755)
    assert build(stages) == "early"


def test_file_named_by_setting_or_word_is_an_input() -> None:
    Path("settings.txt").write_text("one")
    Path("more").write_text("file")
    shell = ["sh", "-c", "cat $1 more/text.txt > $2 2>/dev/null || true", "sh", "{config.file}"]
    stages = {"stage": stage(shell, config={"file": "settings.txt"})}
    assert build(stages) == "one"
    Path("settings.txt").write_text("two")
    assert build(stages) == "two"
    Path("more").unlink()
    Path("more").mkdir()
    Path("more/text.txt").write_text("text")
    assert build(stages) == "twotext", "a word that is a file by now"
