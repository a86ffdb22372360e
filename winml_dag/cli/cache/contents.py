"""``cache info``, ``cache list`` and ``cache show``: the contents of the cache, in total and by record."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from winml_dag.cli import show
from winml_dag.cli.cache.common import cache_dir_option, opened, time_of
from winml_dag.cli.command import Command
from winml_dag.cli.options import format_option

if TYPE_CHECKING:
    from winml_dag.canonical import JsonObject, JsonValue
    from winml_dag.store.artifact import FileEntry
    from winml_dag.store.upkeep import Entry
    from winml_dag.store.usage import Statistics, Traffic

_KEY_DIGITS = 12
_LARGEST = 5
_LOG_LINES = 20


@click.command(cls=Command)
@cache_dir_option
@format_option
def info(cache_dir: Path | None) -> None:
    """Show the cache folder, its contents, and the time it saved."""
    from winml_dag.store import upkeep
    from winml_dag.store.cache_folder import stores_beside
    from winml_dag.store.quantities import size_text
    from winml_dag.store.upkeep import entries
    from winml_dag.store.usage import configured_limit, limit_text, read_statistics

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
        said = [gone] if log is None else log.splitlines()
        lines.append("log" if len(said) <= _LOG_LINES else f"log (the last {_LOG_LINES} of {len(said)} lines)")
        lines += [f"  | {line}" for line in said[-_LOG_LINES:]]
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
