"""The project of a scenario: a folder with a recipe, a model and a cache, and the command line in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml
from oneprocess import OneProcess
from remotes import beside

needs_qnn = pytest.mark.skipif(find_spec("onnxruntime_qnn") is None, reason="onnxruntime-qnn is not installed")


def with_status(told: dict[str, Any], status: str, by: str = "stage") -> list[str]:
    """Return the stages with *status* of a command, or of its only build, by name or by id."""
    stages = told["builds"][0]["stages"] if "builds" in told else told["stages"]
    return [stage[by] for stage in stages if stage["status"] == status]


def ran_in_cells(told: dict[str, Any]) -> dict[str, list[str]]:
    """Return the stages that ran of a sweep, by cell, for those cells that it was asked for and that ran any."""
    stages = {cell["name"]: with_status(cell, "ran") for cell in told["cells"] if cell["name"] in told["asked"]}
    return {name: ran for name, ran in stages.items() if ran}


@dataclass(frozen=True)
class Result:
    """The output of one build or plan."""

    code: int
    value: dict[str, Any]
    messages: str

    @property
    def stages(self) -> list[dict[str, Any]]:
        return list(self.value["builds"][0]["stages"])

    def with_status(self, status: str) -> list[str]:
        return with_status(self.value, status)

    @property
    def ran(self) -> list[str]:
        return self.with_status("ran")

    def reason(self, stage: str) -> str:
        return next(str(entry["reason"]) for entry in self.stages if entry["stage"] == stage)


class Folder:
    """A folder with a cache, and the command line in it.

    By default there is a process per command and per stage; with *commands*, that process runs all of them.
    """

    def __init__(self, folder: Path, commands: OneProcess | None = None) -> None:
        self.folder = folder
        self.commands = commands
        self.cache = folder / "cache"

    def environment(self) -> dict[str, str]:
        own = {"WINML_DAG_CACHE_DIR": str(self.cache), "HF_HUB_OFFLINE": "1"}
        return {**os.environ, **own, **beside(self.cache)}

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "winml_dag", *arguments]

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(*arguments),
            cwd=self.folder,
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        if self.commands is None:
            return self.finished(self.command(*arguments), cwd)
        said = self.commands.run(arguments, cwd or self.folder, self.environment())
        return subprocess.CompletedProcess(arguments, said.code, said.out, said.messages)

    def says(self, *arguments: str, code: int = 0) -> str:
        """Return what a command prints, messages last."""
        done = self.run(*arguments)
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout + done.stderr

    def told(self, *arguments: str, code: int = 0) -> dict[str, Any]:
        """Return the JSON of a command."""
        done = self.run(*arguments, "--format", "json")
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        value: dict[str, Any] = json.loads(done.stdout)
        return value

    def refused(self, *arguments: str, code: int = 2) -> str:
        """Return the only error of a command, which is in its JSON and among its messages."""
        done = self.run(*arguments, "--format", "json")
        assert done.returncode == code, done.stdout + done.stderr
        (error,) = json.loads(done.stdout)["errors"]
        assert error in done.stderr
        return str(error)

    def python(self, script: str) -> str:
        """Return what *script* prints."""
        done = self.finished([sys.executable, "-c", script])
        assert done.returncode == 0, done.stderr
        return done.stdout

    def finished(self, command: list[str], cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=cwd or self.folder, env=self.environment(), capture_output=True, text=True, check=False
        )

    def json(self, *parts: str) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(self.folder.joinpath(*parts).read_text(encoding="utf-8"))
        return value


class Project(Folder):
    """A folder with a recipe, a model and a cache."""

    def __init__(self, folder: Path, commands: OneProcess | None = None) -> None:
        super().__init__(folder, commands)
        self.out = folder / "out"
        self.recipe_file = folder / "recipe.yaml"

    @property
    def recipe(self) -> dict[str, Any]:
        value: dict[str, Any] = yaml.safe_load(self.recipe_file.read_text(encoding="utf-8"))
        return value

    def edit(self, **changes: Any) -> None:
        """Change fields of the recipe: ``edit(quant__samples=16)``."""
        self.save("recipe.yaml", changed(self.recipe, changes))

    def save(self, name: str, recipe: object) -> None:
        (self.folder / name).write_text(yaml.safe_dump(recipe), encoding="utf-8")

    def with_processes(self) -> Project:
        """Return the same project with separate processes, for tests about processes."""
        return Project(self.folder)

    def build(self, *arguments: str, recipe: str = "recipe.yaml", out: str = "out") -> Result:
        return self.result("build", "-c", recipe, "-o", out, *arguments)

    def plan(self, *arguments: str, recipe: str = "recipe.yaml", out: str = "out") -> Result:
        return self.result("plan", "-c", recipe, "-o", out, *arguments)

    def result(self, *arguments: str) -> Result:
        done = self.run(*arguments, "--format", "json")
        return Result(done.returncode, json.loads(done.stdout), done.stderr)

    def built(self, recipe: dict[str, Any], out: str) -> Result:
        """Build *recipe* into *out*."""
        self.save(f"{out}.yaml", recipe)
        result = self.build(recipe=f"{out}.yaml", out=out)
        assert result.code == 0, result.messages
        return result

    def manifest(self, out: str | Path = "out") -> dict[str, Any]:
        return self.json(str(out), "build_manifest.json")

    def stage(self, name: str, out: str | Path = "out") -> dict[str, Any]:
        """Return what the manifest of a build has of a stage."""
        return next(stage for stage in self.manifest(out)["stages"] if stage["name"] == name)

    def contents(self, out: str = "out") -> dict[str, bytes]:
        folder = self.folder / out
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    def models(self, out: str = "out") -> dict[str, bytes]:
        """Return the models and binaries of a build."""
        return {name: data for name, data in self.contents(out).items() if name.endswith((".onnx", ".bin"))}

    def times(self, out: str = "out") -> dict[str, int]:
        return {path.name: path.stat().st_mtime_ns for path in (self.folder / out).iterdir()}


def changed(recipe: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of *recipe* with other values: ``changed(recipe, {"quant__samples": 16})``."""
    copy: dict[str, Any] = json.loads(json.dumps(recipe))
    for path, value in changes.items():
        *sections, name = path.split("__")
        place = copy
        for section in sections:
            place = place.setdefault(section, {})
        place[name] = value
    return copy
