"""Work that goes wrong in every way a process can; worker processes import it."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

from winml_dag.canonical import JsonObject
from winml_dag.engine.stage import Workspace


@dataclass(frozen=True)
class Fields:
    """``path``: a pipe or file outside, by which a stage tells a test what it does."""

    path: str = ""
    number: int = 0


@dataclass(frozen=True)
class Config:
    fault: Fields


def write(config: Config, workspace: Workspace) -> JsonObject:
    texts = [path.read_text() for slot in sorted(workspace.inputs) for path in workspace.inputs[slot].glob("*.txt")]
    (workspace.outputs["out"] / "text.txt").write_text(f"{config.fault.number}({','.join(texts)})")
    return {}


def count(config: Config, workspace: Workspace) -> JsonObject:
    """Leaves one line in a file outside for each time that it runs."""
    with open(config.fault.path, "a") as ledger:
        ledger.write(f"{config.fault.number}\n")
    return write(config, workspace)


def write_much(config: Config, workspace: Workspace) -> JsonObject:
    """As many MB as ``number``, all of them different."""
    (workspace.outputs["out"] / "weights.bin").write_bytes(os.urandom(config.fault.number << 20))
    return {}


def hang_while_asked_to(config: Config, workspace: Workspace) -> JsonObject:
    """As long as the pipe is there: tell our process and a child of ours through it, and go on for ever."""
    if os.path.exists(config.fault.path):  # noqa: PTH110
        child = subprocess.Popen(["sleep", "3600"])
        Path(config.fault.path).write_text(f"{os.getpid()} {child.pid}")
        threading.Event().wait()
    return write(config, workspace)


def hang_in_native_code(config: Config, workspace: Workspace) -> JsonObject:
    """The same, holding the interpreter's lock, so that no other thread of ours can do anything."""
    if os.path.exists(config.fault.path):  # noqa: PTH110
        Path(config.fault.path).write_text(str(os.getpid()))
        ctypes.PyDLL(None).sleep(3600)
    return write(config, workspace)


def wait_at_gate(config: Config, workspace: Workspace) -> JsonObject:
    """Tell that we are at work, then go on when the test says so through the same pipe."""
    Path(config.fault.path).write_text("at work")
    Path(config.fault.path).read_text()
    return write(config, workspace)


def leave_children(config: Config, workspace: Workspace) -> JsonObject:
    child = subprocess.Popen(["sleep", "3600"])
    write(config, workspace)
    return {"child": child.pid}


def flood(config: Config, workspace: Workspace) -> JsonObject:
    """Print as native libraries do: past Python, and into the buffer of C."""
    for _ in range(config.fault.number):
        os.write(1, b"to stdout\n" * 10_000)
        os.write(2, b"to stderr\n" * 10_000)
    ctypes.CDLL(None).puts(b"last words in C's buffer")
    return write(config, workspace)


def crash(config: Config, workspace: Workspace) -> JsonObject:
    write(config, workspace)
    ctypes.string_at(0)
    return {}


def kill_itself(config: Config, workspace: Workspace) -> JsonObject:
    write(config, workspace)
    os.kill(os.getpid(), signal.SIGABRT)
    return {}


def leave(config: Config, workspace: Workspace) -> JsonObject:
    write(config, workspace)
    sys.stdout.flush()
    os._exit(3)
