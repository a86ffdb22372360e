"""Change a folder as a whole or not at all, leaving every file that is not owned untouched.

The folder may hold files of the user, so it cannot simply be replaced by another. Instead the new files are prepared in
a hidden folder inside it, and writing a journal commits the change. Before that, nothing has changed. After it, the
change is applied file by file, and a process that finds the journal of a killed one completes it. If a step fails (for
example because another program keeps a file open), all steps are undone; the journal is renamed first, so that another
process can complete the undo, too.

Every step moves a file between its path, ``new`` and ``old``, and the location of files shows which steps are done. So
any step can be repeated, in either direction, and nothing is lost before the change is complete.

The journal is in the cache: nothing that others put into the folder, or that comes with it in an archive, is trusted.
The journal names its part of the hidden folder by a random token, so it never applies to another folder that is later
at the same path. Prepared files without a journal in this cache are garbage.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from winml_dag.errors import StoreError
from winml_dag.file_reading import read_json, signature_from, was_read
from winml_dag.store.files import Below, write_whole

if TYPE_CHECKING:
    from winml_dag.store.store import Store

_PREPARED = ".winml-dag-new"
_OF_CONTENT = ("st_dev", "st_ino", "st_size", "st_mtime_ns")


@dataclass(frozen=True)
class PublishedChange:
    """What changed: names written for the first time, restored after an edit or deletion, and removed.

    ``not_linked``: those of the written or restored names that are copies, because links were requested but could not
    be made.
    """

    written: tuple[str, ...] = ()
    restored: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    not_linked: tuple[str, ...] = ()

    @property
    def changed(self) -> bool:
        return bool(self.written or self.restored or self.removed)

    def and_then(self, other: PublishedChange) -> PublishedChange:
        """Return both changes as one."""
        return PublishedChange(
            self.written + other.written,
            self.restored + other.restored,
            self.removed + other.removed,
            self.not_linked + other.not_linked,
        )


def folder_key(folder: Path) -> str:
    """Return the lock key that all writers of one output folder share."""
    return hashlib.sha256(f"output folder\n{folder.resolve()}".encode()).hexdigest()


@contextmanager
def held(folder: Path, store: Store) -> Iterator[None]:
    """Keep other writers out of *folder* for the block; a change that a killed one had committed is completed first.

    That decides which files are owned: a killed build may have written some files, but no manifest yet.
    """
    with store.claim(folder_key(folder)):
        finish_change(folder, store.changes)
        yield


def change_folder(
    folder: Path, journals: Path, prepare: Callable[[Path], Iterable[str]], remove: Iterable[str] = ()
) -> tuple[str, ...]:
    """Let *prepare* fill a folder with new files, then move them into *folder* and remove *remove*, as one change.

    *prepare* returns the names of the new files, and so does this function.

    *journals*: the folder in the cache for the journals of all folders.

    Raises:
        StoreError: with *folder* unchanged, when it cannot be written, a link is in the path of a file, the disk is
            full or a file is in use.
    """
    token = os.urandom(8).hex()
    new = f"{_PREPARED}/{token}/new"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        finish_change(folder, journals)
        Below(folder).make_folder(new)
    except OSError as error:
        raise _cannot_write(folder, error) from error
    try:
        changing = _Changing(folder, journals, token, prepare(folder / new), remove)
        changing.begin()
    except BaseException as error:
        _discard(folder)
        # Errors while fetching name the store; here the output folder is the cause.
        cause = error if isinstance(error, OSError) else error.__cause__
        if isinstance(cause, OSError):
            raise _cannot_write(folder, cause) from error
        raise
    changing.carry_out()
    return changing.put


def is_changing(folder: Path) -> bool:
    """Whether a change of *folder* is unfinished: another process is applying it, or one was killed."""
    return os.path.lexists(folder / _PREPARED)


def finish_change(folder: Path, journals: Path) -> None:
    """Complete a change that a killed process had committed; discard one that was only prepared, and other leftovers.

    Raises:
        StoreError: when that fails.
    """
    if not is_changing(folder):
        return
    journal, back = _journals(folder, journals)
    if changing := _begun(folder, journals, back):
        changing.take_back()
    elif changing := _begun(folder, journals, journal):
        changing.carry_out()
    else:
        _discard(folder)


class _Changing:
    """A change of *folder*: names to *put*, prepared under *token*, and names to *remove*."""

    def __init__(self, folder: Path, journals: Path, token: str, put: Iterable[str], remove: Iterable[str]) -> None:
        self._folder = folder
        self._below = Below(folder)
        self._token = token
        self.put, self.remove = tuple(put), tuple(remove)
        self._journal, self._back = _journals(folder, journals)

    @property
    def is_there(self) -> bool:
        """Whether the prepared files exist."""
        try:
            status = self._below.status(f"{_PREPARED}/{self._token}")
        except OSError:
            return False
        return status is not None and stat.S_ISDIR(status.st_mode)

    def begin(self) -> None:
        """Commit the change by writing its journal."""
        value = {"token": self._token, "put": self.put, "remove": self.remove}
        write_whole(self._journal, json.dumps(value).encode())

    def carry_out(self) -> None:
        try:
            for name in self.put:
                if (prepared := self._below.status(self._new(name))) is not None:
                    self._set_aside(name, stays=True)
                    self._below.move(self._new(name), name)
                    self._log(name, prepared)
            for name in self.remove:
                self._set_aside(name)
            # Remove the journal first: now the change is complete and only garbage remains.
            self._journal.unlink()
        except OSError as error:
            self.take_back()
            raise _cannot_write(self._folder, error) from error
        _discard(self._folder)

    def _log(self, name: str, prepared: os.stat_result) -> None:
        """Log the new file as read: its content is that of the *prepared* file, and moving it changed only one time."""
        moved = self._below.status(name)
        if moved is not None and all(getattr(moved, of) == getattr(prepared, of) for of in _OF_CONTENT):
            path = self._folder / name
            was_read(path, signature_from(path, moved))

    def take_back(self) -> None:
        """Restore the folder to its state before the change.

        Raises:
            StoreError: when that fails too; the next process that uses the folder tries again.
        """
        try:
            if self._journal.exists():
                self._journal.replace(self._back)
            for name in self.put:
                if self._is_there(name) and self._below.status(self._new(name)) is None:
                    self._below.move(name, self._new(name))
            for name in (*self.put, *self.remove):
                if self._below.status(self._old(name)) is not None:
                    self._below.move(self._old(name), name)
            self._back.unlink()
        except OSError as error:
            raise StoreError(
                f"The output folder {self._folder} can be neither changed nor restored: {_reason(error)}.",
                advice="Close the programs that use its files and build again.",
            ) from error
        _discard(self._folder)

    def _set_aside(self, name: str, *, stays: bool = False) -> None:
        """Keep the old file until the change is complete.

        If it *stays*, it also keeps its name until another file replaces it, where links are supported: a reader always
        finds a file, even after a kill.
        """
        status = self._below.status(name)
        if status is None or self._below.status(self._old(name)) is not None:
            return
        if stat.S_ISDIR(status.st_mode):
            # A folder is never owned, whatever its name; setting it aside would end in removing all its contents.
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(self._folder / name))
        if not (stays and self._link(name)):
            self._below.move(name, self._old(name))

    def _link(self, name: str) -> bool:
        """Link the current file to its ``old`` name; returns whether that worked."""
        try:
            self._below.link(name, self._old(name))
        except (OSError, NotImplementedError):  # hard links are not supported, or not for this file
            return False
        return True

    def _is_there(self, name: str) -> bool:
        try:
            return self._below.status(name) is not None
        except OSError:  # the same error that made the change fail
            return False

    def _new(self, name: str) -> str:
        return f"{_PREPARED}/{self._token}/new/{name}"

    def _old(self, name: str) -> str:
        return f"{_PREPARED}/{self._token}/old/{name}"


def _discard(folder: Path) -> None:
    # On Windows, files that another program keeps open stay; the next build removes them.
    with suppress(OSError):
        Below(folder).remove_all(_PREPARED)


def _journals(folder: Path, journals: Path) -> tuple[Path, Path]:
    """Return the paths of the journal of *folder*: while a change is applied, and while it is undone."""
    key = folder_key(folder)
    return journals / f"{key}.json", journals / f"{key}.back.json"


def _begun(folder: Path, journals: Path, journal: Path) -> _Changing | None:
    """Return the change that *journal* describes; None if there is none, or the folder it describes is gone."""
    try:
        value = read_json(journal)
        changing = _Changing(folder, journals, value["token"], value["put"], value["remove"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{journal} cannot be read: {error}.", advice="Delete it and build again.") from error
    return changing if changing.is_there else None


def _cannot_write(folder: Path, error: OSError) -> StoreError:
    advice = "Make room or give permission, or choose another folder with -o; nothing has to run again."
    if error.errno == errno.ELOOP:
        advice = "Replace the link by a folder, or choose another folder with -o; nothing has to run again."
    return StoreError(
        f"The output folder {folder} cannot be written: {_reason(error)}. It is as it was before.", advice=advice
    )


def _reason(error: OSError) -> str:
    return f"{error.strerror or error}" + (f" ({error.filename})" if error.filename else "")
