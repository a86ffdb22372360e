"""A project with user-defined stages, and the command line in it."""

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

TIDY = """\
import os, sys
from pathlib import Path
lines = Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()
Path(sys.argv[2]).write_text("\\n".join(line.strip() for line in lines) + "\\n", encoding="utf-8", newline="\\n")
print("tidied", len(lines), "lines")
"""
COUNT = "import sys; from pathlib import Path; " + (
    "Path(sys.argv[2]).write_text(str(len(Path(sys.argv[1]).read_text().splitlines())))"
)


@dataclass(frozen=True)
class Result:
    """The output of one command."""

    code: int
    value: dict[str, Any]
    messages: str

    @property
    def stages(self) -> dict[str, dict[str, Any]]:
        return {stage["id"]: stage for stage in self.value["builds"][0]["stages"]}

    def with_status(self, status: str) -> list[str]:
        return [name for name, stage in self.stages.items() if stage["status"] == status]

    @property
    def ran(self) -> list[str]:
        return self.with_status("ran")


class UserProject:
    """A folder with a recipe, a cache next to it, and the command line.

    By default there is a process per command; with *commands*, that process runs all of them.
    """

    def __init__(self, folder: Path, commands: OneProcess | None = None) -> None:
        self.folder = folder
        self._commands = commands
        self.cache = folder.parent / "cache"
        self.recipe: dict[str, Any] = {}
        self.search_path = ""

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")
        return path

    def read(self, name: str) -> str:
        return (self.folder / name).read_text(encoding="utf-8")

    def save(self) -> None:
        """Write the current recipe."""
        self.write("recipe.yaml", yaml.safe_dump(self.recipe, sort_keys=False))

    def run(self, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        if self._commands is not None:
            said = self._commands.run(arguments, cwd or self.folder, self.environment())
            return subprocess.CompletedProcess(arguments, said.code, said.out, said.messages)
        return subprocess.run(
            self.command(*arguments),
            cwd=cwd or self.folder,
            env=self.environment(),
            capture_output=True,
            text=True,
            check=False,
        )

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(*arguments),
            cwd=self.folder,
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "winml_dag", *arguments]

    def environment(self) -> dict[str, str]:
        search = os.pathsep.join(filter(None, [self.search_path, os.environ.get("PYTHONPATH", "")]))
        own = {"WINML_DAG_CACHE_DIR": str(self.cache), "PYTHONPATH": search}
        return {**os.environ, **own, **beside(self.cache)}

    def build(self, *arguments: str) -> Result:
        self.save()
        finished = self.run("build", "-c", "recipe.yaml", "--format", "json", *arguments)
        return Result(finished.returncode, json.loads(finished.stdout), finished.stderr)

    def manifest(self, folder: str = ".winml-dag/recipe.yaml") -> dict[str, Any]:
        value: dict[str, Any] = json.loads(self.read(f"{folder}/build_manifest.json"))
        return value


def notes_project(folder: Path, commands: OneProcess | None = None) -> UserProject:
    """Return two commands in sequence: one tidies a text, and one counts its lines."""
    made = UserProject(folder, commands)
    made.write("raw/notes.txt", "  one\ntwo  \n")
    made.write("tools/tidy.py", TIDY)
    made.recipe = {
        "stages": {
            "tidy": {
                "command": [sys.executable, "tools/tidy.py", "{inputs.text}", "{outputs.clean}"],
                "inputs": {"text": "raw/notes.txt", "script": "tools/tidy.py"},
                "outputs": {"clean": "build/notes.txt"},
            },
            "count": {
                "command": [sys.executable, "-c", COUNT, "{inputs.text}", "{outputs.n}"],
                "inputs": {"text": "tidy.clean"},
                "outputs": {"n": "build/count.txt"},
            },
        }
    }
    return made
