"""Write a build's results to its output folder: which files in it are owned, and which may be replaced.

In a folder with a manifest, the manifest lists the owned files. A command's single output file has none next to it:
there, a file is owned if it is byte for byte a result in the cache, so that overwriting it loses nothing. All other
files belong to the user and are only overwritten on request; a file that the build reads is never overwritten.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from winml_dag.errors import InputError, StoreError, UsageError
from winml_dag.file_reading import MOST_BYTES_OF_MANY, read_bytes
from winml_dag.pipeline.layout import (
    BUILD_CONFIG,
    MANIFEST,
    outdated_reports,
    reserved,
    wanted_reports,
)
from winml_dag.pipeline.manifest import is_of_winml_cli, make_manifest, manifest_text, read_manifest, with_part
from winml_dag.store.artifact import Artifact, FileEntry
from winml_dag.store.commit import PublishedChange, change_folder, held, is_changing
from winml_dag.store.files import Below
from winml_dag.store.store import Store

if TYPE_CHECKING:
    from winml_dag.pipeline.buildgraph import BuildGraph
    from winml_dag.pipeline.layout import FinishedBuild
    from winml_dag.pipeline.userstages.folder import UserFolder


class _Folder:
    """A folder that receives files of the store.

    *read*: files that the build reads, without links, never replaced. With *overwrite*, other files that are not owned
    may be.
    """

    def __init__(self, folder: Path, store: Store, read: Collection[Path], *, overwrite: bool) -> None:
        self._folder = folder
        self._store = store
        self._read = read
        self._overwrite = overwrite

    def _stale(self, wanted: Iterable[FileEntry]) -> list[FileEntry]:
        return [entry for entry in wanted if not self._is(entry)]

    def _is(self, entry: FileEntry) -> bool:
        path = self._folder / entry.name
        try:
            return (
                path.stat().st_size == entry.size
                and self._store.fingerprints.digest(path, entry.digest) == entry.digest
            )
        except FileNotFoundError:
            return False

    def _change(
        self,
        stale: Sequence[FileEntry],
        texts: Mapping[str, bytes],
        removed: Sequence[str],
        last: str,
        *,
        link: bool = False,
    ) -> PublishedChange:
        """Write *stale* and *texts*, the file named *last* at the end: its readers then find all files it refers to."""
        not_linked: tuple[str, ...] = ()

        def prepare(folder: Path) -> list[str]:
            nonlocal not_linked
            if link:
                not_linked = self._store.link(Artifact.of(stale), folder, check=any(map(self._is_link, stale)))
            else:
                self._store.fetch(Artifact.of(stale), folder)
            for name, data in texts.items():
                (folder / name).write_bytes(data)
            return sorted([*(entry.name for entry in stale), *texts], key=lambda name: (name == last, name))

        # Fetch before changing the folder: if the cache is full, another output folder does not help.
        self._store.fetch_ahead(stale)
        written = change_folder(self._folder, self._store.changes, prepare, removed)
        return PublishedChange(written, (), tuple(removed), not_linked)

    def _is_link(self, entry: FileEntry) -> bool:
        """Whether the current file is a hard link, maybe to a blob.

        If it is wrong, so is the blob, and an edit that restored the file's times may have restored the blob's stamp,
        too.
        """
        try:
            return (self._folder / entry.name).lstat().st_nlink > 1
        except FileNotFoundError:
            return False


class OutputFolder(_Folder):
    """A folder that builds write to; *owned* are the files that the last one wrote there, according to its manifest."""

    def __init__(
        self,
        folder: Path,
        owned: Iterable[FileEntry],
        store: Store,
        *,
        read: Collection[Path] = (),
        overwrite: bool = False,
    ) -> None:
        super().__init__(folder, store, read, overwrite=overwrite)
        self._owned = {entry.name: entry for entry in owned}

    def refuse_foreign(self, names: Iterable[str]) -> None:
        """Raise UsageError when one of *names* exists, is not owned, and may not be overwritten."""
        for name in names:
            path = self._folder / name
            if name in self._owned or not os.path.lexists(path):
                continue
            is_read = path.resolve() in self._read
            can_go = not is_read and stat.S_ISREG(path.lstat().st_mode)
            if self._overwrite and can_go:
                continue
            why = f"no {MANIFEST} beside it says that winml-dag wrote it"
            if is_read:
                why = "this build reads it"
            elif is_of_winml_cli(self._folder):
                why = "this is the folder of a build of winml-cli"
            raise UsageError(
                f"{path} is in the way: {why}, so it is not overwritten.",
                advice=f"{'Give --overwrite' if can_go else 'Move it'}, or choose another folder with -o.",
            )

    def publish(
        self, wanted: Sequence[FileEntry], texts: Mapping[str, bytes], *, link: bool = False
    ) -> PublishedChange:
        """Make the folder contain *wanted* and *texts*, and no other owned files.

        With *link*, new files are read-only hard links into the store, where supported. Files with the right content
        are not touched, be they copies or links. An owned file that is no longer wanted is removed, unless it has been
        edited or is reached through a link.

        Raises:
            BlobDamaged: when a file cannot be fetched; its stage has to run again.
            UsageError: when a file that is not owned is in the way.
            StoreError: when the folder cannot be written; it is unchanged.
        """
        stale, changed_texts, removed = self._differences(wanted, texts)
        if not (stale or changed_texts or removed):
            return PublishedChange()
        self.refuse_foreign([*(entry.name for entry in stale), *changed_texts])
        restored = tuple(entry.name for entry in stale if self._owned.get(entry.name) == entry)
        done = self._change(stale, changed_texts, removed, MANIFEST, link=link)
        return replace(done, written=tuple(name for name in done.written if name not in restored), restored=restored)

    def is_as_wanted(self, wanted: Sequence[FileEntry], texts: Mapping[str, bytes]) -> bool:
        """Whether :meth:`publish` would have nothing to do."""
        return not any(self._differences(wanted, texts))

    def _differences(
        self, wanted: Sequence[FileEntry], texts: Mapping[str, bytes]
    ) -> tuple[list[FileEntry], dict[str, bytes], list[str]]:
        """Return the files to fetch, the texts to write, and the names to remove."""
        stale = self._stale(wanted)
        changed_texts = {name: data for name, data in texts.items() if not _holds(self._folder / name, data)}
        kept = {entry.name for entry in wanted} | texts.keys()
        below = Below(self._folder)
        left = (entry for name, entry in self._owned.items() if name not in kept and below.is_file(name))
        removed = [entry.name for entry in left if self._is(entry)]
        return stale, changed_texts, removed


def _holds(path: Path, data: bytes) -> bool:
    try:
        return path.stat().st_size == len(data) and read_bytes(path, len(data)) == data
    except OSError:
        return False


class OutputFile(_Folder):
    """The file *name* in *folder*, with a model's companion files: weights, and the binaries of a compiled model."""

    def __init__(self, folder: Path, name: str, read: Collection[Path], store: Store, *, overwrite: bool) -> None:
        from winml_dag.pipeline.userstages.folder import KnownFiles

        super().__init__(folder, store, read, overwrite=overwrite)
        self._name = name
        self._known = KnownFiles(store)

    def refuse_foreign(self, names: Iterable[str] = ()) -> None:
        """Raise UsageError when the file, or one of *names* next to it, exists and may not be overwritten."""
        for name in dict.fromkeys((self._name, *names)):
            path = self._folder / name
            if path.resolve() in self._read:
                raise UsageError(f"{path} is the model that is read.", advice="Choose another file with -o.")
            if path.is_dir() and not path.is_symlink():
                raise UsageError(f"{path} is a folder.", advice="Choose another file with -o.")
            if not (self._overwrite or self._known.may_replace(path)):
                raise UsageError(
                    f"{path} is in the way: the cache knows of no stage that made it, so it is not overwritten.",
                    advice="Give --overwrite, or choose another file with -o.",
                )

    def publish(self, wanted: Sequence[FileEntry], outdated: Sequence[str] = ()) -> PublishedChange:
        """Make the file and its companions match *wanted*.

        Owned companions of the file that it replaces are removed, and so are owned files in *outdated*.

        Raises:
            BlobDamaged: when a file cannot be fetched; its stage has to run again.
            UsageError: when a file that is not owned is in the way.
            StoreError: when the folder cannot be written; it is unchanged.
        """
        if not is_changing(self._folder) and not self._stale(wanted) and not self._ours(outdated):
            return PublishedChange()
        with held(self._folder, self._store):
            stale, gone = self._stale(wanted), self._ours(outdated)
            if not (stale or gone):
                return PublishedChange()
            self.refuse_foreign(entry.name for entry in stale)
            removed = sorted((self._left_over() | gone) - {entry.name for entry in wanted})
            return self._change(stale, {}, removed, self._name)

    def _left_over(self) -> set[str]:
        """Return the owned weights or binaries of the owned model that is there now."""
        # Imported here: only replacing a model needs it.
        from winml_dag.onnxmodel.inspect import inspect_model
        from winml_dag.onnxmodel.sidecar import SHARED

        path = self._folder / self._name
        if path.suffix != ".onnx" or not path.exists() or not self._known.may_replace(path):
            return set()
        try:
            names = inspect_model(path).files[1:]
        except InputError:
            return set()
        # Only files with the model's name that are not shared: any other file may also belong to another model.
        return self._ours(
            name for name in names if name.startswith(path.stem) and not name.removeprefix(path.stem).startswith(SHARED)
        )

    def _ours(self, names: Iterable[str]) -> set[str]:
        below = Below(self._folder)
        return {name for name in names if below.is_file(name) and self._known.may_replace(self._folder / name)}


