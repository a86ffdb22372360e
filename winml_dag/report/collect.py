"""Collects a report from folders: sweeps, shards of sweeps, and builds, with one row per build."""

from __future__ import annotations

import datetime
import os
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from winml_dag import __version__
from winml_dag.errors import InputError
from winml_dag.pipeline.layout import BUILD_CONFIG
from winml_dag.pipeline.manifest import read_manifest
from winml_dag.pipeline.sweep.result import CellResult, GoalResult, SharedGraph, SweepResult
from winml_dag.recipe.fields import is_path_like
from winml_dag.report.built import accuracy_of, held_to, latency_of, quality_of, row_of_build
from winml_dag.report.folders import FoundBuild, Joined, find, joined
from winml_dag.report.pareto import judged
from winml_dag.report.row import Report, Row

K = TypeVar("K")
V = TypeVar("V")

# Maximum builds outside any sweep that notices name.
_MOST_NAMED = 5


def collect(folders: Sequence[Path]) -> Report:
    """Return the report on everything in *folders* and below.

    Sweeps with the same name and axes are shards: each cell's result comes from the shard that built it. Damaged and
    foreign files are reported in ``notices``.

    Raises:
        InputError: for a folder that does not exist, and when none contains a build or sweep.
    """
    found = find(*folders)
    builds = {place_of(build.folder): build for build in found.builds}
    names: set[str] = set()
    sweeps = [
        sweep.named({cell.name: _free(cell.name, sweep.result.name, names) for cell in sweep.result.cells})
        for sweep in joined(found.sweeps)
    ]
    rows = [row for sweep in sweeps for row in _rows_of_sweep(sweep, builds)]
    taken = {place for sweep in sweeps for place in _folders(sweep)}
    others = {place: build for place, build in builds.items() if place not in taken}
    tops = tuple(place_of(sweep.folder) + os.sep for sweep in found.sweeps)
    left = {place: build for place, build in others.items() if (place + os.sep).startswith(tops)}
    plain = [_row_of(build) for place, build in others.items() if place not in left]
    rows += [replace(row, name=_free(row.name, row.folder, names)) for row in plain]
    notices = [*found.notices, *_unnamed([*left.values()])]
    if not rows:
        where = ", ".join(map(str, folders))
        raise InputError(
            " ".join((f"No winml-dag build was found in {where}.", *notices)),
            advice="Give the output folder of a build or of a sweep.",
        )
    results = [sweep.result for sweep in sweeps]
    goals = [goal for result in results for goal in result.goals]
    return _report(folders, results, judged(_with_short_names(rows), goals), notices)


def _row_of(build: FoundBuild) -> Row:
    """Return the row of a build outside a sweep."""
    row = row_of_build(build.name, build.manifest, build.folder)
    not_measured = "not measured: only sweeps measure, with measure: [perf, eval]"
    missing = {**row.missing, "latency": not_measured, "accuracy": not_measured}
    return replace(row, command=_again(build.folder), missing=missing)


def _rows_of_sweep(sweep: Joined, builds: Mapping[str, FoundBuild]) -> list[Row]:
    folders = {cell.name: _folder_of(cell, sweep.places[cell.name]) for cell in sweep.result.cells}
    built = {
        name: row_of_build(name, build.manifest, folder)
        for name, folder in folders.items()
        if (build := builds.get(place_of(folder)) or _outside(folder)) is not None
    }
    there = [(cell, built[cell.name]) for cell in sweep.result.cells if cell.name in built]
    models = _agreed((_of_which(cell), row.model) for cell, row in there)
    targets = _agreed((label, (row.ep, row.device)) for cell, row in there for label in cell.values.items())
    return [
        _row_of_cell(
            cell,
            folders[cell.name],
            built.get(cell.name),
            sweep.result,
            _model_of(cell, models),
            _target_of(cell, targets),
        )
        for cell in sweep.result.cells
    ]


def _folders(sweep: Joined) -> Iterator[str]:
    """Yield all folders that may belong to the sweep: those of its cells in each shard, and those of its winners."""
    for top in sweep.folders:
        yield from (place_of(_folder_of(cell, top)) for cell in sweep.result.cells)
        yield from (place_of(top / goal.folder) for goal in sweep.result.goals if goal.folder)


