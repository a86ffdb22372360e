"""The output of ``plan`` for a sweep: a line per cell, totals of the combined graph, and the jobs for a CI."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from winml_dag.canonical import JsonObject
from winml_dag.cli import Note, echo, set_result
from winml_dag.cli.buildreport import build_json, counts
from winml_dag.cli.options import How, opened, request_from
from winml_dag.engine.events import Status
from winml_dag.engine.resources import Capacity, memory_for_runs
from winml_dag.errors import StageError, few
from winml_dag.pipeline.build import DryRun, dry_run
from winml_dag.pipeline.plan_cache import look_at_each
from winml_dag.pipeline.sweep.cells import Selection, refuse_overruled, request_of, selected
from winml_dag.recipe.sweep import Shard, shards, sweep_of_files
from winml_dag.store.quantities import duration_text

if TYPE_CHECKING:
    from winml_dag.pipeline.plan_cache import Planned
    from winml_dag.pipeline.request import Request
    from winml_dag.recipe.sweep import Cell, Sweep
    from winml_dag.store.store import Store


# Maximum names listed on one line.
_MOST_NAMES = 4


def planned_cells(
    recipes: Sequence[Path], selection: Selection, request: Request, store: Store
) -> tuple[Sweep, tuple[Cell, ...], Planned]:
    """Return the sweep of *recipes*, its selected cells, and the plans of those to build, by their names.

    Without a folder, plans are as with ``--use-cache``.
    """
    sweep = sweep_of_files(recipes)
    refuse_overruled(sweep, request.overrides)
    folder = None if request.use_cache else request.output_dir or sweep.output_dir
    cells = selected(sweep, selection)
    requests = ((cell.name, request_of(cell, request, folder)) for cell in cells if not cell.left_out)
    return sweep, cells, look_at_each(requests, store)


def print_sweep_plan(recipes: Sequence[Path], selection: Selection, options: Mapping[str, Any]) -> int:
    """Print what `build` would do with the selected cells and the same *options*, and return the exit code."""

    how = How.of(options)
    store = opened(how.cache_dir, how.remote)
    sweep, cells, planned = planned_cells(recipes, selection, request_from(options, how.remote), store)
    capacity = Capacity(options["jobs"] or os.cpu_count() or 1, memory_for_runs())
    found = dry_run(planned, store, capacity, rebuild=how.rebuild)
    if how.as_json:
        set_result(_json(cells, found))
    else:
        for line in chain(_cell_lines(cells, found), _graph_lines(found), _uncounted(sweep)):
            echo(line)
    for line in _error_lines(found):
        echo(line, err=True)
    return _exit_code(found)


def _cell_lines(cells: Sequence[Cell], found: DryRun) -> Iterator[str]:
    width = max((len(cell.name) for cell in cells), default=0)
    for cell in cells:
        if cell.left_out:
            yield f"{cell.name:<{width}}  skipped: {cell.left_out}"
        elif cell.name in found.errors:
            why = str(found.errors[cell.name]).partition("\n")[0]
            yield f"{cell.name:<{width}}  refused: {why}"
        else:
            yield f"{cell.name:<{width}}  {counts(found.results[cell.name]).replace(' ran', ' would run')}"


def _error_lines(found: DryRun) -> Iterator[str]:
    """Yield each reason once, with the cells that are rejected for it."""
    cells: dict[str, list[str]] = {}
    for label, error in found.errors.items():
        cells.setdefault(str(error), []).append(label)
    for why, labels in cells.items():
        yield f"error: {few(labels, _MOST_NAMES)}: {why}"


def _exit_code(found: DryRun) -> int:
    """Return 0 if everything can be built, the errors' code if all cells fail with the same code, otherwise 1."""
    if not found.errors:
        return 0
    codes = {error.exit_code for error in found.errors.values()}
    return codes.pop() if len(codes) == 1 and not found.results else StageError.exit_code


