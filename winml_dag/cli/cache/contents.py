"""The cache of this machine: what is in it, making it smaller, and checking it."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from winml_dag.cli import echo, show
from winml_dag.cli.command import FILE, Command
from winml_dag.cli.options import format_option
from winml_dag.errors import UsageError

if TYPE_CHECKING:
    from winml_dag.canonical import JsonObject, JsonValue
    from winml_dag.store.artifact import FileEntry
    from winml_dag.store.gc import Collected
    from winml_dag.store.store import Store
    from winml_dag.store.upkeep import Entry, VerifyReport
    from winml_dag.store.usage import Statistics, Traffic

_KEY_DIGITS = 12
_LARGEST = 5
_LOG_LINES = 20

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


@click.command(cls=Command)
@cache_dir_option
@format_option
def info(cache_dir: Path | None) -> None:
    """Show the cache folder, its contents, and the time it saved."""
    from winml_dag.store import upkeep
    from winml_dag.store.cache_folder import limit_text, stores_beside
    from winml_dag.store.quantities import size_text
    from winml_dag.store.upkeep import entries
    from winml_dag.store.usage import configured_limit, read_statistics

    store = opened(cache_dir)
    limit = configured_limit(store.folder)
    found = upkeep.info(store)
    statistics = read_statistics(store.folder, store.locks)
    largest = sorted(entries(store), key=lambda entry: (-entry.size, entry.key))[:_LARGEST]
    value = {
        "cache_dir": str(store.folder),
        **asdict(found),
        "limit_bytes": limit,
        **{name: getattr(statistics, name) for name in ("builds", "reused", "ran", "hit_ratio", "seconds_saved")},
        "remote": asdict(statistics.traffic),
        "since": None if statistics.since is None else time_of(statistics.since),
        "largest": [{"stage": entry.stage, "key": entry.key, "bytes": entry.size} for entry in largest],
    }
    beside = "(with other digests, for builds with a remote or without; see --cache-dir)"
    lines = [
        f"cache folder   {store.folder}",
        *(f"besides        {other}  {beside}" for other in stores_beside(store.folder)),
        f"records        {found.records}",
        f"blobs          {found.blobs}",
        f"unique bytes   {size_text(found.unique_bytes)}",
        f"apparent bytes {size_text(found.apparent_bytes)}  (outputs of all records, shared ones each time)",
        f"limit          {limit_text(store.folder) or 'none'}",
        f"index          {size_text(found.index_bytes)}",
        f"scratch        {size_text(found.scratch_bytes)}",
        f"quarantine     {size_text(found.quarantine_bytes)}",
        *_saved(statistics),
        *_moved(statistics.traffic),
        *(["largest records"] if largest else []),
        *(f"  {size_text(entry.size):>10}  {entry.stage:<10}  {entry.key[:_KEY_DIGITS]}" for entry in largest),
    ]
    show(value, lines)


def _leaves(value: JsonObject, path: str = "") -> Iterator[tuple[str, JsonValue]]:
    for name, inner in value.items():
        if isinstance(inner, Mapping):
            yield from _leaves(inner, f"{path}{name}.")
        else:
            yield f"{path}{name}", inner


def _section(title: str, values: JsonObject) -> Iterator[str]:
    yield title
    for name, value in _leaves(values):
        yield f"  {name}: {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"


def _saved(statistics: Statistics) -> list[str]:
    from winml_dag.store.quantities import counted, duration_text

    if statistics.hit_ratio is None or statistics.since is None:
        return ["hit ratio      no builds yet"]
    stages = statistics.reused + statistics.ran
    builds = counted(statistics.builds, "build")
    detail = f"{statistics.reused} of {stages} stages in {builds} since {time_of(statistics.since)}"
    return [
        f"hit ratio      {statistics.hit_ratio:.0%}  ({detail})",
        f"time saved     {duration_text(statistics.seconds_saved)}  (duration of the reused stages when they ran)",
    ]


def _moved(traffic: Traffic) -> list[str]:
    from winml_dag.store.quantities import counted, size_text
    from winml_dag.store.usage import Traffic

    if traffic == Traffic():
        return []

    def text(records: int, blobs: int, size: int) -> str:
        return f"{counted(records, 'record')}, {counted(blobs, 'blob')} ({size_text(size)})"

    total = traffic.records_found + traffic.records_missed
    lines = [
        f"remote         {counted(traffic.requests, 'request')}; {traffic.records_found} of {total} records found",
        f"  fetched      {text(traffic.records_found, traffic.blobs_fetched, traffic.bytes_fetched)}",
        f"  uploaded     {text(traffic.records_put, traffic.blobs_put, traffic.bytes_put)}",
    ]
    if traffic.refused:
        lines.append(f"  rejected     {traffic.refused}, since they were invalid")
    if traffic.left_alone:
        lines.append(f"  unavailable  {counted(traffic.left_alone, 'time')}")
    return lines


@click.command(name="list", cls=Command)
@cache_dir_option
@click.option("--stage", help="Only records of this stage.")
@click.option(
    "--sort",
    type=click.Choice(["size", "used", "made"]),
    default="used",
    help="Sort by size, last use or build time, in descending order [used].",
)
@format_option
def list_(cache_dir: Path | None, stage: str | None, sort: str) -> None:
    """List the records with key, stage, size, build time and last use."""
    from winml_dag.store.quantities import size_text
    from winml_dag.store.upkeep import entries

    found = sorted(entries(opened(cache_dir), stage), key=_ORDER[sort], reverse=True)
    width = max([len("stage"), *(len(entry.stage) for entry in found)])
    lines = [f"{'key':<{_KEY_DIGITS}}  {'stage':<{width}}  {'size':>10}  {'made':<25}  last used"]
    for entry in found:
        key, size, used = entry.key[:_KEY_DIGITS], size_text(entry.size), time_of(entry.used_ns / 10**9)
        lines.append(f"{key}  {entry.stage:<{width}}  {size:>10}  {entry.record.made_at:<25}  {used}")
    show({"records": [_listed(entry) for entry in found]}, lines)


_ORDER: dict[str, Callable[[Entry], tuple[int | str, str]]] = {
    "size": lambda entry: (entry.size, entry.key),
    "used": lambda entry: (entry.used_ns, entry.key),
    "made": lambda entry: (entry.record.made_at, entry.key),
}


def _listed(entry: Entry) -> JsonObject:
    return {
        "key": entry.key,
        "stage": entry.stage,
        "bytes": entry.size,
        "made_at": entry.record.made_at,
        "used_at": time_of(entry.used_ns / 10**9),
        "elapsed_seconds": entry.record.elapsed_seconds,
    }


@click.command(name="show", cls=Command)
@click.argument("key")
@cache_dir_option
@format_option
def show_(key: str, cache_dir: Path | None) -> None:
    """Show one record.

    Shows the inputs of its key, its outputs, and the end of its log.

    KEY is the key or a unique prefix of it.
    """
    from winml_dag.store.upkeep import find, log_text

    store = opened(cache_dir)
    entry = find(store, key)
    missing = store.missing(entry.record.files())
    log = log_text(store, entry.record)
    value = {**entry.record.to_json(), **_listed(entry), "missing": [file.name for file in missing], "log_text": log}
    lines = [*_record_lines(entry, missing)]
    if entry.record.log is not None:
        gone = "it is in a remote" if entry.record.origin else "its blob is missing or damaged"
        log_lines = [gone] if log is None else log.splitlines()
        lines.append(
            "log" if len(log_lines) <= _LOG_LINES else f"log (the last {_LOG_LINES} of {len(log_lines)} lines)"
        )
        lines += [f"  | {line}" for line in log_lines[-_LOG_LINES:]]
    show(value, lines)


def _record_lines(entry: Entry, missing: list[FileEntry]) -> Iterator[str]:
    from winml_dag.store.quantities import size_text

    record = entry.record
    made = record.key_inputs
    yield f"key        {record.cache_key}"
    yield f"stage      {made.stage}, version {made.version}"
    yield f"made       {record.made_at} by {record.made_by}, took {record.elapsed_seconds:.1f} s"
    yield f"last used  {time_of(entry.used_ns / 10**9)}"
    yield f"size       {size_text(entry.size)}"
    if record.origin:
        yield from _section("from a remote, which says", record.origin)
    yield from _section("config", made.config)
    yield from _section("inputs", made.inputs)
    yield from _section("toolchain", made.toolchain)
    yield "outputs"
    for slot, artifact in record.outputs.items():
        for file in artifact.files:
            where = "  in a remote, not here" if record.origin else "  MISSING or damaged"
            gone = where if file in missing else ""
            yield f"  {slot}: {file.name}  {size_text(file.size)}  {file.digest}{gone}"
    yield from _section("metrics", record.metrics)


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


def _limit_sentence(store: Store) -> str:
    import os

    from winml_dag.store.cache_folder import LIMIT_VARIABLE, limit_text

    text, by = limit_text(store.folder), f", by {LIMIT_VARIABLE}" if os.environ.get(LIMIT_VARIABLE) else ""
    return f"The cache in {store.folder} is limited to {text}{by}." if text else f"The cache has no limit{by}."


@click.command(cls=Command)
@cache_dir_option
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
def clear(cache_dir: Path | None, yes: bool) -> None:
    """Empty the cache, including logs of failures. Output folders do not change."""
    from winml_dag.store import upkeep
    from winml_dag.store.quantities import counted, size_text

    store = opened(cache_dir)
    try:
        agreed = yes or click.confirm(f"Remove everything in {store.folder}?")
    except click.Abort as error:
        if not isinstance(error.__context__, EOFError):  # Ctrl-C, not the end of an input that nobody types
            raise
        raise UsageError("Nobody confirmed it, so nothing was removed.", advice="Give -y to remove it.") from None
    if not agreed:
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