def _outside(folder: Path) -> FoundBuild | None:
    """Return the build in a cell's folder that is not below the sweep's."""
    manifest = read_manifest(folder)
    return None if manifest is None else FoundBuild(folder, folder.name, manifest)


def _agreed(pairs: Iterable[tuple[K, V]]) -> dict[K, V]:
    """Return the value of each key that has only one."""
    found: dict[K, set[V]] = defaultdict(set)
    for key, value in pairs:
        found[key].add(value)
    return {key: next(iter(values)) for key, values in found.items() if len(values) == 1}


def _free(name: str, prefix: str, taken: set[str]) -> str:
    free = name if name not in taken else f"{prefix}: {name}"
    number = 2
    while free in taken:
        free, number = f"{prefix}: {name} ({number})", number + 1
    taken.add(free)
    return free


def _report(
    folders: Sequence[Path], sweeps: Sequence[SweepResult], rows: tuple[Row, ...], notices: list[str]
) -> Report:
    one = sweeps[0] if len(sweeps) == 1 else None
    names = dict.fromkeys([sweep.name for sweep in sweeps] or [folder.resolve().name for folder in folders])
    if one is not None and one.interrupted:
        notices = ["The run was interrupted, or is still running. To continue, build again.", *notices]
    if any(row.latency is not None and row.latency.emulated for row in rows):
        notices = [*notices, "Latencies of an emulated NPU say nothing about the device, so they are not compared."]
    return Report(
        name=", ".join(names),
        subjects=tuple(map(str, folders)),
        made_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        rows=rows,
        axes={} if one is None else one.axes,
        graph=SharedGraph(builds=len(rows)) if one is None else one.graph,
        goals=tuple(goal for sweep in sweeps for goal in sweep.goals),
        host={} if one is None else one.host,
        elapsed_seconds=sum(sweep.elapsed_seconds for sweep in sweeps),
        began_at=min((sweep.began_at for sweep in sweeps), default=""),
        made_by=f"winml_dag {__version__}",
        notices=tuple(dict.fromkeys(notices)),
    )


def _unnamed(builds: Sequence[FoundBuild]) -> Iterator[str]:
    """Yield notices on builds within the folder of a sweep that are none of its cells."""
    for build in builds[:_MOST_NAMED]:
        yield f"{build.folder} has a build that is not a cell of the sweep; it was skipped."
    if len(builds) > _MOST_NAMED:
        yield f"{len(builds) - _MOST_NAMED} more folders have builds that are not cells of the sweep."


def place_of(folder: Path) -> str:
    """Return a normalized path, equal for two paths of the same folder."""
    return os.path.normcase(os.path.abspath(folder))  # noqa: PTH100 - links stay what they are


# The fields of a row that may be None, each with a reason.
_PARTS = ("size", "latency", "quality", "accuracy", "placement", "nodes_quantized")
# Axes whose labels are more useful than their resolved values.
_MODEL, _PRECISION, _AUTO = "model", "precision", "auto"
_TARGETS = ("ep", "device", "target")


def _row_of_cell(
    cell: CellResult, folder: Path, built: Row | None, sweep: SweepResult, model: str, target: tuple[str, str]
) -> Row:
    """Return the row of *cell* of *sweep*, with the output folder *folder*.

    *built* is the row of the manifest there, None without one. *model*, *target*: the model, and the provider and
    device, inferred for a cell without a manifest.
    """
    is_through = not sweep.interrupted
    own = [goal for goal in sweep.goals if any(candidate.cell == cell.name for candidate in goal.candidates)]
    latency, no_latency = latency_of(cell.perf, is_through=is_through)
    accuracy, no_accuracy = accuracy_of(cell.eval, own, is_through=is_through)
    why = _why(cell, built, folder)
    known = built or Row(cell.name, cell.values, model, "", *target, cell.status)
    row = known
    if built is None or not cell.is_there:
        row = Row(cell.name, cell.values, known.model, known.precision, known.ep, known.device, cell.status)
        row = replace(row, missing=dict.fromkeys(_PARTS, why))
    quality = row.quality or quality_of(cell.eval)
    not_measured = {"latency": no_latency, "accuracy": no_accuracy} if cell.is_there else {}
    found = {"latency": latency, "accuracy": accuracy, "quality": quality}
    tries = {"latency": cell.perf, "accuracy": cell.eval}
    return replace(
        row,
        name=cell.name,
        values=cell.values,
        model=_label(cell, _MODEL) or row.model,
        precision=_label(cell, _PRECISION) or row.precision,
        status=cell.status,
        why=cell.why or why,
        reached=cell.reached,
        folder=str(folder),
        stages=cell.stages or row.stages,
        failure=cell.failure,
        latency=latency,
        quality=None if quality is None else held_to(quality, own),
        accuracy=accuracy,
        seconds=cell.elapsed_seconds,
        saved_seconds=cell.saved_seconds,
        command=cell.command,
        trial_of=cell.trial_of,
        winner_of=tuple(_goal_name(goal) for goal in own if goal.winner == cell.name),
        missing={
            part: reason
            for part, reason in {**row.missing, **not_measured}.items()
            if reason and found.get(part) is None
        },
        unmeasured=tuple(part for part, tried in tries.items() if tried is not None and tried.error),
    )


