"""Bytes by digest: read-only files in ``blobs/<function>/ab/cdef...``.

Durability: nothing here is flushed to the disk (no fsync). A killed process loses nothing, because what it wrote is in
the kernel and a blob appears under its name by one rename. After a power cut, a blob may be short, empty or full of
zeros, or have lost its stamp. That is a damaged blob like any other: its stat or the next read detects it, and its
stage runs again. Waiting for the disk would make every build pay for that rare event.

The stamp: a blob's modification time is a fixed moment, set before its bytes are hashed. Any ordinary write sets the
time to now, so one stat shows that a blob is unchanged since it was hashed. What no stat can show (bit rot on the disk)
is detected by :meth:`Blobs.fetch`, which hashes everything it returns.
"""

# os functions with string paths throughout: see Blobs.
# ruff: noqa: PTH101, PTH105, PTH108, PTH119, PTH120, PTH103

from __future__ import annotations

import errno
import os
import shutil
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from winml_dag.errors import StoreError
from winml_dag.store.artifact import FileEntry
from winml_dag.store.clone import clone_and_digest
from winml_dag.store.digest import DigestFunction, digest_file, is_digest, split_digest
from winml_dag.store.files import files_below, in_words, is_executable, make_executable, partial_in, remove_file

# 2001-09-09 01:46:40 UTC: no recent file has this time by chance, and because it is even it survives file systems that
# count in steps of two seconds.
STAMP_NS = 1_000_000_000 * 10**9

_GONE = "missing"
_DAMAGED = "damaged"
_OTHER_SIZE = "of another size than its record says"


class BlobDamaged(StoreError):
    """A blob's bytes do not match its digest, or it is missing.

    A damaged blob is in quarantine: the stage that made it can run again.
    """

    def __init__(self, file: FileEntry, what: str) -> None:
        super().__init__(f"{file.name} in the cache is {what} ({file.digest}).", advice="Build again to restore it.")
        self.file = file
        self.what = what


@dataclass(frozen=True)
class Blob:
    """One file of the blobs folder; ``digest`` is empty if its name is not that of a blob."""

    path: Path
    digest: str
    status: os.stat_result


