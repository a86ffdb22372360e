"""What a build puts into its output folder: which files in it are ours, which may be replaced, and putting them there.

A folder with a manifest has that to say which files are ours. Beside the one file that a command puts where its user
says lies none: there, ours is what the cache knows as a result, byte for byte, so that nothing is lost when it is
overwritten. All else is somebody's, and is only overwritten when that was asked for; what the build reads never is.
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

from winml_dag.canonical import JsonObject
from winml_dag.errors import InputError, StoreError, UsageError
from winml_dag.file_reading import MOST_BYTES_OF_MANY, read_bytes
from winml_dag.pipeline.commit import Materialised, change_folder, finish_change, folder_key, is_changing
from winml_dag.pipeline.layout import (
    BUILD_CONFIG,
    MANIFEST,
    outdated_reports,
    published_files,
    reserved,
    wanted_reports,
)
from winml_dag.pipeline.manifest import is_of_winml_cli, make_manifest, manifest_text, read_manifest, with_part
from winml_dag.store.artifact import Artifact, FileEntry
from winml_dag.store.below import Below
from winml_dag.store.digest import Fingerprints
from winml_dag.store.store import Store

if TYPE_CHECKING:
    from winml_dag.engine.events import StageResult
    from winml_dag.pipeline.buildgraph import BuildGraph
    from winml_dag.pipeline.userstages.folder import UserFolder


class _Folder:
    """A folder that files of the store are put into, together with the journals of the cache in *changes*."""

    def __init__(self, folder: Path, store: Store, fingerprints: Fingerprints, changes: Path) -> None:
        self._folder = folder
        self._store = store
        self._fingerprints = fingerprints
        self._changes = changes

    def _stale(self, wanted: Iterable[FileEntry]) -> list[FileEntry]:
        return [entry for entry in wanted if not self._is(entry)]

    def _is(self, entry: FileEntry) -> bool:
        path = self._folder / entry.name
        try:
            return path.stat().st_size == entry.size and self._fingerprints.digest(path, entry.digest) == entry.digest
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
    ) -> Materialised:
        """Put *stale* and *texts*, the one named *last* at the end: whoever reads it finds what it speaks of."""
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

        # Before it is a matter of this folder: where the cache is full, another output folder is no help.
        self._store.fetch_ahead(stale)
        change = change_folder(self._folder, self._changes, prepare, removed)
        return Materialised(change.put, (), change.remove, not_linked)

    def _is_link(self, entry: FileEntry) -> bool:
        """Whether the file in place is a hard link, maybe to a blob: if it is wrong, so is the blob, and somebody who
        puts times back may have put its stamp back too.
        """
        try:
            return (self._folder / entry.name).lstat().st_nlink > 1
        except FileNotFoundError:
            return False


class OutputFolder(_Folder):
    """A folder that builds write to. *owned* are the files that the last build of ours put there, as its manifest has
    them; *changes*: where the cache keeps journals. With *overwrite*, files of somebody else's may be replaced, but
    never one of *read*, which the build reads (without links).
    """

    def __init__(
        self,
        folder: Path,
        owned: Iterable[FileEntry],
        store: Store,
        fingerprints: Fingerprints,
        changes: Path,
        *,
        read: Collection[Path] = (),
        overwrite: bool = False,
    ) -> None:
        super().__init__(folder, store, fingerprints, changes)
        self._read = read
        self._overwrite = overwrite
        self._owned = {entry.name: entry for entry in owned}

    def refuse_foreign(self, names: Iterable[str]) -> None:
        """Raise UsageError when one of *names* is there, is not ours, and is not to be overwritten."""
        for name in names:
            path = self._folder / name
            if name in self._owned or not os.path.lexists(path):
                continue
            is_read = path.resolve() in self._read
            can_go = not is_read and stat.S_ISREG(path.lstat().st_mode)
            if self._overwrite and can_go:
                continue
            why = f"no {MANIFEST} beside it says that a build of ours made it"
            if is_read:
                why = "this build reads it"
            elif is_of_winml_cli(self._folder):
                why = "this is the folder of a build of winml-cli"
            raise UsageError(
                f"{path} is in the way: {why}, so it is not overwritten.",
                advice=f"{'Give --overwrite' if can_go else 'Move it'}, or choose another folder with -o.",
            )

    def materialise(
        self, wanted: Sequence[FileEntry], texts: Mapping[str, bytes], *, link: bool = False
    ) -> Materialised:
        """Make the folder hold *wanted* and *texts*, and nothing of ours beside them; with *link*, files that are put
        there are read-only hard links into the store where such can be made.

        Files that are as they should be are not touched, be they copies or links. One of ours that is no longer wanted
        goes, unless somebody has edited it, or it is behind a link.

        Raises:
            BlobDamaged: when a file cannot be fetched; its stage has to run again.
            UsageError: when a file of somebody else's is in the way.
            StoreError: when the folder cannot be written; it is as it was.
        """
        stale, changed_texts, removed = self._differences(wanted, texts)
        if not (stale or changed_texts or removed):
            return Materialised()
        self.refuse_foreign([*(entry.name for entry in stale), *changed_texts])
        restored = tuple(entry.name for entry in stale if self._owned.get(entry.name) == entry)
        done = self._change(stale, changed_texts, removed, MANIFEST, link=link)
        return replace(done, written=tuple(name for name in done.written if name not in restored), restored=restored)

    def is_as_wanted(self, wanted: Sequence[FileEntry], texts: Mapping[str, bytes]) -> bool:
        """Whether :meth:`materialise` would have nothing to do."""
        return not any(self._differences(wanted, texts))

    def _differences(
        self, wanted: Sequence[FileEntry], texts: Mapping[str, bytes]
    ) -> tuple[list[FileEntry], dict[str, bytes], list[str]]:
        """Files to put, texts to write, names to take away."""
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
    """*name* in *folder*, with what belongs to a model beside it: weights, and the binaries of a compiled one. *read*:
    files that the build reads. With *overwrite*, what is in the way makes way.
    """

    def __init__(self, folder: Path, name: str, read: Iterable[Path], store: Store, *, overwrite: bool) -> None:
        super().__init__(folder, store, store.fingerprints, store.changes)
        self._name = name
        self._read = {path.resolve() for path in read}
        self._claim = store.claim
        from winml_dag.pipeline.userstages.folder import KnownFiles

        self._known = KnownFiles(store, store.fingerprints)
        self._overwrite = overwrite

    def refuse_foreign(self, names: Iterable[str] = ()) -> None:
        """Raise UsageError when the file, or one of *names* beside it, is there and not to be overwritten."""
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

    def materialise(self, wanted: Sequence[FileEntry], outdated: Sequence[str] = ()) -> Materialised:
        """Make the file be as in *wanted*, and what belongs to it; what belonged to the one that it takes the place of
        goes, and so does what is *outdated* by it, where these are ours.

        Raises:
            BlobDamaged: when a file cannot be fetched; its stage has to run again.
            UsageError: when a file of somebody else's is in the way.
            StoreError: when the folder cannot be written; it is as it was.
        """
        if not is_changing(self._folder) and not self._stale(wanted) and not self._ours(outdated):
            return Materialised()
        with self._claim(folder_key(self._folder)):
            finish_change(self._folder, self._changes)
            stale, gone = self._stale(wanted), self._ours(outdated)
            if not (stale or gone):
                return Materialised()
            self.refuse_foreign(entry.name for entry in stale)
            removed = sorted((self._left_over() | gone) - {entry.name for entry in wanted})
            return self._change(stale, {}, removed, self._name)

    def _left_over(self) -> set[str]:
        """The weights or binaries of the model of ours that is there now, as far as they are ours too."""
        # Imported here: only a model that takes the place of another needs it.
        from winml_dag.onnxmodel.inspect import inspect_model
        from winml_dag.onnxmodel.sidecar import SHARED

        path = self._folder / self._name
        if path.suffix != ".onnx" or not path.exists() or not self._known.may_replace(path):
            return set()
        try:
            names = inspect_model(path).files[1:]
        except InputError:
            return set()
        # Only what has its name, and is not shared: any other file may be another model's as well.
        return self._ours(
            name for name in names if name.startswith(path.stem) and not name.removeprefix(path.stem).startswith(SHARED)
        )

    def _ours(self, names: Iterable[str]) -> set[str]:
        below = Below(self._folder)
        return {name for name in names if below.is_file(name) and self._known.may_replace(self._folder / name)}


def refuse_file(folder: Path) -> None:
    """Raise StoreError when there is a file where the output folder, or a folder that it lies in, should be, or when
    the system can have no such folder (a name that is too long).
    """
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
    """See that the folder can be made and written, before hours of work. Nothing is left there, under no name: several
    builds may do this at once, and one that fails leaves no folder behind.

    Raises:
        StoreError: when it cannot, naming the folder.
    """
    import tempfile  # here, since an up-to-date build gets by without it

    try:
        nearest = next(path for path in (folder, *folder.parents) if path.exists())
        tempfile.TemporaryFile(dir=nearest).close()
    except OSError as error:
        raise StoreError(
            f"The output folder {folder} cannot be written: {error.strerror or error}.",
            advice="Choose another folder with -o, or give permission.",
        ) from error


def refuse_foreign(planned: BuildGraph, store: Store, *, overwrite: bool) -> None:
    """Raise UsageError when a file of somebody else's is where a build will write, whatever it comes to."""
    if planned.summary.output_file is not None:
        name = planned.summary.output_file
        file = _output_file(planned, name, store, overwrite=overwrite)
        file.refuse_foreign((*planned.summary.also, *wanted_reports(planned)))
    elif not planned.others:  # of a part, the manifest was seen to be the one that we wrote
        build = planned.summary
        names = reserved(build.settings, build.components) if planned.final else (MANIFEST,)
        output_folder(planned, store, overwrite=overwrite).refuse_foreign(names)


