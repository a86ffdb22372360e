"""The remotes of a build, as an order has them: a worker puts them behind its own store, with keys of its own.

No secret passes: what a record is signed with, and what proves to a server who we are, stays on each machine.
"""

from __future__ import annotations

from typing import Any

from winml_dag.canonical import JsonValue
from winml_dag.errors import StageError, UsageError
from winml_dag.explanation import explanation
from winml_dag.store.remote.settings import LevelSettings, Mode, RemoteSettings
from winml_dag.store.remote.urls import shown


def remotes_json(settings: RemoteSettings) -> JsonValue:
    return [
        {
            "url": shown(level.url),
            "mode": str(level.mode),
            "namespace": level.namespace,
            "trusted": None if level.trusted is None else sorted(level.trusted),
            "is_back_filled": level.is_back_filled,
            "gets_token": level.gets_token,
        }
        for level in settings.levels
    ]


def remotes_of(value: JsonValue) -> RemoteSettings:
    """Raises StageError for what are no remotes, UsageError as for the configuration of this machine."""
    from winml_dag.pipeline.remoteconfig import with_secrets_of_this_machine

    try:
        levels: Any = value
        found = [
            LevelSettings(
                str(level["url"]),
                Mode(level["mode"]),
                str(level["namespace"]),
                None if level["trusted"] is None else frozenset(map(str, level["trusted"])),
                bool(level["is_back_filled"]),
                bool(level["gets_token"]),
            )
            for level in levels
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise StageError(f"These are no remotes: {explanation(error)}.") from error
    return with_secrets_of_this_machine(found)


def require_shared(settings: RemoteSettings | None) -> None:
    """Raise UsageError unless there is a remote by which files can go to other machines."""
    if settings is None or not any(level.mode is Mode.READ_WRITE for level in settings.levels):
        raise UsageError(
            "Inputs and outputs go to workers on other machines through a remote, and there is none that this build "
            "may write to.",
            advice="Name one with --remote URL --remote-mode read-write; a folder that all of them see does: file://...",
        )
