"""The recipe's folder, where stages of its own put what they make: which files there are ours, and which are not.

Ours is what our manifest lists, and what the cache knows to be the work of a stage, byte for byte: a build that was
killed or failed has put files and written no manifest. All else is somebody's, and is never overwritten or removed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from winml_dag.engine.events import StageResult
from winml_dag.engine.placed import placed_files
from winml_dag.errors import InputError, UsageError
from winml_dag.pipeline.buildgraph import BuildGraph
from winml_dag.pipeline.commit import change_folder
from winml_dag.pipeline.layout import MANIFEST
from winml_dag.pipeline.manifest import Manifest
from winml_dag.pipeline.outputs import Materialised
from winml_dag.store.artifact import Artifact, FileEntry
from winml_dag.store.fingerprints import Fingerprints
from winml_dag.store.store import Store


class UserFolder:
    """*folder* (absolute, without links), in which the user's stages of *planned* work; *previous*: the manifest of the
    last build.
    """

    def __init__(
        self, folder: Path, planned: BuildGraph, previous: Manifest | None, store: Store, fingerprints: Fingerprints
    ) -> None:
        self.folder = folder
        self._nodes = [node for node in planned.graph.nodes if node.folder is not None]
        self._store = store
        self._fingerprints = fingerprints
        # A source is the user's, whatever an earlier build may have put there.
        read = {str(file.path) for source in planned.graph.sources.values() for file in source.files}
        # Of a part of a build, only its own stages are looked at: what others have put stays.
        part = {node.id for node in self._nodes} if planned.others else None
        self._owned = {
            entry.name: entry
            for stage, entries in ({} if previous is None else previous.placed).items()
            for entry in entries
            if (part is None or stage in part) and str(folder / entry.name) not in read
        }

    def refuse_foreign(self, foreseen: Iterable[StageResult]) -> None:
        """Raise UsageError when something that is not ours lies where an output goes, before anything has run."""
        records = {result.node.id: result.record for result in foreseen}
        for node in self._nodes:
            record = records.get(node.id)
            known = () if record is None else placed_files(node, record)
            expected = {entry.name: entry for entry in known}
            for path in {*expected, *(path for path in node.paths.values() if not path.endswith("/"))}:
                if not self.may_replace(path, expected.get(path)):
                    raise self._in_the_way(node.id, path)
            for path in node.paths.values():
                if path.endswith("/") and self._is_no_folder(path):
                    raise self._in_the_way(node.id, path)

    def may_replace(self, name: str, entry: FileEntry | None = None) -> bool:
        """Whether nothing is lost when *name* is overwritten: it is not there, it is ours, or it is *entry* already."""
        path = self.folder / name
        try:
            mode = path.lstat().st_mode
        except OSError:
            return True
        if not stat.S_ISREG(mode):
            return False
        if name in self._owned:
            return True
        try:
            found = self._fingerprints.entry(path, name)
        except InputError:  # it cannot be read
            return False
        return found == entry or not self._store.missing([found])

    def materialise(self, results: Iterable[StageResult]) -> Materialised:
        """Make the folder hold what the stages have put out, and nothing of ours beside it, as one change.

        Files that are as they should be are not touched. One of ours that is no longer put out goes, unless somebody
        has edited it.

        Raises:
            BlobDamaged: when a file cannot be fetched; its stage has to run again.
            UsageError: when a file of somebody else's is in the way, or a link that leads out of the folder.
            StoreError: when the folder cannot be written; it is as it was.
        """
        results = tuple(results)
        stale, removed = self._differences(results)
        if not (stale or removed):
            return Materialised()
        makers = {entry.name: result.node.id for result in results for entry in _placed(result)}
        for entry in stale:
            if not (self._is_inside(entry.name) and self.may_replace(entry.name, entry)):
                raise self._in_the_way(makers[entry.name], entry.name)
        restored = tuple(entry.name for entry in stale if self._owned.get(entry.name) == entry)

        def prepare(folder: Path) -> list[str]:
            self._store.fetch(Artifact.of(stale), folder)
            return [entry.name for entry in stale]

        change = change_folder(self.folder, prepare, removed)
        return Materialised(tuple(name for name in change.put if name not in restored), restored, removed)

    def is_as_wanted(self, results: Iterable[StageResult]) -> bool:
        """Whether :meth:`materialise` would have nothing to do."""
        return not any(self._differences(results))

    def _differences(self, results: Iterable[StageResult]) -> tuple[list[FileEntry], tuple[str, ...]]:
        """Files to put, names to take away."""
        wanted = [entry for result in results for entry in _placed(result)]
        kept = {entry.name.casefold() for entry in wanted}
        undeclared = [entry for name, entry in self._owned.items() if name.casefold() not in kept]
        unedited = {entry.name for entry in undeclared} - {entry.name for entry in self._stale(undeclared)}
        return self._stale(wanted), tuple(name for name in sorted(unedited) if self._is_inside(name))

    def _stale(self, entries: Sequence[FileEntry]) -> list[FileEntry]:
        """Those of *entries* that do not lie in their place as they should, all looked at together."""
        there = [entry for entry in entries if self._has_size(entry)]
        try:
            found = self._fingerprints.entries([(self.folder / entry.name, entry.name) for entry in there])
        except InputError:  # gone since, or not to be read: whoever replaces it says so
            return list(entries)
        right = {entry.name for entry, now in zip(there, found, strict=True) if entry == now}
        return [entry for entry in entries if entry.name not in right]

    def _has_size(self, entry: FileEntry) -> bool:
        try:
            status = os.lstat(f"{self.folder}/{entry.name}")
        except OSError:
            return False
        return stat.S_ISREG(status.st_mode) and status.st_size == entry.size

    def _is_inside(self, name: str) -> bool:
        """Whether no link on the way means that the file lies elsewhere."""
        try:
            return (self.folder / name).parent.resolve().is_relative_to(self.folder)
        except OSError:
            return False

    def _is_no_folder(self, path: str) -> bool:
        place = self.folder / path.rstrip("/")
        return os.path.lexists(place) and not place.is_dir()

    def _in_the_way(self, stage: str, name: str) -> UsageError:
        return UsageError(
            f"{self.folder / name} is in the way: {stage} puts out a file there, and no {MANIFEST} says that a build "
            "made this one, so it is not overwritten.",
            advice="Move it, or give the output another path in the recipe.",
        )


def _placed(result: StageResult) -> Iterator[FileEntry]:
    if result.node.folder is not None and result.record is not None:
        yield from placed_files(result.node, result.record)
