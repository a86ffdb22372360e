"""``winml-dag worker``: let builds on other machines run stages on this one."""

from __future__ import annotations

import os
from pathlib import Path

import click

from winml_dag.cli import echo
from winml_dag.cli.options import FILE, MEMORY, TEXT
from winml_dag.store.cache_folder import default_cache_dir


@click.command(name="worker")
@click.argument("scheduler", metavar="SCHEDULER")
@click.option("--cache-dir", type=FILE, help="The cache folder of this worker [WINML_DAG_CACHE_DIR].")
@click.option("--places", type=click.IntRange(min=1), help="Stages at a time [number of processors].")
@click.option("--memory", type=MEMORY, help="What they may take together, such as 16GB [most of this machine's].")
@click.option("--tag", "tags", type=TEXT, multiple=True, help="A word by which builds choose workers; again for more.")
@click.option("--name", type=TEXT, help="How dask's dashboard calls it [its address].")
def command(
    *,
    scheduler: str,
    cache_dir: Path | None,
    places: int | None,
    memory: int | None,
    tags: tuple[str, ...],
    name: str | None,
) -> int:
    """Work for builds that use the scheduler at that address: until Ctrl-C, or until the scheduler goes.

    \b
    dask scheduler
    winml-dag worker tcp://10.0.0.5:8786 --places 4 --tag rack2
    winml-dag build -c sweep.yaml -o out --executor dask --scheduler tcp://10.0.0.5:8786
    """
    from winml_dag.pipeline.cluster.report import Report
    from winml_dag.pipeline.cluster.worker import serve
    from winml_dag.store.store import Store

    def began(address: str) -> None:
        echo(f"Working at {address} for {scheduler}: {report.summary}, process {os.getpid()}.")

    folder = cache_dir or default_cache_dir()
    Store(folder)  # creates the folder, by which builds recognize workers that share it
    report = Report.here(folder, places, memory, tags)
    serve(scheduler, folder, report, name, began)
    return 0
