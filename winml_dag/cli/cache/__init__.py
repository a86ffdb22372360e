"""``winml-dag cache``: list, verify, shrink and clear the cache, and share it with other machines."""

from __future__ import annotations

import click

from winml_dag.cli.cache import contents, remote, sharing, size, soundness


@click.group(name="cache")
def command() -> None:
    """Look after the cache."""


for _inner in (
    contents.info,
    contents.list_,
    contents.show,
    size.gc,
    size.limit,
    soundness.verify,
    size.clear,
    sharing.push,
    sharing.pull,
    remote.remote,
):
    command.add_command(_inner)
