"""The setting for faults: one cache, engines in separate processes, and the checks after every fault.

Engines are forked, which saves the 0.2 s of their imports, so no store may be open here when one starts.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import NoReturn

from fault_engine import Step, forked_server, run_steps, soon
from fault_graph import Graphs, expected

import winml_dag.store.index  # noqa: F401 - each engine would import it
from winml_dag.errors import WinmlDagError
from winml_dag.store.blobs import BlobDamaged
from winml_dag.store.store import Store
from winml_dag.store.upkeep import VerifyReport, verify

HERE = Path(__file__).parent
# Longer than anything takes on a busy machine: an engine that is not done by then hangs.
_PATIENCE_SECONDS = 120.0
# One damaged blob can hide another.
_MOST_BUILDS = 3
_STEPS_OF_THE_SYSTEM = ("os.", "open", "sqlite3.", "fcntl.", "subprocess.")


class Impossible(Exception):
    """Raised with the reason if this kind of fault is impossible on this system."""


@dataclass(frozen=True)
class Told:
    """The report of an engine: by node its status, error message and key.

    ``refused`` is the error of an engine that could not start, ``crash`` the traceback of any other error, ``steps``
    the number of its system calls, ``seconds`` how long it ran.
    """

    status: dict[str, str]
    errors: dict[str, str]
    keys: dict[str, str]
    refused: str = ""
    crash: str = ""
    steps: int = 0
    seconds: float = 0.0

    @property
    def done(self) -> bool:
        return not self.refused and set(self.status.values()) <= {"ran", "reused"}

    @property
    def words(self) -> list[str]:
        return [text for text in (self.refused, *self.errors.values()) if text]


class Engine:
    """An engine in a separate process. *before* is called there first."""

    def __init__(self, cache: Path, steps: Sequence[Step], answer: Path, before: Callable[[], None] | None) -> None:
        self._answer = answer
        self.pid = os.fork()
        if self.pid == 0:
            _be_engine(cache, steps, answer, before)
        self._code: int | None = None

    def wait(self) -> Told | None:
        """Wait for its end and return the report; None if it was killed."""
        if not soon(self.has_ended, _PATIENCE_SECONDS):
            self.kill()
            raise AssertionError(f"The engine hung for {_PATIENCE_SECONDS:g} s.")
        if self._code == -signal.SIGKILL:
            return None
        assert self._code == 0, f"The engine ended with {self._code}."
        told = Told(**json.loads(self._answer.read_text()))
        assert not told.crash, f"The engine raised an error that is not its own:\n{told.crash}"
        return told

    def has_ended(self) -> bool:
        if self._code is None and (ended := os.waitpid(self.pid, os.WNOHANG))[0]:
            self._code = os.waitstatus_to_exitcode(ended[1])
        return self._code is not None

    def kill(self) -> None:
        if not self.has_ended():
            os.kill(self.pid, signal.SIGKILL)

    def workers(self) -> list[int]:
        """Return its current workers: its child, the server, has a child for each that is the worker's parent."""
        found = [self.pid]
        for _ in range(3):
            found = [child for pid in found for child in _children(pid)]
        return found


def _children(pid: int) -> list[int]:
    try:
        lists = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:
        return []
    return [int(child) for text in lists for child in text.split()]


