"""``winml-dag worker``: let builds on other machines run stages on this one."""

from __future__ import annotations

import os
from typing import Any

import click

from winml_dag.cli import echo
from winml_dag.cli.command import FILE, MEMORY, TEXT, Command
from winml_dag.store.cache_folder import default_cache_dir


@click.command(name="worker", cls=Command, panel="Worker")
@click.argument("scheduler", metavar="SCHEDULER")
@click.option("--cache-dir", type=FILE, help="The cache folder [WINML_DAG_CACHE_DIR].")
@click.option(
    "--slots", "--places", "places", type=click.IntRange(min=1), help="Parallel stages [number of processors]."
)
@click.option("--memory", type=MEMORY, help="Memory for all stages, such as 16GB [most of this machine's].")
@click.option(
    "--tag", "tags", type=TEXT, multiple=True, help="A tag by which builds select workers (--worker-tag). Repeatable."
)
@click.option("--name", type=TEXT, help="The worker's name in dask's dashboard [its address].")
def command(*, scheduler: str, **options: Any) -> None:
    """Run stages for builds that use the dask scheduler at SCHEDULER, until Ctrl-C or until the scheduler stops.

    \b
    dask scheduler
    winml-dag worker tcp://10.0.0.5:8786 --slots 4 --tag rack2
    winml-dag build -c sweep.yaml -o out --executor dask --scheduler tcp://10.0.0.5:8786
    """
    from winml_dag.pipeline.cluster.report import Report
    from winml_dag.pipeline.cluster.worker import serve
    from winml_dag.store.store import Store

    def began(address: str) -> None:
        echo(f"Working at {address} for {scheduler}: {report.summary}, process {os.getpid()}.")

    folder = options["cache_dir"] or default_cache_dir()
    Store(folder)  # creates the folder, by which builds recognize workers that share it
    report = Report.here(folder, options["places"], options["memory"], options["tags"])
    serve(scheduler, folder, report, options["name"], began)