def refuse_file(folder: Path) -> None:
    """Raise StoreError when the output folder or one of its parents is a file, or the path is too long."""
    for path in (folder, *folder.parents):
        try:
            there = path.exists()
        except OSError as error:
            raise StoreError(
                f"{path} cannot be the output folder: {error.strerror}.", advice="Choose another folder with -o."
            ) from error
        if there:
            if not path.is_dir():
                raise StoreError(f"{path} is a file, not a folder.", advice="Choose another folder with -o.")
            return


def prepare_folder(folder: Path) -> None:
    """Check that the folder can be created and written, before hours of work.

    Nothing is left there: several builds may do this at once, and a failing one leaves no folder behind.

    Raises:
        StoreError: when it cannot, naming the folder.
    """
    import tempfile  # here, since an up-to-date build does not need it

    try:
        nearest = next(path for path in (folder, *folder.parents) if path.exists())
        tempfile.TemporaryFile(dir=nearest).close()
    except OSError as error:
        raise StoreError(
            f"The output folder {folder} cannot be written: {error.strerror or error}.",
            advice="Choose another folder with -o, or give permission.",
        ) from error


def refuse_foreign(planned: BuildGraph, store: Store, *, overwrite: bool) -> None:
    """Raise UsageError when a file that is not owned is where a build will write, whatever its result."""
    if planned.summary.output_file is not None:
        name = planned.summary.output_file
        file = _output_file(planned, name, store, overwrite=overwrite)
        file.refuse_foreign((*planned.summary.also, *wanted_reports(planned)))
    elif not planned.others:  # for a part, the manifest was already confirmed to be that of this build
        build = planned.summary
        names = reserved(build.settings, build.components) if planned.final else (MANIFEST,)
        output_folder(planned, store, overwrite=overwrite).refuse_foreign(names)


