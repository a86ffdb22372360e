"""The command line in one long-lived process, which runs commands one after the other, including their stages.

The result of a precision or an architecture does not depend on the process, and importing onnx, onnxruntime and PyTorch
again for every stage is most of the cost of building a tiny model. Tests about processes (kills, logs, memory, bytes
that must not depend on the process) start the command line as users do, and so do all where a thread cannot have its
own current folder: everywhere but on Linux.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO

from winml_dag.engine import execute
from winml_dag.engine.exchange import ProgressWriter, Result, read_progress
from winml_dag.engine.execute import Job, LocalExecutor, Outcome
from winml_dag.engine.forkserver import ForkServer
from winml_dag.engine.worker import perform
from winml_dag.pipeline.run import _IMPORTED_BY_MOST

_CLONE_FS = 0x200


@dataclass(frozen=True)
class Command:
    """The request to the process, as a line of JSON."""

    arguments: Sequence[str]
    folder: str
    environment: Mapping[str, str]


@dataclass(frozen=True)
class Said:
    """The response, as a line of JSON."""

    code: int
    out: str
    messages: str


class OneProcess:
    """The client side of the process."""

    def __init__(self) -> None:
        self._process = sys.platform == "linux" and subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
        )

    def run(self, arguments: Sequence[str], folder: Path, environment: Mapping[str, str]) -> Said:
        if not self._process:
            command = [sys.executable, "-m", "winml_dag", *arguments]
            done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
            return Said(done.returncode, done.stdout, done.stderr)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        command = Command(list(arguments), str(folder), dict(environment))
        self._process.stdin.write(json.dumps(command.__dict__) + "\n")
        self._process.stdin.flush()
        return Said(**json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        if self._process:
            self._process.communicate()


class _Streams(io.TextIOBase):
    """A standard stream that stage threads redirect to their own log."""

    def __init__(self) -> None:
        self.commands: TextIO = io.StringIO()
        self.of_thread = threading.local()

    def write(self, text: str) -> int:
        stream: TextIO = getattr(self.of_thread, "log", self.commands)
        return stream.write(text)


class _InThisProcess(LocalExecutor):
    """Runs built-in stages in a thread with a current folder of its own; the others as usual.

    compile has a process of its own here too, since it refuses one that has compiled before. So have functions of a
    recipe, whose imports are edited between builds.
    """

    _one_at_a_time = threading.Lock()
    # Of all commands: what it imports for the workers of compile takes ten times as long as their work.
    _kept = ForkServer(_IMPORTED_BY_MOST)

    def __init__(self, *_: object) -> None:
        super().__init__(_IMPORTED_BY_MOST)
        self._server = self._kept

    def start_ahead(self) -> None:
        """Leave it to the first compile, which few commands have."""

    def close(self) -> None:
        self._server = None
        super().close()

    def run(self, job: Job) -> Outcome:
        node = job.node
        if (
            node.command is not None
            or node.interpreter is not None
            or job.at is not None
            or node.stage.name in ("compile", "function")
        ):
            return super().run(job)
        outcomes: list[Outcome] = []
        with self._one_at_a_time:
            thread = threading.Thread(target=lambda: outcomes.append(_work(job)))
            thread.start()
            thread.join()
        return outcomes[0]


def _work(job: Job) -> Outcome:
    job.make_output_folders()
    folder = job.folder / "work"
    folder.mkdir()
    began = time.monotonic()
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_FS):
        raise OSError(ctypes.get_errno(), "no current folder of its own for a thread")
    with job.log.open("w", encoding="utf-8") as log:
        for stream in (sys.stdout, sys.stderr):
            assert isinstance(stream, _Streams)
            stream.of_thread.log = log
        os.chdir(folder)
        progress = ProgressWriter(job.folder)
        result: Result = perform(execute._task(job), progress)
        progress.flush()
    outcome = execute._worker_outcome(job, 0, result, time.monotonic() - began)
    return replace(outcome, progress=read_progress(job.folder))


def _answer(command: Command, streams: Sequence[_Streams]) -> Said:
    from winml_dag.cli import run

    os.environ.clear()
    os.environ.update(command.environment)
    os.chdir(command.folder)
    for stream in streams:
        stream.commands = io.StringIO()
    try:
        code = run(list(command.arguments))
    except Exception:
        traceback.print_exc()
        code = 1
    out, messages = (stream.commands for stream in streams)
    assert isinstance(out, io.StringIO)
    assert isinstance(messages, io.StringIO)
    return Said(code, out.getvalue(), messages.getvalue())


def _serve() -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    with open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), 1)
    streams = (_Streams(), _Streams())
    sys.stdout, sys.stderr = streams
    execute.LocalExecutor = _InThisProcess  # type: ignore[misc]
    with tempfile.TemporaryDirectory() as temporary:
        fixed = execute.worker_environment(temporary)
        for line in sys.stdin:
            told: dict[str, Any] = json.loads(line)
            command = Command(told["arguments"], told["folder"], {**fixed, **told["environment"]})
            answers.write(json.dumps(_answer(command, streams).__dict__) + "\n")
            answers.flush()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        _serve()
