"""What both systems of CI have: an event that begins a run, and fresh machines on which the steps of its jobs run."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

# Steps that fetch packages: here everything is installed already.
INSTALLS = "pip install "


@dataclass(frozen=True)
class Event:
    """What begins a run. *pull*: the number of a pull request, None for a push to main."""

    commit: str
    pull: int | None = None
    is_fork: bool = False

    @property
    def ref(self) -> str:
        return "refs/heads/main" if self.pull is None else f"refs/pull/{self.pull}/merge"


@dataclass
class Run:
    """One run of all jobs: *repository* is what is checked out, *tools* has what is installed on the machines.

    Attributes:
        artifacts: what jobs have put there, a folder for each name.
    """

    event: Event
    repository: Path
    folder: Path
    tools: Path
    machines: list[Machine] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.artifacts.mkdir(parents=True)

    @property
    def artifacts(self) -> Path:
        return self.folder / "artifacts"

    def machine(self, job: str) -> Machine:
        """A new one, on which nothing has ever been done."""
        machine = Machine(self.folder / f"{len(self.machines)}-{job}", self.tools)
        self.machines.append(machine)
        return machine


class Machine:
    """A folder for a home, and one for a checkout.

    Attributes:
        work: the current folder of steps.
        said: what they have printed.
    """

    def __init__(self, folder: Path, tools: Path) -> None:
        self.folder, self.work = folder, folder / "work"
        self.work.mkdir(parents=True)
        (folder / "home").mkdir()
        self.said = ""
        self._path = f"{tools}{os.pathsep}{os.environ['PATH']}"

    def check_out(self, repository: Path) -> None:
        shutil.copytree(repository, self.work, dirs_exist_ok=True)

    def shell(self, script: str, variables: Mapping[str, str], *options: str) -> str:
        """What *script* prints, run by bash with *options*. Raises RuntimeError with all of it when it fails."""
        home = {"HOME": str(self.folder / "home"), "PATH": self._path, "CI": "true", "LANG": "C.UTF-8"}
        threads = {name: text for name, text in os.environ.items() if name.endswith("_NUM_THREADS")}
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", *options, "-c", script],
            cwd=self.work,
            env={**threads, **home, **variables},
            capture_output=True,
            text=True,
            check=False,
        )
        self.said += done.stdout + done.stderr
        if done.returncode:
            raise RuntimeError(f"{script!r} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.stdout

    def upload(self, path: str, to: Path) -> None:
        """Put what *path*, which may be a pattern, leads to into the new folder *to*."""
        to.mkdir()
        for found in sorted(self.work.glob(path)):
            if found.is_dir():
                shutil.copytree(found, to, dirs_exist_ok=True)
            else:
                shutil.copy(found, to)