def materialise(
    planned: BuildGraph,
    own: UserFolder | None,
    results: Mapping[str, StageResult],
    store: Store,
    elapsed_seconds: float,
    *,
    link: bool,
    overwrite: bool,
) -> Materialised:
    """Put what a finished build has made where its user finds it, and its manifest; *own*: the recipe's folder.

    Raises:
        BlobDamaged: when a file cannot be fetched; its stage has to run again.
        UsageError, StoreError: as :class:`OutputFolder` and :class:`UserFolder` do.
    """
    # Before the manifest, which says that these are ours.
    placed = Materialised() if own is None else own.materialise(results.values())
    if planned.summary.output_file is not None:
        file = _output_file(planned, planned.summary.output_file, store, overwrite=overwrite)
        files = published_files(planned, results, store).files
        return placed.and_then(file.materialise(files, tuple(outdated_reports(planned))))
    if planned.others:
        return placed.and_then(_materialise_part(planned, results, store, elapsed_seconds))
    build = planned.summary
    published = published_files(planned, results, store)
    value = make_manifest(planned, results, published.files, elapsed_seconds)
    before = read_manifest(build.output_dir)
    same = before is not None and before.says_the_same_as(value)
    manifest = manifest_text(before.value if same and before is not None else _with_run(value, planned, results))
    files, texts = published.results, {**published.rewritten, **build_settings(planned), MANIFEST: manifest}
    if not is_changing(build.output_dir) and output_folder(planned, store).is_as_wanted(files, texts):
        return placed
    # Taking the lock costs 30 ms of imports, so an up-to-date folder is only looked at.
    with store.claim(folder_key(build.output_dir)):
        # First, since it is what settles whose files lie there: a killed build may have put some, and no manifest yet.
        finish_change(build.output_dir, store.changes)
        # Whose they are may also have changed while we waited for a build that began together with this one.
        folder = output_folder(planned, store, overwrite=overwrite)
        return placed.and_then(folder.materialise(files, texts, link=link))


