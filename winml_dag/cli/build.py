"""``winml-dag build``: bring an output folder up to date, on this machine or on a cluster that options describe."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from winml_dag.cli import Note, echo, set_result
from winml_dag.cli.command import MEMORY, SECONDS, TEXT, Command, with_options
from winml_dag.cli.options import (
    How,
    are_cells,
    cell_options,
    opened,
    output_options,
    overwrite_option,
    rebuild_option,
    request_from,
    several_request_options,
)
from winml_dag.errors import StageError, UsageError
from winml_dag.pipeline.uptodate import CurrentPlan, check, log_use

if TYPE_CHECKING:
    from winml_dag.engine.stage import FileAccess
    from winml_dag.pipeline.buildgraph import BuildSummary
    from winml_dag.pipeline.buildresult import BuildResult
    from winml_dag.pipeline.request import Request
    from winml_dag.pipeline.run import BuildOptions


_cluster_options = with_options(
    click.option(
        "--executor",
        type=click.Choice(["local", "dask"]),
        default=None,
        help="Run stages in processes of this machine, or on the workers of a cluster [local].",
    ),
    click.option("--scheduler", type=TEXT, metavar="ADDRESS", help="The cluster: tcp://host:8786 or tls://host:8786."),
    click.option(
        "--workers",
        type=click.IntRange(min=1),
        metavar="N",
        help="With --executor dask and no scheduler: start N workers on this machine for this build [2].",
    ),
    click.option(
        "--worker-tag", "worker_tags", type=TEXT, multiple=True, metavar="TAG", help="Use only workers with this tag."
    ),
)


def refuse_misfits(options: Mapping[str, Any]) -> None:
    """Raise UsageError for options that contradict each other."""
    if options["executor"] != "dask":
        for name, option in (("scheduler", "scheduler"), ("workers", "workers"), ("worker_tags", "worker-tag")):
            if options[name]:
                raise UsageError(f"--{option} is for a cluster.", advice="Also give --executor dask.")
    elif options["scheduler"] and options["workers"]:
        raise UsageError(
            "--workers starts workers on this machine, but the cluster of --scheduler has its own.",
            advice="Give one of them.",
        )


@contextmanager
def _with_cluster(build_options: BuildOptions, options: Mapping[str, Any], how: How) -> Iterator[BuildOptions]:
    """Yield *build_options*, with the cluster that *options* describe, if any, open for the block.

    Raises:
        UsageError: for options that contradict each other, and when the cluster does not exist.
    """
    refuse_misfits(options)
    if options["executor"] != "dask":
        yield build_options
        return
    # Lazy import: local builds do not need it.
    from winml_dag.pipeline.cluster.cluster import ClusterOptions, open_cluster

    meant = ClusterOptions(
        options["scheduler"],
        options["workers"] or 2,
        options["worker_tags"],
        build_options.jobs,
        build_options.memory_bytes,
    )

    def say(sentence: str) -> None:
        if not how.quiet:
            echo(Note(sentence), err=True)

    with open_cluster(meant, how.cache_dir, how.remote, say) as cluster:
        yield replace(build_options, cluster=cluster)


@click.command(name="build", cls=Command)
@several_request_options
@cell_options
@click.option("--retry-failed", is_flag=True, help="Build only the cells of a sweep that failed last time.")
@rebuild_option
@click.option("-j", "--jobs", type=click.IntRange(min=1), default=None, help="Parallel stages [number of processors].")
@click.option(
    "--memory",
    type=MEMORY,
    help="Memory for all stages that run in parallel, such as 16GB, or none for no limit [most of this machine's].",
)
@click.option(
    "-k/",
    "--keep-going/--no-keep-going",
    default=None,
    help="After a failure, run everything that does not depend on it [on for several builds].",
)
@click.option("--stage-timeout", type=SECONDS, help="End a stage after this many seconds.")
@_cluster_options
@overwrite_option
@click.option("--link", is_flag=True, help="Write read-only links into the cache instead of copies.")
@click.option("--sandbox", is_flag=True, help="Hide everything but declared inputs from custom stages.")
@click.option("--check-inputs", is_flag=True, help="Fail custom stages that read undeclared files, and name the files.")
@output_options
def command(**options: Any) -> int:
    """Build a model, or custom stages: run the stages that are not cached, then write the results.

    A sweep, several recipes, a folder or a pattern of recipes are built as one graph.

    \b
    winml-dag build recipe.yaml -o out
    winml-dag build --onnx model.onnx --device qnn --precision w8a16 -o out
    winml-dag build -c sweep.yaml -o out --filter model=bert
    """
    started = time.monotonic()
    how, recipes = How.of(options), options["recipes"]
    request = request_from(options, how.remote)
    sandbox, check_inputs = options["sandbox"], options["check_inputs"]
    at_a_glance = not (how.rebuild or how.verbose or check_inputs or how.as_json)
    # Before any other import: most builds have nothing to do and need no more than this.
    current_plan = look(request, how.cache_dir) if len(recipes) < 2 else None
    if at_a_glance:
        refuse_misfits(options)  # even if up to date
    # A recipe without cells is rejected below.
    filters, shard, retry_failed = options["filters"], options["shard"], options["retry_failed"]
    chooses = bool(filters or shard or retry_failed)
    if at_a_glance and not chooses and say_up_to_date(current_plan, how.cache_dir, started):
        return 0
    may_be_a_sweep = bool(recipes) and current_plan is None and not retry_failed
    if at_a_glance and may_be_a_sweep and _say_sweep_up_to_date(request, options, how.cache_dir, started):
        return 0

    from winml_dag.cli.buildreport import builds_json
    from winml_dag.pipeline.run import BuildOptions

    keep_going = options["keep_going"]
    build_options = BuildOptions(
        options["jobs"] or os.cpu_count() or 1,
        keep_going=bool(keep_going),
        rebuild=how.rebuild,
        stage_timeout_seconds=options["stage_timeout"],
        link=options["link"],
        access=_access(sandbox=sandbox, check_inputs=check_inputs),
        overwrite=how.overwrite,
        memory_bytes=options["memory"],
    )
    with _with_cluster(build_options, options, how) as build_options:
        # The cached plan is that of a single build.
        if (chooses or current_plan is None) and are_cells(recipes, selects=chooses):
            from winml_dag.cli.sweep import build_sweep
            from winml_dag.pipeline.sweep.cells import Selection

            selection = Selection(filters, shard, retry_failed)
            # With several builds, one failure does not affect the others.
            of_several = replace(build_options, keep_going=keep_going is not False)
            code = build_sweep(recipes, request, selection, of_several, how)
            if sandbox:
                _say_what_is_not_watched()
            return code
        result = carry_out(request, current_plan, build_options, how)
    if how.as_json:
        set_result(builds_json([result], result.elapsed_seconds))
    if sandbox:
        _say_what_is_not_watched()
    from winml_dag.engine.events import Status

    if check_inputs and not any(view.status in (Status.RAN, Status.FAILED) for view in result.stages):
        echo(Note("no stage ran, so no inputs were checked. Use --rebuild to check all."), err=True)
    return StageError.exit_code if result.failed else 0


def _access(*, sandbox: bool, check_inputs: bool) -> FileAccess:
    from winml_dag.engine.stage import FileAccess

    if sandbox and check_inputs:
        raise UsageError("--sandbox and --check-inputs exclude each other.", advice="Use one of them.")
    if check_inputs:
        from winml_dag.engine.sandbox import find_tracer

        find_tracer()
        return FileAccess.TRACE
    return FileAccess.SANDBOX if sandbox else FileAccess.FREE


def look(request: Request, cache_dir: Path) -> CurrentPlan | None:
    """Return what is recorded of the output of *request*; None for a request that is never recorded."""
    return None if request.words is None else check(str(cache_dir.absolute()), request.words)


def say_up_to_date(current_plan: CurrentPlan | None, cache_dir: Path, started: float) -> bool:
    """Return whether there is nothing to do. If so, print that and record the use in the cache."""
    if current_plan is None or not current_plan.is_up_to_date:
        return False
    log_use(str(cache_dir.absolute()), current_plan)
    echo(f"{current_plan.entry.header.summary}, checked in {time.monotonic() - started:.2f} s.")
    return True


def _say_sweep_up_to_date(request: Request, options: Mapping[str, Any], cache_dir: Path, started: float) -> bool:
    """Return whether the sweep of *options* has nothing to do. If so, print that."""
    # Lazy import: it would be a fifth of all imports of an up-to-date single build.
    from winml_dag.pipeline.sweep.stamp import load_sweep_stamp, words_of
    from winml_dag.store.quantities import counted

    words = words_of(options["recipes"], replace(request, recipe=None), options["filters"], options["shard"])
    found = None if words is None else load_sweep_stamp(cache_dir, words)
    if found is None:
        return False
    for line in found.lines:
        echo(line)
    seconds = time.monotonic() - started
    left_out = f", {found.left_out} skipped" if found.left_out else ""
    echo(f"{counted(found.cells + found.left_out, 'cell')} in {seconds:.2f} s: {found.cells} up to date{left_out}.")
    return True


def carry_out(
    request: Request,
    current_plan: CurrentPlan | None,
    build_options: BuildOptions,
    how: How,
    *,
    lines: Callable[[BuildResult], Iterable[str]] = lambda _: (),
    refuse: Callable[[BuildSummary], None] = lambda _: None,
) -> BuildResult:
    """Build *request* and print the result: to stdout, or with ``--format json`` to stderr.

    *lines* returns additional lines to print when something ran. *refuse* raises for a build that must not start.
    """
    from winml_dag.cli.buildreport import print_result
    from winml_dag.cli.progress import progress
    from winml_dag.pipeline.build import build
    from winml_dag.pipeline.plan_cache import plan_request
    from winml_dag.pipeline.run import Driver
    from winml_dag.pipeline.search import WithoutRounds

    store = opened(how.cache_dir, how.remote)
    # A part of the graph is enough, unless every stage has to run or be printed.
    part = not (how.rebuild or how.verbose or how.as_json)
    with Driver(store, build_options).while_planning([request]) as driver:
        planned = plan_request(request, store, download=True, current_plan=current_plan, part=part)
        refuse(planned.summary)
        stages = len(planned.graph.nodes) + planned.others
        with progress(quiet=how.quiet, to_stderr=how.as_json, stages=stages, starts=how.verbose) as observer:
            shown = observer if how.verbose else WithoutRounds(observer)
            result = build(planned, replace(driver, observer=shown))
    print_result(result, how, lines)
    return result


def _say_what_is_not_watched() -> None:
    """Print a note if the kernel cannot prevent a stage from reading undeclared files by absolute path."""
    from winml_dag.engine.sandbox import watches_absolute_paths

    if not watches_absolute_paths():
        echo(Note("absolute paths are not restricted: that needs Linux with Landlock."), err=True)
