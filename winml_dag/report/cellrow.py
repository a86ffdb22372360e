"""Rows of a report, from what a sweep says of a cell and what the manifest in its folder says of the build."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from winml_dag.pipeline.layout import BUILD_CONFIG
from winml_dag.pipeline.sweep.result import CellResult, CellStatus, GoalResult, Measured, SweepResult
from winml_dag.report.assessed import accuracy_of, held_to, latency_of, quality_of
from winml_dag.report.built import Built
from winml_dag.report.row import Row

# The parts of a row that may be None, each for a reason.
_PARTS = ("size", "latency", "quality", "accuracy", "placement", "nodes_quantized")
# Axes whose labels say more to their user than what they came to.
_MODEL, _PRECISION, _AUTO = "model", "precision", "auto"
_TARGETS = ("ep", "device", "target")


def row_of_build(name: str, folder: Path, built: Built) -> Row:
    """The row of a build outside of a sweep, of which *folder* has the manifest."""
    not_measured = "nothing was measured: a sweep does that, with measure: [perf, eval]"
    row = Row(
        name=name,
        values={},
        model=built.model,
        precision=built.precision,
        ep=built.ep,
        device=built.device,
        status=CellStatus.BUILT,
        reached=_reached(built),
        folder=str(folder),
        stages=built.stages,
        seconds=built.seconds,
        saved_seconds=built.saved_seconds,
        command=_again(folder),
        missing={**built.missing, "latency": not_measured, "accuracy": not_measured},
        quality=built.quality,
    )
    return _with_build(row, built)


def row_of_cell(
    cell: CellResult, folder: Path, built: Built | None, sweep: SweepResult, model: str, target: tuple[str, str]
) -> Row:
    """The row of *cell* of *sweep*, whose output folder is *folder*; *built* is what the manifest there says, and None
    without one.

    *model*, *target*: what is known of the model, and of the provider and device, of a cell that has none.
    """
    told = built if cell.is_there else None
    is_through = not sweep.interrupted
    own = [goal for goal in sweep.goals if any(candidate.cell == cell.name for candidate in goal.candidates)]
    latency, no_latency = latency_of(cell.perf, is_through=is_through)
    accuracy, no_accuracy = accuracy_of(cell.eval, own, is_through=is_through)
    quality = (None if told is None else told.quality) or quality_of(cell.eval)
    why = _why(cell, built, folder)
    missing = dict.fromkeys(_PARTS, why) if told is None else {**told.missing}
    if cell.is_there:
        missing |= {"latency": no_latency, "accuracy": no_accuracy}
    found = {"latency": latency, "accuracy": accuracy, "quality": quality}
    ep, device = target if built is None else (built.ep, built.device)
    row = Row(
        name=cell.name,
        values=cell.values,
        model=_label(cell, _MODEL) or (model if built is None else built.model),
        precision=_label(cell, _PRECISION) or ("" if built is None else built.precision),
        ep=ep,
        device=device,
        status=cell.status,
        why=cell.why or why,
        reached=cell.reached,
        folder=str(folder),
        stages=cell.stages or (() if told is None else told.stages),
        failure=cell.failure,
        latency=latency,
        quality=None if quality is None else held_to(quality, own),
        accuracy=accuracy,
        seconds=cell.elapsed_seconds,
        saved_seconds=cell.saved_seconds,
        command=cell.command,
        trial_of=cell.trial_of,
        winner_of=tuple(_goal_name(goal) for goal in own if goal.winner == cell.name),
        missing={part: reason for part, reason in missing.items() if reason and found.get(part) is None},
        unmeasured=tuple(part for part, tried in (("latency", cell.perf), ("accuracy", cell.eval)) if _failed(tried)),
    )
    return row if told is None else _with_build(row, told)


def _failed(tried: Measured | None) -> bool:
    return tried is not None and bool(tried.error)


def folder_of(cell: CellResult, sweep: Path) -> Path:
    """Where *cell* of the sweep in *sweep* lies, as its user would write it."""
    return Path(os.path.normpath(sweep / cell.folder))


def _with_build(row: Row, built: Built) -> Row:
    """*row* with all that only a manifest tells."""
    return replace(
        row,
        task=built.task,
        size=built.size,
        placement=built.placement,
        nodes_quantized=built.nodes_quantized,
        nodes_skipped=built.nodes_skipped,
        skipped_reasons=built.skipped_reasons,
        made_in_seconds=built.made_in_seconds,
        peak_memory_bytes=built.peak_memory_bytes,
        versions=built.versions,
        digest=built.digest,
        notices=built.notices,
        components=built.components,
    )


def _reached(built: Built) -> str | None:
    return next((run.id for run in reversed(built.stages) if run.status != "skipped"), None)


def _again(folder: Path) -> str:
    """What builds the same, from the recipe that every build leaves beside its model."""
    config = folder / BUILD_CONFIG
    if not config.exists():
        return ""
    return shlex.join(("winml-dag", "build", "-c", str(config), "-o", f"{folder}-again"))


def _label(cell: CellResult, axis: str) -> str:
    label = cell.values.get(axis, "")
    return "" if label == _AUTO else label


def _why(cell: CellResult, built: Built | None, folder: Path) -> str:
    """Why nothing is known of *cell*; of one that is there, of its folder."""
    if cell.is_there:
        return "" if built is not None else f"{folder} has no manifest any more; build the cell again"
    if cell.failure is not None:
        at = f"failed in {cell.failure.stage}" if cell.failure.stage else str(cell.status)
        return f"{at}: {cell.failure.error}"
    return f"{cell.status}: {cell.why}" if cell.why else str(cell.status)


def _goal_name(goal: GoalResult) -> str:
    """``latency of bert, npu``."""
    group = ", ".join(goal.group.values())
    return f"{goal.minimize} of {group}" if group else goal.minimize


def models_known(sweep: SweepResult, models: Mapping[str, str]) -> dict[tuple[tuple[str, str], ...], str | None]:
    """The model of those cells of *sweep* that differ only in what is made of it; None where they have several.
    *models*: by cell that has a manifest.
    """
    known: dict[tuple[tuple[str, str], ...], str | None] = {}
    for cell in sweep.cells:
        if (model := models.get(cell.name)) is not None:
            key = _of_which(cell)
            known[key] = model if known.get(key, model) == model else None
    return known


def model_of(cell: CellResult, known: Mapping[tuple[tuple[str, str], ...], str | None]) -> str:
    """The model of a cell that has no manifest, by what is *known*; its own name where that is nothing, as of recipes
    that are built together without a matrix.
    """
    return (known.get(_of_which(cell)) if cell.values else None) or cell.name


def _of_which(cell: CellResult) -> tuple[tuple[str, str], ...]:
    """The labels of *cell* that may say which model it is of: no precision, no target, no field of a section."""
    return tuple(
        (axis, label)
        for axis, label in cell.values.items()
        if axis not in (_PRECISION, *_TARGETS) and ("." not in axis or axis.startswith("loader."))
    )


def target_of(cell: CellResult, known: Mapping[tuple[str, str], tuple[str, str] | None]) -> tuple[str, str]:
    """The provider and device of a cell that has no manifest, by what all cells with one of its labels have."""
    for axis, label in cell.values.items():
        if axis not in (_MODEL, _PRECISION) and (found := known.get((axis, label))) is not None:
            return found
    return cell.values.get("ep", ""), cell.values.get("device", "")
