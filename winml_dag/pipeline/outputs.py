"""The output folder of a build: what belongs into it, what is ours in it already, and making the two agree."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from winml_dag.errors import StoreError, UsageError
from winml_dag.pipeline.commit import change_folder
from winml_dag.pipeline.layout import MANIFEST
from winml_dag.smallfiles import read_bytes
from winml_dag.store.artifact import Artifact, FileEntry
from winml_dag.store.below import Below
from winml_dag.store.fingerprints import Fingerprints
from winml_dag.store.store import Store


@dataclass(frozen=True)
class Materialised:
    """What had to be done: names written for the first time, put back after somebody changed or deleted them, taken
    away; and among those written or put back, the names of copies where links were asked for and could not be made.
    """

    written: tuple[str, ...] = ()
    restored: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    not_linked: tuple[str, ...] = ()

    @property
    def changed(self) -> bool:
        return bool(self.written or self.restored or self.removed)

    def and_then(self, other: Materialised) -> Materialised:
        """What both did."""
        return Materialised(
            self.written + other.written,
            self.restored + other.restored,
            self.removed + other.removed,
            self.not_linked + other.not_linked,
        )


class OutputFolder:
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
        self._folder = folder
        self._read = read
        self._overwrite = overwrite
        self._changes = changes
        self._owned = {entry.name: entry for entry in owned}
        self._store = store
        self._fingerprints = fingerprints

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
            # Imported here: only an error needs it.
            from winml_dag.pipeline.manifest import is_of_winml_cli

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

        not_linked: tuple[str, ...] = ()

        def prepare(folder: Path) -> list[str]:
            nonlocal not_linked
            if link:
                not_linked = self._store.link(Artifact.of(stale), folder, check=any(map(self._is_link, stale)))
            else:
                self._store.fetch(Artifact.of(stale), folder)
            for name, data in changed_texts.items():
                (folder / name).write_bytes(data)
            # The manifest last: whoever reads it finds the files that it speaks of.
            return sorted([*(entry.name for entry in stale), *changed_texts], key=lambda name: (name == MANIFEST, name))

        # Before it is a matter of this folder: where the cache is full, another output folder is no help.
        self._store.bring(stale)
        change = change_folder(self._folder, self._changes, prepare, removed)
        written = tuple(name for name in change.put if name not in restored)
        return Materialised(written, restored, tuple(removed), not_linked)

    def is_as_wanted(self, wanted: Sequence[FileEntry], texts: Mapping[str, bytes]) -> bool:
        """Whether :meth:`materialise` would have nothing to do."""
        return not any(self._differences(wanted, texts))

    def _differences(
        self, wanted: Sequence[FileEntry], texts: Mapping[str, bytes]
    ) -> tuple[list[FileEntry], dict[str, bytes], list[str]]:
        """Files to put, texts to write, names to take away."""
        stale = [entry for entry in wanted if not self._is(entry)]
        changed_texts = {name: data for name, data in texts.items() if not _holds(self._folder / name, data)}
        kept = {entry.name for entry in wanted} | texts.keys()
        below = Below(self._folder)
        left = (entry for name, entry in self._owned.items() if name not in kept and below.is_file(name))
        removed = [entry.name for entry in left if self._is(entry)]
        return stale, changed_texts, removed

    def _is(self, entry: FileEntry) -> bool:
        path = self._folder / entry.name
        try:
            return path.stat().st_size == entry.size and self._fingerprints.digest(path, entry.digest) == entry.digest
        except FileNotFoundError:
            return False

    def _is_link(self, entry: FileEntry) -> bool:
        """Whether the file in place is a hard link, maybe to a blob: if it is wrong, so is the blob, and somebody who
        puts times back may have put its stamp back too.
        """
        try:
            return (self._folder / entry.name).lstat().st_nlink > 1
        except FileNotFoundError:
            return False


def _holds(path: Path, data: bytes) -> bool:
    try:
        return path.stat().st_size == len(data) and read_bytes(path, len(data)) == data
    except OSError:
        return False


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
