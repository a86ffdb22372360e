"""``build`` with several builds at once: a sweep, several recipes, a folder or a pattern of them."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, TypeAlias

import click

from winml_dag.cli import Note, echo, set_result
from winml_dag.cli.command import given_words
from winml_dag.errors import few
from winml_dag.file_reading import reads_logged
from winml_dag.pipeline.request import Request
from winml_dag.pipeline.sweep.cells import FAILED, Selection
from winml_dag.pipeline.sweep.result import SWEEP, CellResult, CellStatus, GoalResult
from winml_dag.pipeline.sweep.stamp import SweepStamp, keep_sweep_stamp, words_of
from winml_dag.store.quantities import counted, duration_text

if TYPE_CHECKING:
    from winml_dag.canonical import JsonObject
    from winml_dag.cli.options import How
    from winml_dag.pipeline.run import BuildOptions
    from winml_dag.pipeline.sweep.run import SweepDone, SweepRun
    from winml_dag.recipe.sweep import Cell
    from winml_dag.store.store import Store
    from winml_dag.store.usage import Traffic

# Maximum names listed on one line.
_MOST_NAMES = 4
# Enough records for the usual time of a measurement. The time if there is none is that of a small model.
_MOST_RECORDS = 20
_NEVER_MEASURED_SECONDS = 10.0
_MOST_NODES = 8
# Options that the command for a single cell omits: how to run, and which cells to choose.
_NOT_OF_A_CELL = (
    *("filters", "shard", "retry_failed", "jobs", "memory", "keep_going", "rebuild", "verbose", "quiet", "format_"),
    *("executor", "scheduler", "workers", "worker_tags"),
)


def build_sweep(
    recipes: Sequence[Path], request: Request, selection: Selection, build_options: BuildOptions, how: How
) -> int:
    """Build the *selected* cells of a sweep, print the results and return the exit code.

    Raises:
        WinmlDagError: the errors of reading the sweep and running it.
    """
    from winml_dag.cli.options import opened
    from winml_dag.cli.remotes import traffic_lines, traffic_of
    from winml_dag.cli.sweepprogress import sweep_progress
    from winml_dag.file_reading import FirstLooks
    from winml_dag.pipeline.sweep.ledger import SUMMARY
    from winml_dag.pipeline.sweep.run import SweepRun, run_sweep
    from winml_dag.pipeline.uptodate import environment_fingerprint

    started, began_ns = time.monotonic(), time.time_ns()
    environment = environment_fingerprint(began_ns)
    command = shlex.join(("winml-dag", "build", *given_words(click.get_current_context(), _NOT_OF_A_CELL)))
    looks = FirstLooks()
    with reads_logged(looks):
        sweep_run = SweepRun.of(recipes, request, selection, command)
    folder, cells = sweep_run.folder, sweep_run.cells
    try:
        store = opened(how.cache_dir, how.remote)
        names, seconds = [cell.name for cell in cells], [*_measuring_seconds(sweep_run, store, build_options.jobs)]
        with sweep_progress(how.quiet, how.as_json, names, seconds) as watcher:
            done = run_sweep(sweep_run, store, build_options, watcher)
    except KeyboardInterrupt:
        echo(f"Results so far are in {folder}. Run the same command again to continue.", err=True)
        raise
    if how.as_json:
        set_result(sweep_json(done, traffic_of(store)))
    for text, is_error in _lines(done, sweep_run.left_out, folder, quiet=how.quiet, verbose=how.verbose):
        echo(text, err=how.as_json or is_error)
    for text in () if how.quiet else traffic_lines(traffic_of(store)):
        how.say(text)
    how.say(_total(done, len(sweep_run.left_out), time.monotonic() - started))
    if not how.quiet and done.result.cells:
        how.say(f"Compare them with: winml-dag report {shlex.quote(str(folder))}")
    code = exit_code(done)
    words = words_of(recipes, replace(request, recipe=None), selection.filters, selection.shard)
    if code == 0 and words is not None and not selection.retry_failed and _is_settled(done):
        lines = (*_left_out(sweep_run.left_out), *(line for goal in done.result.goals for line in _goal(goal)))
        found = SweepStamp(len(cells), len(sweep_run.left_out), str(folder), tuple(text for text, _ in lines))
        keep_sweep_stamp(
            how.cache_dir,
            words,
            found,
            files=sweep_run.sweep.files,
            results=(SWEEP, *([SUMMARY] if sweep_run.modules else [])),
            builds=done.words,
            began_ns=began_ns,
            environment=environment,
            looks=looks,
        )
    return code


def _measuring_seconds(sweep_run: SweepRun, store: Store, jobs: int) -> Iterator[float]:
    """Yield the usual seconds of each measurement of a cell of *sweep_run*."""
    # perf has the machine to itself, eval runs as many cells at once as there are jobs.
    for what, stage, at_once in (("perf", "perf", 1), ("eval", "evaluate", jobs)):
        if what in sweep_run.sweep.measure:
            records = store.records_of(stage, _MOST_RECORDS)
            usual = median(record.elapsed_seconds for record in records) if records else _NEVER_MEASURED_SECONDS
            yield usual / at_once


def exit_code(done: SweepDone) -> int:
    """Return 0 if all cells exist and every goal has a winner, the errors' code if they are of one kind, else 1."""
    from winml_dag.errors import StageError

    missing = [cell for cell in done.cells if not cell.is_there and cell.trial_of is None]
    if not missing:
        return StageError.exit_code if any(goal.failed for goal in done.result.goals) else 0
    codes = {done.refusals.get(cell.name, StageError.exit_code) for cell in missing}
    return codes.pop() if len(codes) == 1 else StageError.exit_code


