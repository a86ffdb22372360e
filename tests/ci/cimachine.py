"""Shared by both CI systems: an event that starts a run, and fresh machines that run the steps of its jobs."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

# Steps that fetch packages: everything is installed already.
INSTALLS = "pip install "


@dataclass(frozen=True)
class Event:
    """The trigger of a run. *pull*: the number of a pull request, None for a push to main."""

    commit: str
    pull: int | None = None
    is_fork: bool = False

    @property
    def ref(self) -> str:
        return "refs/heads/main" if self.pull is None else f"refs/pull/{self.pull}/merge"


@dataclass
class Run:
    """One run of all jobs: *repository* is checked out, *tools* has the programs installed on the machines.

    Attributes:
        artifacts: files uploaded by jobs, a folder per name.
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
        """Return a new, unused machine."""
        machine = Machine(self.folder / f"{len(self.machines)}-{job}", self.tools)
        self.machines.append(machine)
        return machine


class Machine:
    """A home folder and a checkout.

    Attributes:
        work: the current folder of steps.
        said: their output.
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
        """Run *script* in bash with *options* and return its output.

        Raises RuntimeError with the output when it fails.
        """
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
        """Copy everything that *path*, possibly a pattern, matches to the new folder *to*."""
        to.mkdir()
        for found in sorted(self.work.glob(path)):
            if found.is_dir():
                shutil.copytree(found, to, dirs_exist_ok=True)
            else:
                shutil.copy(found, to)
