"""The options of ``build`` that choose where stages run, and the cluster that they describe."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from winml_dag.cli.parameters import TEXT
from winml_dag.cli.plaintext import echo
from winml_dag.errors import UsageError

if TYPE_CHECKING:
    from winml_dag.pipeline.remoteoptions import RemoteOptions
    from winml_dag.pipeline.run import BuildOptions

F = TypeVar("F", bound=Callable[..., Any])

# Names of the options. None of them affects what is built.
CLUSTER_OPTIONS = ("executor", "scheduler", "workers", "worker_tags")

_OPTIONS = (
    click.option(
        "--executor",
        type=click.Choice(["local", "dask"]),
        default=None,
        help="Where stages run: in processes of this machine, or on the workers of a cluster [local].",
    ),
    click.option(
        "--scheduler", type=TEXT, metavar="ADDRESS", help="Of the cluster, such as tcp://host:8786, or tls://host:8786."
    ),
    click.option(
        "--workers",
        type=click.IntRange(min=1),
        metavar="N",
        help="With --executor dask and no scheduler: as many workers on this machine, for this build [2].",
    ),
    click.option(
        "--worker-tag", "worker_tags", type=TEXT, multiple=True, metavar="TAG", help="Only workers that have this tag."
    ),
)


def cluster_options(function: F) -> F:
    """Add the options. The command receives them under the names in ``CLUSTER_OPTIONS``."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def refuse_misfits(options: Mapping[str, Any]) -> None:
    """Raise UsageError for options that contradict each other."""
    if options["executor"] != "dask":
        if given := [name for name in CLUSTER_OPTIONS[1:] if options[name]]:
            name = {"worker_tags": "worker-tag"}.get(given[0], given[0])
            raise UsageError(f"--{name} is about a cluster.", advice="Give --executor dask too.")
    elif options["scheduler"] and options["workers"]:
        raise UsageError(
            "--workers starts workers on this machine, and --scheduler names a cluster that has its own.",
            advice="Give one of them.",
        )


@contextmanager
def with_cluster(
    how: BuildOptions, options: Mapping[str, Any], cache_dir: Path, remote: RemoteOptions, *, quiet: bool
) -> Iterator[BuildOptions]:
    """Yield *how*, with the cluster that *options* describe, if any, open for the block.

    Raises:
        UsageError: for options that contradict each other, and when the cluster does not exist.
    """
    refuse_misfits(options)
    scheduler, workers = options["scheduler"], options["workers"]
    if options["executor"] != "dask":
        yield how
        return
    # Lazy import: local builds do not need it.
    from winml_dag.pipeline.cluster.cluster import ClusterOptions, open_cluster

    meant = ClusterOptions(scheduler, workers or 2, options["worker_tags"], how.jobs, how.memory_bytes)

    def say(sentence: str) -> None:
        if not quiet:
            echo(f"note: {sentence}", err=True)

    with open_cluster(meant, cache_dir, remote, say) as cluster:
        yield replace(how, cluster=cluster)
