"""The sandbox: a stage of the user's runs where nothing is but what it declares.

A folder with just its inputs does that for relative paths, on every system. Absolute paths into the user's folder are
refused by the kernel where it has Landlock (see ``confine``).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterator, Sequence
from functools import cache
from pathlib import Path

from winml_dag.engine import confine

_NO_MODULE = re.compile(r"No module named '([\w.]+)'")
_WORD = re.compile(r"[^\s'\"`:,;()\[\]{}<>|&=*?!]+")
# So many files are named; more would be a listing.
_MOST_NAMED = 5


@cache
def watches_absolute_paths() -> bool:
    """Whether this system keeps a stage from reading the user's folder by its absolute path too."""
    try:
        return confine.landlock_version() >= 1
    except OSError:
        return False


def confined(arguments: Sequence[str], program: str | None, hidden: Path, folder: Path) -> list[str]:
    """The command that starts *arguments* so that they cannot read *hidden*, and write to *folder* only."""
    if not watches_absolute_paths():
        return [program or arguments[0], *arguments[1:]]
    launcher = [sys.executable, "-I", "-S", confine.__file__, str(hidden), str(folder)]
    return [*launcher, program or arguments[0], *arguments]


def not_declared(tail: Sequence[str], folder: Path, project: Path, own: Collection[str]) -> list[str]:
    """Files of the user's *folder* that the last lines of a log name, and that are not among the *own* of *project*."""
    found: dict[str, None] = dict.fromkeys(_modules(tail, folder, own))
    for word in (word for line in tail for word in _WORD.findall(line)):
        # The project's first: it lies in the folder itself where the cache does.
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
    return list(found)[:_MOST_NAMED]


def _modules(tail: Sequence[str], folder: Path, own: Collection[str]) -> Iterator[str]:
    """Files of modules that Python looked for in vain: in the folder itself, or beside what is declared."""
    beside = {"", *(f"{name.rpartition('/')[0]}/" for name in own if "/" in name)}
    for match in (match for line in tail for match in _NO_MODULE.finditer(line)):
        path = match[1].replace(".", "/")
        for name in (f"{root}{path}{ending}" for root in sorted(beside) for ending in (".py", "/__init__.py")):
            if name not in own and (folder / name).is_file():
                yield name