def _graph_lines(found: DryRun) -> Iterator[str]:
    """Yield ``2 builds = 14 stages (16 one by one), 2 exports, 4 cached, about 52.0 s left.``, and counts per stage."""
    counts = found.counts
    if not counts.builds:
        if not found.errors:
            yield "Nothing to build: every selected cell is skipped."
        return
    exports = counts.by_stage.get("export", 0)
    failing = found.statuses.get(Status.FAILED, 0)
    parts = [
        f"{_counted(counts.builds, 'build')} = {_counted(counts.stages, 'stage')} ({counts.apart:,} one by one)",
        *([_counted(exports, "export")] if exports else []),
        f"{found.statuses.get(Status.REUSED, 0):,} cached",
        *([f"{failing:,} failing"] if failing else []),
        _time(found),
    ]
    yield f"{', '.join(parts)}."
    yield f"These are {', '.join(f'{number} {name}' for name, number in counts.by_stage.items())}."


def _uncounted(sweep: Sweep) -> Iterator[str]:
    """Yield a line about the work of a run besides building, whose duration cannot be predicted."""
    more = [f"{' and '.join(sweep.measure)} of each cell"] if sweep.measure else []
    more += ["trials of the search"] if sweep.search else []
    if more:
        yield f"Not included is what follows when all are built: {', '.join(more)}."


def _time(found: DryRun) -> str:
    if not found.to_run:
        return "nothing to do"
    if found.never_timed == found.to_run:
        return f"{found.to_run:,} to run, which were never timed"
    untimed = f", {found.never_timed:,} of them never timed" if found.never_timed else ""
    return f"{found.to_run:,} to run{untimed}, about {duration_text(found.seconds)} left"


def _counted(number: int, word: str) -> str:
    return f"{number:,} {word}" if number == 1 else f"{number:,} {word}s"


def _json(cells: Sequence[Cell], found: DryRun) -> JsonObject:
    counts = found.counts
    return {
        "builds": [{"name": cell.name, "values": dict(cell.values), **_cell_json(cell, found)} for cell in cells],
        "graph": {
            "builds": counts.builds,
            "stages": counts.stages,
            "stages_apart": counts.apart,
            "by_stage": dict(counts.by_stage),
            "by_status": {str(status): number for status, number in found.statuses.items()},
            "never_timed": found.never_timed,
            "seconds_left": None if found.to_run and found.never_timed == found.to_run else round(found.seconds, 1),
        },
        "failed": list(found.errors),
        "elapsed_seconds": round(sum(result.elapsed_seconds for result in found.results.values()), 3),
    }


def _cell_json(cell: Cell, found: DryRun) -> JsonObject:
    if cell.name in found.results:
        return build_json(found.results[cell.name], dry_run=True)
    why = {"left_out": cell.left_out} if cell.left_out else {"error": str(found.errors[cell.name])}
    return {"final_artifact": None, "stages": [], **why}


# Limit of a matrix in GitHub Actions and Azure Pipelines.
MOST_JOBS = 256


def print_matrix(
    ci: str, recipes: Sequence[Path], selection: Selection, number: int | None, words: Sequence[str]
) -> int:
    """Print the CI matrix that builds the selected cells, in *number* shards or one job per cell.

    The format is the input of ``fromJSON`` in GitHub Actions. Azure Pipelines has alphanumeric names of jobs, and only
    text values. *words*: the options of this run, which each job repeats.
    """
    cells = [cell for cell in selected(sweep_of_files(recipes), selection) if not cell.left_out]
    jobs: list[JsonObject]
    if number is None:
        jobs = [
            {"name": cell.name, "values": dict(cell.values), **_arguments(words, "--filter", cell.name)}
            for cell in cells
        ]
    else:
        parts = [(str(Shard(index, number)), part) for index, part in enumerate(shards(cells, number), 1)]
        jobs = [
            {"shard": shard, "cells": len(part), **_arguments(words, "--shard", shard)} for shard, part in parts if part
        ]
    if len(jobs) > MOST_JOBS:
        echo(
            Note(f"These are {len(jobs)} jobs, more than the {MOST_JOBS} of a matrix. Use --shards for fewer."),
            err=True,
        )
    matrix: JsonObject = {"include": jobs}
    if ci == "azure":
        matrix = {
            f"job_{index}": {name: str(value) for name, value in job.items() if name != "values"}
            for index, job in enumerate(jobs, 1)
        }
    # Without the usual keys: the CI parses it.
    echo(json.dumps(matrix, ensure_ascii=False))
    return 0


def _arguments(words: Sequence[str], *chosen: str) -> dict[str, str]:
    return {"arguments": shlex.join(("build", *words, *chosen))}
