"""``cache push``, ``cache pull`` and ``cache remote``: sharing records without building, and checking remotes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from winml_dag.cli import Group, Note, echo, show
from winml_dag.cli.command import RECIPE, Command, file_option
from winml_dag.cli.options import cache_option, format_option, opened, remote_option, remote_options
from winml_dag.cli.remotes import traffic_json, traffic_lines
from winml_dag.errors import UsageError
from winml_dag.store.cache_folder import default_cache_dir
from winml_dag.store.quantities import counted

if TYPE_CHECKING:
    from winml_dag.pipeline.request import RemoteOptions
    from winml_dag.store.records import Record
    from winml_dag.store.remote.check import Finding
    from winml_dag.store.remote.settings import RemoteSettings, TierSettings
    from winml_dag.store.store import Store
    from winml_dag.store.usage import Traffic

_recipes_option = click.option(
    "-c",
    "--config",
    "recipes",
    type=RECIPE,
    multiple=True,
    help="The records that a build of this recipe uses. Repeatable.",
)


@click.command(cls=Command)
@click.argument("keys", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All records of this cache.")
@_recipes_option
@cache_option
@format_option
def push(keys: tuple[str, ...], everything: bool, recipes: tuple[Path, ...], **options: Any) -> int:
    """Upload records to the remotes.

    Uploads the records with these KEYS or prefixes of keys, all, or those of a recipe, and their blobs, to each remote
    that may be written. Existing records are not replaced.
    """
    if (bool(keys), everything, bool(recipes)).count(True) != 1:
        raise UsageError("Nothing to upload is named.", advice="Give --all, keys, or a recipe with -c.")
    remote = remote_options(options, next(iter(recipes), None))
    store = _shared(options, remote)
    _refuse_unwritable(remote)
    records = _chosen(store, keys, recipes, remote)
    whole = [record for record in records.values() if not store.remote_only(record.files())]
    for record in whole:
        # A log that is not local must not prevent the upload.
        has_log = record.log is not None and not store.remote_only([record.log])
        store.offer(record if has_log else replace(record, log=None))
    store.settle()
    traffic = store.traffic()
    lacking = len(records) - len(whole)
    there = max(0, len(whole) - traffic.records_put)
    others = f"; {there} already existed or were rejected" if there else ""
    lines = [*traffic_lines(traffic), f"{counted(len(whole), 'record')} offered{others}."]
    if lacking:
        lines.append(f"{counted(lacking, 'record')} skipped, whose blobs are not on this machine.")
    show({"records": len(records), "lacking_blobs": lacking, **traffic_json(traffic)}, lines)
    return _code(traffic)


@click.command(cls=Command)
@_recipes_option
@click.option("--all-blobs", is_flag=True, help="Also download all blobs, including those of intermediate results.")
@cache_option
@format_option
def pull(recipes: tuple[Path, ...], all_blobs: bool, **options: Any) -> int:
    """Download the records of a recipe.

    Then `plan`, `why` and `graph` work without the remote. With --all-blobs, `build` does too.
    """
    if not recipes:
        raise UsageError("No recipe is named.", advice="Give one with -c.")
    remote = remote_options(options, recipes[0])
    store = _shared(options, remote)
    records, to_run = _known(store, recipes, remote)
    if all_blobs:
        logs = [record.log for record in records.values() if record.log is not None]
        store.fetch_ahead([*logs, *(file for record in records.values() for file in record.files())])
    lacking = sum(bool(store.remote_only(record.files())) for record in records.values())
    traffic = store.traffic()
    counts = {"records": len(records), "lacking_blobs": lacking, "to_run": to_run}
    run = f"{counted(to_run, 'stage')} would run." if to_run else "Nothing would run."
    cached = f"{counted(len(records), 'record')} of the build are cached. {run}"
    show({**counts, **traffic_json(traffic)}, [*traffic_lines(traffic), cached])
    return _code(traffic)


def _shared(options: Mapping[str, Any], remote: RemoteOptions) -> Store:
    store = opened(options["cache_dir"] or default_cache_dir(), remote)
    if not store.has_remotes:
        raise UsageError(
            "There is no remote.", advice="Name one with --remote, WINML_DAG_REMOTE, or in a winml_dag.toml."
        )
    return store


def _refuse_unwritable(remote: RemoteOptions) -> None:
    from winml_dag.pipeline.remotes import allowed_remotes
    from winml_dag.store.remote.settings import Mode

    settings, why = allowed_remotes(remote)
    if settings is not None and not any(tier.mode is Mode.READ_WRITE for tier in settings.tiers):
        raise UsageError(
            f"No remote may be written. {why}".rstrip(), advice="" if why else "Give --remote-mode read-write."
        )


def _chosen(
    store: Store, keys: tuple[str, ...], recipes: tuple[Path, ...], remote: RemoteOptions
) -> Mapping[str, Record]:
    """The selected local records."""
    from winml_dag.store.files import in_words
    from winml_dag.store.upkeep import find

    if recipes:
        return _known(store, recipes, remote)[0]
    with in_words("Cannot look through the cache"):
        found = [find(store, key).record for key in keys] if keys else store.records.all()
    return {record.cache_key: record for record in found}


def _known(store: Store, recipes: tuple[Path, ...], remote: RemoteOptions) -> tuple[dict[str, Record], int]:
    """Return the records that a build of *recipes* would reuse, and the number of stages it would run."""
    from winml_dag.cli.options import are_a_sweep
    from winml_dag.cli.sweepplan import planned_cells
    from winml_dag.engine.events import Status
    from winml_dag.engine.resources import Capacity
    from winml_dag.pipeline.build import dry_run
    from winml_dag.pipeline.plan_cache import look_at_each, refuse_if_all_the_same
    from winml_dag.pipeline.request import Overrides, Request
    from winml_dag.pipeline.sweep.cells import Selection

    request = Request(recipes[0], Overrides(), remote=remote)
    if are_a_sweep(recipes):
        _, _, planned = planned_cells(recipes, Selection(), request, store)
    else:
        planned = look_at_each([(recipes[0].name, request)], store)
    refuse_if_all_the_same(planned)
    dry_run_result = dry_run(planned, store, Capacity(1), rebuild=False)
    for label, error in dry_run_result.errors.items():
        echo(Note(f"{label} cannot be planned: {error}"), err=True)
    records = {
        view.result.record.cache_key: view.result.record
        for result in dry_run_result.results.values()
        for view in (*result.stages, *result.like_before)
        if view.result is not None and view.result.record is not None and view.status is Status.REUSED
    }
    return records, dry_run_result.to_run


def _code(traffic: Traffic) -> int:
    """Return 1 if a remote was unavailable or sent invalid records: then the work is incomplete."""
    return 1 if traffic.left_alone or traffic.refused else 0


@click.group(name="remote", cls=Group)
def remote() -> None:
    """Check remotes and make signing keys."""


@remote.command(cls=Command)
@click.option("-c", "--config", "recipe", type=RECIPE, help="A recipe, whose project configuration applies.")
@remote_option
@format_option
def check(**options: Any) -> int:
    """Check the configured remotes.

    Checks that each can be reached, read and, unless it is read-only, written, and which keys apply. The write check
    leaves a few bytes there. Exits with 1 if a check fails.
    """
    from winml_dag.pipeline.remoteconfig import named_by
    from winml_dag.pipeline.remotes import allowed_remotes
    from winml_dag.store.remote.settings import shown

    named = remote_options(options, options["recipe"])
    settings, restricted = allowed_remotes(named)
    if settings is None:
        raise UsageError(
            "There is no remote to check.",
            advice="Name one with --remote, WINML_DAG_REMOTE, or in a winml_dag.toml.",
        )
    found = [(tier, _findings(tier, settings)) for tier in settings.tiers]
    is_well = all(finding.is_well for _, findings in found for finding in findings)
    remotes = [
        {
            "url": shown(tier.url),
            "mode": str(tier.mode),
            "namespace": tier.namespace,
            "findings": [asdict(finding) for finding in findings],
        }
        for tier, findings in found
    ]
    lines = [f"named by {named_by(named)}", *(line for tier, findings in found for line in _lines(tier, findings))]
    show({"is_well": is_well, "named_by": named_by(named), "remotes": remotes}, lines)
    if restricted:
        echo(Note(restricted), err=True)
    return 0 if is_well else 1


@remote.command(cls=Command)
@click.argument("name")
@file_option("Write the key to this new file, which only you can read [print it].")
@format_option
def key(name: str, output: Path | None) -> None:
    """Make a key to sign records with.

    Keep it secret: anyone who has it can sign. Put it into WINML_DAG_REMOTE_KEYS, or as a line into the file that
    WINML_DAG_REMOTE_KEYS_FILE or the user's configuration names. Of several keys, the first signs, and all are trusted.
    """
    from winml_dag.store.remote.settings import new_key

    line = new_key(name)
    if output is not None:
        _write(output, line)
    wrote = f"Wrote the key {name} into {output}. Name it in WINML_DAG_REMOTE_KEYS_FILE."
    made = {"key": line} if output is None else {"file": str(output)}
    show({"name": name, **made}, [line if output is None else wrote])


def _findings(tier: TierSettings, settings: RemoteSettings) -> list[Finding]:
    from winml_dag.store.remote.check import check_tier
    from winml_dag.store.remote.settings import Mode, open_remote

    if tier.mode is Mode.OFF:
        return []
    opened = open_remote(tier.url, tier.namespace, gets_token=tier.gets_token)
    try:
        with tempfile.TemporaryDirectory() as scratch:
            return list(check_tier(tier, settings, opened, Path(scratch)))
    finally:
        opened.close()


def _lines(tier: TierSettings, findings: list[Finding]) -> Iterator[str]:
    from winml_dag.store.remote.settings import shown

    yield f"{shown(tier.url)} ({tier.mode}{f', namespace {tier.namespace}' if tier.namespace else ''})"
    if not findings:
        yield "  off"
    for finding in findings:
        text = finding.text if finding.is_well else f"{finding.text}. {finding.advice}"
        yield f"  {'ok' if finding.is_well else 'FAILS':<5}  {finding.what}: {text}"


def _write(path: Path, line: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise UsageError(f"{path} already exists.", advice="Choose another name, or add the key by hand.") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}.") from None
    with open(descriptor, "w", encoding="utf-8", newline="\n") as opened:
        opened.write(f"{line}\n")
