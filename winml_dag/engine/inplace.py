"""The user's own files where they lie: read there by stages that work in place, and outputs put there.

Every path is looked at with one ``stat`` and hashed only when that tells of a change since it was last known to be
right. What is put into a folder is a copy, renamed into place: a reader sees the old file or the new one.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from winml_dag.engine.placed import placed_files
from winml_dag.engine.stage import Node
from winml_dag.errors import InputError, StoreError, UsageError
from winml_dag.readlog import Signature
from winml_dag.store.artifact import Artifact, FileEntry
from winml_dag.store.changetime import SETTLED_NS
from winml_dag.store.digest import digest_file, split_digest
from winml_dag.store.files import PARTIAL
from winml_dag.store.fingerprints import Fingerprints
from winml_dag.store.record import Record
from winml_dag.store.signature import signature_of
from winml_dag.store.store import BlobDamaged, RunStore

# Up to here hashing costs less than looking a fingerprint up.
_SMALL = 1 << 18


def anything(path: Path) -> bool:  # noqa: ARG001
    """Whatever is in the way may be replaced."""
    return True


def nothing(path: Path) -> bool:  # noqa: ARG001
    """Nothing may be removed."""
    return False


class InPlace:
    """Reads and writes the folders of nodes. *may_replace* is asked before a file of other content is overwritten,
    *may_remove* before one is removed that lies in an output and is no part of it.

    Attributes:
        put_files: what was written, by path, in order.
        removed: what was removed, in order.
    """

    def __init__(
        self,
        store: RunStore,
        fingerprints: Fingerprints,
        may_replace: Callable[[Path], bool] = anything,
        may_remove: Callable[[Path], bool] = nothing,
    ) -> None:
        self._store = store
        self._fingerprints = fingerprints
        self._may_replace = may_replace
        self._may_remove = may_remove
        self._right: dict[str, tuple[Signature, str]] = {}
        self._safe_folders: set[str] = set()
        self._exact: dict[str, Sequence[FileEntry]] = {}
        self.put_files: dict[Path, FileEntry] = {}
        self.removed: list[Path] = []

    def is_right(self, path: str, file: FileEntry) -> bool:
        """Whether the bytes of *file* are at *path*."""
        try:
            found = signature_of(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        if file.executable and not os.access(path, os.X_OK):
            return False
        if self._right.get(path) == (found, file.digest):
            return True
        if found is None or found[0] != file.size:
            return False
        if self._digest(path, file) != file.digest:
            return False
        self._note(path, found, file.digest)
        return True

    def seen_right(self, digests: Mapping[str, str]) -> dict[str, Signature]:
        """Of the files with these *digests* by path, those that were found right, or put there, with what was seen of
        them then.
        """
        known = {path: self._right[path] for path in digests if path in self._right}
        return {path: seen for path, (seen, digest) in known.items() if digest == digests[path]}

    def put(self, node: Node, record: Record) -> None:
        """Make the outputs of *node* be in its folder; those that are there already are not touched.

        Raises:
            BlobDamaged: when a file cannot be fetched; its stage has to run again.
            UsageError: when something is in the way that may not be replaced.
            StoreError: when the folder cannot be written.
        """
        if node.folder is None:
            return
        for file in placed_files(node, record.outputs):
            self.put_file(node.folder, file)

    def put_file(self, folder: Path, file: FileEntry) -> str:
        """Make *file* be in *folder* under its name; returns its path. Raises as :meth:`put` does."""
        path = f"{folder}{os.sep}{file.name}"
        if not self.is_right(path, file):
            placed = Path(path)
            self._refuse(folder, path)
            self._fetch(folder, file)
            found = signature_of(path)
            if found is not None:
                self._right[path] = (found, file.digest)
            self.put_files[placed] = file
        return path

    def _fetch(self, folder: Path, file: FileEntry) -> None:
        try:
            self._store.fetch(Artifact((file,)), folder)
        except StoreError as error:
            # Fetching from the store speaks of the store; here it is the user's folder that has to be seen to.
            if isinstance(error, BlobDamaged) or not isinstance(error.__cause__, OSError):
                raise
            advice = "Make room or give permission, or give the output another path; nothing has to run again."
            raise StoreError(error.message, advice=advice) from error.__cause__

    def hold_only(self, folder: Path, name: str, files: Sequence[FileEntry]) -> None:
        """Make the output *name* of *folder*, a folder itself, hold nothing but *files*: whoever lists it must find
        what its key says. What a build has left there goes.

        Raises:
            UsageError: when something else lies there.
            StoreError: when what a build has left cannot be removed.
        """
        path = f"{folder}{os.sep}{name.rstrip('/')}"
        # Once for all that read it: looking for each would take as long as the square of their number.
        if self._exact.get(path) == files:
            return
        kept = {file.name.casefold() for file in files}
        for place, _, names in os.walk(path):
            for found in (Path(place) / inside for inside in names):
                inner = found.relative_to(folder).as_posix()
                if inner.casefold() not in kept and not found.name.endswith(PARTIAL):
                    self._remove(found, name)
        self._exact[path] = files

    def _remove(self, path: Path, output: str) -> None:
        if not self._may_remove(path):
            raise UsageError(
                f"{path} is in the way: it lies in {output}, which a stage reads, and no build has left it so.",
                advice="Move it out of that folder.",
            )
        try:
            path.unlink()
        except FileNotFoundError:
            return
        except OSError as error:
            raise StoreError(f"{path} is left of an earlier build and cannot be removed: {error.strerror}.") from error
        self.removed.append(path)

    def _digest(self, path: str, file: FileEntry) -> str | None:
        try:
            if file.size <= _SMALL:
                return digest_file(path, split_digest(file.digest)[0])
            return self._fingerprints.digest(Path(path), file.digest)
        except (OSError, InputError):
            return None

    def _note(self, path: str, found: Signature, digest: str) -> None:
        # One that changed just now could be written to again without its times telling: it is hashed each time.
        if max(found[1], found[3]) <= time.time_ns() - SETTLED_NS and signature_of(path) == found:
            self._right[path] = (found, digest)

    def _refuse(self, folder: Path, path: str) -> None:
        """Raise when *path* leads out of *folder*, or when what is there may not be replaced."""
        parent = os.path.dirname(path)  # noqa: PTH120 - for thousands of small files
        if parent not in self._safe_folders:
            self._refuse_way(folder, Path(path))
            self._safe_folders.add(parent)
        try:
            mode = os.lstat(path).st_mode
        except FileNotFoundError:
            return
        if stat.S_ISDIR(mode):
            raise UsageError(f"{path} is a folder, and an output should be there.", advice="Move it, or remove it.")
        if not self._may_replace(Path(path)):
            raise UsageError(
                f"{path} is in the way: it is not a file that a build put there, so it is not overwritten.",
                advice="Move it, or give the output another path.",
            )

    def _refuse_way(self, folder: Path, path: Path) -> None:
        step = folder
        for part in path.relative_to(folder).parts[:-1]:
            step /= part
            try:
                mode = step.lstat().st_mode
            except FileNotFoundError:
                return
            if stat.S_ISLNK(mode) and not step.resolve().is_relative_to(folder.resolve()):
                raise StoreError(f"{step} is a link that leads out of {folder}, so no output is put there.")
            if not stat.S_ISDIR(mode) and not stat.S_ISLNK(mode):
                raise UsageError(f"{step} is a file where a folder for {path.name} should be.", advice="Move it.")
