"""The store with remotes, for commands and the API: opening and closing it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from winml_dag.errors import warn
from winml_dag.pipeline.request import RemoteOptions
from winml_dag.store.cache_folder import MARKER, default_cache_dir, store_folder

if TYPE_CHECKING:
    from winml_dag.store.remote.settings import RemoteSettings
    from winml_dag.store.remote.tier import Remotes
    from winml_dag.store.store import Store


class Watcher(Protocol):
    """Gets the progress of transfers, from any thread."""

    def received(self, count: int) -> None:
        """*count* more bytes of blobs have arrived."""

    def waits(self, gone: int, everything: int) -> None:
        """A build has ended and waits for uploads; *gone* of *everything* bytes are sent."""


def open_store(
    cache_dir: Path | None,
    remote: RemoteOptions,
    *,
    warn: Callable[[str], None] = warn,
    watcher: Watcher | None = None,
) -> Store:
    """The store in *cache_dir*, by default the user's, with the configured remotes. *warn* gets a sentence when a
    remote is given up or sends what is not accepted.

    Raises:
        UsageError: for an invalid configuration, and for a remote that needs an extra which is not installed.
        StoreError: for a folder that is not a store.
    """
    from winml_dag.store.store import Store

    folder = default_cache_dir() if cache_dir is None else cache_dir
    if not remote.in_use:
        return Store(folder)
    settings, restricted = allowed_remotes(remote)
    if settings is None:
        return Store(folder)
    if restricted:
        warn(restricted)
    return store_with(folder, settings, warn, watcher)


def store_with(
    folder: Path, settings: RemoteSettings, warn: Callable[[str], None], watcher: Watcher | None = None
) -> Store:
    """The store with the remotes of *settings* in the cache folder *folder*, or in a folder within it if it was created
    without a remote. Raises as :func:`open_store` does.
    """
    from winml_dag.store.remote.settings import check_keys, parts_of
    from winml_dag.store.store import Store
    from winml_dag.store.usage import inherit_limit

    # Before keys: a misspelled address needs none.
    for tier in settings.tiers:
        parts_of(tier.url)
    check_keys(settings)
    folder = store_folder(folder, "sha256")
    is_added = not (folder / MARKER).exists() and (folder.parent / MARKER).exists()
    waits = None if watcher is None else watcher.waits
    store = Store(folder, lambda store: _remotes(store, settings, warn, watcher), waits)
    if is_added:
        inherit_limit(folder)
        warn(
            f"The cache in {folder.parent} was made without a remote and has other digests. It stays as it is, for "
            f"builds without one; with a remote the cache is {folder}, which begins empty."
        )
    return store


def allowed_remotes(remote: RemoteOptions) -> tuple[RemoteSettings | None, str]:
    """The configured remotes, less what this CI run may not do, and a sentence on the restriction; None without a
    remote. Raises UsageError as :func:`open_store` does.
    """
    from winml_dag.pipeline.remoteconfig import remote_settings
    from winml_dag.store.remote.ci import allowed

    configured = remote_settings(remote)
    return (None, "") if configured is None else allowed(configured, os.environ)


def close_store(store: Store) -> None:
    """Close *store*: add its traffic to the statistics, and give up what is under way."""
    if store.has_remotes:
        from winml_dag.store.usage import log_traffic

        log_traffic(store.folder, store.traffic())
    store.close()


def _remotes(store: Store, settings: RemoteSettings, warn: Callable[[str], None], watcher: Watcher | None) -> Remotes:
    from winml_dag import TOOL_ID
    from winml_dag.store.records import cache_key
    from winml_dag.store.remote.ci import ci_run
    from winml_dag.store.remote.settings import Mode, open_remote
    from winml_dag.store.remote.tier import Remotes
    from winml_dag.store.remote.trust import Trust, maker_here

    run = ci_run()
    maker = maker_here(TOOL_ID) if run is None else maker_here(TOOL_ID, run=run.run, revision=run.revision)
    return Remotes(
        [
            (open_remote(each.url, each.namespace, gets_token=each.gets_token), each)
            for each in settings.tiers
            if each.mode is not Mode.OFF
        ],
        store.blobs,
        Trust(settings.keys, maker, settings.accept_unsigned, cache_key),
        scratch=store.incoming,
        warn=warn,
        on_received=None if watcher is None else watcher.received,
        locks=store.locks,
    )
