"""``winml-dag cache``: listing, checking, shrinking and sharing the cache."""

from __future__ import annotations

import click

from winml_dag.cli.cache import contents, sharing, upkeep


@click.group(name="cache")
def command() -> None:
    """Look after the cache."""


for _inner in (
    contents.info,
    contents.list_,
    contents.show,
    upkeep.gc,
    upkeep.limit,
    upkeep.verify,
    upkeep.clear,
    sharing.push,
    sharing.pull,
    sharing.remote,
):
    command.add_command(_inner)
