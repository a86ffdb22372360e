"""The recipe's folder, where stages of its own put what they make: which files there are ours, and which are not.

Ours is what our manifest lists, and what the cache knows to be the work of a stage, byte for byte: a build that was
killed or failed has put files and written no manifest. All else is somebody's, and is never overwritten or removed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from winml_dag.engine.events import StageResult
from winml_dag.engine.inplace import InPlace, placed_files
from winml_dag.errors import InputError, UsageError
from winml_dag.pipeline.buildgraph import BuildGraph
from winml_dag.pipeline.commit import Materialised
from winml_dag.pipeline.layout import MANIFEST
from winml_dag.pipeline.manifest import read_manifest
from winml_dag.store.artifact import FileEntry
from winml_dag.store.below import Below
from winml_dag.store.digest import Fingerprints
from winml_dag.store.store import Store


class KnownFiles:
    """What *store* has, looked up by what *fingerprints* say of a file."""

    def __init__(self, store: Store, fingerprints: Fingerprints) -> None:
        self._store = store
        self._fingerprints = fingerprints

    def has(self, path: Path, expected: FileEntry | None = None) -> bool:
        """Whether the file *path* is a result, or *expected*, byte for byte; false for one that cannot be read."""
        try:
            if expected is not None and self._fingerprints.digest(path, expected.digest) == expected.digest:
                return True
            found = self._fingerprints.entry(path, path.name)
        except InputError:
            return False
        # Only what is on this machine: a remote has the work of others, and this file may be theirs or its owner's.
        return not (self._store.remote_only([found]) or self._store.missing([found]))

    def may_replace(self, path: Path, *, owned: bool = False, expected: FileEntry | None = None) -> bool:
        """Whether nothing is lost when *path* is overwritten: it is not there, or a file that is *owned* or :meth:`has`
        knows.
        """
        try:
            mode = path.lstat().st_mode
        except OSError:
            return True
        return stat.S_ISREG(mode) and (owned or self.has(path, expected))


class UserFolder:
    """*folder* (absolute, without links), in which the user's stages of *planned* work; *placed*: by stage, what the
    last build has put there.

    Attributes:
        in_place: what reads and writes there, and remembers what it has found to be right.
    """

    def __init__(
        self,
        folder: Path,
        planned: BuildGraph,
        placed: Mapping[str, Sequence[FileEntry]],
        store: Store,
        fingerprints: Fingerprints,
    ) -> None:
        self.folder = folder
        self._below = Below(folder)
        self._store = store
        self._nodes = [node for node in planned.graph.nodes if node.folder is not None]
        self._known = KnownFiles(store, fingerprints)
        self.in_place = InPlace(
            store,
            fingerprints,
            lambda path: self.may_replace(path.relative_to(folder).as_posix()),
            lambda path: self._may_remove(path.relative_to(folder).as_posix()),
        )
        # A source is the user's, whatever an earlier build may have put there.
        self._read = {str(file.path) for source in planned.graph.sources.values() for file in source.files}
        self._owned = {
            entry.name: entry
            for entries in placed.values()
            for entry in entries
            if str(folder / entry.name) not in self._read
        }

    def refuse_foreign(self, foreseen: Iterable[StageResult]) -> None:
        """Raise UsageError when something that is not ours lies where an output goes, before anything has run."""
        records = {result.node.id: result.record for result in foreseen}
        for node in self._nodes:
            record = records.get(node.id)
            known = () if record is None else placed_files(node, record.outputs)
            expected = {entry.name: entry for entry in known}
            for path in {*expected, *(path for path in node.paths.values() if not path.endswith("/"))}:
                if not self.may_replace(path, expected.get(path)):
                    raise self._in_the_way(node.id, path)
            for path in node.paths.values():
                if path.endswith("/") and self._is_no_folder(path):
                    raise self._in_the_way(node.id, path)

    def may_replace(self, name: str, entry: FileEntry | None = None) -> bool:
        """Whether nothing is lost when *name* is overwritten: it is not there, it is ours, or it is *entry* already."""
        return self._known.may_replace(self.folder / name, owned=name in self._owned, expected=entry)

    def _may_remove(self, name: str) -> bool:
        """Whether nothing is lost when *name* goes: it is as a build has put it there, of which the cache knows."""
        path, owned = self.folder / name, self._owned.get(name)
        if str(path) in self._read or not self._below.is_file(name):
            return False
        return (owned is not None and self.in_place.is_right(str(path), owned)) or self._known.has(path)

    def materialise(self, results: Iterable[StageResult]) -> Materialised:
        """Make the folder hold what the stages have put out, and nothing of ours beside it.

        Most lies there already: a run puts what it makes. One of ours that is no longer put out goes, unless somebody
        has edited it.

        Raises:
            BlobDamaged: when a file cannot be fetched; its stage has to run again.
            UsageError: when a file of somebody else's is in the way.
            StoreError: when the folder cannot be written, or a link is on the way to a file.
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
        return Materialised(tuple(name for name in written if name not in restored), restored, removed)

    def _was(self, name: str, file: FileEntry) -> bool:
        """Whether the last build had put the very same file there."""
        owned = self._owned.get(name)
        return owned is not None and (owned.digest, owned.size) == (file.digest, file.size)

    def _removed(self, entries: Iterable[FileEntry]) -> Iterator[str]:
        for entry in entries:
            path = self.folder / entry.name
            if self._below.is_file(entry.name) and self.in_place.is_right(str(path), entry):
                # One that is in use stays: it is no part of the build any more.
                with suppress(OSError):
                    self._below.remove(entry.name)
                    yield entry.name

    def _is_no_folder(self, path: str) -> bool:
        place = self.folder / path.rstrip("/")
        return os.path.lexists(place) and not place.is_dir()

    def _in_the_way(self, stage: str, name: str) -> UsageError:
        return UsageError(
            f"{self.folder / name} is in the way: {stage} puts out a file there, and no {MANIFEST} says that a build "
            "made this one, so it is not overwritten.",
            advice="Move it, or give the output another path in the recipe.",
        )


def _files(result: StageResult) -> Iterator[FileEntry]:
    """Those of *result*, which has a record, that lie in the recipe's folder."""
    assert result.record is not None
    return placed_files(result.node, result.record.outputs)


def user_folder(planned: BuildGraph, store: Store) -> UserFolder | None:
    """The recipe's folder, if stages of its own put files there."""
    folder = planned.folder
    if folder is None:
        return None
    return UserFolder(folder, planned, _placed(planned, folder), store, store.fingerprints)


def _placed(planned: BuildGraph, folder: Path) -> Mapping[str, Sequence[FileEntry]]:
    """What the last build has put into the recipe's *folder*, by stage."""
    if planned.others:
        return planned.placed
    previous = read_manifest(planned.summary.output_dir)
    return {} if previous is None else previous.placed_in(folder, planned.summary.output_dir)
