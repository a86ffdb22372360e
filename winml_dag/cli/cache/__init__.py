"""``winml-dag cache``: listing, checking, shrinking and sharing the cache."""

from __future__ import annotations

import click

from winml_dag.cli import Group
from winml_dag.cli.cache import contents, sharing


@click.group(name="cache", cls=Group)
def command() -> None:
    """Inspect, check, shrink and share the cache."""


for _inner in (
    contents.info,
    contents.list_,
    contents.show_,
    contents.gc,
    contents.verify,
    contents.clear,
    sharing.push,
    sharing.pull,
    sharing.remote,
):
    command.add_command(_inner)
