"""The option, output and time format that all cache commands share."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from winml_dag.cli import echo
from winml_dag.cli.options import FILE
from winml_dag.errors import WinmlDagError

if TYPE_CHECKING:
    from winml_dag.store.store import Store

cache_dir_option = click.option("--cache-dir", type=FILE, help="The cache folder [WINML_DAG_CACHE_DIR].")


def opened(cache_dir: Path | None) -> Store:
    """The store that a build started here would use."""
    from winml_dag.pipeline.request import RemoteOptions
    from winml_dag.store.store import Store

    remote = RemoteOptions()
    return Store(remote.store_folder(cache_dir), function="sha256" if remote.is_configured else None)


@contextmanager
def errors_as_object(format_: str) -> Iterator[None]:
    """With the format json, print an error as the one object on stdout too; its message still goes to stderr."""
    try:
        yield
    except WinmlDagError as error:
        if format_ == "json":
            print_object({"success": False, "errors": [str(error)]})
        raise


def print_object(value: object) -> None:
    """Print exactly one JSON object on stdout."""
    echo(json.dumps(value, ensure_ascii=False))


def time_of(seconds: float) -> str:
    """A time in the format of records: ``2026-11-21T08:32:51+00:00``."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat(timespec="seconds")
