"""Finds what a report can cover: sweeps, with their shards joined into one, and manifests of builds."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from winml_dag.errors import InputError
from winml_dag.names import KEPT
from winml_dag.pipeline.layout import MANIFEST
from winml_dag.pipeline.manifest import Manifest, read_manifest
from winml_dag.pipeline.sweep.result import (
    SWEEP,
    Candidate,
    CellResult,
    CellStatus,
    GoalResult,
    SharedGraph,
    SweepResult,
    read_sweep,
)


@dataclass(frozen=True)
class FoundSweep:
    """The content of a ``sweep.json``, and its folder."""

    folder: Path
    result: SweepResult


@dataclass(frozen=True)
class FoundBuild:
    """The manifest of a build. ``name``: its folder relative to the searched one, with ``/``."""

    folder: Path
    name: str
    manifest: Manifest


@dataclass(frozen=True)
class Found:
    """The contents of folders. ``notices``: a sentence on each file that could not be read."""

    sweeps: tuple[FoundSweep, ...]
    builds: tuple[FoundBuild, ...]
    notices: tuple[str, ...]


def find(*folders: Path) -> Found:
    """Return everything that a report can cover in *folders* and below.

    Raises:
        InputError: when a folder does not exist.
    """
    sweeps, builds, notices = [], [], []
    for folder, where, names in _walk(folders):
        if SWEEP in names:
            try:
                sweep = read_sweep(where)
            except InputError as error:
                notices.append(f"{error.message} Its builds are listed one by one.")
            else:
                sweeps += [] if sweep is None else [FoundSweep(where, sweep)]
        if MANIFEST in names:
            manifest = read_manifest(where)
            if manifest is None:
                notices.append(f"{where / MANIFEST} is damaged, or not a manifest of this version; it was skipped.")
            else:
                builds.append(FoundBuild(where, _name(folder, where), manifest))
    return Found(tuple(sweeps), tuple(builds), tuple(notices))


def _walk(folders: Sequence[Path]) -> Iterator[tuple[Path, Path, set[str]]]:
    """Yield each of *folders* with every folder below it, in order of names, and the file names there."""
    for folder in folders:
        if not folder.is_dir():
            what = "is not a folder" if folder.exists() else "does not exist"
            raise InputError(f"{folder} {what}.", advice="Give the output folder of a build or of a sweep.")
        for where, below, names in os.walk(folder):
            # Hidden folders contain no results.
            below[:] = sorted(name for name in below if not name.startswith(".") or name == KEPT)
            yield folder, Path(where), set(names)


def _name(top: Path, folder: Path) -> str:
    """Return *folder* relative to *top*, for user-defined stages without the folder that holds the manifest."""
    parts = [part for part in folder.relative_to(top).parts if part != KEPT]
    return "/".join(parts) or top.resolve().name


@dataclass(frozen=True)
class Joined:
    """A complete sweep.

    ``folders``: those of its shards. ``places``: per cell, the folder that its result comes from.
    """

    result: SweepResult
    folders: tuple[Path, ...]
    places: Mapping[str, Path]

    def named(self, names: Mapping[str, str]) -> Joined:
        """Return the sweep with its cells renamed according to *names*."""
        result = self.result
        cells = (replace(cell, name=names[cell.name], trial_of=_renamed(cell.trial_of, names)) for cell in result.cells)
        goals = (_goal_named(goal, names) for goal in result.goals)
        places = {names[name]: place for name, place in self.places.items()}
        return replace(self, result=replace(result, cells=tuple(cells), goals=tuple(goals)), places=places)


def joined(sweeps: Sequence[FoundSweep]) -> list[Joined]:
    """Join all sweeps that share name and axes."""
    parts: dict[tuple[object, ...], list[FoundSweep]] = {}
    for found in sweeps:
        axes = tuple((name, tuple(labels)) for name, labels in found.result.axes.items())
        # Without axes it consists of several recipes, which only their names identify.
        names = () if axes else tuple(cell.name for cell in found.result.cells)
        parts.setdefault((found.result.name, axes, names), []).append(found)
    return [_join(same) for same in parts.values()]


def _renamed(name: str | None, names: Mapping[str, str]) -> str | None:
    return None if name is None else names.get(name, name)


def _goal_named(goal: GoalResult, names: Mapping[str, str]) -> GoalResult:
    candidates = tuple(replace(each, cell=names.get(each.cell, each.cell)) for each in goal.candidates)
    search = goal.search
    if search is not None:
        search = replace(search, cell=names.get(search.cell, search.cell), trial=_renamed(search.trial, names))
    return replace(goal, winner=_renamed(goal.winner, names), candidates=candidates, search=search)


def _join(parts: Sequence[FoundSweep]) -> Joined:
    # On a tie the later run wins.
    parts = sorted(parts, key=lambda part: part.result.began_at, reverse=True)
    chosen: dict[str, tuple[CellResult, Path]] = {}
    for part in parts:
        for cell in part.result.cells:
            known = chosen.get(cell.name)
            if known is None or _rank(cell) < _rank(known[0]):
                chosen[cell.name] = cell, part.folder
    latest = parts[0].result
    names = dict.fromkeys(cell.name for part in parts for cell in part.result.cells)
    results = [part.result for part in parts]
    missing = {name for name, (cell, _) in chosen.items() if cell.status is CellStatus.NOT_REACHED}
    whole = replace(
        latest,
        cells=tuple(chosen[name][0] for name in names),
        graph=_graph([result.graph for result in results]),
        goals=tuple(_goals([goal for result in results for goal in result.goals], missing)),
        began_at=min(result.began_at for result in results),
        # The shards ran in parallel.
        elapsed_seconds=max(result.elapsed_seconds for result in results),
        interrupted=any(result.interrupted for result in results),
    )
    places = {name: folder for name, (_, folder) in chosen.items()}
    return Joined(whole, tuple(part.folder for part in parts), places)


def _rank(cell: CellResult) -> int:
    """Return the place of its status, the best first; a build is a build."""
    return 0 if cell.is_there else [*CellStatus].index(cell.status)


def _graph(graphs: Sequence[SharedGraph]) -> SharedGraph:
    """Sum up the shards: work done in several of them was done several times."""
    if len(graphs) == 1:
        return graphs[0]
    longest = max(graphs, key=lambda graph: graph.critical_path_seconds)
    counts = ("builds", "stages", "stages_apart", "seconds_ran", "seconds_saved")
    totals: dict[str, Any] = {name: sum(getattr(graph, name) for graph in graphs) for name in counts}
    for name in ("by_stage", "by_status"):
        added: Counter[str] = Counter()
        for graph in graphs:
            added.update(getattr(graph, name))
        totals[name] = dict(added)
    return replace(longest, **totals)


def _goals(goals: Sequence[GoalResult], missing: Container[str]) -> Iterator[GoalResult]:
    """Join equal goals. Each shard chose among its own cells; the best of these is the best overall."""
    same: dict[tuple[object, ...], list[GoalResult]] = {}
    for goal in goals:
        key = (goal.minimize, tuple(goal.group.items()), tuple(goal.subject_to.items()))
        same.setdefault(key, []).append(goal)
    for each in same.values():
        candidates: dict[str, Candidate] = {}
        for candidate in (candidate for goal in each for candidate in goal.candidates):
            known = candidates.get(candidate.cell)
            if known is None or _measured(candidate) > _measured(known):
                candidates[candidate.cell] = candidate
        best = replace(min(each, key=_achieved), candidates=tuple(candidates.values()))
        # It may have waited in each shard for cells of another.
        if best.pending and not any(name in missing for name in candidates):
            why = "its cells are in several shards; a build of the whole sweep chooses among them"
            best = replace(best, why=why)
        yield best


def _achieved(goal: GoalResult) -> tuple[bool, float]:
    """Return the sort key of a goal by the value of its winner. Those without a winner come last."""
    found = next((each.values.get(goal.minimize) for each in goal.candidates if each.cell == goal.winner), None)
    return goal.winner is None, float("inf") if found is None else found


def _measured(candidate: Candidate) -> int:
    return sum(value is not None for value in candidate.values.values())
