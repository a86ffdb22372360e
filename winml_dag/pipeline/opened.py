"""Open a store for commands and the API: the local cache alone, or with remotes."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from winml_dag.pipeline.remoteoptions import RemoteOptions
from winml_dag.store.location import MARKER, default_cache_dir, store_folder

if TYPE_CHECKING:
    from winml_dag.store.remote.remotes import Remotes
    from winml_dag.store.remote.settings import RemoteSettings
    from winml_dag.store.store import Store

_LOG = logging.getLogger("winml_dag")


class Watcher(Protocol):
    """Observer of transfers that a build waits for; called from any thread."""

    def received(self, count: int) -> None:
        """*count* more bytes of blobs were received."""

    def waits(self, gone: int, everything: int) -> None:
        """A build has ended, and *gone* of *everything*, in bytes, are uploaded."""


def open_store(
    cache_dir: Path | None,
    remote: RemoteOptions,
    *,
    tell: Callable[[str], None] = _LOG.warning,
    watcher: Watcher | None = None,
) -> Store:
    """Open the store in *cache_dir*, by default the user's; with a remote, lookups go there, too.

    *tell* is called with a sentence when a remote is no longer used, or something in it is rejected; *watcher* observes
    transfers.

    Raises:
        UsageError: for an invalid configuration, and for a remote that needs an extra which is not installed.
        StoreError: for a folder that is not a store.
    """
    from winml_dag.store.store import Store

    folder = default_cache_dir() if cache_dir is None else cache_dir
    if not remote.is_configured and remote.mode is None:
        return Store(folder)
    settings, restricted = settled_remotes(remote)
    if settings is None:
        return Store(folder)
    if restricted:
        tell(restricted)
    return store_with(folder, settings, tell, watcher)


def store_with(
    folder: Path, settings: RemoteSettings, tell: Callable[[str], None], watcher: Watcher | None = None
) -> Store:
    """Open the store in *folder* with the remotes of *settings*.

    If *folder* was created without a remote, the store is a folder inside it. Raises as :func:`open_store` does.
    """
    from winml_dag.store.remote.trust import check_keys
    from winml_dag.store.remote.urls import parts_of
    from winml_dag.store.store import Store
    from winml_dag.store.usage import inherit_limit

    # Before keys: a misspelled address should be reported first.
    for level in settings.levels:
        parts_of(level.url)
    check_keys(settings)
    told = None if watcher is None else watcher.waits
    folder = store_folder(folder, "sha256")
    is_added = not (folder / MARKER).exists() and (folder.parent / MARKER).exists()
    store = Store(folder, lambda store: _remotes(store, settings, tell, watcher), told)
    if is_added:
        inherit_limit(folder)
        tell(
            f"The cache in {folder.parent} was made without a remote and has other digests. It stays as it is, for "
            f"builds without one; with a remote the cache is {folder}, which begins empty."
        )
    return store


def settled_remotes(remote: RemoteOptions) -> tuple[RemoteSettings | None, str]:
    """Return all configured remotes, restricted to what this CI run may do, and a sentence if that restricts anything.

    None without a remote. Raises UsageError as :func:`open_store` does.
    """
    from winml_dag.pipeline.remoteconfig import remote_settings
    from winml_dag.store.remote.namespace import allowed

    configured = remote_settings(remote)
    return (None, "") if configured is None else allowed(configured, os.environ)


def let_go(store: Store) -> None:
    """Close *store*: record its transfers in the statistics, and cancel those still in progress."""
    from winml_dag.store.usage_log import note_traffic

    note_traffic(store.folder, store.traffic())
    store.close()


def _remotes(store: Store, settings: RemoteSettings, tell: Callable[[str], None], watcher: Watcher | None) -> Remotes:
    from winml_dag import TOOL_ID
    from winml_dag.engine.keys import cache_key
    from winml_dag.pipeline.cirun import ci_run
    from winml_dag.store.remote.remotes import Remotes
    from winml_dag.store.remote.settings import Mode
    from winml_dag.store.remote.tier import Tier
    from winml_dag.store.remote.trust import Trust, maker_here
    from winml_dag.store.remote.urls import open_remote

    run = ci_run()
    maker = maker_here(TOOL_ID) if run is None else maker_here(TOOL_ID, run=run.run, revision=run.revision)
    return Remotes(
        [
            Tier(open_remote(each.url, each.namespace, gets_token=each.gets_token), each)
            for each in settings.levels
            if each.mode is not Mode.OFF
        ],
        store.blobs,
        Trust(settings.keys, maker, settings.accept_unsigned, cache_key),
        scratch=store.incoming,
        tell=tell,
        received=None if watcher is None else watcher.received,
        locks=store.locks,
    )
