"""``winml-dag plan``: what a build would run and why. Runs and writes nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from winml_dag.cli import echo, set_result
from winml_dag.cli.buildreport import builds_json, counts, stage_line
from winml_dag.cli.command import Command
from winml_dag.cli.options import (
    are_cells,
    cell_options,
    format_option,
    given_words,
    planned_build,
    rebuild_option,
    request_from,
    several_request_options,
)
from winml_dag.errors import UsageError
from winml_dag.pipeline.sweep.cells import Selection, refuse_overruled, selected

# Limit of a matrix in GitHub Actions and Azure Pipelines.
_MOST_JOBS = 256


@click.command(name="plan", cls=Command)
@several_request_options
@cell_options
@rebuild_option
@click.option("-j", "--jobs", type=click.IntRange(min=1), help="Parallel stages, for the estimated time [processors].")
@click.option(
    "--matrix",
    type=click.Choice(["github", "azure"]),
    is_flag=False,
    flag_value="github",
    help="Print a CI job matrix as JSON, with a job for each cell [github].",
)
@click.option(
    "--shards", type=click.IntRange(1, _MOST_JOBS), help="Number of jobs of the --matrix, each for some cells."
)
@format_option
@click.pass_context
def command(
    context: click.Context,
    /,
    *,
    recipes: tuple[Path, ...],
    filters: tuple[str, ...],
    shard: str | None,
    rebuild: bool,
    jobs: int | None,
    matrix: str | None,
    shards: int | None,
    format_: str,
    **options: Any,
) -> int:
    """Show what `build` would do with the same options: each stage, the reason, and the estimated time.

    For a sweep or several recipes, show what each cell would do and the totals of their common graph.
    """
    from winml_dag.engine.events import Status
    from winml_dag.pipeline.build import plan

    options["recipe"] = recipes[0] if recipes else None
    if shards is not None and (shard is not None or matrix is None):
        raise UsageError("--shards is the number of jobs of --matrix.", advice="--shard selects one part.")
    selection = Selection(filters, shard)
    if are_cells(recipes, selects=matrix is not None or selection != Selection()):
        if matrix is not None:
            but = ("format_", "matrix", "shards", *(() if shards else ("filters", "shard")))
            return _print_matrix(matrix, recipes, selection, shards, given_words(context, but))
        from winml_dag.cli.remotes import opened
        from winml_dag.cli.sweepplan import look_at_sweep
        from winml_dag.recipe.sweep import sweep_of_files

        request, cache_dir = request_from(options)
        sweep = sweep_of_files(recipes)
        refuse_overruled(sweep, request.overrides)
        cells, store = selected(sweep, selection), opened(cache_dir, request.remote)
        jobs = jobs or os.cpu_count() or 1
        return look_at_sweep(sweep, cells, request, store, jobs=jobs, rebuild=rebuild, as_json=format_ == "json")
    result = plan(*planned_build(options), rebuild=rebuild, explain=True)
    if format_ == "json":
        set_result(builds_json([result], result.elapsed_seconds, dry_run=True))
        return 0
    width = max(len(view.id) for view in result.stages)
    for view in result.stages:
        echo(stage_line(view, width))
    for notice in result.build.notices:
        echo(f"note: {notice}", err=True)
    names = {name for view in result.stages if view.result is not None for name in view.result.assumes}
    if assumed := [view.id for view in result.stages if view.id in names]:
        echo(f"note: What follows {', '.join(assumed)} assumes that it finds the same as last time.", err=True)
    to_run = [view for view in result.stages if view.status is Status.RAN]
    known = [view.elapsed_seconds for view in to_run if view.elapsed_seconds is not None]
    unknown = len(to_run) - len(known)
    untimed = f"{unknown} never timed" if unknown else ""
    time = ", ".join(part for part in (f"about {sum(known):.1f} s" if known else "", untimed) if part)
    echo(f"{counts(result).replace('ran', 'would run')}; {time if to_run else 'nothing to do'}.")
    return 0


def _print_matrix(
    ci: str, recipes: tuple[Path, ...], selection: Selection, number: int | None, words: Sequence[str]
) -> int:
    from winml_dag.cli.sweepplan import azure_matrix, job_matrix
    from winml_dag.recipe.sweep import sweep_of_files

    matrix = job_matrix(selected(sweep_of_files(recipes), selection), words, number)
    if (jobs := len(matrix["include"])) > _MOST_JOBS:
        echo(f"note: These are {jobs} jobs, more than the {_MOST_JOBS} of a matrix. Use --shards for fewer.", err=True)
    # Not an object of ours: the CI parses it.
    echo(json.dumps(azure_matrix(matrix["include"]) if ci == "azure" else matrix, ensure_ascii=False))
    return 0