def _folder_of(cell: CellResult, sweep: Path) -> Path:
    """Return the folder of *cell* of the sweep in *sweep*, as a user would write it."""
    return Path(os.path.normpath(sweep / cell.folder))


def _again(folder: Path) -> str:
    """Return a command that repeats the build, from the recipe that every build writes next to its model."""
    config = folder / BUILD_CONFIG
    if not config.exists():
        return ""
    return shlex.join(("winml-dag", "build", "-c", str(config), "-o", f"{folder}-again"))


def _label(cell: CellResult, axis: str) -> str:
    label = cell.values.get(axis, "")
    return "" if label == _AUTO else label


def _why(cell: CellResult, built: Row | None, folder: Path) -> str:
    """Return why *cell* has no result; for an existing cell, what is wrong with its folder."""
    if cell.is_there:
        return "" if built is not None else f"{folder} has no manifest; build the cell again"
    if cell.failure is not None:
        return cell.failure.sentence
    return f"{cell.status}: {cell.why}" if cell.why else str(cell.status)


def _goal_name(goal: GoalResult) -> str:
    """Format ``latency of bert, npu``."""
    group = ", ".join(goal.group.values())
    return f"{goal.minimize} of {group}" if group else goal.minimize


def _model_of(cell: CellResult, known: Mapping[tuple[tuple[str, str], ...], str]) -> str:
    """Return the model of a cell without a manifest: that of all cells which differ only in how the model is built.

    Where these have several models, as with recipes that are built together without a matrix, it is the cell's own
    name.
    """
    return (known.get(_of_which(cell)) if cell.values else None) or cell.name


def _of_which(cell: CellResult) -> tuple[tuple[str, str], ...]:
    """Return the labels of *cell* that may identify its model: no precision, no target, no field of a section."""
    return tuple(
        (axis, label)
        for axis, label in cell.values.items()
        if axis not in (_PRECISION, *_TARGETS) and ("." not in axis or axis.startswith("loader."))
    )


def _target_of(cell: CellResult, known: Mapping[tuple[str, str], tuple[str, str]]) -> tuple[str, str]:
    """Return the provider and device of a cell without a manifest, from the cells that share one of its labels."""
    for axis, label in cell.values.items():
        if axis not in (_MODEL, _PRECISION) and (found := known.get((axis, label))) is not None:
            return found
    return cell.values.get("ep", ""), cell.values.get("device", "")


# A report made on Linux may cover builds from Windows.
_SEPARATORS = re.compile(r"[/\\]+")


def _with_short_names(rows: Sequence[Row]) -> list[Row]:
    """Return *rows* with each path shortened to the fewest last components that are unique, without ``.onnx``."""
    ends = {row.model: _ends(row.model) for row in rows}
    uses = Counter(end for each in ends.values() for end in each)
    short = {model: next((end for end in each if uses[end] == 1), model) for model, each in ends.items()}
    return [replace(row, model=short[row.model]) for row in rows]


def _ends(model: str) -> list[str]:
    """Return candidates for the short name of *model*, the shortest first."""
    # After a space may follow the module, if only that was built.
    if not is_path_like(model.partition(" ")[0]):
        return [model]
    parts = _SEPARATORS.split(re.sub(r"\.onnx$", "", model.rstrip("/\\"), flags=re.IGNORECASE))
    return ["/".join(parts[-count:]) for count in range(1, len(parts) + 1)]
