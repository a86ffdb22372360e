"""Enforce what a user's stage declares: which files it may read, and which it must write.

In the sandbox it runs in a folder that contains only its inputs, and the kernel blocks absolute paths into the user's
folder if it has Landlock (see ``confine``). Alternatively, strace records what it reads: none of it is written in
Python, it follows every process and thread on every processor that Linux runs on, and it prints the resolved path of
each file.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from winml_dag.engine.execute import Job, Outcome
from winml_dag.errors import StageError, UsageError
from winml_dag.store.files import files_below, name_below

# The result of an open: a descriptor, and the path that it refers to. Other lines are of calls that failed.
_OPENED = re.compile(r" = \d+<((?:[^<>\\]|\\.)+)>$")
_NOT_READ = re.compile(r"\bO_(WRONLY|PATH|DIRECTORY)\b")
_EXECUTED = re.compile(r'^execve\("((?:[^"\\]|\\.)+)".* = 0$')
_COMPILED = re.compile(r"__pycache__/([^/]+?)\.[\w-]+(?:\.opt-\d)?\.pyc$")
# Where programs have their libraries and the system its settings. None of it is user data.
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
# If a folder has more files than this, they are counted instead of named.
_MOST_NAMED = 8
_NO_MODULE = re.compile(r"No module named '([\w.]+)'")
_WORD = re.compile(r"[^\s'\"`:,;()\[\]{}<>|&=*?!]+")
# Maximum number of files named in a log that are reported; more would be a listing.
_MOST_IN_A_LOG = 5


@cache
def watches_absolute_paths() -> bool:
    """Whether this system also blocks access to the user's folder by absolute path."""
    from winml_dag.engine import confine

    try:
        return confine.landlock_version() >= 1
    except OSError:
        return False


def confined(arguments: Sequence[str], program: str | None, hidden: Path, folder: Path) -> list[str]:
    """The command that starts *arguments* without access to *hidden*, and with write access only to *folder*."""
    if not watches_absolute_paths():
        return [program or arguments[0], *arguments[1:]]
    from winml_dag.engine import confine

    launcher = [sys.executable, "-I", "-S", confine.__file__, str(hidden), str(folder)]
    return [*launcher, program or arguments[0], *arguments]


def not_declared(tail: Sequence[str], folder: Path, project: Path, own: Collection[str]) -> list[str]:
    """Files of the user's *folder* that the last lines of a log name and that are not among *own* in *project*."""
    found: dict[str, None] = dict.fromkeys(_modules(tail, folder, own))
    for word in (word for line in tail for word in _WORD.findall(line)):
        # The project first: it is inside the folder if the cache is.
        for root in (project, folder):
            word = word.removeprefix(f"{root}/")
        name = word.removeprefix("./").rstrip(".")
        if not name or name.startswith(("/", "..")) or name in own or name in found:
            continue
        try:
            if (folder / name).is_file():
                found[name] = None
        except OSError:
            continue
    return list(found)[:_MOST_IN_A_LOG]


def _modules(tail: Sequence[str], folder: Path, own: Collection[str]) -> Iterator[str]:
    """Files of modules that Python failed to import: in the folder itself, or next to declared files."""
    beside = {"", *(f"{name.rpartition('/')[0]}/" for name in own if "/" in name)}
    for match in (match for line in tail for match in _NO_MODULE.finditer(line)):
        path = match[1].replace(".", "/")
        for name in (f"{root}{path}{ending}" for root in sorted(beside) for ending in (".py", "/__init__.py")):
            if name not in own and (folder / name).is_file():
                yield name


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
    """The command that starts *arguments* and records what each of its processes opens in the folder *trace*."""
    trace.mkdir()
    calls = "?open,?openat,?openat2,execve"
    # One file per process, since lines of several would be interleaved.
    options = ["-ff", "-y", "-qqq", "--seccomp-bpf", "-s", "4096", "-e", f"trace={calls}", "-e", "signal=none"]
    return [find_tracer(), *options, "-o", str(trace / "process"), program or arguments[0], *arguments[1:]]


def undeclared(trace: Path, declared: Collection[str], own: Collection[Path], folder: Path, began: float) -> list[str]:
    """The files that processes running in *folder* read, according to *trace*, and that are not *declared*.

    A file below a declared folder is declared. Skipped are the system, programs on PATH with what is installed next to
    them, packages, everything below the folders *own*, and files that the stage itself wrote, which is since *began*, a
    ``time.time``.
    """
    read, programs = _read_and_executed(trace, folder)
    installed = {str(Path(program).parents[1]) for program in programs}
    around = tuple(f"{path}/" for path in (folder.resolve(), Path.home()))
    libraries = [prefix for prefix in installed if not any(path.startswith(f"{prefix}/") for path in around)]
    skipped = tuple(f"{root}/" for root in (*_SYSTEM, *map(str, own), *libraries, *declared))
    # Python opens the compiled form of a module, but a user declares the source.
    found = {_COMPILED.sub(r"\1.py", path) for path in read if not path.startswith(skipped) and not _is_installed(path)}
    return sorted(path for path in found - programs - {*declared} if _is_older_file(path, began))


def in_short(paths: Sequence[str], folder: Path) -> str:
    """*paths* relative to *folder*; for a folder with many of them, their number."""
    by_folder: dict[str, list[str]] = {}
    for path in paths:
        name = path.removeprefix(f"{folder}/")
        by_folder.setdefault(os.path.dirname(name) or ".", []).append(name)  # noqa: PTH120
    return ", ".join(
        f"{below}/ ({len(names)} files)" if len(names) > _MOST_NAMED else ", ".join(names)
        for below, names in by_folder.items()
    )


