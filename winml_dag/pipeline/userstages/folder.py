"""The recipe's folder, where its own stages write their outputs: which files there are owned, and which are not.

Owned files are those that the manifest lists, and those that are byte for byte a stage's result in the cache: a build
that was killed or failed has written files but no manifest. All other files belong to the user, and are never
overwritten or removed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from winml_dag.engine.events import StageResult
from winml_dag.engine.inplace import InPlace
from winml_dag.errors import InputError, UsageError
from winml_dag.pipeline.buildgraph import BuildGraph
from winml_dag.pipeline.layout import MANIFEST
from winml_dag.pipeline.manifest import read_manifest
from winml_dag.store.artifact import FileEntry
from winml_dag.store.commit import PublishedChange
from winml_dag.store.files import Below
from winml_dag.store.store import Store


class KnownFiles:
    """Finds files that are in *store*."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def has(self, path: Path, expected: FileEntry | None = None) -> bool:
        """Whether the file *path* is a result, or *expected*, byte for byte; false if it cannot be read."""
        try:
            if expected is not None and self._store.fingerprints.digest(path, expected.digest) == expected.digest:
                return True
            found = self._store.fingerprints.entry(path, path.name)
        except InputError:
            return False
        # Only results on this machine: a remote has others' results, and this file may belong to them or to the user.
        return not (self._store.remote_only([found]) or self._store.missing([found]))

    def may_replace(self, path: Path, *, owned: bool = False, expected: FileEntry | None = None) -> bool:
        """Whether overwriting *path* loses nothing: it does not exist, is *owned*, or :meth:`has` finds it."""
        try:
            mode = path.lstat().st_mode
        except OSError:
            return True
        return stat.S_ISREG(mode) and (owned or self.has(path, expected))


class UserFolder:
    """The *folder* (absolute, without links) in which the user's stages of *planned* work.

    *placed*: what the last build wrote there, by stage.

    Attributes:
        in_place: reads and writes there, and records which files it has confirmed to be right.
    """

    def __init__(
        self,
        folder: Path,
        planned: BuildGraph,
        placed: Mapping[str, Sequence[FileEntry]],
        store: Store,
    ) -> None:
        self.folder = folder
        self._below = Below(folder)
        self._store = store
        self._nodes = [node for node in planned.graph.nodes if node.folder is not None]
        self._known = KnownFiles(store)
        self.in_place = InPlace(
            store,
            lambda path: self.may_replace(path.relative_to(folder).as_posix()),
            lambda path: self._may_remove(path.relative_to(folder).as_posix()),
        )
        # A source belongs to the user, even if an earlier build wrote it.
        self._read = {str(file.path) for source in planned.graph.sources.values() for file in source.files}
        self._owned = {
            entry.name: entry
            for entries in placed.values()
            for entry in entries
            if str(folder / entry.name) not in self._read
        }

    def refuse_foreign(self, planned_results: Iterable[StageResult]) -> None:
        """Raise UsageError when a file that is not owned is in the path of an output, before anything runs."""
        records = {result.node.id: result.record for result in planned_results}
        for node in self._nodes:
            record = records.get(node.id)
            known = () if record is None else node.placed_files(record.outputs)
            expected = {entry.name: entry for entry in known}
            for path in {*expected, *(path for path in node.paths.values() if not path.endswith("/"))}:
                if not self.may_replace(path, expected.get(path)):
                    raise self._in_the_way(node.id, path)
            for path in node.paths.values():
                if path.endswith("/") and self._is_no_folder(path):
                    raise self._in_the_way(node.id, path)

    def may_replace(self, name: str, entry: FileEntry | None = None) -> bool:
        """Whether overwriting *name* loses nothing: it does not exist, is owned, or already is *entry*."""
        return self._known.may_replace(self.folder / name, owned=name in self._owned, expected=entry)

    def _may_remove(self, name: str) -> bool:
        """Whether removing *name* loses nothing: it is as a build wrote it, or a result in the cache."""
        path, owned = self.folder / name, self._owned.get(name)
        if str(path) in self._read or not self._below.is_file(name):
            return False
        return (owned is not None and self.in_place.is_right(str(path), owned)) or self._known.has(path)

    def publish(self, results: Iterable[StageResult]) -> PublishedChange:
        """Make the folder contain the outputs of the stages, and no other owned files.

        Most are already there: a run writes its outputs. An owned file that is no longer an output is removed, unless
        it has been edited.

        Raises:
            BlobDamaged: when a file cannot be fetched; its stage has to run again.
            UsageError: when a file that is not owned is in the way.
            StoreError: when the folder cannot be written, or a link is in the path of a file.
        """
        kept: set[str] = set()
        results = [result for result in results if result.node.folder is not None and result.record is not None]
        put = (file for result in results for file in _files(result))
        self._store.fetch_ahead(file for file in put if not os.path.lexists(self.folder / file.name))
        for result in results:
            assert result.record is not None
            self.in_place.put(result.node, result.record)
            kept.update(entry.name.casefold() for entry in _files(result))
        gone = (path.relative_to(self.folder).as_posix() for path in self.in_place.removed)
        left = (entry for name, entry in self._owned.items() if name.casefold() not in kept)
        removed = (*gone, *self._removed(left))
        written = {path.relative_to(self.folder).as_posix(): file for path, file in self.in_place.put_files.items()}
        restored = tuple(name for name, file in written.items() if self._was(name, file))
        return PublishedChange(tuple(name for name in written if name not in restored), restored, removed)

    def _was(self, name: str, file: FileEntry) -> bool:
        """Whether the last build had written the same file there."""
        owned = self._owned.get(name)
        return owned is not None and (owned.digest, owned.size) == (file.digest, file.size)

    def _removed(self, entries: Iterable[FileEntry]) -> Iterator[str]:
        for entry in entries:
            path = self.folder / entry.name
            if self._below.is_file(entry.name) and self.in_place.is_right(str(path), entry):
                # A file in use stays: it is no longer part of the build.
                with suppress(OSError):
                    self._below.remove(entry.name)
                    yield entry.name

    def _is_no_folder(self, path: str) -> bool:
        place = self.folder / path.rstrip("/")
        return os.path.lexists(place) and not place.is_dir()

    def _in_the_way(self, stage: str, name: str) -> UsageError:
        return UsageError(
            f"{self.folder / name} is in the way: {stage} writes a file there, and no {MANIFEST} says that a build "
            "wrote this one, so it is not overwritten.",
            advice="Move it, or give the output another path in the recipe.",
        )


def _files(result: StageResult) -> Iterator[FileEntry]:
    """Return the files of *result*, which has a record, that are in the recipe's folder."""
    assert result.record is not None
    return result.node.placed_files(result.record.outputs)


def user_folder(planned: BuildGraph, store: Store) -> UserFolder | None:
    """Return the recipe's folder, if stages of its own write files there."""
    folder = planned.folder
    if folder is None:
        return None
    return UserFolder(folder, planned, _placed(planned, folder), store)


def _placed(planned: BuildGraph, folder: Path) -> Mapping[str, Sequence[FileEntry]]:
    """Return what the last build wrote to the recipe's *folder*, by stage."""
    if planned.others:
        return planned.placed
    previous = read_manifest(planned.summary.output_dir)
    return {} if previous is None else previous.placed_in(folder, planned.summary.output_dir)