def _with_run(value: JsonObject, planned: BuildGraph, results: Mapping[str, StageResult]) -> JsonObject:
    # Imported here, and asked only when a manifest is written: an up-to-date folder has no use for it.
    from winml_dag.pipeline.build_info import build_info

    return {**value, "run": build_info(planned, results)}


def _materialise_part(
    planned: BuildGraph, results: Mapping[str, StageResult], store: Store, elapsed_seconds: float
) -> Materialised:
    """The same for a part of a build, whose stages have all put their files into the recipe's folder: of the manifest
    only their lines are made anew.
    """
    folder = planned.summary.output_dir
    with store.claim(folder_key(folder)):
        finish_change(folder, store.changes)
        part = make_manifest(planned, results, (), elapsed_seconds)
        text = with_part(read_bytes(folder / MANIFEST, MOST_BYTES_OF_MANY), part)
        output = OutputFolder(folder, (FileEntry(MANIFEST, "", 0),), store, store.fingerprints, store.changes)
        return output.materialise((), {MANIFEST: text})


def build_settings(planned: BuildGraph) -> dict[str, bytes]:
    """The settings as a file of the output folder. Without a model nothing was left to decide."""
    if planned.final is None:
        return {}
    text = json.dumps(planned.summary.settings, indent=2, sort_keys=True, ensure_ascii=False)
    return {BUILD_CONFIG: f"{text}\n".encode()}


def output_folder(planned: BuildGraph, store: Store, *, overwrite: bool = False) -> OutputFolder:
    """The output folder of a build, and what in it is ours."""
    folder = planned.summary.output_dir
    previous = read_manifest(folder)
    read = {file.path.resolve() for source in planned.graph.sources.values() for file in source.files}
    # Two files are not in a manifest: it cannot list itself, and the settings are written together with it.
    ours = () if previous is None else (*previous.files, FileEntry(MANIFEST, "", 0), FileEntry(BUILD_CONFIG, "", 0))
    owned = [entry for entry in ours if (folder / entry.name).resolve() not in read]
    if _is_recipe(folder / BUILD_CONFIG, planned):
        read.add((folder / BUILD_CONFIG).resolve())
    return OutputFolder(folder, owned, store, store.fingerprints, store.changes, read=read, overwrite=overwrite)


def _is_recipe(path: Path, planned: BuildGraph) -> bool:
    """Whether the file *path* is the recipe of *planned*, or says the same."""
    recipe = planned.summary.asked.get("recipe")
    if not isinstance(recipe, Mapping) or recipe.get("file") != path.name:
        return False
    try:
        return recipe.get("digest") == f"sha256:{hashlib.sha256(read_bytes(path)).hexdigest()}"
    except (OSError, ValueError):
        return False


def _output_file(planned: BuildGraph, name: str, store: Store, *, overwrite: bool) -> OutputFile:
    read = (file.path for source in planned.graph.sources.values() for file in source.files)
    return OutputFile(planned.summary.output_dir, name, read, store, overwrite=overwrite)
