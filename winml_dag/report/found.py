"""What lies in a folder that a report can be of: what became of sweeps, and the manifests of builds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from winml_dag.errors import InputError
from winml_dag.pipeline.layout import MANIFEST
from winml_dag.pipeline.manifest import Manifest, read_manifest
from winml_dag.pipeline.sweep.result import SWEEP, SweepResult
from winml_dag.pipeline.sweep.state import read_sweep

# Where builds of stages of a recipe's own have their manifests, below the recipe's folder.
KEPT = ".winml-dag"


@dataclass(frozen=True)
class FoundSweep:
    """The content of a ``sweep.json``, and the folder that it lies in."""

    folder: Path
    result: SweepResult


@dataclass(frozen=True)
class FoundBuild:
    """A build's manifest. ``name``: its folder below the one that was looked through, with ``/``."""

    folder: Path
    name: str
    manifest: Manifest


@dataclass(frozen=True)
class Found:
    """What lies below one folder. ``notices``: what could not be read, a sentence each."""

    folder: Path
    sweeps: tuple[FoundSweep, ...]
    builds: tuple[FoundBuild, ...]
    notices: tuple[str, ...]


def find(folder: Path) -> Found:
    """Everything that a report can be of in *folder* and below.

    Raises:
        InputError: when there is no such folder.
    """
    if not folder.is_dir():
        what = "is no folder" if folder.exists() else "does not exist"
        raise InputError(f"{folder} {what}.", advice="Give the output folder of a build or of a sweep.")
    sweeps, builds, notices = [], [], []
    for where, names in _walk(folder):
        if SWEEP in names:
            try:
                sweep = read_sweep(where)
            except InputError as error:
                notices.append(f"{error.message} Its builds are told one by one.")
            else:
                sweeps += [] if sweep is None else [FoundSweep(where, sweep)]
        if MANIFEST in names:
            manifest = read_manifest(where)
            if manifest is None:
                notices.append(f"{where / MANIFEST} is damaged, or no manifest of this version: it is left out.")
            else:
                builds.append(FoundBuild(where, _name(folder, where), manifest))
    return Found(folder, tuple(sweeps), tuple(builds), tuple(notices))


def _walk(folder: Path) -> Iterator[tuple[Path, set[str]]]:
    """Every folder below, in the order of names, with the names of its files; hidden ones hold what is no result."""
    for where, below, names in os.walk(folder):
        below[:] = sorted(name for name in below if not name.startswith(".") or name == KEPT)
        yield Path(where), set(names)


def _name(top: Path, folder: Path) -> str:
    """*folder* below *top*; of a build of stages of a recipe's own without where its manifest is kept."""
    parts = [part for part in folder.relative_to(top).parts if part != KEPT]
    return "/".join(parts) or top.resolve().name
