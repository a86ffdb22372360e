"""What commands have to do with remotes: their options, the store with remotes behind it, and what is said of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from winml_dag.canonical import JsonObject
from winml_dag.cli import echo
from winml_dag.cli.transfers import Transfers
from winml_dag.pipeline.request import RemoteOptions

if TYPE_CHECKING:
    from winml_dag.store.remote.traffic import Traffic
    from winml_dag.store.store import Store


def opened(cache_dir: Path, remote: RemoteOptions) -> Store:
    """The store of a command, which is let go of when the command has ended, however it ends."""
    from winml_dag.pipeline.opened import let_go, open_store

    watcher = Transfers() if _tells_progress() else None
    store = open_store(cache_dir, remote, tell=say, watcher=watcher)
    if store.has_remotes and (context := click.get_current_context(silent=True)) is not None:
        context.call_on_close(lambda: let_go(store))
    return store


def _tells_progress() -> bool:
    context = click.get_current_context(silent=True)
    return context is None or not context.params.get("quiet")


def say(sentence: str) -> None:
    """Tell of a remote that is left alone, or of what is not believed: on stderr, also where little is said."""
    echo(f"note: {sentence}", err=True)


def traffic_of(store: Store) -> Traffic | None:
    """What has gone through *store*; None when it has no remote."""
    return store.traffic() if store.has_remotes else None


def traffic_json(traffic: Traffic | None) -> JsonObject:
    """``{"remote": {...}}`` for the JSON object of a command; nothing without a remote."""
    return {} if traffic is None else {"remote": asdict(traffic)}


def traffic_lines(traffic: Traffic | None) -> Iterator[str]:
    """``remote: 38 records, 4 blobs (9.7 MiB) fetched; 12 records, 2 blobs (1.2 MiB) put``, if there is any to tell."""
    if traffic is not None and (text := _text(traffic)):
        yield f"remote: {text}"


def _text(traffic: Traffic) -> str:
    from winml_dag.store.quantities import counted, size_text

    def moved(records: int, blobs: int, size: int, verb: str) -> str:
        parts = [counted(records, "record")] if records else []
        parts += [f"{counted(blobs, 'blob')} ({size_text(size)})"] if blobs else []
        return f"{', '.join(parts)} {verb}" if parts else ""

    told = [
        moved(traffic.records_found, traffic.blobs_fetched, traffic.bytes_fetched, "fetched"),
        moved(traffic.records_put, traffic.blobs_put, traffic.bytes_put, "put"),
        f"{traffic.refused} refused" if traffic.refused else "",
        f"{traffic.left_alone} left alone" if traffic.left_alone else "",
    ]
    missed = f"none of {counted(traffic.records_missed, 'record')} was there" if traffic.records_missed else ""
    return "; ".join(filter(None, told)) or missed
