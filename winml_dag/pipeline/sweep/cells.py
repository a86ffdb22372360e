"""Cells of a sweep as requests and results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from winml_dag.engine.events import Status
from winml_dag.errors import InputError, UsageError, WinmlDagError
from winml_dag.pipeline.buildgraph import BuildGraph
from winml_dag.pipeline.sweep.result import (
    CellResult,
    CellStatus,
    Failure,
    SharedGraph,
    StageRun,
    read_sweep,
)

if TYPE_CHECKING:
    from winml_dag.engine.eta import CriticalPath
    from winml_dag.pipeline.buildresult import BuildResult, StageView
    from winml_dag.pipeline.plan_cache import Planned
    from winml_dag.pipeline.request import Overrides, Request
    from winml_dag.pipeline.run import Ended
    from winml_dag.recipe.sweep import Cell, Sweep


FAILED = (CellStatus.FAILED, CellStatus.REFUSED)


@dataclass(frozen=True)
class Selection:
    """The selection of cells. ``retry_failed``: of the cells that the other fields select, only those that failed."""

    filters: tuple[str, ...] = ()
    shard: str | None = None
    retry_failed: bool = False


def folder_of(sweep: Sweep, request: Request) -> Path:
    """Return the folder for the cells of *sweep*.

    Raises:
        UsageError: when no folder is named.
    """
    folder = request.output_dir or sweep.output_dir
    if request.use_cache or folder is None:
        raise UsageError(
            "Several builds need a folder to put theirs into.",
            advice="Give -o/--output-dir, or output_dir in the recipe of the sweep.",
        )
    return folder


def selected(sweep: Sweep, selection: Selection, folder: Path | None = None) -> tuple[Cell, ...]:
    """Return the selected cells, including those that the sweep excludes.

    *folder*: the folder of the cells, only required to select those that failed.

    Raises:
        UsageError: for an invalid filter or shard, and when nothing was run that could have failed.
    """
    # Imported here: most runs build all cells.
    from winml_dag.recipe.sweep import filtered, in_shard, parse_shard

    cells = filtered(sweep, selection.filters)
    if selection.shard is not None:
        cells = in_shard(cells, parse_shard(selection.shard))
    if not selection.retry_failed:
        return cells
    assert folder is not None
    try:
        last = read_sweep(folder)
    except InputError as error:
        raise UsageError(error.message, advice=error.advice) from None
    if last is None:
        raise UsageError(f"No sweep was run in {folder} yet.", advice="Omit --retry-failed.")
    failed = {cell.name for cell in last.cells if cell.status in FAILED}
    return tuple(cell for cell in cells if cell.name in failed)


# The options that set a field of a recipe for every cell.
_OPTIONS = {"model": "--model", "ep": "--ep", "device": "--device", "precision": "--precision"}


def refuse_overruled(sweep: Sweep, overrides: Overrides) -> None:
    """Reject *overrides* of a field in which cells of the matrix differ.

    Several recipes without a matrix are not compared by field, so an option may apply to all of them.

    Raises:
        UsageError: naming the option.
    """
    recipes = [cell.recipe.recipe for cell in sweep.cells if cell.recipe is not None and sweep.axes]
    for field, option in _OPTIONS.items():
        overridden = getattr(overrides, field) or (field == "model" and overrides.onnx)
        written = {str(getattr(recipe, field) or "none") for recipe in recipes}
        if overridden and len(written) > 1:
            raise UsageError(
                f"{option} sets one {field} for all cells, and the matrix has several: {', '.join(sorted(written))}.",
                advice=f"Omit {option}; --filter chooses cells.",
            )


_STOPPED = "another cell failed before its turn came, and --no-keep-going was given"


def request_of(cell: Cell, request: Request, folder: Path | None) -> Request:
    """Return the request that builds *cell* into its folder below *folder*, with the options of *request*.

    Without *folder*, only to look at it, it is as with ``--use-cache``.
    """
    recipe, item = (cell.file, cell.item) if cell.recipe is None else (cell.recipe, None)
    output_dir = request.output_dir if folder is None else folder / cell.folder
    return replace(request, recipe=recipe, item=item, output_dir=output_dir)


def cell_result(cell: Cell, ended: Ended[BuildResult], command: str, started: Mapping[str, float]) -> CellResult:
    """Return the result of *cell*, which *command* builds and which has *ended*.

    *started*: when each stage that ran was started, by key, in seconds of the run.
    """
    result = CellResult(cell.name, cell.values, cell.folder, CellStatus.BUILT, command=command)
    if isinstance(ended, UsageError | InputError):
        return replace(result, status=CellStatus.REFUSED, why=str(ended))
    if isinstance(ended, WinmlDagError):
        failure = Failure(None, ended.message, ended.advice)
        return replace(result, status=CellStatus.FAILED, why=str(ended), failure=failure)
    if ended is None:
        return replace(result, status=CellStatus.NOT_REACHED, why=_STOPPED)
    views = ended.stages
    stages = tuple(_stage_run(view, started) for view in views)
    result = replace(
        result,
        stages=stages,
        reached=next((view.id for view in reversed(views) if view.status in (Status.RAN, Status.REUSED)), None),
        elapsed_seconds=round(sum(stage.elapsed_seconds for stage in stages), 3),
        saved_seconds=saved(stages),
    )
    for view in views:
        if view.status is Status.FAILED and (failed := view.result) is not None:
            why = f"{view.id} failed: {failed.error}" if failed.record is None else failed.error
            log = None if failed.log is None else str(failed.log)
            failure = Failure(view.id, failed.error, failed.advice, log, failed.tail)
            return replace(result, status=CellStatus.FAILED, why=why, failure=failure)
    if ended.stopped:
        return replace(result, status=CellStatus.NOT_REACHED, why=_STOPPED)
    return replace(result, status=CellStatus.BUILT if ended.changed else CellStatus.UP_TO_DATE)


def _stage_run(view: StageView, started: Mapping[str, float]) -> StageRun:
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
        started_seconds=started.get(view.cache_key or "") if worked else None,
        peak_memory_bytes=peak if isinstance(peak, int) and not isinstance(peak, bool) else None,
        made_at="" if record is None else record.made_at,
        made_by="" if record is None else record.made_by,
    )


def saved(stages: Iterable[StageRun]) -> float:
    """Return the time that the reused results took to make."""
    return round(sum(stage.made_in_seconds or 0.0 for stage in stages if stage.status == Status.REUSED), 3)


def as_found(before: CellResult) -> CellResult:
    """Return the last run's result of a cell that a quick check found unchanged, as an up-to-date result."""
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
    """Return the keys of all results that *cell* depends on."""
    return frozenset(stage.cache_key for stage in cell.stages if stage.cache_key)


