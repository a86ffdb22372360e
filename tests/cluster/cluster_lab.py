"""A cluster in separate processes: a scheduler, workers with their own environments, and builds that use them.

An environment is a virtual one with links to the packages of the tests, without some, or with another reported version.
A stage can be made to hang for inspection: it reports that through a named pipe, which closes when the stage ends.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import venv
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
_SITE = Path(next(path for path in sys.path if path.endswith("site-packages")))
# Without dask's own measurements: with them, a scheduler and three workers that wait take a sixth of a processor.
QUIET = {
    "DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED": "False",
    "DASK_DISTRIBUTED__ADMIN__TICK__INTERVAL": "1s",
    "DASK_DISTRIBUTED__ADMIN__SYSTEM_MONITOR__GIL__ENABLED": "False",
}
# For every process of a worker that has the variable. The import is the first action of the stage's work, when its
# process already watches its worker.
HOOK = """
import os, sys

class Hang:
    def find_spec(self, name, path=None, target=None):
        if name == "winml_dag.stages.optimize.apply":
            lab = os.environ["HANG_IN"]
            try:
                os.rename(lab + "/wanted", lab + "/taken")
            except FileNotFoundError:
                return None
            pipe = os.open(lab + "/pipe", os.O_WRONLY)
            os.write(pipe, str(os.getppid()).encode())
            sys.stdin.read()
            import threading
            threading.Event().wait()

if "HANG_IN" in os.environ:
    sys.meta_path.insert(0, Hang())
"""


def environment(folder: Path, *, without: str = "", telling: tuple[str, str] = ("", "")) -> Path:
    """Return the Python of a new environment in *folder* with all packages but *without*, and one with another reported
    version.
    """
    venv.create(folder, symlinks=True, with_pip=False)
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    site = folder / "lib" / version / "site-packages"
    name, other = telling
    for entry in _SITE.iterdir():
        stem = entry.name.partition("-")[0].lower()
        if without and stem == without:
            continue
        called = f"{name}-{other}.dist-info" if name and entry.name.startswith(f"{name}-") else entry.name
        (site / called).symlink_to(entry)
    return folder / "bin" / "python"


@dataclass
class Hanging:
    """A hanging stage: the process of its worker, and a pipe that closes when the stage ends."""

    worker: int
    pipe: int

    def wait_for_end(self) -> None:
        """Return when no process of the stage is left."""
        while os.read(self.pipe, 1024):
            pass
        os.close(self.pipe)


@dataclass
class Lab:
    """Everything is in *folder*; *python* runs the builds."""

    folder: Path
    python: Path
    processes: list[subprocess.Popen[str]] = field(default_factory=list)
    address: str = ""

    def start_scheduler(self) -> None:
        command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0"]
        process = subprocess.Popen(
            [*command, "--no-dashboard"],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            cwd=self.folder,
            env={**os.environ, **QUIET},
        )
        self.processes.append(process)
        assert process.stderr is not None
        self.address = next(found[1] for line in process.stderr if (found := re.search(r"(tcp://\S+:\d+)", line)))
        # Keep reading: a full pipe would block it.
        threading.Thread(target=process.stderr.read, daemon=True).start()

    def start_worker(self, name: str, python: Path, *more: str, hangs: bool = False) -> None:
        """Start a worker without waiting; :meth:`await_workers` waits for all."""
        environment = {"HANG_IN": str(self.folder)} if hangs else {}
        process = subprocess.Popen(
            [str(python), "-m", "winml_dag", "worker", self.address, "--places", "1", *more],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self._environment(self.folder / f"cache-{name}", **environment),
        )
        self.processes.append(process)

    def await_workers(self) -> None:
        """Wait for all workers, each of which prints a line when ready."""
        for process in self.processes[1:]:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("Working at"), line + process.stdout.read()

    def start_build(
        self, out: str, cache: str, *arguments: str, python: Path | None = None, hangs: bool = False
    ) -> subprocess.Popen[str]:
        """Start a build. *hangs*: its local workers can hang."""
        command = [str(python or self.python), "-m", "winml_dag", "build", "-o", out, *arguments]
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env=self._environment(self.folder / cache, **({"HANG_IN": str(self.folder)} if hangs else {})),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def build(self, out: str, cache: str, *arguments: str, python: Path | None = None) -> tuple[int, str]:
        process = self.start_build(out, cache, *arguments, python=python)
        said, _ = process.communicate()
        return process.returncode, said

    @property
    def there(self) -> Sequence[str]:
        """Return the options of a build on this cluster."""
        remote = ("--remote", (self.folder / "remote").as_uri(), "--remote-mode", "read-write")
        return ("--executor", "dask", "--scheduler", self.address, *remote)

    def want_hanging(self) -> None:
        """Make the next optimize hang, on a worker that can."""
        (self.folder / "taken").unlink(missing_ok=True)
        (self.folder / "pipe").unlink(missing_ok=True)
        os.mkfifo(self.folder / "pipe")
        (self.folder / "wanted").touch()

    def await_hanging(self, building: subprocess.Popen[str]) -> Hanging:
        """Wait until a stage of *building* hangs."""
        threading.Thread(target=self._end_waiting, args=(building,), daemon=True).start()
        pipe = os.open(self.folder / "pipe", os.O_RDONLY)
        told = os.read(pipe, 64)
        assert told, building.communicate()[0]
        return Hanging(int(told), pipe)

    def _end_waiting(self, building: subprocess.Popen[str]) -> None:
        """Unblock the waiting reader if the build ends without a hanging stage."""
        building.wait()
        os.close(os.open(self.folder / "pipe", os.O_RDWR))

    def close(self) -> None:
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.communicate()

    def _environment(self, cache: Path, **more: str) -> dict[str, str]:
        paths = [str(self.folder / "hook"), str(HERE.parents[1])]
        return {
            **os.environ,
            **QUIET,
            "WINML_DAG_CACHE_DIR": str(cache),
            "WINML_DAG_REMOTE_ACCEPT_UNSIGNED": "1",
            "PYTHONPATH": os.pathsep.join(paths),
            **more,
        }