class Lab:
    """One cache with one history of faults. All randomness comes from *seed*."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.chance = random.Random(seed)
        self.cache = folder / "cache"
        self.graphs = Graphs(folder, self.chance)
        self._engines = 0
        os.environ["PYTHONPATH"] = str(HERE)  # where workers find the stages

    def start(self, steps: Sequence[Step], before: Callable[[], None] | None = None) -> Engine:
        self._engines += 1
        return Engine(self.cache, steps, self.folder / f"answer-{self._engines}.json", before)

    def run(self, steps: Sequence[Step], before: Callable[[], None] | None = None) -> Told:
        told = self.start(steps, before).wait()
        assert told is not None, "The engine was killed."
        return told

    @contextmanager
    def asking_for(self, misdeed: str) -> Iterator[Path]:
        """Make stages with the work ``misbehave`` commit *misdeed* within the block.

        The yielded path exists as soon as one of them has started.
        """
        asked, begun = self.folder / "misbehave", self.folder / "misbehaving"
        begun.unlink(missing_ok=True)
        asked.write_text(misdeed)
        try:
            yield begun
        finally:
            asked.unlink()

    def check(self, steps: Sequence[Step]) -> Told:
        """Assert the state after a harmless fault: a clean cache, no processes left, and a byte-identical next
        build.
        """
        assert soon(lambda: not self.leftovers()), f"Processes were left behind: {self.leftovers()}"
        report = self.verify()
        assert report.clean, f"The cache is not clean: {report}"
        told = self.build(steps)
        # A database that a full disk left incomplete is quarantined, which loses nothing.
        found = [path.name for path in self.cache.glob("quarantine/*") if not path.name.startswith("index-")]
        assert not found, f"Something sound was put into quarantine: {found}"
        return told

    def build(self, steps: Sequence[Step]) -> Told:
        """Run the next build. It must be byte-identical and leave nothing behind."""
        told = self._build_and_compare(steps)
        if "ran" in told.status.values():  # a build with nothing to run does not clean up after dead processes
            assert not any((self.cache / "scratch").glob("*")), "A scratch folder was left behind."
        return told

    def _build_and_compare(self, steps: Sequence[Step]) -> Told:
        """Build as users do: damage that no stage reads is found on fetching, and then its stage runs again."""
        for _ in range(_MOST_BUILDS):
            told = self.run(steps)
            assert told.done, f"The next build failed: {told.words}"
            with suppress(BlobDamaged):
                self.compare(steps, told)
                return told
        raise AssertionError("What was made is damaged again and again.")

    def compare(self, steps: Sequence[Step], told: Told) -> None:
        """Compare every output with the oracle."""
        store = Store(self.cache)
        try:
            for node, files in expected(steps).items():
                record = store.record(told.keys[node])
                assert record is not None, f"{node} has no record."
                with tempfile.TemporaryDirectory(dir=self.folder) as target:
                    store.fetch(record.outputs["out"], Path(target))
                    assert _contents(Path(target)) == files, f"{node} has wrong bytes."
        finally:
            store.close()

    def verify(self) -> VerifyReport:
        store = Store(self.cache)
        try:
            return verify(store)
        finally:
            store.close()

    def leftovers(self) -> list[str]:
        """Return the processes running in the cache: workers and their children."""
        return [str(path) for path in Path("/proc").glob("[0-9]*") if _works_in(path, self.cache)]


def at_step(number: int, happens: Callable[[], None]) -> Callable[[], None]:
    """Return a function for ``before`` that calls *happens* at the engine's system call *number*."""
    return partial(sys.addaudithook, _Counting(number, happens))


def kill_oneself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class _Counting:
    """Counts the system calls of this process, across its threads."""

    def __init__(self, number: int, happens: Callable[[], None]) -> None:
        self._number = number
        self._happens = happens
        self.steps = 0

    def __call__(self, event: str, arguments: tuple[object, ...]) -> None:  # noqa: ARG002
        if event.startswith(_STEPS_OF_THE_SYSTEM):
            self.steps += 1
            if self.steps == self._number:
                self._happens()


def _be_engine(cache: Path, steps: Sequence[Step], answer: Path, before: Callable[[], None] | None) -> NoReturn:
    # Whatever happens, the child must not continue with its parent's work.
    try:
        with open(answer.with_suffix(".log"), "wb", buffering=0) as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        # Before anything counts system calls.
        server = forked_server()
        counting = _Counting(0, lambda: None)
        sys.addaudithook(counting)
        if before is not None:
            before()
        began, told = time.monotonic(), Told({}, {}, {})
        try:
            results = run_steps(cache, steps, server)
            told = Told(
                {name: str(result.status) for name, result in results.items()},
                {name: f"{result.error} {result.advice}" for name, result in results.items() if result.error},
                {name: result.cache_key for name, result in results.items()},
            )
        except WinmlDagError as error:
            told = replace(told, refused=f"{error} {error.advice}")
        except BaseException:
            told = replace(told, crash=traceback.format_exc())
        told = replace(told, steps=counting.steps, seconds=time.monotonic() - began)
        answer.write_text(json.dumps(asdict(told)))
        os._exit(0)
    finally:
        os._exit(1)


def _contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _works_in(process: Path, folder: Path) -> bool:
    try:
        return (process / "cwd").readlink().is_relative_to(folder)
    except OSError:
        return False
