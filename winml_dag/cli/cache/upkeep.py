"""``cache gc``, ``clear`` and ``verify``: making the cache smaller, and checking it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from winml_dag.cli import echo, show
from winml_dag.cli.cache.common import cache_dir_option, opened
from winml_dag.cli.command import Command
from winml_dag.cli.options import format_option

if TYPE_CHECKING:
    from winml_dag.store.gc import Collected
    from winml_dag.store.store import Store
    from winml_dag.store.upkeep import VerifyReport


@click.command(cls=Command)
@cache_dir_option
@click.option("--max-size", metavar="SIZE", help="What records and blobs may take, such as 10GiB [the limit, if set].")
@click.option("--older-than", metavar="TIME", help="Remove what was not used for so long, such as 30d or 12h.")
@click.option("--limit", metavar="SIZE", help="Keep the cache to this size from now on too; `none` removes the limit.")
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@format_option
def gc(cache_dir: Path | None, max_size: str | None, older_than: str | None, limit: str | None, dry_run: bool) -> None:
    """Remove the least recently used records, blobs that no record needs, and leftovers. Builds may run meanwhile.

    With a limit, a build that makes the cache larger also removes the least recently used records, down to 80 % of the
    limit. WINML_DAG_CACHE_MAX_SIZE overrides it.
    """
    from winml_dag.store.gc import Limits, collect
    from winml_dag.store.quantities import parse_duration, parse_size
    from winml_dag.store.usage import configured_limit, parse_limit, set_limit

    most = None if max_size is None else parse_size(max_size, "--max-size")
    age = None if older_than is None else parse_duration(older_than, "--older-than")
    kept_to = None if limit is None else parse_limit(limit, "--limit")
    store = opened(cache_dir)
    if limit is not None and not dry_run:
        set_limit(store.folder, limit)
    if most is None and age is None:
        most = configured_limit(store.folder) if limit is None else kept_to
    done = collect(store, Limits(most, age), dry_run=dry_run)
    assert done is not None, "it waits"
    limited = [_limit_sentence(store)] if limit is not None and not dry_run else []
    lines = [*limited, *_sentences(done, most, dry_run)]
    show({"dry_run": dry_run, **asdict(done)}, lines)


def _sentences(done: Collected, most: int | None, dry_run: bool) -> list[str]:
    from winml_dag.store.quantities import counted, size_text

    verb, left = ("Would remove", "would be left") if dry_run else ("Removed", "are left")
    lines = [
        f"{verb} {counted(done.records, 'record')}, {counted(done.blobs, 'blob')} and "
        f"{counted(done.leftovers, 'leftover')}, "
        f"{size_text(done.freed_bytes)}; {size_text(done.left_bytes)} {left}."
    ]
    if done.records_in_use or done.blobs_in_use:
        in_use = f"{counted(done.records_in_use, 'record')} and {counted(done.blobs_in_use, 'blob')}"
        lines.append(f"Kept {in_use} that a running build uses or that were stored just now.")
    if most is not None and done.left_bytes > most:
        lines.append(f"That is more than {size_text(most)}: collect again when no build runs.")
    return lines


@click.command(cls=Command, hidden=True)
@click.argument("size", required=False)
@cache_dir_option
@format_option
def limit(size: str | None, cache_dir: Path | None) -> None:
    """Set the limit as `gc --limit` does, without collecting, or say what it is."""
    from winml_dag.store.usage import configured_limit, parse_limit, set_limit

    if size is not None:
        parse_limit(size, "the limit")
    store = opened(cache_dir)
    if size is not None:
        set_limit(store.folder, size)
    limit_bytes = configured_limit(store.folder)
    show({"limit_bytes": limit_bytes}, [_limit_sentence(store)])


def _limit_sentence(store: Store) -> str:
    import os

    from winml_dag.store.usage import VARIABLE, limit_text

    text, by = limit_text(store.folder), f", by {VARIABLE}" if os.environ.get(VARIABLE) else ""
    return f"The cache in {store.folder} is limited to {text}{by}." if text else f"The cache has no limit{by}."


@click.command(cls=Command)
@cache_dir_option
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
def clear(cache_dir: Path | None, yes: bool) -> None:
    """Empty the cache, including logs of failures. Output folders do not change."""
    from winml_dag.store import upkeep
    from winml_dag.store.quantities import counted, size_text

    store = opened(cache_dir)
    if not yes and not click.confirm(f"Remove everything in {store.folder}?"):
        echo("Nothing was removed.")
        return
    cleared = upkeep.clear(store)
    gone = f"{counted(cleared.records, 'record')} and {counted(cleared.blobs, 'blob')}"
    echo(f"Removed {gone}, {size_text(cleared.freed_bytes)}.")


@click.command(cls=Command)
@cache_dir_option
@click.option("--repair", is_flag=True, help="Remove records without all of their blobs, and rebuild the index.")
@format_option
def verify(cache_dir: Path | None, repair: bool) -> int:
    """Check all files in the cache. Damaged records and blobs go to quarantine and are rebuilt when needed."""
    from winml_dag.store import upkeep
    from winml_dag.store.quantities import counted

    store = opened(cache_dir)
    report = upkeep.repair(store) if repair else upkeep.verify(store)
    is_well = report.repaired if repair else report.clean
    lacking = len(report.incomplete) - len(report.removed)
    intact = f"{counted(report.records, 'record')} and {counted(report.blobs, 'blob')}"
    lack = "lacks" if lacking == 1 else "lack"
    lines = [*_findings(report, store), f"Intact: {intact}. {counted(lacking, 'record')} {lack} a blob."]
    if report.only_behind:
        are = "is not here and comes" if report.only_behind == 1 else "are not here and come"
        lines.append(f"{counted(report.only_behind, 'blob')} {are} from a remote when needed.")
    repaired = {"repaired": report.repaired} if repair else {}
    show({"clean": report.clean, **repaired, **asdict(report)}, lines)
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
        yield f"intact blob with a changed time, corrected: {digest}"
    for key in report.rows:
        yield f"row of the index that differed from its record, rebuilt: {key}"
    for name in report.foreign:
        yield f"not part of this cache, kept: {name}"
