"""A project with a finished build of a small transformer for QNN, the start of every scenario.

The model is real (BERT with two small layers) and so is every stage. It is built once, and each test gets a copy of the
folder, including the cache.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from filelock import FileLock
from oneprocess import OneProcess
from remotes import beside

RECIPE: dict[str, Any] = {
    "model": "model",
    "loader": {"task": "text-classification"},
    "ep": "qnn",
    "precision": "w8a8",
    "quant": {"samples": 8},
}

# Runs in a separate process, to keep torch and transformers out of the test process, which runs builds.
_SAVE_MODEL = """
import sys, torch
from transformers import BertConfig, BertForSequenceClassification
torch.manual_seed(0)
config = BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, vocab_size=200,
                    max_position_embeddings=32)
model = BertForSequenceClassification(config)
for name, value in model.named_parameters():
    if name.endswith("bias"):
        torch.nn.init.normal_(value, std=0.05)
model.save_pretrained(sys.argv[1])
"""


@dataclass
class Result:
    """The output of one build or plan."""

    code: int
    value: dict[str, Any]
    messages: str

    @property
    def stages(self) -> list[dict[str, Any]]:
        return list(self.value["builds"][0]["stages"])

    def with_status(self, status: str) -> list[str]:
        return [stage["stage"] for stage in self.stages if stage["status"] == status]

    @property
    def ran(self) -> list[str]:
        return self.with_status("ran")

    def reason(self, stage: str) -> str:
        return next(str(entry["reason"]) for entry in self.stages if entry["stage"] == stage)


class Project:
    """A folder with a recipe, a model and a cache, and the command line in it.

    By default there is a process per command and per stage; with *commands*, that process runs all of them.
    """

    def __init__(self, folder: Path, commands: OneProcess | None = None) -> None:
        self.folder = folder
        self._commands = commands
        self.out = folder / "out"
        self.cache = folder / "cache"
        self.recipe_file = folder / "recipe.yaml"

    @property
    def recipe(self) -> dict[str, Any]:
        value: dict[str, Any] = yaml.safe_load(self.recipe_file.read_text(encoding="utf-8"))
        return value

    def edit(self, **changes: Any) -> None:
        """Change fields of the recipe: ``edit(quant__samples=16)``."""
        recipe = self.recipe
        for path, value in changes.items():
            *sections, name = path.split("__")
            place = recipe
            for section in sections:
                place = place.setdefault(section, {})
            place[name] = value
        self.recipe_file.write_text(yaml.safe_dump(recipe), encoding="utf-8")

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "winml_dag", *arguments]

    def environment(self) -> dict[str, str]:
        own = {"WINML_DAG_CACHE_DIR": str(self.cache), "HF_HUB_OFFLINE": "1"}
        return {**os.environ, **own, **beside(self.cache)}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(*arguments),
            cwd=self.folder,
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        if self._commands is None:
            return self._finished(self.command(*arguments))
        said = self._commands.run(arguments, self.folder, self.environment())
        return subprocess.CompletedProcess(arguments, said.code, said.out, said.messages)

    def with_processes(self) -> Project:
        """Return the same project with separate processes, for tests about processes."""
        return Project(self.folder)

    def python(self, script: str) -> subprocess.CompletedProcess[str]:
        return self._finished([sys.executable, "-c", script])

    def _finished(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=self.folder, env=self.environment(), capture_output=True, text=True, check=False
        )

    def build(self, *arguments: str, recipe: str = "recipe.yaml", out: str = "out") -> Result:
        return self._result("build", "-c", recipe, "-o", out, "--format", "json", *arguments)

    def plan(self, *arguments: str, recipe: str = "recipe.yaml", out: str = "out") -> Result:
        return self._result("plan", "-c", recipe, "-o", out, "--format", "json", *arguments)

    def _result(self, *arguments: str) -> Result:
        finished = self.run(*arguments)
        return Result(finished.returncode, json.loads(finished.stdout), finished.stderr)

    def manifest(self, out: str = "out") -> dict[str, Any]:
        value: dict[str, Any] = json.loads((self.folder / out / "build_manifest.json").read_text(encoding="utf-8"))
        return value

    def contents(self, out: str = "out") -> dict[str, bytes]:
        folder = self.folder / out
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    def times(self, out: str = "out") -> dict[str, int]:
        return {path.name: path.stat().st_mtime_ns for path in (self.folder / out).iterdir()}


@pytest.fixture(scope="session")
def commands() -> Iterator[OneProcess | None]:
    """A process for commands, on systems where a thread can have its own current folder."""
    if sys.platform != "linux":
        yield None
        return
    process = OneProcess()
    yield process
    process.close()


@pytest.fixture(scope="session")
def built_project(tmp_path_factory: pytest.TempPathFactory, commands: OneProcess | None) -> Project:
    """The project after its first build, shared by all processes of a test run. Do not change it; see ``project``."""
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent
    project = Project(base / "built", commands)
    with FileLock(f"{project.folder}.lock"):
        done = base / "built.done"
        if not done.exists():
            _build_first(project)
            done.touch()
    return project


def _build_first(project: Project) -> None:
    project.folder.mkdir()
    subprocess.run([sys.executable, "-c", _SAVE_MODEL, str(project.folder / "model")], check=True, capture_output=True)
    project.recipe_file.write_text(yaml.safe_dump(RECIPE), encoding="utf-8")
    first = project.build()
    assert first.code == 0, first.messages
    assert first.ran == ["export", "optimize", "analyze", "calibrate", "quantize", "compile", "validate", "finalize"]


@pytest.fixture
def project(built_project: Project, tmp_path: Path, commands: OneProcess | None) -> Project:
    """A copy of the built project for one test.

    Recorded builds are identified by the path of the output folder, so the copy is brought up to date once: this runs
    no stage and writes no output.
    """
    folder = tmp_path / "project"
    shutil.copytree(built_project.folder, folder)
    copy = Project(folder, commands)
    again = copy.build()
    assert again.code == 0, again.messages
    assert again.ran == []
    return copy


@pytest.fixture
def empty_project(built_project: Project, tmp_path: Path) -> Project:
    """The same recipe and model before any build."""
    folder = tmp_path / "empty"
    shutil.copytree(built_project.folder / "model", folder / "model")
    shutil.copy(built_project.recipe_file, folder)
    return Project(folder)