class Blobs:
    """The blobs of one store. Safe for concurrent use by any number of threads and processes."""

    def __init__(self, folder: Path, quarantine: Path) -> None:
        self.folder = folder
        # Internally, paths are strings and os functions are used: pathlib took an eighth of the cost of a small stage.
        self._root = str(folder)
        self._quarantine = quarantine

    def path(self, digest: str) -> Path:
        """The path of the bytes of *digest*, whether or not they exist."""
        return Path(self._path(digest))

    def _path(self, digest: str) -> str:
        function, digits = split_digest(digest)
        return f"{self._root}/{function}/{digits[:2]}/{digits[2:]}"

    def ingest(self, path: Path | str, function: DigestFunction, name: str | None = None) -> FileEntry:
        """Move the file at *path* into the store and return its digest and size, under *name* or its own.

        Idempotent: if the blob exists already, and reading it shows that it is intact, *path* is only removed, and the
        blob counts as stored just now; a damaged blob is replaced. A file with other hard links is copied, so that no
        inode is shared with its owner.

        Raises:
            OSError: as moving and reading do.
            StoreError: when the file is written to meanwhile.
        """
        path = str(path)
        before = os.lstat(path)
        if before.st_nlink > 1:
            _unshare(path)
        _stamp(path)
        digest = digest_file(path, function)
        status = os.lstat(path)
        # Stamp first, then hash: that reveals a write in between, which a stamp set after hashing would hide.
        if status.st_mtime_ns != STAMP_NS:
            raise StoreError(f"{path} was written to while it was being stored.", advice="Is its stage still running?")
        self._move_in(path, digest)
        # If it is executable even with a blob's mode, the file system reports every file as executable.
        executable = is_executable(before) and not is_executable(status)
        return FileEntry(os.path.basename(path) if name is None else name, digest, status.st_size, executable)

    def ingest_copy(self, path: Path, function: DigestFunction) -> FileEntry:
        """Store a copy of the file at *path*, which stays. Raises as :meth:`ingest` does."""
        self.folder.mkdir(parents=True, exist_ok=True)
        partial = partial_in(self._root)
        clone_and_digest(path, partial, function)
        try:
            return self.ingest(partial, function, path.name)
        except BaseException:
            with suppress(OSError):
                remove_file(partial)
            raise

    def receive(self, path: Path | str, file: FileEntry) -> None:
        """Move a file whose bytes were hashed while they were written, and are those of *file*, into the store.

        No other program knows *path*, and it is on the store's device. Nothing is read, unless a blob of that digest
        exists.

        Raises:
            OSError: as moving does.
            StoreError: when the file has another size than *file* says.
        """
        path = str(path)
        _stamp(path)
        if os.lstat(path).st_size != file.size:
            raise StoreError(f"{path} was written to while it was being stored.")
        self._move_in(path, file.digest)

    def missing(self, files: Iterable[FileEntry]) -> list[FileEntry]:
        """Those of *files* that are missing here, or not valid as far as one stat each can show."""
        return [file for file in files if not self._is_here(file)]

    def fetch(self, file: FileEntry, target: Path | str) -> None:
        """Put a copy of *file* at *target*, replacing any file there; never writes wrong bytes.

        Raises:
            BlobDamaged: when the blob is missing or its bytes are wrong; those are then in quarantine.
            OSError: when *target* cannot be written.
        """
        blob = self._path(file.digest)
        if not _is_regular(blob):
            # A link or folder under a blob's name may refer to anything: do not even read it.
            self.quarantine(Path(blob))
            raise BlobDamaged(file, _GONE)
        partial = partial_in(os.path.dirname(target))
        try:
            digest, size = clone_and_digest(blob, partial, split_digest(file.digest)[0])
            if digest != file.digest:
                self.quarantine(Path(blob))
                raise BlobDamaged(file, _DAMAGED)
            if size != file.size:
                raise BlobDamaged(file, _OTHER_SIZE)
            if file.executable:
                make_executable(partial)
            os.replace(partial, target)
        except BaseException as error:
            with suppress(OSError):
                os.unlink(partial)
            if isinstance(error, FileNotFoundError) and not _is_regular(blob):
                raise BlobDamaged(file, _GONE) from None
            raise

    def link(self, file: FileEntry, target: Path, *, check: bool) -> bool:
        """Put a read-only hard link to the blob of *file* at *target*, replacing any file there.

        The blob is trusted by its stamp, which takes one stat, unless *check* requires hashing it. Returns False, with
        *target* unchanged, if no link can be made: on another device, on a file system without links, at the limit of
        links to one file. No link is made for an executable either, since all links to a blob share its mode.

        Raises:
            BlobDamaged: when the blob is missing or damaged; it is then in quarantine.
        """
        if not (self.is_intact(file.digest) if check else self._is_here(file)):
            raise BlobDamaged(file, _DAMAGED)
        if file.executable:
            return False
        blob = self._path(file.digest)
        partial = partial_in(target.parent)
        try:
            # A program that made another link writable has made this file writable too.
            if os.lstat(blob).st_mode & 0o222:
                os.chmod(blob, 0o444)
            os.link(blob, partial)
            os.replace(partial, target)
        except OSError:
            # Systems report different errors. A copy is tried next, and reports an error that prevents that too.
            return False
        finally:
            # Renaming one link over another link to the same file leaves both.
            with suppress(FileNotFoundError):
                os.unlink(partial)
        return True

    def is_intact(self, digest: str) -> bool:
        """Read the whole blob; if it does not match its digest, move it to quarantine."""
        blob = self._path(digest)
        try:
            if not _is_regular(blob) or digest_file(blob, split_digest(digest)[0]) != digest:
                self.quarantine(Path(blob))
                return False
            if os.lstat(blob).st_mtime_ns == STAMP_NS:
                return True
            # The times were lost when the cache was copied, or a program wrote the same bytes again.
            _stamp(blob)
        except FileNotFoundError:
            return False
        except PermissionError:
            # Intact, but owned by another user: it cannot be stamped, so it is hashed each time.
            return os.access(blob, os.R_OK)
        # The first hash comes before the stamp, so that a process killed in between does not mark a damaged blob as
        # valid. Hash again after it, as always.
        return self.is_intact(digest)

    def quarantine(self, blob: Path) -> None:
        """Move the file at *blob* to the quarantine, for manual inspection; it is never read again.

        If it cannot be moved it stays, and each reader finds it damaged: on Windows while another process reads it, or
        where no quarantine can be created.
        """
        with suppress(OSError):
            self._quarantine.mkdir(parents=True, exist_ok=True)
            # Another process may have moved it first.
            blob.rename(self._quarantine / f"blob-{blob.name[:16]}-{os.urandom(4).hex()}")

    def all(self) -> Iterator[Blob]:
        """Every file below the blobs folder, ordered by digest; files that are not blobs have an empty digest."""
        for entry in files_below(self.folder):
            path = Path(entry.path)
            function, *parts = path.relative_to(self.folder).parts
            digest = f"{function}:{''.join(parts)}"
            is_blob = is_digest(digest) and self.path(digest) == path
            with suppress(FileNotFoundError):
                yield Blob(path, digest if is_blob else "", path.lstat())

    def _is_here(self, file: FileEntry) -> bool:
        blob = self._path(file.digest)
        try:
            status = os.lstat(blob)
        except (FileNotFoundError, NotADirectoryError):
            return False
        if status.st_mtime_ns == STAMP_NS and status.st_size == file.size and stat.S_ISREG(status.st_mode):
            return True
        with in_words(f"Cannot check a blob of {file.name}"):
            # Do not trust a record that states another size than that of an intact blob; keep the blob.
            return self.is_intact(file.digest) and os.lstat(blob).st_size == file.size

    def _move_in(self, path: str, digest: str) -> None:
        blob = self._path(digest)
        if os.path.lexists(blob) and self.is_intact(digest) and _keep(blob):
            remove_file(path)
            return
        try:
            _rename_into(path, blob)
        except PermissionError:
            # Windows does not replace a read-only file: another process stored the same bytes a moment ago.
            if not (os.path.lexists(blob) and self.is_intact(digest)):
                raise
            remove_file(path)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            # The blobs are on another device. They are hashed when they leave the store.
            partial = partial_in(os.path.dirname(blob))
            try:
                shutil.move(path, partial)
                os.replace(partial, blob)
            except BaseException:
                with suppress(OSError):
                    remove_file(partial)
                raise


def _unshare(path: str) -> None:
    """Give *path* an inode of its own."""
    partial = partial_in(os.path.dirname(path))
    clone_and_digest(path, partial, "xxh3-128")
    # Under its old name, where the caller looks for it if something fails.
    os.replace(partial, path)


def _rename_into(path: str, blob: str) -> None:
    try:
        os.replace(path, blob)
    except FileNotFoundError:
        # Only the first of many blobs has to create the folder.
        os.makedirs(os.path.dirname(blob), exist_ok=True)
        os.replace(path, blob)


def _stamp(path: str) -> None:
    os.utime(path, ns=(STAMP_NS, STAMP_NS))
    os.chmod(path, 0o444)


def _keep(blob: str) -> bool:
    """Mark an existing blob as stored just now, so that it is not collected before its new record is written.

    Returns False if that is not possible: the blob has just been removed, or is owned by another user.
    """
    try:
        # Keep the stamp, set the access time: it remains readable after a rename has changed the change time.
        os.utime(blob, ns=(time.time_ns(), STAMP_NS))
    except (FileNotFoundError, PermissionError):
        return False
    return True


def _is_regular(path: str) -> bool:
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
