"""The entry points that installed packages declare in groups of this program, each naming an object.

This does not use ``importlib.metadata``: importing it and reading every package's metadata take longer than an
up-to-date build, while one small file per package is enough.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from winml_dag.errors import UsageError

_PREFIX = "winml_dag."


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
    for folder in path:
        for entry in sorted(_metadata_folders(folder or ".")):
            for group, point in _of_package(Path(folder or ".", entry)):
                found.setdefault(group, {}).setdefault(point.name, point)
    return found


def _metadata_folders(folder: str) -> list[str]:
    try:
        return [name for name in os.listdir(folder) if name.endswith((".dist-info", ".egg-info"))]  # noqa: PTH208
    except OSError:
        return []


def _of_package(metadata: Path) -> Iterator[tuple[str, EntryPoint]]:
    try:
        text = (metadata / "entry_points.txt").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return
    if _PREFIX not in text:
        return
    # The packaging specification defines the name of the folder: name-version.dist-info.
    distribution, _, version = metadata.stem.partition("-")
    section = ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("["):
            section = line.strip("[] ")
        elif section.startswith(_PREFIX) and "=" in line and not line.startswith(("#", ";")):
            name, _, target = line.partition("=")
            target = target.split("[", 1)[0].strip()
            yield section, EntryPoint(name.strip(), target, distribution, version.split("-", 1)[0])
