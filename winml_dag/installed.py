"""What is installed: the version of each distribution, and what it declares for this program.

All of it is read from the names of the folders ``name-version.dist-info`` (the packaging specification for recording
installed projects defines them) and from one small file in each. ``importlib.metadata`` is not used: importing it costs
20 to 40 ms, and reading every package's metadata takes longer than an up-to-date build.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from winml_dag.errors import UsageError

ABSENT = "not installed"
# Of the groups of entry points.
_PREFIX = "winml_dag."


@cache
def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def distributions_in(path: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Name as written, version ("" if unknown) and metadata folder of each distribution in the folders *path*."""
    for folder in path:
        try:
            entries = os.listdir(folder or ".")  # noqa: PTH208 - names are enough, and twice as fast
        except OSError:
            continue
        for entry in sorted(entries):
            stem, dot, suffix = entry.rpartition(".")
            if dot and suffix in ("dist-info", "egg-info"):
                name, version = [*stem.split("-"), ""][:2]
                yield name, version, f"{folder or '.'}{os.sep}{entry}"


def _listed(path: Iterable[str]) -> dict[str, str]:
    versions: dict[str, str] = {}
    for name, version, _ in distributions_in(path):
        if version:
            versions.setdefault(normalised(name), version)
    return versions


@cache
def _listed_here(path: tuple[str, ...]) -> dict[str, str]:
    return _listed(path)


def installed_distributions(path: Sequence[Path] | None = None) -> dict[str, str]:
    """Every distribution installed in the folders *path*, with its version.

    By default in those of this Python, where the first one wins, as it does for imports.
    """
    return _listed_here(tuple(sys.path)) if path is None else _listed(map(str, path))


def forget_installed() -> None:
    """Clear the cache: for a process during whose lifetime packages are installed and removed."""
    _listed_here.cache_clear()


def distribution_version(name: str) -> str | None:
    """The version that is installed here, or None."""
    return installed_distributions().get(normalised(name))


def versions(names: Iterable[str], path: Sequence[Path] | None = None) -> dict[str, str]:
    """Versions by name for a key. A missing one has a value too, so that installing it changes the key."""
    return versions_in(installed_distributions(path), names)


def versions_in(present: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    """The same for the installed distributions *present*."""
    return {name: present.get(normalised(name), ABSENT) for name in names}


@dataclass(frozen=True)
class EntryPoint:
    """An entry point. ``target``: the object, as ``package.module:ATTRIBUTE``."""

    name: str
    target: str
    distribution: str
    version: str

    def load(self) -> object:
        """The object. Raises UsageError when importing it fails."""
        return load_object(self.name, self.target)


def load_object(name: str, target: str) -> object:
    """The object *target* of the plug-in *name*. Raises UsageError when importing it fails."""
    module, _, attribute = target.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except Exception as error:  # third-party code, which may raise anything
        from winml_dag.explanation import explanation

        raise UsageError(f"plug-in {name!r}: {target} cannot be imported: {explanation(error)}") from error


def entry_points(group: str, path: tuple[str, ...]) -> dict[str, EntryPoint]:
    """The entry points of *group* by name; the first folder of *path* wins, as it does for imports."""
    return _by_group(path).get(group, {})


@cache
def _by_group(path: tuple[str, ...]) -> dict[str, dict[str, EntryPoint]]:
    found: dict[str, dict[str, EntryPoint]] = {}
    for distribution, version, folder in distributions_in(path):
        for group, name, target in _declared(Path(folder, "entry_points.txt")):
            found.setdefault(group, {}).setdefault(name, EntryPoint(name, target, distribution, version))
    return found


def _declared(path: Path) -> Iterator[tuple[str, str, str]]:
    """Group, name and target of each entry point for this program in the file *path*."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return
    if _PREFIX not in text:
        return
    section = ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("["):
            section = line.strip("[] ")
        elif section.startswith(_PREFIX) and "=" in line and not line.startswith(("#", ";")):
            name, _, target = line.partition("=")
            yield section, name.strip(), target.split("[", 1)[0].strip()