def _read_and_executed(trace: Path, folder: Path) -> tuple[set[str], set[str]]:
    """The real paths of all files opened for reading, and of programs found on PATH."""
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
    """A path as strace prints it, with non-ASCII characters as octal numbers."""
    return os.fsdecode(text.encode().decode("unicode_escape").encode("latin-1"))


def _is_installed(path: str) -> bool:
    """Whether it belongs to an installed package or a Python environment."""
    return not _PACKAGES.isdisjoint(Path(path).parts) or path.endswith("/pyvenv.cfg")


def _is_older_file(path: str, began: float) -> bool:
    try:
        status = os.stat(path)  # noqa: PTH116
    except OSError:
        return False  # a temporary file of the stage
    # Use the change time: a file may be created with an old modification time.
    return stat.S_ISREG(status.st_mode) and status.st_ctime < began


def check_done(job: Job) -> None:
    """Raise StageError when what a stage wrote is not what its node declares."""
    if job.at is None:
        _refuse_several(job)
        return
    _check_outputs(job, job.at)
    if job.is_traced:
        _refuse_undeclared(job, job.at)
    if job.own is None:
        return
    names = (name_below(job.at, entry.path) for entry in files_below(job.at))
    if extra := [name for name in names if name not in job.own]:
        raise StageError(
            f"{job.node.id} wrote {', '.join(extra)} in its folder, and does not declare it.",
            advice="Declare it as an output and write to its placeholder, or write to the temporary folder ($TMPDIR).",
        )


def explain(job: Job, outcome: Outcome, tail: Sequence[str]) -> Outcome:
    """Add the possible cause to a failure: project files named in the *tail* of the log that the stage cannot see."""
    if job.own is None or job.at is None or job.node.folder is None or not outcome.error:
        return outcome
    named = not_declared(tail, job.node.folder, job.at, job.own)
    if not named:
        return outcome
    is_are = "is in the project but not" if len(named) == 1 else "are in the project but not"
    return replace(
        outcome,
        error=f"{outcome.error} {', '.join(named)} {is_are} among its inputs.",
        advice="Declare what it reads under inputs.",
    )


def _check_outputs(job: Job, project: Path) -> None:
    """Raise StageError when a declared output was not written, or another file was written next to it.

    *project*: the folder in which it ran.
    """
    for slot, path in job.node.paths.items():
        try:
            mode = os.lstat(job.output_path(slot)).st_mode
        except FileNotFoundError:
            raise _not_written(job, slot, project) from None
        if path.endswith("/"):
            if not stat.S_ISDIR(mode):
                raise StageError(f"{job.node.id} made {{outputs.{slot}}} a file; {path} is declared as a folder.")
            if next(iter(files_below(Path(job.output_path(slot)))), None) is None:
                raise _not_written(job, slot, project)
        elif stat.S_ISDIR(mode):
            raise StageError(
                f"{job.node.id} made {{outputs.{slot}}} a folder; {path} is declared as a file.",
                advice=f"Declare {path}/ if it should be a folder.",
            )
        if extra := next(_beside(job, slot, path), None):
            raise StageError(
                f"{job.node.id} wrote {extra} beside {{outputs.{slot}}}, and does not declare it.",
                advice="Declare the folder that both lie in, with / at its end, as the output.",
            )


def _refuse_undeclared(job: Job, folder: Path) -> None:
    declared = {os.path.realpath(watched.path) for watched in job.watched}
    # A function runs in a worker, which is Python and this package.
    own = [job.folder, Path(sys.prefix), Path(sys.base_prefix), Path(__file__).resolve().parents[1]]
    if found := undeclared(job.trace, declared, [path.resolve() for path in own], folder, job.began):
        raise StageError(
            f"{job.node.id} read {in_short(found, folder.resolve())}, and does not declare that.",
            advice="Declare it under inputs, so that an edit of it is noticed.",
        )


def _refuse_several(job: Job) -> None:
    """Raise StageError when a stage that chooses its file names output several files where one is declared."""
    for slot, path in job.node.paths.items():
        names = [entry.name for entry in files_below(job.output_folder(slot))]
        if len(names) > 1 and not path.endswith("/"):
            raise StageError(
                f"{path} is declared as a file, and {job.node.stage.name} writes several: {', '.join(names)}.",
                advice=f"Declare a folder for them, such as {path.partition('.')[0]}/.",
            )


def _beside(job: Job, slot: str, path: str) -> Iterator[str]:
    """Files and links in the slot's folder that are not part of the output, by their names in the project."""
    root = job.output_folder(slot)
    for entry in files_below(root):
        name = name_below(root, entry.path)
        if name != path and not (path.endswith("/") and name.startswith(path)):
            yield name


def _not_written(job: Job, slot: str, project: Path) -> StageError:
    path = job.node.paths[slot]
    name, placeholder = job.node.id, f"{{outputs.{slot}}}"
    message = f"{name} wrote no {placeholder}."
    if job.node.command is None:
        advice = f"Write to outputs[{slot!r}], the path that the function is given, not to {path}."
    else:
        advice = f"Let the command write to {placeholder}, not to {path}."
    if _changed_since(project / path, job.began):
        message = f"{name} wrote {path} itself, and no {placeholder}."
        advice += " The build puts it there when the stage has ended well."
    return StageError(message, advice=advice)


def _changed_since(path: Path, began: float) -> bool:
    """Whether any file at *path* was written after *began*. File system clocks lag by up to 2 s (FAT)."""
    files = [path, *(Path(entry.path) for entry in files_below(path))]
    for file in files:
        try:
            status = file.stat()
        except OSError:
            continue
        if stat.S_ISREG(status.st_mode) and began - 0.05 <= status.st_mtime <= time.time():
            return True
    return False
