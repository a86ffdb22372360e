"""A project with user-defined stages, and the command line in it."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from oneprocess import OneProcess
from scenario import Folder, with_status

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
class UserResult:
    """The output of one build. Stages are known by their ids: they have no other names."""

    code: int
    value: dict[str, Any]
    messages: str

    @property
    def stages(self) -> dict[str, dict[str, Any]]:
        return {stage["id"]: stage for stage in self.value["builds"][0]["stages"]}

    def with_status(self, status: str) -> list[str]:
        return with_status(self.value, status, "id")

    @property
    def ran(self) -> list[str]:
        return self.with_status("ran")


class UserProject(Folder):
    """A folder with a recipe, and a cache beside it."""

    def __init__(self, folder: Path, commands: OneProcess | None = None) -> None:
        super().__init__(folder, commands)
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

    def environment(self) -> dict[str, str]:
        search = os.pathsep.join(filter(None, [self.search_path, os.environ.get("PYTHONPATH", "")]))
        return {**super().environment(), "PYTHONPATH": search}

    def build(self, *arguments: str) -> UserResult:
        self.save()
        done = self.run("build", "-c", "recipe.yaml", "--format", "json", *arguments)
        return UserResult(done.returncode, json.loads(done.stdout), done.stderr)

    def manifest(self, folder: str = ".winml-dag/recipe.yaml") -> dict[str, Any]:
        return self.json(folder, "build_manifest.json")


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
