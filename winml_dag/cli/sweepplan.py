"""The output of ``plan`` for a sweep: a line per cell, totals of the combined graph, and the jobs for a CI."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from winml_dag.canonical import JsonObject
from winml_dag.cli import echo, few, set_result
from winml_dag.cli.buildreport import build_json, counts
from winml_dag.engine.events import Status
from winml_dag.engine.memory import memory_for_runs
from winml_dag.engine.resources import Capacity
from winml_dag.errors import StageError
from winml_dag.pipeline.build import DryRun, dry_run
from winml_dag.pipeline.plan_cache import look_at_each
from winml_dag.pipeline.sweep.cells import request_of
from winml_dag.recipe.sweep import Shard, shards
from winml_dag.store.quantities import duration_text

if TYPE_CHECKING:
    from winml_dag.pipeline.request import Request
    from winml_dag.recipe.sweep import Cell, Sweep
    from winml_dag.store.store import Store


# Maximum names listed on one line.
_MOST_NAMES = 4


def look_at_sweep(
    sweep: Sweep, cells: Sequence[Cell], request: Request, store: Store, *, jobs: int, rebuild: bool, as_json: bool
) -> int:
    """Print what `build` would do with *cells* of *sweep* under the options of *request*, and return the exit code.

    *jobs*: the number of parallel stages to assume.
    """
    planned = look_at_each(requests_of(sweep, cells, request), store)
    capacity = Capacity(jobs, memory_for_runs())
    dry_run_result = dry_run(planned, store, capacity, rebuild=rebuild)
    if as_json:
        set_result(_json(cells, dry_run_result))
    else:
        for line in (*_cell_lines(cells, dry_run_result), *_graph_lines(dry_run_result), *_uncounted(sweep)):
            echo(line)
    for line in _error_lines(dry_run_result):
        echo(line, err=True)
    return _exit_code(dry_run_result)


def requests_of(sweep: Sweep, cells: Sequence[Cell], request: Request) -> Iterator[tuple[str, Request]]:
    """Yield name and request of each of *cells* that is not skipped.

    Without a folder, requests are as with ``--use-cache``.
    """
    folder = request.output_dir or sweep.output_dir
    for cell in cells:
        if cell.left_out:
            continue
        if folder is None or request.use_cache:
            item = cell.item if cell.recipe is None else None
            yield cell.name, replace(request, recipe=cell.recipe or cell.file, item=item)
        else:
            yield cell.name, request_of(cell, request, folder)


def _cell_lines(cells: Sequence[Cell], dry_run_result: DryRun) -> Iterator[str]:
    width = max((len(cell.name) for cell in cells), default=0)
    for cell in cells:
        if cell.left_out:
            yield f"{cell.name:<{width}}  skipped: {cell.left_out}"
        elif cell.name in dry_run_result.errors:
            why = str(dry_run_result.errors[cell.name]).partition("\n")[0]
            yield f"{cell.name:<{width}}  refused: {why}"
        else:
            yield f"{cell.name:<{width}}  {counts(dry_run_result.results[cell.name]).replace(' ran', ' would run')}"


def _error_lines(dry_run_result: DryRun) -> Iterator[str]:
    """Yield each reason once, with the cells that are rejected for it."""
    cells: dict[str, list[str]] = {}
    for label, error in dry_run_result.errors.items():
        cells.setdefault(str(error), []).append(label)
    for why, labels in cells.items():
        yield f"error: {few(labels, _MOST_NAMES)}: {why}"


def _exit_code(dry_run_result: DryRun) -> int:
    """Return 0 if everything can be built, the errors' code if all cells fail with the same code, otherwise 1."""
    if not dry_run_result.errors:
        return 0
    codes = {error.exit_code for error in dry_run_result.errors.values()}
    return codes.pop() if len(codes) == 1 and not dry_run_result.results else StageError.exit_code


