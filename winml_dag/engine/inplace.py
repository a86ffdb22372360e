"""The user's own files in their own folders: inputs of stages that work in place, and outputs written there.

Each path is checked with one ``stat``, and hashed only if that shows a change since it was last verified. Outputs are
copies that are renamed into position, so a reader sees either the old file or the new one. Until a copy is complete it
is in a folder that no stage reads. No link on the way to the output path is followed.

This module also lists input folders. Listing follows links to folders, since programs follow them: their targets are
read, so they belong in the key.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from winml_dag.engine.stage import Node, SourceFile
from winml_dag.errors import InputError, StoreError, UsageError
from winml_dag.file_reading import CHANGED, Signature, before_reading, is_racy, signature_of
from winml_dag.names import KEPT, parents
from winml_dag.store.artifact import Artifact, FileEntry
from winml_dag.store.blobs import BlobDamaged
from winml_dag.store.digest import digest_file, split_digest
from winml_dag.store.files import PARTIAL, Below, LinkOnTheWay, in_plain_words, in_words, partial_name
from winml_dag.store.records import Record
from winml_dag.store.store import Store

# Up to this size hashing a file costs less than looking up its fingerprint.
_SMALL = 1 << 18
# A copy in progress is written to all the time; one that is untouched for this long is abandoned.
_ABANDONED_SECONDS = 3600.0


class InPlace:
    """Reads and writes the folders of nodes.

    *may_replace* is called before a file with other content is overwritten, *may_remove* before a file is removed that
    is in an output folder but not part of the output.

    Attributes:
        put_files: the files written, by path, in order.
        removed: the files removed, in order.
    """

    def __init__(
        self,
        store: Store,
        may_replace: Callable[[Path], bool] = lambda _: True,
        may_remove: Callable[[Path], bool] = lambda _: False,
    ) -> None:
        self._store = store
        self._may_replace = may_replace
        self._may_remove = may_remove
        self._right: dict[str, tuple[Signature, str]] = {}
        self._swept: set[Path] = set()
        self._exact: dict[str, Sequence[FileEntry]] = {}
        self.put_files: dict[Path, FileEntry] = {}
        self.removed: list[Path] = []

    def is_right(self, path: str, file: FileEntry, found: Signature | None = None) -> bool:
        """Whether *path* has the bytes of *file*. *found*: its signature, if the caller has just determined it."""
        try:
            found = found or signature_of(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        if file.executable and not os.access(path, os.X_OK):
            return False
        if self._right.get(path) == (found, file.digest):
            return True
        if found is None or found[0] != file.size or self._digest(path, file) != file.digest:
            return False
        self._note(path, found, file.digest)
        return True

    def seen_right(self, digests: Mapping[str, str]) -> dict[str, Signature]:
        """The signatures of files that were verified or written, as they were then, by path.

        *digests* has the expected digest by path; a file that was found with another digest is omitted.
        """
        known = {path: self._right[path] for path in digests if path in self._right}
        return {path: seen for path, (seen, digest) in known.items() if digest == digests[path]}

    def put(self, node: Node, record: Record) -> None:
        """Write the outputs of *node* to its folder; files that are already correct are not touched.

        Raises:
            BlobDamaged: when a file cannot be fetched; its stage has to run again.
            UsageError: when an existing file may not be replaced.
            StoreError: when the folder cannot be written.
        """
        if node.folder is None:
            return
        for file in node.placed_files(record.outputs):
            self.put_file(node.folder, file)

    def put_file(self, folder: Path, file: FileEntry) -> str:
        """Write *file* to *folder* under its name, unless it is there; returns its path. Raises as :meth:`put` does."""
        path = f"{folder}{os.sep}{file.name}"
        if not self.is_right(path, file):
            placed = Path(path)
            self._put(folder, file)
            found = signature_of(path)
            if found is not None:
                self._right[path] = (found, file.digest)
            self.put_files[placed] = file
        return path

    def _put(self, folder: Path, file: FileEntry) -> None:
        try:
            self._put_without_links(Below(folder), file)
        except BlobDamaged as error:
            raise BlobDamaged(file, error.what) from None
        except (OSError, StoreError) as error:
            # The store's error is about the store, but here the user's folder is the cause.
            cause = error if isinstance(error, OSError) else error.__cause__
            if not isinstance(cause, OSError):
                raise
            advice = "Make room or give permission, or give the output another path; nothing has to run again."
            if isinstance(cause, LinkOnTheWay):
                advice = "Replace the link by a folder, or give the output another path."
            message = f"Cannot put {file.name} into {folder}: {in_plain_words(cause)}."
            raise StoreError(message, advice=advice) from cause

    def _put_without_links(self, below: Below, file: FileEntry) -> None:
        # Nearly always nothing is there, and then the move refuses links on the way.
        if os.path.lexists(f"{below.folder}{os.sep}{file.name}"):
            self._refuse(below, file.name)
        if below.folder not in self._swept:
            below.make_folder(KEPT)
            _sweep(below)
            self._swept.add(below.folder)
        name = partial_name()
        self._store.fetch(Artifact((replace(file, name=name),)), below.folder / KEPT)
        try:
            below.move(f"{KEPT}/{name}", file.name)
        except BaseException:
            with suppress(OSError):
                below.remove(f"{KEPT}/{name}")
            raise

    def hold_only(self, folder: Path, name: str, files: Sequence[FileEntry]) -> None:
        """Reduce the output folder *name* of *folder* to *files*, which exist already.

        A program that lists the folder must find exactly what its key says. Files left by an earlier build are removed,
        and so are empty folders.

        Raises:
            UsageError: when the folder contains anything else.
            StoreError: when a file left by a build cannot be removed.
        """
        name = name.rstrip("/")
        path = f"{folder}{os.sep}{name}"
        # Check once for all readers: once per reader would be quadratic in their number.
        if self._exact.get(path) == files:
            return
        below = Below(folder)
        status = below.status(name)
        if status is not None and stat.S_ISLNK(status.st_mode):
            raise self._in_the_way(below, name, name)
        kept = {file.name for file in files}
        kept.update(f"{name}/{parent}" for file in files for parent in parents(file.name.removeprefix(f"{name}/")))
        self._clear(below, name, name, {one.casefold(): one for one in kept})
        self._exact[path] = files

    def _clear(self, below: Below, output: str, name: str, kept: Mapping[str, str]) -> None:
        """Remove everything in the folder *name* except *kept*, which is keyed by case-folded name."""
        with os.scandir(below.folder / name) as found:
            entries = {entry.name: entry for entry in found}
        for entry in entries.values():
            inner = f"{name}/{entry.name}"
            as_kept = kept.get(inner.casefold())
            # An entry that differs only in case is kept if the file system ignores case: then the expected spelling is
            # not listed too.
            is_kept = as_kept == inner or (as_kept is not None and as_kept.rpartition("/")[2] not in entries)
            if entry.is_dir(follow_symlinks=False):
                self._clear(below, output, inner, kept if is_kept else {})
                if not is_kept:
                    with in_words(f"Cannot remove {below.folder / inner}"):
                        below.remove_empty_folder(inner)
            elif not is_kept:
                self._remove(below, inner, output)

    def _remove(self, below: Below, name: str, output: str) -> None:
        path = below.folder / name
        if not self._may_remove(path):
            raise self._in_the_way(below, name, output)
        try:
            below.remove(name)
        except FileNotFoundError:
            return
        except OSError as error:
            raise StoreError(f"{path} is left of an earlier build and cannot be removed: {error.strerror}.") from error
        self.removed.append(path)

    def _in_the_way(self, below: Below, name: str, output: str) -> UsageError:
        where = "it is a link" if name == output else f"it lies in {output}"
        return UsageError(
            f"{below.folder / name} is in the way: {where}, which a stage reads, and no build has left it so.",
            advice="Move it out of that folder.",
        )

    def _digest(self, path: str, file: FileEntry) -> str | None:
        try:
            if file.size <= _SMALL:
                return digest_file(path, split_digest(file.digest)[0])
            return self._store.fingerprints.digest(Path(path), file.digest)
        except (OSError, InputError):
            return None

    def _note(self, path: str, found: Signature, digest: str) -> None:
        # A file that changed just now could be written again without a change of its times, so it is hashed each time.
        if not is_racy(path, found[CHANGED], time.time_ns()) and signature_of(path) == found:
            self._right[path] = (found, digest)

    def _refuse(self, below: Below, name: str) -> None:
        """Raise when the file under *name* may not be replaced, or when a link is on the way."""
        status = below.status(name)
        if status is None:
            return
        path = below.folder / name
        if stat.S_ISDIR(status.st_mode):
            raise UsageError(f"{path} is a folder, and an output should be there.", advice="Move it, or remove it.")
        if not self._may_replace(path):
            raise UsageError(
                f"{path} is in the way: it is not a file that a build put there, so it is not overwritten.",
                advice="Move it, or give the output another path.",
            )


def _sweep(below: Below) -> None:
    """Remove partial copies that killed processes left."""
    abandoned = time.time() - _ABANDONED_SECONDS
    with suppress(OSError), os.scandir(below.folder / KEPT) as entries:
        for entry in entries:
            if entry.name.endswith(PARTIAL) and entry.stat(follow_symlinks=False).st_mtime < abandoned:
                below.remove(f"{KEPT}/{entry.name}")


@dataclass(frozen=True)
class Listing:
    """``files``: ordered by name. ``folders``: all folders visited. ``dangling``: links whose target does not exist."""

    files: list[SourceFile] = field(default_factory=list)
    folders: list[Path] = field(default_factory=list)
    dangling: list[Path] = field(default_factory=list)


def list_folder(folder: Path, prefix: str) -> Listing:
    """The files below *folder*, each name with *prefix* before it.

    Raises:
        InputError: for a folder that cannot be read, or a link to one of its own parent folders.
    """
    found = Listing()
    try:
        _list(folder, prefix, (os.path.realpath(folder),), found)
    except OSError as error:
        raise InputError(f"{error.filename or folder} cannot be read: {error.strerror}.") from error
    return found


def _list(folder: Path, prefix: str, around: Iterable[str], found: Listing) -> None:
    found.folders.append(folder)
    before_reading(folder)
    with os.scandir(folder) as entries:
        inside = sorted(entries, key=lambda entry: entry.name)
    for entry in inside:
        path = folder / entry.name
        if entry.is_file():
            found.files.append(SourceFile(f"{prefix}{entry.name}", path))
        elif entry.is_dir():
            real = os.path.realpath(path) if entry.is_symlink() else f"{[*around][-1]}{os.sep}{entry.name}"
            if any(real == outer for outer in around):
                raise InputError(
                    f"{path} is a link to a folder that it lies in, so the input has no end.",
                    advice="Remove the link, or name single files as inputs.",
                )
            _list(path, f"{prefix}{entry.name}/", (*around, real), found)
        elif entry.is_symlink() and not path.exists():
            found.dangling.append(path)
