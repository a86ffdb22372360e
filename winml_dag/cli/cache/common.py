"""The option and time format that all cache commands share."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from winml_dag.cli.command import FILE

if TYPE_CHECKING:
    from winml_dag.store.store import Store

cache_dir_option = click.option("--cache-dir", type=FILE, help="The cache folder [WINML_DAG_CACHE_DIR].")


def opened(cache_dir: Path | None) -> Store:
    """The store that a build started here would use."""
    from winml_dag.pipeline.request import RemoteOptions
    from winml_dag.store.store import Store

    remote = RemoteOptions()
    return Store(remote.store_folder(cache_dir), function="sha256" if remote.is_configured else None)


def time_of(seconds: float) -> str:
    """A time in the format of records: ``2026-11-21T08:32:51+00:00``."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat(timespec="seconds")
