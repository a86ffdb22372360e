"""The one place where commands and the API open a store: of this machine alone, or with remotes behind it."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from winml_dag.pipeline.request import RemoteOptions
from winml_dag.store.cache_folder import MARKER, default_cache_dir, store_folder

if TYPE_CHECKING:
    from winml_dag.store.remote.remotes import Remotes
    from winml_dag.store.remote.settings import RemoteSettings
    from winml_dag.store.store import Store

_LOG = logging.getLogger("winml_dag")


class Watcher(Protocol):
    """Told how far transfers are that somebody waits for, from any thread."""

    def received(self, count: int) -> None:
        """*count* more bytes of blobs have come."""

    def waits(self, gone: int, everything: int) -> None:
        """A build has ended, and *gone* of all bytes that have to go are there."""


def open_store(
    cache_dir: Path | None,
    remote: RemoteOptions,
    *,
    tell: Callable[[str], None] = _LOG.warning,
    watcher: Watcher | None = None,
) -> Store:
    """The store in *cache_dir*, by default the user's; with a remote, all that is asked of it is asked of that too.
    *tell* gets a sentence when a remote is left alone, or something of it is not believed; *watcher* is told how far
    blobs are.

    Raises:
        UsageError: for a configuration that means nothing, and for a remote that needs an extra which is not installed.
        StoreError: for a folder that is no store.
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
    """The store with the remotes of *settings* behind it, in the cache folder *folder*, or within that where it was
    made without a remote. Raises as :func:`open_store` does.
    """
    from winml_dag.store.remote.trust import check_keys
    from winml_dag.store.remote.urls import parts_of
    from winml_dag.store.store import Store
    from winml_dag.store.usage import inherit_limit

    # Before keys: who has misspelled an address needs none.
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
    """All that is configured, less what this run of CI may not do, and a sentence on that if it is so; None without a
    remote. Raises UsageError as :func:`open_store` does.
    """
    from winml_dag.pipeline.remoteconfig import remote_settings
    from winml_dag.store.remote.namespace import allowed

    configured = remote_settings(remote)
    return (None, "") if configured is None else allowed(configured, os.environ)


def let_go(store: Store) -> None:
    """What has to be done when *store* is not used any more: what went is noted in its statistics, and what is still
    underway is given up.
    """
    from winml_dag.store.cache_folder import note_traffic

    note_traffic(store.folder, store.traffic())
    store.close()


def _remotes(store: Store, settings: RemoteSettings, tell: Callable[[str], None], watcher: Watcher | None) -> Remotes:
    from winml_dag import TOOL_ID
    from winml_dag.engine.keys import cache_key
    from winml_dag.pipeline.build_info import ci_run
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
