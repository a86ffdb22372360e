"""Builds the corpus with winml_dag: many models and all their cells as one sweep, by the command line.

The sweep runs in one process with all its stages, which is ten times as fast. A model that crashes that process is
built again separately, with a process per stage, as for users.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from cells import Cell
from oneprocess import OneProcess, Said

# A sweep without output for this long hangs.
_SWEEP_SECONDS = 900.0


@dataclass(frozen=True)
class Subject:
    """A model of the corpus in its folder.

    Attributes:
        export: its dimensions in recipes for fixed shapes.
        may_refuse: by target or cell, why a rejection is correct.
        calibration: number of its samples used for calibration.
    """

    name: str
    family: str
    folder: Path
    export: Mapping[str, Any]
    may_refuse: Mapping[str, str]
    calibration: int
    cells: Sequence[Cell]


@dataclass(frozen=True)
class Built:
    """The outcome of one cell: its model, or the message to the user."""

    model: Path | None
    told: str
    seconds: float


class Builder:
    """Builds subjects in *folder*, with a cache there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: OneProcess | None = None

    def close(self) -> None:
        if self._process is not None:
            self._process.close()

    def build(self, subjects: Sequence[Subject]) -> dict[tuple[str, str], Built]:
        """Return the outcome by subject and cell."""
        found = self._sweep([replace(subject, cells=_cells_of(subject, sized=False)) for subject in subjects])
        for subject in subjects:
            if cells := _cells_of(subject, sized=True):
                found |= self._sweep([replace(subject, cells=cells)])
        return found

    def _sweep(self, subjects: Sequence[Subject]) -> dict[tuple[str, str], Built]:
        subjects = [subject for subject in subjects if subject.cells]
        if not subjects:
            return {}
        said = self._together(subjects)
        found = None if said is None else _cells(said, self._out(subjects))
        if found is not None:
            return found
        if len(subjects) > 1:
            return {key: one for subject in subjects for key, one in self._sweep([subject]).items()}
        [subject] = subjects
        return self._apart(subject)

    def _out(self, subjects: Sequence[Subject]) -> Path:
        return self._folder / "built" / f"{subjects[0].name}-{subjects[0].cells[0].ep}"

    def _together(self, subjects: Sequence[Subject]) -> Said | None:
        """Build all in one process. None if the process crashed; not tried on Windows and macOS."""
        if sys.platform != "linux":
            return None
        if self._process is None:
            self._process = OneProcess()
        process = self._process
        watch = threading.Timer(_SWEEP_SECONDS, process._process.kill)
        watch.start()
        try:
            return process.run(self._arguments(subjects), self._folder, self._environment())
        except (ValueError, OSError):  # no answer: a native crash, or it was stopped by the timeout
            with contextlib.suppress(OSError):
                process.close()
            self._process = None
            return None
        finally:
            watch.cancel()

    def _apart(self, subject: Subject) -> dict[tuple[str, str], Built]:
        command = [sys.executable, "-m", "winml_dag", *self._arguments([subject])]
        finished = subprocess.run(
            command, cwd=self._folder, env=self._environment(), capture_output=True, text=True, check=False
        )
        said = Said(finished.returncode, finished.stdout, finished.stderr)
        found = _cells(said, self._out([subject]))
        if found is not None:
            return found
        # Nothing was started: a fault in the model applies to all its cells.
        told = Built(None, said.messages.strip() or f"exit code {said.code}, and no word", 0.0)
        return {(subject.name, cell.name): told for cell in subject.cells}

    def _arguments(self, subjects: Sequence[Subject]) -> list[str]:
        recipe = self._folder / "recipes" / f"{self._out(subjects).name}.yaml"
        recipe.parent.mkdir(parents=True, exist_ok=True)
        recipe.write_text(yaml.safe_dump(_sweep(subjects), sort_keys=False, allow_unicode=True), encoding="utf-8")
        return ["build", "-c", str(recipe), "-o", str(self._out(subjects)), "--format", "json"]

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "WINML_DAG_CACHE_DIR": str(self._folder / "cache"), "HF_HUB_OFFLINE": "1"}


def _cells_of(subject: Subject, *, sized: bool) -> list[Cell]:
    """Return the cells whose recipe sets sizes of dimensions, or the others."""
    return [cell for cell in subject.cells if (bool(subject.export) and cell.ep != "cpu") == sized]


def _sweep(subjects: Sequence[Subject]) -> dict[str, Any]:
    cells = list(dict.fromkeys(cell for subject in subjects for cell in subject.cells))
    models, exclude = [], []
    for subject in subjects:
        entry: dict[str, Any] = {"name": subject.name, "model": str(subject.folder / "model.onnx")}
        if _is_data(subject.folder / "samples.npz"):
            entry["quant"] = {"calibration_data": str(subject.folder / "samples.npz"), "samples": subject.calibration}
        if subject.export and all(cell.ep != "cpu" for cell in subject.cells):
            entry["export"] = dict(subject.export)
        models.append(entry)
        exclude += [
            {"model": subject.name, "cell": _label(cell), "because": "not asked for"}
            for cell in cells
            if cell not in subject.cells
        ]
    entries = [{"name": _label(cell), "ep": cell.ep, "precision": cell.precision} for cell in cells]
    return {"matrix": {"model": models, "cell": entries, **({"exclude": exclude} if exclude else {})}}


def _label(cell: Cell) -> str:
    return cell.name.replace("/", "-")


def _is_data(path: Path) -> bool:
    """Return whether *path* has only arrays and no sequences, which calibration data does not support."""
    from zipfile import ZipFile

    with ZipFile(path) as archive:
        names = archive.namelist()
    return bool(names) and not any(name.startswith("item of a sequence:") for name in names)


def _cells(said: Said, out: Path) -> dict[tuple[str, str], Built] | None:
    """Return the cells in *said*; None without any."""
    try:
        told = json.loads(said.out)["cells"]
    except (ValueError, KeyError):
        return None
    found = {}
    for cell in told:
        name, label = cell["values"]["model"], cell["values"]["cell"]
        key = name, label.replace("-", "/", 1)
        if cell["status"] == "skipped":
            continue
        failure = cell["failure"] or {}
        words = " ".join(filter(None, (failure.get("error", cell["why"]), failure.get("advice", ""))))
        is_built = cell["status"] in ("built", "up to date")
        model = out / cell["folder"] / "model.onnx"
        found[key] = Built(model if is_built else None, "" if is_built else words, cell["elapsed_seconds"])
    return found