def publish(done: FinishedBuild, own: UserFolder | None, *, link: bool, overwrite: bool) -> PublishedChange:
    """Publish what a finished build has made, and its manifest; *own*: the recipe's folder.

    Raises:
        BlobDamaged: when a file cannot be fetched; its stage has to run again.
        UsageError, StoreError: as :class:`OutputFolder` and :class:`UserFolder`.
    """
    planned, build, store = done.planned, done.summary, done.store
    # Before the manifest, which lists these files as owned.
    placed = PublishedChange() if own is None else own.publish(done.results.values())
    if build.output_file is not None:
        file = _output_file(planned, build.output_file, store, overwrite=overwrite)
        return placed.and_then(file.publish(done.published.files, tuple(outdated_reports(planned))))
    if planned.others:
        return placed.and_then(_publish_part(done))
    value = make_manifest(done)
    before = read_manifest(build.output_dir)
    if before is not None and before.says_the_same_as(value):
        value = before.value
    else:
        # Imported here: an up-to-date folder does not need it.
        from winml_dag.pipeline.build_info import build_info

        value = {**value, "run": build_info(done)}
    files = done.published.results
    texts = {**done.published.rewritten, **build_settings(planned), MANIFEST: manifest_text(value)}
    if not is_changing(build.output_dir) and output_folder(planned, store).is_as_wanted(files, texts):
        return placed
    # Taking the lock costs 30 ms of imports, so an up-to-date folder is only checked.
    with held(build.output_dir, store):
        # Ownership may have changed while this build waited for another one that started at the same time.
        folder = output_folder(planned, store, overwrite=overwrite)
        return placed.and_then(folder.publish(files, texts, link=link))


