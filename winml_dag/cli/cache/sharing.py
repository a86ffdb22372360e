"""``cache push`` and ``cache pull``: giving remotes what this cache has, and taking from them what a build would need,
without building.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from winml_dag.cli import echo
from winml_dag.cli.cache.common import errors_as_object, print_object
from winml_dag.cli.options import RECIPE, cache_option, format_option, remote_options
from winml_dag.cli.remotes import opened, traffic_json, traffic_lines
from winml_dag.errors import UsageError
from winml_dag.store.cache_folder import default_cache_dir

if TYPE_CHECKING:
    from winml_dag.pipeline.request import RemoteOptions, Request
    from winml_dag.store.records import Record
    from winml_dag.store.remote.traffic import Traffic
    from winml_dag.store.store import Store

_recipes_option = click.option(
    "-c", "--config", "recipes", type=RECIPE, multiple=True, help="What a build of this recipe needs; again for more."
)


@click.command()
@click.argument("keys", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Every record that this cache has.")
@_recipes_option
@cache_option
@format_option
def push(keys: tuple[str, ...], everything: bool, recipes: tuple[Path, ...], format_: str, **options: Any) -> int:
    """Put records and their blobs where the remotes may be written: those with these KEYS (or beginnings of them), all,
    or what a build of a recipe has here. What is there already stays as it is.
    """
    with errors_as_object(format_):
        if (bool(keys), everything, bool(recipes)).count(True) != 1:
            raise UsageError("Say what is to be put: --all, keys, or a recipe with -c.")
        remote = remote_options(options, next(iter(recipes), None))
        store = _shared(options, remote)
        _refuse_unwritable(remote)
        records = _chosen(store, keys, recipes, remote)
        whole = [record for record in records.values() if not store.remote_only(record.files())]
        for record in whole:
            store.offer(_with_log_that_is_here(store, record))
        store.settle()
        traffic = store.traffic()
        lacking = len(records) - len(whole)
        if format_ == "json":
            print_object({"records": len(records), "lacking_blobs": lacking, **traffic_json(traffic)})
        else:
            _tell_of_push(len(whole), lacking, traffic)
        return _code(traffic)


@click.command()
@_recipes_option
@click.option("--all-blobs", is_flag=True, help="Also the blobs of every record, of intermediates too.")
@cache_option
@format_option
def pull(recipes: tuple[Path, ...], all_blobs: bool, format_: str, **options: Any) -> int:
    """Get the records that a build of a recipe would need, so that it can be planned, explained and drawn without the
    remote; with --all-blobs it can be built without.
    """
    with errors_as_object(format_):
        if not recipes:
            raise UsageError("Say what is to be had: a recipe with -c.")
        remote = remote_options(options, recipes[0])
        store = _shared(options, remote)
        records, to_run = _known(store, recipes, remote)
        if all_blobs:
            logs = [record.log for record in records.values() if record.log is not None]
            store.fetch_ahead([*logs, *(file for record in records.values() for file in record.files())])
        lacking = sum(bool(store.remote_only(record.files())) for record in records.values())
        traffic = store.traffic()
        if format_ == "json":
            told = {"records": len(records), "lacking_blobs": lacking, "to_run": to_run}
            print_object({**told, **traffic_json(traffic)})
        else:
            _tell_of_pull(len(records), to_run, traffic)
        return _code(traffic)


def _shared(options: Mapping[str, Any], remote: RemoteOptions) -> Store:
    store = opened(options["cache_dir"] or default_cache_dir(), remote)
    if not store.has_remotes:
        raise UsageError(
            "There is no remote.", advice="Name one with --remote, WINML_DAG_REMOTE, or in a winml_dag.toml."
        )
    return store


def _refuse_unwritable(remote: RemoteOptions) -> None:
    from winml_dag.pipeline.opened import settled_remotes
    from winml_dag.store.remote.settings import Mode

    settings, why = settled_remotes(remote)
    if settings is not None and not any(level.mode is Mode.READ_WRITE for level in settings.levels):
        raise UsageError(
            f"No remote may be written. {why}".rstrip(), advice="" if why else "Give --remote-mode read-write."
        )


def _chosen(
    store: Store, keys: tuple[str, ...], recipes: tuple[Path, ...], remote: RemoteOptions
) -> Mapping[str, Record]:
    """The records of this machine that are meant."""
    from winml_dag.store.files import in_words
    from winml_dag.store.store import has_only
    from winml_dag.store.upkeep import find

    if recipes:
        return _known(store, recipes, remote)[0]
    with in_words("Cannot look through the cache"):
        found = [find(store, key).record for key in keys] if keys else store.records.all()
    return {record.cache_key: record for record in found if has_only(record, "sha256")}


def _known(store: Store, recipes: tuple[Path, ...], remote: RemoteOptions) -> tuple[dict[str, Record], int]:
    """The records that a build of *recipes* would reuse, and how many stages it would run."""
    from winml_dag.engine.events import Status
    from winml_dag.engine.resources import Capacity
    from winml_dag.pipeline.plan_cache import plan_each, refuse_if_all_the_same
    from winml_dag.pipeline.sweep.foreseen import look_ahead

    planned = plan_each(_requests(recipes, remote), store, download=False, needs_folder=False)
    refuse_if_all_the_same(planned)
    foreseen = look_ahead(planned, store, Capacity(1), rebuild=False)
    for label, error in foreseen.errors.items():
        echo(f"note: {label} cannot be planned: {error}", err=True)
    records = {
        view.result.record.cache_key: view.result.record
        for result in foreseen.results.values()
        for view in (*result.stages, *result.like_before)
        if view.result is not None and view.result.record is not None and view.status is Status.REUSED
    }
    return records, foreseen.to_run


def _with_log_that_is_here(store: Store, record: Record) -> Record:
    """A log that stayed where its stage ran keeps its record from going no further."""
    if record.log is None or not store.remote_only([record.log]):
        return record
    return replace(record, log=None)


def _requests(recipes: tuple[Path, ...], remote: RemoteOptions) -> list[tuple[str, Request]]:
    """By its label, each build that *recipes* ask for."""
    from winml_dag.cli.options import are_a_sweep
    from winml_dag.cli.sweepplan import requests_of
    from winml_dag.pipeline.request import Overrides, Request
    from winml_dag.pipeline.sweep.selection import Selection, selected
    from winml_dag.recipe.sweep import sweep_of_files

    request = Request(recipes[0], Overrides(), remote=remote)
    if are_a_sweep(recipes):
        sweep = sweep_of_files(recipes)
        return list(requests_of(sweep, selected(sweep, Selection()), request))
    return [(recipes[0].name, request)]


def _tell_of_push(offered: int, lacking: int, traffic: Traffic) -> None:
    from winml_dag.store.quantities import counted

    for line in traffic_lines(traffic):
        echo(line)
    there = max(0, offered - traffic.records_put)
    others = f"; {there} of them were there already, or were not taken" if there else ""
    echo(f"{counted(offered, 'record')} offered{others}.")
    if lacking:
        echo(f"{counted(lacking, 'record')} left out, whose blobs are not on this machine.")


def _tell_of_pull(known: int, to_run: int, traffic: Traffic) -> None:
    from winml_dag.store.quantities import counted

    for line in traffic_lines(traffic):
        echo(line)
    run = f"{counted(to_run, 'stage')} would run." if to_run else "Nothing would run."
    echo(f"{counted(known, 'record')} of what a build needs are here. {run}")


def _code(traffic: Traffic) -> int:
    """1 when a remote was left alone, or said what is not believed: then not all of it was done."""
    return 1 if traffic.left_alone or traffic.refused else 0
