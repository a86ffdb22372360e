"""``winml-dag cache``: what is in the cache, whether it is sound, and emptying it."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from winml_dag.cli.options import FILE, format_option

if TYPE_CHECKING:
    from winml_dag.store.local import LocalStore

_cache_dir = click.option("--cache-dir", type=FILE, help="The cache folder [WINML_DAG_CACHE_DIR].")


@click.group(name="cache")
def command() -> None:
    """Look after the cache."""


@command.command()
@_cache_dir
@format_option
def info(cache_dir: Path | None, format_: str) -> int:
    """Say where the cache is and what is in it."""
    from winml_dag.store import upkeep

    store = _store(cache_dir)
    found = upkeep.info(store)
    if format_ == "json":
        click.echo(json.dumps({"cache_dir": str(store.folder), **asdict(found)}))
        return 0
    click.echo(f"cache folder   {store.folder}")
    click.echo(f"records        {found.records}")
    click.echo(f"blobs          {found.blobs}")
    click.echo(f"unique bytes   {_bytes(found.unique_bytes)}")
    click.echo(f"apparent bytes {_bytes(found.apparent_bytes)}  (outputs of all records, shared ones each time)")
    click.echo(f"index          {_bytes(found.index_bytes)}")
    click.echo(f"scratch        {_bytes(found.scratch_bytes)}")
    click.echo(f"quarantine     {_bytes(found.quarantine_bytes)}")
    return 0


@command.command()
@_cache_dir
@format_option
def verify(cache_dir: Path | None, format_: str) -> int:
    """Read everything in the cache again; what is damaged goes to quarantine and is made anew when needed."""
    from winml_dag.store import upkeep

    report = upkeep.verify(_store(cache_dir))
    if format_ == "json":
        click.echo(json.dumps({"clean": report.clean, **asdict(report)}))
    else:
        for digest in report.damaged:
            click.echo(f"damaged blob, now in quarantine: {digest}")
        for key in report.unreadable:
            click.echo(f"damaged record, now in quarantine: {key}")
        for name in report.foreign:
            click.echo(f"not of this cache, left alone: {name}")
        lacking = len(report.incomplete)
        click.echo(f"{report.records} records and {report.blobs} blobs are sound; {lacking} records lack a blob.")
    return 0 if report.clean else 1


@command.command()
@_cache_dir
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def clear(cache_dir: Path | None, yes: bool) -> int:
    """Take everything out of the cache, logs of failures included. Output folders are not touched."""
    pass
    from winml_dag.store import upkeep

    store = _store(cache_dir)
    if not yes and not click.confirm(f"Remove everything in {store.folder}?"):
        click.echo("Nothing was removed.")
        return 0
    cleared = upkeep.clear(store)
    pass
    click.echo(f"Removed {cleared.records} records and {cleared.blobs} blobs, {_bytes(cleared.freed_bytes)}.")
    return 0


def _store(cache_dir: Path | None) -> LocalStore:
    from winml_dag.store.local import LocalStore
    from winml_dag.store.location import default_cache_dir

    return LocalStore(cache_dir or default_cache_dir())


def _bytes(count: int) -> str:
    """Bytes for people: ``12.3 MiB``."""
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
