"""Which files a stage of the user's may read, and, where strace is installed, which ones it did read.

strace is used because no part of its work is in Python: it follows every process and thread of a stage, on every
processor that Linux runs on, and prints the resolved path of each file that was opened.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import sys
from collections.abc import Collection, Iterator, Sequence
from enum import StrEnum
from pathlib import Path

from winml_dag.errors import UsageError

# The result of an open: a descriptor, and the path that it stands for. Other lines are of calls that failed.
_OPENED = re.compile(r" = \d+<((?:[^<>\\]|\\.)+)>$")
_NOT_READ = re.compile(r"\bO_(WRONLY|PATH|DIRECTORY)\b")
_EXECUTED = re.compile(r'^execve\("((?:[^"\\]|\\.)+)".* = 0$')
_COMPILED = re.compile(r"__pycache__/([^/]+?)\.[\w-]+(?:\.opt-\d)?\.pyc$")
# Where programs have their libraries and the system its settings. None of it is the user's data.
_SYSTEM = (
    "/bin",
    "/dev",
    "/etc",
    "/lib",
    "/lib32",
    "/lib64",
    "/nix",
    "/proc",
    "/run",
    "/sbin",
    "/snap",
    "/sys",
    "/usr",
)
_PACKAGES = {"site-packages", "dist-packages"}
# More files of one folder are counted, not named.
_MOST_NAMED = 8


class FileAccess(StrEnum):
    """How a stage of the user's gets at files."""

    FREE = "free"
    # Nothing but what it declares can be read: see ``sandbox``.
    SANDBOX = "sandbox"
    # All can be read, and what was read without being declared fails the stage.
    TRACE = "trace"


def find_tracer() -> str:
    """The path of strace.

    Raises:
        UsageError: when it is not installed, or this is not Linux.
    """
    if not sys.platform.startswith("linux"):
        raise UsageError("--check-inputs needs strace, and so Linux.", advice="Use --sandbox here.")
    found = shutil.which("strace")
    if found is None:
        raise UsageError(
            "--check-inputs needs strace, which is not on PATH.", advice="Install it (Debian: apt-get install strace)."
        )
    return found


def traced(arguments: Sequence[str], program: str | None, trace: Path) -> list[str]:
    """The command that starts *arguments* and writes to the folder *trace* what each of its processes opens."""
    trace.mkdir()
    calls = "?open,?openat,?openat2,execve"
    # A file for each process, since lines of several would be torn apart.
    options = ["-ff", "-y", "-qqq", "--seccomp-bpf", "-s", "4096", "-e", f"trace={calls}", "-e", "signal=none"]
    return [find_tracer(), *options, "-o", str(trace / "process"), program or arguments[0], *arguments[1:]]


def undeclared(trace: Path, declared: Collection[str], own: Collection[Path], folder: Path, began: float) -> list[str]:
    """The files that processes running in *folder* read, of which *trace* tells, and that are neither *declared* nor
    below a declared folder.

    Left out are the system, programs on PATH with what is installed beside them, packages, what lies below the folders
    *own*, and what was written since *began*, of ``time.time``: by the stage itself.
    """
    read, programs = _read_and_executed(trace, folder)
    installed = {str(Path(program).parents[1]) for program in programs}
    around = tuple(f"{path}/" for path in (folder.resolve(), Path.home()))
    libraries = [prefix for prefix in installed if not any(path.startswith(f"{prefix}/") for path in around)]
    skipped = tuple(f"{root}/" for root in (*_SYSTEM, *map(str, own), *libraries, *declared))
    found = {_source_of(path) for path in read if not path.startswith(skipped) and not _is_installed(path)}
    return sorted(path for path in found - programs - {*declared} if _is_older_file(path, began))


def in_short(paths: Sequence[str], folder: Path) -> str:
    """*paths* as they are called in *folder*; of a folder with many of them, their number."""
    by_folder: dict[str, list[str]] = {}
    for path in paths:
        name = path.removeprefix(f"{folder}/")
        by_folder.setdefault(os.path.dirname(name), []).append(name)  # noqa: PTH120
    return ", ".join(_listed(by_folder))


def _listed(by_folder: dict[str, list[str]]) -> Iterator[str]:
    for folder, names in by_folder.items():
        if len(names) > _MOST_NAMED:
            yield f"{folder or '.'}/ ({len(names)} files)"
        else:
            yield from names


def _read_and_executed(trace: Path, folder: Path) -> tuple[set[str], set[str]]:
    """The real paths of all files that were opened to be read, and of programs that were found on PATH."""
    read: set[str] = set()
    programs: set[str] = set()
    search = {os.path.abspath(each) for each in os.environ.get("PATH", "").split(os.pathsep) if each}  # noqa: PTH100
    for log in trace.iterdir():
        for line in log.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
            if match := _EXECUTED.search(line):
                path = folder / _plain(match[1])
                (programs if str(path.parent) in search else read).add(os.path.realpath(path))
            elif (match := _OPENED.search(line)) and not _NOT_READ.search(line):
                read.add(_plain(match[1]))
    return read, programs


def _plain(text: str) -> str:
    """A path as strace prints it, with what is not ASCII as octal numbers."""
    return os.fsdecode(text.encode().decode("unicode_escape").encode("latin-1"))


def _source_of(path: str) -> str:
    """Python opens the compiled form of a module in its place; what a user declares is the module."""
    return _COMPILED.sub(r"\1.py", path)


def _is_installed(path: str) -> bool:
    """Whether it is of an installed package, or of an environment of Python's."""
    return not _PACKAGES.isdisjoint(Path(path).parts) or path.endswith("/pyvenv.cfg")


def _is_older_file(path: str, began: float) -> bool:
    try:
        status = os.stat(path)  # noqa: PTH116
    except OSError:
        return False  # a temporary file of the stage
    # The time of change, since a file may be made with an old time of modification.
    return stat.S_ISREG(status.st_mode) and status.st_ctime < began
