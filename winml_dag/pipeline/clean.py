"""Take a build's results away again: exactly the files that its manifest says are ours and that nobody has edited.

The manifest goes last: stopped half-way, the rest is still known to be ours, and cleaning again removes it. What was
edited stays and belongs to whoever edited it; without a manifest no build will replace it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from winml_dag.engine.keys import config_hash
from winml_dag.pipeline.commit import finish_change
from winml_dag.pipeline.layout import BUILD_CONFIG, MANIFEST
from winml_dag.pipeline.manifest import Manifest, read_manifest
from winml_dag.pipeline.outputs import folder_key
from winml_dag.pipeline.userstages.paths import KEPT
from winml_dag.store.artifact import FileEntry
from winml_dag.store.files import in_words, remove_file
from winml_dag.store.fingerprints import Fingerprints
from winml_dag.store.local import LocalStore


@dataclass(frozen=True)
class Cleaned:
    """What was done, or would be.

    Attributes:
        removed: files, in the order in which they went.
        edited: files of ours that somebody has changed since; they stay.
        found: whether there was a manifest at all.
    """

    removed: tuple[Path, ...] = ()
    edited: tuple[Path, ...] = ()
    found: bool = True


def clean(folder: Path, store: LocalStore, *, dry_run: bool = False) -> Cleaned:
    """Remove what the last build left in *folder*, and what its recipe's own stages put into the recipe's folder.

    Waits for a build that is writing there. The cache stays as it is.

    Raises:
        StoreError: when a file cannot be removed; the manifest is still there then.
    """
    if dry_run:
        return _clean(folder, store, dry_run=True)
    if not folder.is_dir():
        return Cleaned(found=False)
    with store.claim(folder_key(folder)):
        # A killed build may have put some files, and no manifest yet.
        finish_change(folder)
        return _clean(folder, store, dry_run=False)


def _clean(folder: Path, store: LocalStore, *, dry_run: bool) -> Cleaned:
    manifest = read_manifest(folder)
    if manifest is None:
        return Cleaned(found=False)
    recipe_folder = _recipe_folder(folder, manifest)
    ours: list[Path] = []
    edited: list[Path] = []
    for path, is_ours in _judged(folder, recipe_folder, manifest, store.fingerprints):
        (ours if is_ours else edited).append(path)
    removed = (*ours, folder / MANIFEST)
    if not dry_run:
        for path in removed:
            with in_words(f"Cannot remove {path}"), suppress(FileNotFoundError):
                remove_file(path)
        top = folder.parent.parent if folder.parent.name == KEPT else folder.parent
        _remove_empty_folders(removed, {top, recipe_folder, Path.cwd()})
    return Cleaned(removed, tuple(edited))


def _judged(
    folder: Path, recipe_folder: Path | None, manifest: Manifest, fingerprints: Fingerprints
) -> Iterator[tuple[Path, bool]]:
    """Every file of ours that is there, and whether it is as we left it."""
    places = [(folder, entry) for entry in manifest.files]
    if recipe_folder is not None:
        places += [(recipe_folder, entry) for entries in manifest.placed.values() for entry in entries]
    for root, entry in places:
        path = root / entry.name
        if path.is_symlink() or path.exists():
            yield path, _is_inside(path, root) and _has_bytes(path, entry, fingerprints)
    # The settings are written together with the manifest, which has their hash in place of an entry.
    settings = folder / BUILD_CONFIG
    if settings.is_symlink() or settings.exists():
        yield settings, _is_inside(settings, folder) and _is_settings_of(settings, manifest)


def _recipe_folder(folder: Path, manifest: Manifest) -> Path | None:
    """The folder of the recipe, as its manifest has it: seen from its own."""
    text = manifest.value.get("folder")
    return Path(os.path.normpath(folder / text)) if isinstance(text, str) else None


def _is_inside(path: Path, root: Path) -> bool:
    """Whether *path* is a file of its own right where it seems to be: we write no links, and follow none to remove."""
    return path.is_file() and not path.is_symlink() and path.parent.resolve().is_relative_to(root.resolve())


def _has_bytes(path: Path, entry: FileEntry, fingerprints: Fingerprints) -> bool:
    return path.stat().st_size == entry.size and fingerprints.unchanged(path, entry.digest)


def _is_settings_of(path: Path, manifest: Manifest) -> bool:
    try:
        return config_hash(json.loads(path.read_text(encoding="utf-8"))) == manifest.value.get("config_hash")
    except (OSError, ValueError, AttributeError):
        return False


def _remove_empty_folders(removed: Iterable[Path], stays: set[Path | None]) -> None:
    """Remove the folders that *removed* have left empty, up to those that are in *stays*."""
    for path in removed:
        for parent in path.parents:
            if parent in stays:
                break
            try:
                parent.rmdir()
            except OSError:  # not empty
                break
