"""``cache remote check`` and ``cache remote key``: whether remotes do what is wanted of them, and a key to sign."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from winml_dag.cli import echo
from winml_dag.cli.cache.common import errors_as_object, print_object
from winml_dag.cli.options import FILE, RECIPE, format_option, remote_option
from winml_dag.errors import UsageError

if TYPE_CHECKING:
    from winml_dag.canonical import JsonObject
    from winml_dag.pipeline.remotecheck import Finding
    from winml_dag.store.remote.settings import RemoteSettings, TierSettings


@click.group(name="remote")
def remote() -> None:
    """Look at remotes: what several machines share."""


@remote.command()
@click.option("-c", "--config", "recipe", type=RECIPE, help="A recipe, whose project's configuration counts.")
@remote_option
@format_option
def check(format_: str, **options: Any) -> int:
    """Ask each remote that is configured whether it can be reached, read and, if it may be, written, and with which
    keys. A probe of a few bytes is left where that is tried. Ends with 1 if anything is not well.
    """
    from winml_dag.cli.options import remote_options
    from winml_dag.pipeline.opened import settled_remotes
    from winml_dag.pipeline.remoteconfig import named_by

    named = remote_options(options, options["recipe"])
    with errors_as_object(format_):
        settings, restricted = settled_remotes(named)
        if settings is None:
            raise UsageError(
                "There is no remote to check.",
                advice="Name one with --remote, WINML_DAG_REMOTE, or in a winml_dag.toml.",
            )
        found = [(level, _findings(level, settings)) for level in settings.levels]
    is_well = all(finding.is_well for _, findings in found for finding in findings)
    if format_ == "json":
        remotes = [_json(level, findings) for level, findings in found]
        print_object({"is_well": is_well, "named_by": named_by(named), "remotes": remotes})
    else:
        echo(f"named by {named_by(named)}")
        for level, findings in found:
            _print(level, findings)
    if restricted:
        echo(f"note: {restricted}", err=True)
    return 0 if is_well else 1


@remote.command()
@click.argument("name")
@click.option("-o", "--output", type=FILE, help="Write it into this new file, which only you can read [stdout].")
@format_option
def key(name: str, output: Path | None, format_: str) -> int:
    """Make a key to sign records with, which is called NAME. It is a secret: whoever has it can sign.

    It goes into WINML_DAG_REMOTE_KEYS, or as a line into the file that WINML_DAG_REMOTE_KEYS_FILE or the user's
    configuration names. Of several, the first signs and all are believed.
    """
    from winml_dag.store.remote.trust import new_key

    with errors_as_object(format_):
        line = new_key(name)
        if output is not None:
            _write(output, line)
    if format_ == "json":
        print_object({"name": name, **({"key": line} if output is None else {"file": str(output)})})
    elif output is None:
        echo(line)
    else:
        echo(f"Wrote the key {name} into {output}. Name it in WINML_DAG_REMOTE_KEYS_FILE.")
    return 0


def _findings(level: TierSettings, settings: RemoteSettings) -> list[Finding]:
    from winml_dag.pipeline.remotecheck import check_level
    from winml_dag.store.remote.settings import Mode
    from winml_dag.store.remote.urls import open_remote

    if level.mode is Mode.OFF:
        return []
    opened = open_remote(level.url, level.namespace, gets_token=level.gets_token)
    try:
        with tempfile.TemporaryDirectory() as scratch:
            return list(check_level(level, settings, opened, Path(scratch)))
    finally:
        opened.close()


def _print(level: TierSettings, findings: list[Finding]) -> None:
    echo(f"{_called(level)} ({level.mode}{f', namespace {level.namespace}' if level.namespace else ''})")
    if not findings:
        echo("  switched off: nothing is asked of it")
    for finding in findings:
        text = finding.text if finding.is_well else f"{finding.text}. {finding.advice}"
        echo(f"  {'ok' if finding.is_well else 'FAILS':<5}  {finding.what}: {text}")


def _json(level: TierSettings, findings: list[Finding]) -> JsonObject:
    return {
        "url": _called(level),
        "mode": str(level.mode),
        "namespace": level.namespace,
        "findings": [_finding_json(finding) for finding in findings],
    }


def _finding_json(finding: Finding) -> Mapping[str, Any]:
    return {"what": finding.what, "is_well": finding.is_well, "text": finding.text, "advice": finding.advice}


def _called(level: TierSettings) -> str:
    from winml_dag.store.remote.urls import shown

    return shown(level.url)


def _write(path: Path, line: str) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise UsageError(f"{path} is there already.", advice="Choose another name, or add the key by hand.") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}.") from None
    with open(descriptor, "w", encoding="utf-8", newline="\n") as opened:
        opened.write(f"{line}\n")
