"""The project of a scenario: a folder with a recipe, a model and a cache, and the command line in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from oneprocess import OneProcess
from remotes import beside


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
