"""``cache verify``: whether everything in the cache is sound, and mending what is not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from winml_dag.cli import echo
from winml_dag.cli.cache.common import cache_dir_option, opened, print_object
from winml_dag.cli.options import format_option

if TYPE_CHECKING:
    from winml_dag.store.store import Store
    from winml_dag.store.upkeep import VerifyReport


@click.command()
@cache_dir_option
@click.option("--repair", is_flag=True, help="Remove records that lack a blob, and make the index anew.")
@format_option
def verify(cache_dir: Path | None, repair: bool, format_: str) -> int:
    """Read everything in the cache again; what is damaged goes to quarantine and is made anew when needed."""
    from winml_dag.store import upkeep
    from winml_dag.store.quantities import counted

    store = opened(cache_dir)
    report = upkeep.repair(store) if repair else upkeep.verify(store)
    is_well = report.repaired if repair else report.clean
    if format_ == "json":
        print_object({"clean": report.clean, **({"repaired": report.repaired} if repair else {}), **asdict(report)})
    else:
        for line in _findings(report, store):
            echo(line)
        lacking = len(report.incomplete) - len(report.removed)
        sound = f"{counted(report.records, 'record')} and {counted(report.blobs, 'blob')}"
        lack = "lacks" if lacking == 1 else "lack"
        echo(f"Sound: {sound}. {counted(lacking, 'record')} {lack} a blob.")
        if report.only_behind:
            are = "is not here and comes" if report.only_behind == 1 else "are not here and come"
            echo(f"{counted(report.only_behind, 'blob')} {are} from a remote when needed.")
    return 0 if is_well else 1


def _findings(report: VerifyReport, store: Store) -> Iterator[str]:
    for digest in report.damaged:
        stays = store.blobs.path(digest).exists()
        yield f"damaged blob, {'which cannot be moved to' if stays else 'now in'} quarantine: {digest}"
    for key in report.unreadable:
        yield f"damaged record, now in quarantine: {key}"
    for key in report.incomplete:
        yield f"record that lacks a blob, {'removed' if key in report.removed else 'counts as not built'}: {key}"
    for digest in report.restamped:
        yield f"sound blob whose time was changed, set right: {digest}"
    for key in report.rows:
        yield f"row of the index that was not as its record is, made anew: {key}"
    for name in report.foreign:
        yield f"not of this cache, left alone: {name}"