# A line, and whether it is an error.
_Line: TypeAlias = tuple[str, bool]


def _lines(done: SweepDone, left_out: Sequence[Cell], folder: Path, *, quiet: bool, verbose: bool) -> Iterator[_Line]:
    """Yield what to print about a sweep: failed, rejected and skipped cells with reasons, and the goals' winners."""
    yield from _problems(done.cells, verbose=verbose)
    if not quiet:
        yield from _left_out(left_out)
        yield from _measured(done.cells)
        yield from ((Note(text), False) for text in done.notes)
        if done.gone:
            gone = few([str(folder / name) for name in done.gone], _MOST_NAMES)
            belong = "belongs to a cell" if len(done.gone) == 1 else "belong to cells"
            yield Note(f"{gone} {belong} that no longer {'exists' if len(done.gone) == 1 else 'exist'}."), False
    for goal in done.result.goals:
        yield from _goal(goal)


def _problems(cells: Sequence[CellResult], *, verbose: bool) -> Iterator[_Line]:
    """Yield each problem once, with the cells that have it: a failure in a shared stage affects all of them."""
    by_problem: dict[object, list[CellResult]] = {}
    for cell in cells:
        # A failed trial is no problem but a result, which its search reports.
        if cell.status in FAILED and cell.trial_of is None:
            by_problem.setdefault((cell.why, cell.failure), []).append(cell)
    for same in by_problem.values():
        failure = same[0].failure
        advice = "" if failure is None or same[0].why.endswith(failure.advice) else f" {failure.advice}"
        yield f"error: {_names(same)}: {same[0].why}{advice}", True
        if failure is not None and failure.log is not None:
            tail: Sequence[str] = failure.tail
            if verbose:
                with suppress(OSError):
                    tail = Path(failure.log).read_text(encoding="utf-8", errors="replace").splitlines()
            yield from ((f"  | {line}", True) for line in tail)
            yield f"  full log: {failure.log}", True
    if stopped := [cell for cell in cells if cell.status is CellStatus.NOT_REACHED]:
        yield f"error: {_names(stopped)}: {stopped[0].why}.", True


def _left_out(cells: Sequence[Cell]) -> Iterator[_Line]:
    by_reason: dict[str, list[Cell]] = {}
    for cell in cells:
        by_reason.setdefault(cell.left_out, []).append(cell)
    for why, same in by_reason.items():
        yield f"skipped: {_names(same)}: {why}", False