def with_sharing(cells: Sequence[CellResult]) -> tuple[CellResult, ...]:
    """Return *cells* with the number of cells that share each stage's result."""
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


def shared_graph(cells: Sequence[CellResult], longest: CriticalPath) -> SharedGraph:
    """Return the totals of the merged graph of *cells*, with its critical path.

    Stages with the same key count as one, which ran if it ran for any cell. Stages without a key, which a recipe skips
    or a failure kept from running, do not count.
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
        seconds_saved=saved(stage for _, stage in of_stages),
        critical_path=longest.ids,
        critical_path_seconds=round(longest.seconds, 3),
    )


def longest_chain(
    planned: Planned, ended: Mapping[str, Ended[BuildResult]], seconds: Mapping[str, float]
) -> CriticalPath:
    """Return the critical path of the run, as ``<cell>/<id>``; *seconds*: the time of stages that ran, by key.

    A path of the merged graph is a path of one of its cells, so the longest of theirs is the critical path.
    """
    from winml_dag.engine.eta import CriticalPath, critical_path

    found = CriticalPath((), 0.0)
    for label, graph in planned.items():
        result = ended[label]
        if isinstance(graph, BuildGraph) and result is not None and not isinstance(result, WinmlDagError):
            taken = {view.id: seconds.get(view.cache_key or "", 0.0) for view in result.stages}
            chain = critical_path(graph.graph, taken)
            if chain.seconds > found.seconds:
                found = CriticalPath(tuple(f"{label}/{stage}" for stage in chain.ids), chain.seconds)
    return found


_ORDER = (str(Status.RAN), str(Status.FAILED), str(Status.REUSED))
