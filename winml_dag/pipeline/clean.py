"""Remove a build's results: exactly the files that its manifest lists and that nobody has edited.

The manifest is removed last: if cleaning is interrupted, running it again removes the rest. Edited files stay and are
no longer owned; without a manifest no build replaces them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from winml_dag.canonical import json_hash
from winml_dag.errors import UsageError
from winml_dag.file_reading import read_json
from winml_dag.names import KEPT, parents
from winml_dag.pipeline.layout import BUILD_CONFIG, MANIFEST
from winml_dag.pipeline.manifest import Manifest, read_manifest
from winml_dag.store.artifact import FileEntry
from winml_dag.store.commit import held
from winml_dag.store.files import Below, in_words
from winml_dag.store.store import Store


@dataclass(frozen=True)
class Cleaned:
    """What was removed, or would be.

    Attributes:
        removed: files, in the order of removal.
        edited: owned files that have been changed since; they stay.
        found: whether there was a manifest at all.
    """

    removed: tuple[Path, ...] = ()
    edited: tuple[Path, ...] = ()
    found: bool = True


def clean(folder: Path, store: Store, *, recipe: Path | None = None, dry_run: bool = False) -> Cleaned:
    """Remove what the last build wrote to *folder*, and what the stages of *recipe* wrote to its folder.

    Waits for a build that is writing there. The cache does not change.

    Raises:
        UsageError: when stages of a recipe wrote files elsewhere, and *recipe* is None.
        StoreError: when a file cannot be removed; the manifest is then still there.
    """
    if dry_run:
        return _clean(folder, store, recipe, dry_run=True)
    if not folder.is_dir():
        return Cleaned(found=False)
    with held(folder, store):
        return _clean(folder, store, recipe, dry_run=False)


def _clean(folder: Path, store: Store, recipe: Path | None, *, dry_run: bool) -> Cleaned:
    manifest = read_manifest(folder)
    if manifest is None:
        return Cleaned(found=False)
    below = Below(folder)
    ours: list[tuple[Below, str]] = []
    edited: list[Path] = []
    for at, entry in _listed(below, manifest, recipe):
        path = at.folder / entry.name
        as_built = at.is_file(entry.name) and path.stat().st_size == entry.size
        if as_built and store.fingerprints.unchanged(path, entry.digest):
            ours.append((at, entry.name))
        elif os.path.lexists(path):
            edited.append(path)
    # The settings are written together with the manifest, which has their hash instead of an entry.
    settings = folder / BUILD_CONFIG
    if below.is_file(BUILD_CONFIG) and _is_settings_of(settings, manifest):
        ours.append((below, BUILD_CONFIG))
    elif os.path.lexists(settings):
        edited.append(settings)
    ours.append((below, MANIFEST))
    if not dry_run:
        for at, name in ours:
            with in_words(f"Cannot remove {at.folder / name}"), suppress(FileNotFoundError):
                at.remove(name)
        _remove_empty_folders(ours)
        _remove_if_empty(folder)
        if recipe is not None:
            _remove_if_empty(recipe.parent / KEPT)
        if folder.parent.name == KEPT:
            _remove_if_empty(folder.parent)
    return Cleaned(tuple(at.folder / name for at, name in ours), tuple(edited))


def _listed(below: Below, manifest: Manifest, recipe: Path | None) -> Iterator[tuple[Below, FileEntry]]:
    """Yield the files that *manifest* lists, each with its folder."""
    yield from ((below, entry) for entry in manifest.files)
    if not manifest.placed:
        return
    if recipe is None:
        # The manifest may be untrusted: a folder that it names is not used for removal.
        raise UsageError(
            f"Stages of a recipe's own have put files into its folder, and {below.folder / MANIFEST} alone is not "
            "believed where that is.",
            advice="Give the recipe with -c.",
        )
    beside = Below(recipe.parent.resolve())
    for entries in manifest.placed_in(beside.folder, below.folder).values():
        yield from ((beside, entry) for entry in entries)


def _is_settings_of(path: Path, manifest: Manifest) -> bool:
    try:
        return json_hash(read_json(path)) == manifest.build.config_hash
    except (OSError, ValueError, AttributeError):
        return False


def _remove_empty_folders(removed: Iterable[tuple[Below, str]]) -> None:
    """Remove the folders that are empty after removing *removed*."""
    for at, name in removed:
        for parent in parents(name):
            try:
                at.remove_empty_folder(parent)
            except OSError:  # not empty
                break


def _remove_if_empty(folder: Path) -> None:
    if folder.absolute() != Path.cwd():
        with suppress(OSError):
            folder.rmdir()