def _graph_lines(dry_run_result: DryRun) -> Iterator[str]:
    """Yield ``2 builds = 14 stages (16 one by one), 2 exports, 4 cached, about 52.0 s left.``, and counts per stage."""
    counts = dry_run_result.counts
    if not counts.builds:
        if not dry_run_result.errors:
            yield "Nothing to build: every selected cell is skipped."
        return
    exports = counts.by_stage.get("export", 0)
    failing = dry_run_result.statuses.get(Status.FAILED, 0)
    parts = [
        f"{_counted(counts.builds, 'build')} = {_counted(counts.stages, 'stage')} ({counts.apart:,} one by one)",
        *([_counted(exports, "export")] if exports else []),
        f"{dry_run_result.statuses.get(Status.REUSED, 0):,} cached",
        *([f"{failing:,} failing"] if failing else []),
        _time(dry_run_result),
    ]
    yield f"{', '.join(parts)}."
    yield f"These are {', '.join(f'{number} {name}' for name, number in counts.by_stage.items())}."


def _uncounted(sweep: Sweep) -> Iterator[str]:
    """Yield a line about the work of a run besides building, whose duration cannot be predicted."""
    more = [f"{' and '.join(sweep.measure)} of each cell"] if sweep.measure else []
    more += ["trials of the search"] if sweep.search else []
    if more:
        yield f"Not included is what follows when all are built: {', '.join(more)}."


def _time(dry_run_result: DryRun) -> str:
    if not dry_run_result.to_run:
        return "nothing to do"
    if dry_run_result.never_timed == dry_run_result.to_run:
        return f"{dry_run_result.to_run:,} to run, which were never timed"
    untimed = f", {dry_run_result.never_timed:,} of them never timed" if dry_run_result.never_timed else ""
    return f"{dry_run_result.to_run:,} to run{untimed}, about {duration_text(dry_run_result.seconds)} left"


def _counted(number: int, word: str) -> str:
    return f"{number:,} {word}" if number == 1 else f"{number:,} {word}s"


def _json(cells: Sequence[Cell], dry_run_result: DryRun) -> JsonObject:
    counts = dry_run_result.counts
    return {
        "builds": [_cell_json(cell, dry_run_result) for cell in cells],
        "graph": {
            "builds": counts.builds,
            "stages": counts.stages,
            "stages_apart": counts.apart,
            "by_stage": dict(counts.by_stage),
            "by_status": {str(status): number for status, number in dry_run_result.statuses.items()},
            "never_timed": dry_run_result.never_timed,
            "seconds_left": None
            if dry_run_result.to_run and dry_run_result.never_timed == dry_run_result.to_run
            else round(dry_run_result.seconds, 1),
        },
        "failed": list(dry_run_result.errors),
        "elapsed_seconds": round(sum(result.elapsed_seconds for result in dry_run_result.results.values()), 3),
    }


def _cell_json(cell: Cell, dry_run_result: DryRun) -> JsonObject:
    value: JsonObject = {"name": cell.name, "values": dict(cell.values)}
    if cell.name in dry_run_result.results:
        return {**value, **build_json(dry_run_result.results[cell.name], dry_run=True)}
    if cell.left_out:
        return {**value, "final_artifact": None, "stages": [], "left_out": cell.left_out}
    return {**value, "final_artifact": None, "stages": [], "error": str(dry_run_result.errors[cell.name])}


def job_matrix(cells: Sequence[Cell], words: Sequence[str], number: int | None) -> dict[str, list[JsonObject]]:
    """Return the CI matrix that builds *cells*, in *number* shards or one job per cell.

    The format is the input of ``fromJSON`` in GitHub Actions. *words*: the options of this run, which each job repeats.
    """
    built = [cell for cell in cells if not cell.left_out]
    if number is None:
        return {
            "include": [
                {
                    "name": cell.name,
                    "values": dict(cell.values),
                    "arguments": shlex.join(("build", *words, "--filter", cell.name)),
                }
                for cell in built
            ]
        }
    return {
        "include": [
            {
                "shard": str(shard),
                "cells": len(part),
                "arguments": shlex.join(("build", *words, "--shard", str(shard))),
            }
            for index, part in enumerate(shards(built, number))
            if part and (shard := Shard(index + 1, number))
        ]
    }


def azure_matrix(jobs: Sequence[JsonObject]) -> dict[str, dict[str, str]]:
    """Convert *jobs* of :func:`job_matrix` for Azure Pipelines: alphanumeric job names, and only text values."""
    return {
        f"job_{index}": {name: str(value) for name, value in job.items() if name != "values"}
        for index, job in enumerate(jobs, 1)
    }
