"""Finds what a report can cover: sweeps, with their shards joined into one, and manifests of builds."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from winml_dag.errors import InputError
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

# Folder for the manifests of builds of user-defined stages, below the recipe's folder.
KEPT = ".winml-dag"


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
    """The contents below one folder. ``notices``: a sentence on each file that could not be read."""

    folder: Path
    sweeps: tuple[FoundSweep, ...]
    builds: tuple[FoundBuild, ...]
    notices: tuple[str, ...]


def find(folder: Path) -> Found:
    """Return everything that a report can cover in *folder* and below.

    Raises:
        InputError: when the folder does not exist.
    """
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "does not exist"
        raise InputError(f"{folder} {what}.", advice="Give the output folder of a build or of a sweep.")
    sweeps, builds, notices = [], [], []
    for where, names in _walk(folder):
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
    return Found(folder, tuple(sweeps), tuple(builds), tuple(notices))


def _walk(folder: Path) -> Iterator[tuple[Path, set[str]]]:
    """Yield every folder below *folder*, in order of names, with its file names. Hidden folders contain no results."""
    for where, below, names in os.walk(folder):
        below[:] = sorted(name for name in below if not name.startswith(".") or name == KEPT)
        yield Path(where), set(names)


def _name(top: Path, folder: Path) -> str:
    """Return *folder* relative to *top*, for user-defined stages without the folder that holds the manifest."""
    parts = [part for part in folder.relative_to(top).parts if part != KEPT]
    return "/".join(parts) or top.resolve().name


# Result statuses of a cell, the best first.
_KNOWN = (
    (CellStatus.BUILT, CellStatus.UP_TO_DATE),
    (CellStatus.FAILED,),
    (CellStatus.REFUSED,),
    (CellStatus.SKIPPED,),
    (CellStatus.NOT_REACHED,),
)


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
    goals = _goals([goal for result in results for goal in result.goals])
    missing = {name for name, (cell, _) in chosen.items() if cell.status is CellStatus.NOT_REACHED}
    whole = replace(
        latest,
        cells=tuple(chosen[name][0] for name in names),
        graph=_graph([result.graph for result in results]),
        goals=tuple(_waiting(goal, missing) for goal in goals),
        began_at=min(result.began_at for result in results),
        # The shards ran in parallel.
        elapsed_seconds=max(result.elapsed_seconds for result in results),
        interrupted=any(result.interrupted for result in results),
    )
    places = {name: folder for name, (_, folder) in chosen.items()}
    return Joined(whole, tuple(part.folder for part in parts), places)


def _rank(cell: CellResult) -> int:
    return next(place for place, known in enumerate(_KNOWN) if cell.status in known)


def _graph(graphs: Sequence[SharedGraph]) -> SharedGraph:
    """Sum up the shards: work done in several of them was done several times."""
    if len(graphs) == 1:
        return graphs[0]
    longest = max(graphs, key=lambda graph: graph.critical_path_seconds)
    return SharedGraph(
        builds=sum(graph.builds for graph in graphs),
        stages=sum(graph.stages for graph in graphs),
        stages_apart=sum(graph.stages_apart for graph in graphs),
        by_stage=_added(graph.by_stage for graph in graphs),
        by_status=_added(graph.by_status for graph in graphs),
        seconds_ran=sum(graph.seconds_ran for graph in graphs),
        seconds_saved=sum(graph.seconds_saved for graph in graphs),
        critical_path=longest.critical_path,
        critical_path_seconds=longest.critical_path_seconds,
    )


def _added(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return dict(total)


def _goals(goals: Sequence[GoalResult]) -> tuple[GoalResult, ...]:
    """Join equal goals. Each shard chose among its own cells; the best of these is the best overall."""
    same: dict[tuple[object, ...], list[GoalResult]] = {}
    for goal in goals:
        key = (goal.minimize, tuple(goal.group.items()), tuple(goal.subject_to.items()))
        same.setdefault(key, []).append(goal)
    return tuple(_goal(each) for each in same.values())


def _goal(goals: Sequence[GoalResult]) -> GoalResult:
    best = min(goals, key=_achieved)
    candidates: dict[str, Candidate] = {}
    for goal in goals:
        for candidate in goal.candidates:
            known = candidates.get(candidate.cell)
            if known is None or _measured(candidate) > _measured(known):
                candidates[candidate.cell] = candidate
    return replace(best, candidates=tuple(candidates.values()))


def _waiting(goal: GoalResult, missing: Container[str]) -> GoalResult:
    """Update *goal*, which may have waited in each shard for cells of another: then nothing is *missing* any more."""
    if not goal.pending or any(each.cell in missing for each in goal.candidates):
        return goal
    return replace(goal, why="its cells are in several shards; a build of the whole sweep chooses among them")


def _achieved(goal: GoalResult) -> tuple[bool, float]:
    """Return the sort key of a goal by the value of its winner. Those without a winner come last."""
    found = next((each.values.get(goal.minimize) for each in goal.candidates if each.cell == goal.winner), None)
    return goal.winner is None, float("inf") if found is None else found


def _measured(candidate: Candidate) -> int:
    return sum(value is not None for value in candidate.values.values())
