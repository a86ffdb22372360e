"""Work that fails in every way a process can; worker processes import it."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from winml_dag.canonical import JsonObject
from winml_dag.engine.stage import Workspace


@dataclass(frozen=True)
class Fields:
    """``path``: a pipe or file outside, by which a stage reports to a test."""

    path: str = ""
    number: int = 0


@dataclass(frozen=True)
class Config:
    fault: Fields


def write(config: Config, workspace: Workspace) -> JsonObject:
    texts = [path.read_text() for slot in sorted(workspace.inputs) for path in workspace.inputs[slot].glob("*.txt")]
    (workspace.outputs["out"] / "text.txt").write_text(f"{config.fault.number}({','.join(texts)})")
    return {}


def derive(config: Config, workspace: Workspace) -> JsonObject:
    """Write :func:`content` of the inputs, and append a line to the tally at ``path`` per completed run."""
    texts = [path.read_bytes() for slot in sorted(workspace.inputs) for path in workspace.inputs[slot].glob("*.txt")]
    files = content(config.fault.number, texts)
    for name, data in files.items():
        path = workspace.outputs["out"] / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
    print(f"derived {config.fault.number}")
    with open(config.fault.path, "ab", buffering=0) as tally:
        tally.write(files["text.txt"] + b"\n")
    return {}


def content(number: int, inputs: list[bytes]) -> dict[str, bytes]:
    """Return the files of a step, computed in plain Python: small and large ones, and one shared by all steps."""
    text = hashlib.sha256(b"%d(%s)" % (number, b",".join(inputs))).hexdigest().encode()
    weights = hashlib.shake_256(text).digest(number * 1777 % 30_000 + 1)
    return {"text.txt": text, "parts/weights.bin": weights, "parts/license": b"the same for all\n"}


def write_much(config: Config, workspace: Workspace) -> JsonObject:
    """Write ``number`` MB of random bytes."""
    (workspace.outputs["out"] / "weights.bin").write_bytes(os.urandom(config.fault.number << 20))
    return {}


def hang_while_asked_to(config: Config, workspace: Workspace) -> JsonObject:
    """While the pipe exists: write the ids of this process and a child to it, and hang forever."""
    if os.path.exists(config.fault.path):  # noqa: PTH110
        child = subprocess.Popen(["sleep", "3600"])
        Path(config.fault.path).write_text(f"{os.getpid()} {child.pid}")
        threading.Event().wait()
    return write(config, workspace)


def hang_in_native_code(config: Config, workspace: Workspace) -> JsonObject:
    """The same while holding the interpreter lock, so that no other thread can run."""
    if os.path.exists(config.fault.path):  # noqa: PTH110
        Path(config.fault.path).write_text(str(os.getpid()))
        ctypes.PyDLL(None).sleep(3600)
    return write(config, workspace)


def wait_at_gate(config: Config, workspace: Workspace) -> JsonObject:
    """Report the start, then wait until the test continues it through the same pipe."""
    Path(config.fault.path).write_text("at work")
    Path(config.fault.path).read_text()
    return write(config, workspace)


def flood(config: Config, workspace: Workspace) -> JsonObject:
    """Print as native libraries do: bypassing Python, and into the buffer of C."""
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


def misbehave(config: Config, workspace: Workspace) -> JsonObject:
    """Do what :func:`derive` does, then what the file ``misbehave`` next to the tally requests."""
    metrics = derive(config, workspace)
    asked = Path(config.fault.path).with_name("misbehave")
    if asked.exists():
        asked.with_name("misbehaving").touch()
        MISDEEDS[asked.read_text()](config, workspace)
    return metrics


def _hang_with_children(config: Config, workspace: Workspace) -> None:  # noqa: ARG001
    for _ in range(2):
        subprocess.Popen(["sleep", "3600"])
    threading.Event().wait()


def _hang_holding_the_lock(config: Config, workspace: Workspace) -> None:  # noqa: ARG001
    ctypes.PyDLL(None).sleep(3600)


def _leave_a_daemon(config: Config, workspace: Workspace) -> None:  # noqa: ARG001
    if os.fork() == 0:
        if os.fork() == 0:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            threading.Event().wait(3600)
        os._exit(0)


def _flood(config: Config, workspace: Workspace) -> None:  # noqa: ARG001
    line = b"the same warning over and over\n" * 32768
    for _ in range(200):
        os.write(2, line)


def _edit_the_source(config: Config, workspace: Workspace) -> None:  # noqa: ARG001
    with open(Path(config.fault.path).with_name("source.txt"), "a") as source:
        source.write("edited by a stage")


def _scribble(config: Config, workspace: Workspace) -> None:  # noqa: ARG001
    """Overwrite the copies of its inputs, and write to every folder around its own."""
    for folder in workspace.inputs.values():
        for path in folder.glob("*.txt"):
            path.write_text("scribbled")  # its inputs are copies
    for folder in (Path(), Path(".."), Path("../inputs"), Path("../.."), Path("../../../..")):
        folder.mkdir(exist_ok=True)
        (folder / "junk").write_text("junk")


def answer_nonsense(config: Config, workspace: Workspace) -> JsonObject:  # noqa: ARG001
    Path("../result.json").write_text('{"metrics": ')
    os._exit(0)


def _remove_everything(config: Config, workspace: Workspace) -> None:  # noqa: ARG001
    shutil.rmtree("..", ignore_errors=True)


def _put_out_a_link(config: Config, workspace: Workspace) -> None:  # noqa: ARG001
    (workspace.outputs["out"] / "link").symlink_to("/etc/hostname")


MISDEEDS: dict[str, Callable[[Config, Workspace], object]] = {
    "crash": crash,
    "abort": kill_itself,
    "leave without a result": leave,
    "hang with children": _hang_with_children,
    "hang holding the lock": _hang_holding_the_lock,
    "leave a daemon": _leave_a_daemon,
    "flood the log": _flood,
    "edit the source": _edit_the_source,
    "scribble": _scribble,
    "answer nonsense": answer_nonsense,
    "remove everything": _remove_everything,
    "put out a link": _put_out_a_link,
}