def _measured(cells: Sequence[CellResult]) -> Iterator[_Line]:
    """Yield what could not be measured, each reason once."""
    by_reason: dict[tuple[str, str], list[CellResult]] = {}
    for cell in cells:
        for what, measured in (("perf", cell.perf), ("eval", cell.eval)):
            if measured is not None and measured.error:
                by_reason.setdefault((what, measured.error), []).append(cell)
    for (what, why), same in by_reason.items():
        yield Note(f"no {what} of {_names(same)}: {why}"), False


def _goal(goal: GoalResult) -> Iterator[_Line]:
    for line in goal_lines(goal):
        yield line, goal.failed and not line.startswith(" ")


def _names(cells: Sequence[Cell | CellResult]) -> str:
    return few([cell.name for cell in cells], _MOST_NAMES)


def _total(done: SweepDone, left_out: int, seconds: float) -> str:
    """Format the totals of a sweep.

    ``40 cells in 2 min: 38 built, 1 failed, 1 skipped; 163 stages run, 77 shared or found; saved about 5 min.``
    """
    of_sweep = [cell for cell in done.cells if cell.trial_of is None]
    numbers = [(sum(cell.status is status for cell in of_sweep), str(status)) for status in CellStatus]
    trials = len(done.cells) - len(of_sweep)
    further = [(left_out, str(CellStatus.SKIPPED)), (trials, "tried in search")]
    counts = ", ".join(f"{number} {word}" for number, word in [*numbers, *further] if number)
    graph = done.result.graph
    ran = graph.by_status.get("ran", 0)
    found = sum(stage.status == "reused" for cell in done.cells for stage in cell.stages)
    saved = f"; saved about {duration_text(graph.seconds_saved)}" if graph.seconds_saved >= 1 else ""
    cells = f"{counted(len(of_sweep) + left_out, 'cell')} in {duration_text(seconds)}: {counts or 'nothing to do'}"
    return f"{cells}; {counted(ran, 'stage')} run, {found} shared or found{saved}."


def sweep_json(done: SweepDone, traffic: Traffic | None) -> JsonObject:
    """Return the contents of ``sweep.json``, the names of missing cells, and the traffic with remotes."""
    from winml_dag.cli.remotes import traffic_json
    from winml_dag.pipeline.sweep.result import encode

    failed = [cell.name for cell in done.cells if not cell.is_there]
    names = [cell.name for cell in done.cells]
    return {**encode(done.result), "asked": names, "failed": failed, **traffic_json(traffic)}


def _is_settled(done: SweepDone) -> bool:
    """Return whether there is nothing to retry, and nothing that could change unnoticed.

    Data that cells are measured on is checked only where measurements are planned.
    """
    failed = any(each is not None and each.error for cell in done.cells for each in (cell.perf, cell.eval))
    return not failed and not done.has_data


def goal_lines(goal: GoalResult) -> Iterator[str]:
    """Yield a line on the winner or the reason for none, and one on the search."""
    of = ", ".join(f"{axis} {label}" for axis, label in goal.group.items())
    which = f"smallest {goal.minimize}" if goal.minimize != "size" else "smallest"
    whose = f"{f' of {of}' if of else ''} ({which})"
    if goal.pending:
        yield Note(f"no winner{whose} yet: {goal.why}.")
    elif goal.winner is None:
        yield f"error: no winner{whose}: {goal.why}."
    elif goal.folder is None:
        yield f"error: the winner{whose} is {goal.winner}, but {goal.why}"
    else:
        yield f"winner{whose}: {goal.winner}, in {goal.folder}{f'; {goal.why}' if goal.why else ''}"
    if (search := goal.search) is not None:
        yield f"  search: {f'of {search.cell}, ' if search.cell else ''}{search.why}"
        if search.nodes:
            yield f"    {few(search.nodes, _MOST_NODES)}"
