"""``winml-dag build``: bring an output folder up to date."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from winml_dag.cli.options import format_option, planned_build, rebuild_option, request_options
from winml_dag.cli.report import errors_as_json, print_json, print_result
from winml_dag.errors import StageError

if TYPE_CHECKING:
    from winml_dag.pipeline.build import BuildOptions


@click.command(name="build")
@request_options
@rebuild_option
@click.option("-j", "--jobs", type=click.IntRange(min=1), default=None, help="Stages at a time [number of processors].")
@click.option("-k", "--keep-going", is_flag=True, help="After a failure go on with what does not depend on it.")
@click.option("--stage-timeout", type=click.FloatRange(min=0.1), help="Seconds after which any stage is ended.")
@click.option("--link", is_flag=True, help="Put read-only links into the cache into the output folder, not copies.")
@click.option("-v", "--verbose", is_flag=True, help="Say the reason of every stage, and show logs of failures whole.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing but errors and the last line.")
@format_option
def command(
    *,
    jobs: int | None,
    keep_going: bool,
    stage_timeout: float | None,
    link: bool,
    verbose: bool,
    quiet: bool,
    rebuild: bool,
    format_: str,
    **options: Any,
) -> int:
    """Build a model: run only what is not already known, then put the results into the output folder.

    \b
    winml-dag build -c recipe.yaml -o out
    winml-dag build --onnx model.onnx --device qnn --precision w8a16 -o out
    """
    from winml_dag.pipeline.build import BuildOptions

    with errors_as_json(format_):
        how = BuildOptions(jobs or os.cpu_count() or 1, keep_going, rebuild, stage_timeout, link)
        return _build(how, options, verbose=verbose, quiet=quiet, format_=format_)


def _build(how: BuildOptions, options: dict[str, Any], *, verbose: bool, quiet: bool, format_: str) -> int:
    from winml_dag.cli.progress import progress
    from winml_dag.pipeline.build import build

    planned, store = planned_build(options, to_build=True)
    with progress(quiet=quiet, to_stderr=format_ == "json") as observer:
        result = build(planned, store, how, observer=observer)
    if format_ == "json":
        print_json([result], result.elapsed_seconds)
    print_result(result, to_stderr=format_ == "json", quiet=quiet, verbose=verbose)
    return StageError.exit_code if result.failed else 0
