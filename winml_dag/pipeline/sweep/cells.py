"""Cells of a sweep as requests and results: what builds one, and what is told of it when it has ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from winml_dag.engine.events import Status
from winml_dag.errors import InputError, UsageError
from winml_dag.pipeline.buildgraph import BuildGraph
from winml_dag.pipeline.sweep.result import CellResult, CellStatus, Failure, SharedGraph, StageRun

if TYPE_CHECKING:
    from winml_dag.engine.eta import CriticalPath
    from winml_dag.pipeline.build import Outcome
    from winml_dag.pipeline.buildresult import StageView
    from winml_dag.pipeline.plan_cache import Planned
    from winml_dag.pipeline.request import Request
    from winml_dag.recipe.load import LoadedRecipe
    from winml_dag.recipe.sweep import Cell

_STOPPED = "another cell failed before its turn came, and --no-keep-going was given"
_THERE = (Status.RAN, Status.REUSED)


def request_of(cell: Cell, request: Request, folder: Path) -> Request:
    """What builds *cell* into its place below *folder*, with the options of *request*."""
    recipe = cell.file if cell.recipe is None else cell.recipe
    item = cell.item if cell.recipe is None else None
    return replace(request, recipe=recipe, item=item, output_dir=folder / cell.folder)


def recipe_of(cell: Cell) -> LoadedRecipe:
    """The recipe of *cell*, read from its file if it has one of its own. Raises as reading does."""
    if cell.recipe is not None:
        return cell.recipe
    from winml_dag.recipe.load import load_recipe

    return load_recipe(cell.file, cell.item)


@dataclass(frozen=True)
class Made:
    """``cells``: how results of cells are put; ``started``: when what ran began, by its key, in seconds of the run."""

    commands: Mapping[str, str]
    started: Mapping[str, float]

    def result(self, cell: Cell, outcome: Outcome) -> CellResult:
        """What became of *cell*."""
        told = CellResult(
            cell.name, cell.values, cell.folder, CellStatus.BUILT, command=self.commands.get(cell.name, "")
        )
        if outcome.error is not None:
            refused = isinstance(outcome.error, UsageError | InputError)
            if refused:
                return replace(told, status=CellStatus.REFUSED, why=str(outcome.error))
            failure = Failure(None, outcome.error.message, outcome.error.advice)
            return replace(told, status=CellStatus.FAILED, why=str(outcome.error), failure=failure)
        if outcome.result is None:
            return replace(told, status=CellStatus.NOT_REACHED, why=_STOPPED)
        stages = tuple(self._stage(view) for view in outcome.result.stages)
        there = [view.id for view in outcome.result.stages if view.status in _THERE]
        status, why, failure_ = _became(outcome)
        return replace(
            told,
            status=status,
            why=why,
            failure=failure_,
            stages=stages,
            reached=there[-1] if there else None,
            elapsed_seconds=round(sum(stage.elapsed_seconds for stage in stages), 3),
            saved_seconds=saved(stages),
        )

    def _stage(self, view: StageView) -> StageRun:
        record = None if view.result is None else view.result.record
        worked = view.status in (Status.RAN, Status.FAILED)
        peak = None if record is None else record.metrics.get("peak_memory_bytes")
        return StageRun(
            id=view.id,
            stage=view.stage,
            status=str(view.status),
            reason=view.reason,
            cache_key=view.cache_key,
            elapsed_seconds=round(view.elapsed_seconds or 0.0, 3) if worked else 0.0,
            made_in_seconds=None if record is None else record.elapsed_seconds,
            started_seconds=self.started.get(view.cache_key or "") if worked else None,
            peak_memory_bytes=peak if isinstance(peak, int) and not isinstance(peak, bool) else None,
            made_at="" if record is None else record.made_at,
            made_by="" if record is None else record.made_by,
        )


def _became(outcome: Outcome) -> tuple[CellStatus, str, Failure | None]:
    result = outcome.result
    assert result is not None
    for view in result.stages:
        if view.status is Status.FAILED and view.result is not None:
            failed = view.result
            log = None if failed.log is None else str(failed.log)
            why = f"{view.id} failed: {failed.error}" if failed.record is None else failed.error
            return CellStatus.FAILED, why, Failure(view.id, failed.error, failed.advice, log, failed.tail)
    if outcome.stopped:
        return CellStatus.NOT_REACHED, _STOPPED, None
    return (CellStatus.BUILT if outcome.changed else CellStatus.UP_TO_DATE), "", None


def saved(stages: Iterable[StageRun]) -> float:
    """What the results that were found had taken to make."""
    return round(sum(stage.made_in_seconds or 0.0 for stage in stages if stage.status == Status.REUSED), 3)


def as_found(before: CellResult) -> CellResult:
    """A cell that is there, as the last run told of it, when this one sees at a glance that all of it still is."""
    stages = tuple(
        stage
        if stage.status == Status.SKIPPED
        else replace(stage, status=str(Status.REUSED), reason="up to date", elapsed_seconds=0.0, started_seconds=None)
        for stage in before.stages
    )
    return replace(
        before,
        status=CellStatus.UP_TO_DATE,
        why="",
        failure=None,
        stages=stages,
        elapsed_seconds=0.0,
        saved_seconds=saved(stages),
        perf=None,
        eval=None,
    )


def keys_of(cell: CellResult) -> frozenset[str]:
    """The keys of all results that *cell* stands on."""
    return frozenset(stage.cache_key for stage in cell.stages if stage.cache_key)


def with_sharing(cells: Sequence[CellResult]) -> tuple[CellResult, ...]:
    """*cells*, each of whose stages says how many cells stand on its result."""
    readers = Counter(key for cell in cells for key in keys_of(cell))
    return tuple(
        replace(
            cell,
            stages=tuple(
                replace(stage, cells=readers[stage.cache_key]) if stage.cache_key else stage for stage in cell.stages
            ),
        )
        for cell in cells
    )


def shared_graph(cells: Sequence[CellResult]) -> SharedGraph:
    """What the one graph of *cells* came to. Stages with one key are one, and it ran if it did so for any of them.

    What a recipe leaves out, or a failure kept from running, is not counted: it has no key.
    """
    of_stages = [(cell.name, stage) for cell in cells for stage in cell.stages if stage.status != Status.SKIPPED]
    distinct: dict[str, StageRun] = {}
    for name, stage in of_stages:
        key = stage.cache_key or f"{name}/{stage.id}"
        known = distinct.get(key)
        if known is None or _ORDER.index(stage.status) < _ORDER.index(known.status):
            distinct[key] = stage
    each = distinct.values()
    return SharedGraph(
        builds=len(cells),
        stages=len(distinct),
        stages_apart=len(of_stages),
        by_stage=dict(sorted(Counter(stage.stage for stage in each).items())),
        by_status=dict(sorted(Counter(stage.status for stage in each).items())),
        seconds_ran=round(sum(stage.elapsed_seconds for stage in each), 3),
        seconds_saved=round(sum(saved([stage]) for _, stage in of_stages), 3),
    )


def longest_chain(
    planned: Sequence[Planned], outcomes: Sequence[Outcome], seconds: Mapping[str, float]
) -> CriticalPath:
    """The stages, as ``<cell>/<id>``, that nothing could have made the run shorter than; *seconds*: what ran, by key.

    A chain of the one graph is a chain of one of its cells, so the longest of theirs is its own.
    """
    from winml_dag.engine.eta import CriticalPath, critical_path

    found = CriticalPath((), 0.0)
    for each, outcome in zip(planned, outcomes, strict=True):
        if isinstance(each.graph, BuildGraph) and outcome.result is not None:
            taken = {view.id: seconds.get(view.cache_key or "", 0.0) for view in outcome.result.stages}
            chain = critical_path(each.graph.graph, taken)
            if chain.seconds > found.seconds:
                found = CriticalPath(tuple(f"{each.label}/{stage}" for stage in chain.ids), chain.seconds)
    return found


_ORDER = (str(Status.RAN), str(Status.FAILED), str(Status.REUSED))