def _publish_part(done: FinishedBuild) -> PublishedChange:
    """Publish a part of a build; its stages write only to the recipe's folder, so only their manifest lines change."""
    folder = done.summary.output_dir
    with held(folder, done.store):
        text = with_part(read_bytes(folder / MANIFEST, MOST_BYTES_OF_MANY), make_manifest(done))
        return OutputFolder(folder, (FileEntry(MANIFEST, "", 0),), done.store).publish((), {MANIFEST: text})


def build_settings(planned: BuildGraph) -> dict[str, bytes]:
    """Return the settings as a file of the output folder; none without a model, which leaves nothing to resolve."""
    if planned.final is None:
        return {}
    text = json.dumps(planned.summary.settings, indent=2, sort_keys=True, ensure_ascii=False)
    return {BUILD_CONFIG: f"{text}\n".encode()}


def output_folder(planned: BuildGraph, store: Store, *, overwrite: bool = False) -> OutputFolder:
    """Return the output folder of a build, with its owned files."""
    folder = planned.summary.output_dir
    previous = read_manifest(folder)
    read = planned.graph.read_files
    # Two files are not in a manifest: it cannot list itself, and the settings are written together with it.
    ours = () if previous is None else (*previous.files, FileEntry(MANIFEST, "", 0), FileEntry(BUILD_CONFIG, "", 0))
    owned = [entry for entry in ours if (folder / entry.name).resolve() not in read]
    if _is_recipe(folder / BUILD_CONFIG, planned):
        read |= {(folder / BUILD_CONFIG).resolve()}
    return OutputFolder(folder, owned, store, read=read, overwrite=overwrite)


def _is_recipe(path: Path, planned: BuildGraph) -> bool:
    """Whether the file *path* is the recipe of *planned*, or has the same content."""
    recipe = planned.summary.asked.get("recipe")
    if not isinstance(recipe, Mapping) or recipe.get("file") != path.name:
        return False
    try:
        return recipe.get("digest") == f"sha256:{hashlib.sha256(read_bytes(path)).hexdigest()}"
    except (OSError, ValueError):
        return False


def _output_file(planned: BuildGraph, name: str, store: Store, *, overwrite: bool) -> OutputFile:
    return OutputFile(planned.summary.output_dir, name, planned.graph.read_files, store, overwrite=overwrite)
