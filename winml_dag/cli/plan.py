"""``winml-dag plan`` and ``why``: what a build would run, in a line for each stage or with the complete reasons.

Both run and write nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from winml_dag.cli import Note, as_json, echo, set_result
from winml_dag.cli.buildreport import FORESEEN, builds_json, counts, stage_line
from winml_dag.cli.command import Command, given_words
from winml_dag.cli.options import (
    are_cells,
    cell_options,
    format_option,
    planned_build,
    rebuild_option,
    request_options,
    several_request_options,
)
from winml_dag.cli.sweepplan import MOST_JOBS, print_matrix, print_sweep_plan
from winml_dag.engine.events import Reason, Status, waits
from winml_dag.errors import UsageError
from winml_dag.pipeline.sweep.cells import Selection

if TYPE_CHECKING:
    from winml_dag.engine.events import StageResult
    from winml_dag.engine.graph import Graph
    from winml_dag.pipeline.buildresult import StageView

# Maximum files of one input that are listed on separate lines.
_MOST_FILES = 20


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
    "--shards", type=click.IntRange(1, MOST_JOBS), help="Number of jobs of the --matrix, each for some cells."
)
@format_option
@click.pass_context
def plan(context: click.Context, /, **options: Any) -> int:
    """Show what `build` would do with the same options: each stage, the reason, and the estimated time.

    For a sweep or several recipes, show what each cell would do and the totals of their common graph.
    """
    matrix, shards, recipes = options["matrix"], options["shards"], options["recipes"]
    if shards is not None and (options["shard"] is not None or matrix is None):
        raise UsageError("--shards is the number of jobs of --matrix.", advice="--shard selects one part.")
    selection = Selection(options["filters"], options["shard"])
    if not are_cells(recipes, selects=matrix is not None or selection != Selection()):
        return _print_plan(options)
    if matrix is not None:
        but = ("format_", "matrix", "shards", *(() if shards else ("filters", "shard")))
        return print_matrix(matrix, recipes, selection, shards, [*given_words(context, but)])
    return print_sweep_plan(recipes, selection, options)


def _print_plan(options: Mapping[str, Any]) -> int:
    from winml_dag.pipeline.build import plan as planned

    result = planned(*planned_build(options), rebuild=options["rebuild"], explain=True)
    if as_json():
        set_result(builds_json([result], result.elapsed_seconds, dry_run=True))
        return 0
    width = max(len(view.id) for view in result.stages)
    for view in result.stages:
        echo(stage_line(view, width))
    for notice in result.build.notices:
        echo(Note(notice), err=True)
    names = {name for view in result.stages if view.result is not None for name in view.result.assumes}
    if assumed := [view.id for view in result.stages if view.id in names]:
        echo(Note(f"The plan after {', '.join(assumed)} assumes the same findings as last time."), err=True)
    to_run = _running(result.stages)
    known = [view.elapsed_seconds for view in to_run if view.elapsed_seconds is not None]
    parts = [f"about {sum(known):.1f} s"] if known else []
    parts += [f"{len(to_run) - len(known)} never timed"] if len(to_run) > len(known) else []
    echo(f"{counts(result).replace('ran', 'would run')}; {', '.join(parts) if to_run else 'nothing to do'}.")
    return 0


@click.command(name="why", cls=Command)
@click.argument("stage", required=False)
@request_options
@rebuild_option
@format_option
def why(*, stage: str | None, **options: Any) -> int:
    """Explain why STAGE (a name or id) would run or not. Without STAGE, explain every stage that would run."""
    from winml_dag.pipeline.build import plan as planned
    from winml_dag.pipeline.buildresult import views_named

    graph, store = planned_build(options)
    result = planned(graph, store, rebuild=options["rebuild"], explain=True)
    chosen = _running(result.stages) if stage is None else views_named(result, stage)
    if as_json():
        shown = replace(result, stages=tuple(chosen))
        set_result(builds_json([shown], result.elapsed_seconds, dry_run=True))
        return 0
    by_id = {view.id: view for view in (*result.stages, *result.like_before)}
    for view in chosen:
        for line in _explanation(view, by_id, graph.graph, all_are_shown=stage is None):
            echo(line)
    if not chosen:
        echo("Nothing would run: everything is cached.")
    return 0


def _running(views: Sequence[StageView]) -> list[StageView]:
    return [view for view in views if view.status is Status.RAN]


def _explanation(
    view: StageView, by_id: Mapping[str, StageView], graph: Graph, *, all_are_shown: bool
) -> Iterator[str]:
    """Yield the outcome of a stage, followed by the indented reasons."""
    yield f"{view.id}: {FORESEEN[view.status]}"
    if view.result is None:
        yield f"  {view.reason}"
        return
    reason, record = view.result.reason, view.result.record
    if view.result.error:
        yield f"  {view.result.error}"
    if reason.kind == "waits":
        further = all_are_shown and not set(reason.roots) <= set(reason.names)
        yield f"  {waits(reason.names)}" + (f", which depends on {', '.join(reason.roots)}" if further else "")
        if not all_are_shown:
            yield from (f"  {root} would run: {by_id[root].reason}" for root in reason.roots)
    yield from (f"  {line}" for line in _reason_lines(reason))
    yield from (f"  {line}" for line in _origins(view.result, by_id, graph))
    if reason.nearest is not None and reason.kind == "changed":
        yield f"  more similar than the last build here is {reason.nearest}"
    if view.cache_key:
        yield f"  cache key {view.cache_key}"
    if record is not None:
        yield f"  made {record.made_at} by {record.made_by}, took {record.elapsed_seconds:.1f} s"
    if view.status is Status.REUSED and view.result.node.folder is not None and not all_are_shown:
        yield "  to find undeclared files that it reads: winml-dag build --check-inputs --rebuild"


def _reason_lines(reason: Reason) -> Iterator[str]:
    """Yield the reason, with one line per difference."""
    if reason.nearest is not None and reason.kind == "first build":
        yield f"never built like this; nearest is {reason.nearest.name}:"
        yield from (f"  {line}" for change in reason.nearest.changes for line in change.lines(_MOST_FILES))
        return
    if not reason.changes and reason.kind != "waits":
        yield str(reason)
    for change in reason.changes:
        yield from change.lines(_MOST_FILES)


def _origins(result: StageResult, by_id: Mapping[str, StageView], graph: Graph) -> Iterator[str]:
    """Yield the stage that produced each changed input, and when it ran."""
    for change in result.reason.changes:
        maker = graph.makers.get(result.node.inputs.get(change.name, "")) if change.kind == "input" else None
        made = None if maker is None else by_id[maker.id].result
        if made is not None and made.record is not None:
            yield f"{made.node.id} gave this {change.name} when it ran at {made.record.made_at}"


COMMANDS = {"plan": plan, "why": why}
