"""A report of everything that lies in some folders: sweeps, shards of sweeps, and builds."""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from winml_dag import __version__
from winml_dag.errors import InputError
from winml_dag.pipeline.manifest import read_manifest
from winml_dag.pipeline.sweep.result import SharedGraph, SweepResult
from winml_dag.report.built import Built, built_of
from winml_dag.report.cellrow import folder_of, model_of, models_known, row_of_build, row_of_cell, target_of
from winml_dag.report.found import Found, FoundBuild, find
from winml_dag.report.modelnames import with_short_names
from winml_dag.report.pareto import judged
from winml_dag.report.row import Report, Row
from winml_dag.report.shards import Joined, joined

# Of builds that no sweep names, a notice names so many.
_MOST_NAMED = 5


def collect(folders: Sequence[Path]) -> Report:
    """The report of all that lies in *folders* and below.

    Sweeps of one name with the same axes are shards: each cell is told as that one tells it which built it. What is
    damaged or not ours is told in ``notices``.

    Raises:
        InputError: for a folder that is not there, and when no build or sweep lies in any.
    """
    found = [find(folder) for folder in folders]
    notices = [notice for each in found for notice in each.notices]
    builds = {place_of(build.folder): build for each in found for build in each.builds}
    rows: list[Row] = []
    taken: set[str] = set()
    names: set[str] = set()
    sweeps = [_with_free_names(sweep, names) for sweep in joined([sweep for each in found for sweep in each.sweeps])]
    for sweep in sweeps:
        rows += _rows_of_sweep(sweep, builds)
        taken |= set(_folders(sweep))
    others = [build for place, build in builds.items() if place not in taken]
    below = [place_of(sweep.folder) for each in found for sweep in each.sweeps]
    left = [build for build in others if any(_is_below(build.folder, place) for place in below)]
    notices += _unnamed(left)
    plain = [_row_of(build) for build in others if build not in left]
    rows += [replace(row, name=_free(row.name, row.folder, names)) for row in plain]
    rows = with_short_names(rows)
    if not rows:
        raise InputError(_nothing(folders, notices), advice="Give the output folder of a build or of a sweep.")
    results = [sweep.result for sweep in sweeps]
    return _report(found, results, judged(rows, [goal for one in results for goal in one.goals]), notices)


def _row_of(build: FoundBuild) -> Row:
    return row_of_build(build.name, build.folder, built_of(build.manifest, build.folder))


def _rows_of_sweep(sweep: Joined, builds: Mapping[str, FoundBuild]) -> list[Row]:
    folders = {cell.name: folder_of(cell, sweep.places[cell.name]) for cell in sweep.result.cells}
    built = {
        name: built_of(build.manifest, folder)
        for name, folder in folders.items()
        if (build := builds.get(place_of(folder)) or _outside(folder)) is not None
    }
    targets = _targets(sweep.result, built)
    models = models_known(sweep.result, {name: its.model for name, its in built.items()})
    return [
        row_of_cell(
            cell,
            folders[cell.name],
            built.get(cell.name),
            sweep.result,
            model_of(cell, models),
            target_of(cell, targets),
        )
        for cell in sweep.result.cells
    ]


def _folders(sweep: Joined) -> Iterator[str]:
    """All folders that may belong to it: those of its cells in each of its parts, and where winners were put."""
    for top in sweep.folders:
        yield from (place_of(folder_of(cell, top)) for cell in sweep.result.cells)
        yield from (place_of(top / goal.folder) for goal in sweep.result.goals if goal.folder)


def _outside(folder: Path) -> FoundBuild | None:
    """The build in a cell's folder that is not below the sweep's."""
    manifest = read_manifest(folder)
    return None if manifest is None else FoundBuild(folder, folder.name, manifest)


def _targets(sweep: SweepResult, built: Mapping[str, Built]) -> dict[tuple[str, str], tuple[str, str] | None]:
    """By axis and label, the provider and device of its cells; None where they have different ones."""
    known: dict[tuple[str, str], tuple[str, str] | None] = {}
    for cell in sweep.cells:
        if (its := built.get(cell.name)) is None:
            continue
        for label in cell.values.items():
            target = its.ep, its.device
            known[label] = target if known.get(label, target) == target else None
    return known


def _with_free_names(sweep: Joined, taken: set[str]) -> Joined:
    """*sweep* with names of cells that no other sweep has."""
    return sweep.named({cell.name: _free(cell.name, sweep.result.name, taken) for cell in sweep.result.cells})


def _free(name: str, prefix: str, taken: set[str]) -> str:
    free = name if name not in taken else f"{prefix}: {name}"
    number = 2
    while free in taken:
        free, number = f"{prefix}: {name} ({number})", number + 1
    taken.add(free)
    return free


def _report(found: Sequence[Found], sweeps: Sequence[SweepResult], rows: tuple[Row, ...], notices: list[str]) -> Report:
    one = sweeps[0] if len(sweeps) == 1 else None
    names = dict.fromkeys(sweep.name for sweep in sweeps) or dict.fromkeys(each.folder.resolve().name for each in found)
    if one is not None and one.interrupted:
        notices = ["The run did not come to its end, or goes on still; another one goes on where it ended.", *notices]
    if any(row.latency is not None and row.latency.emulated for row in rows):
        notices = [
            *notices,
            "Latencies of an emulated NPU say nothing of the device; none of them makes a build better.",
        ]
    return Report(
        name=", ".join(names),
        subjects=tuple(str(each.folder) for each in found),
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
    """What to know of builds within the folder of a sweep that are none of its cells."""
    for build in builds[:_MOST_NAMED]:
        yield f"{build.folder} has a build that is no cell of the sweep: it is left out."
    if len(builds) > _MOST_NAMED:
        yield f"{len(builds) - _MOST_NAMED} more folders have builds that are no cells of the sweep."


def _nothing(folders: Sequence[Path], notices: Sequence[str]) -> str:
    where = ", ".join(map(str, folders))
    return " ".join((f"There is no build of ours in {where}.", *notices))


def place_of(folder: Path) -> str:
    """What tells whether two paths name one folder."""
    return os.path.normcase(os.path.abspath(folder))  # noqa: PTH100 - links stay what they are


def _is_below(folder: Path, top: str) -> bool:
    place = place_of(folder)
    return place == top or place.startswith(top + os.sep)
