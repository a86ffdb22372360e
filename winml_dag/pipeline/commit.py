"""Change a folder as a whole or not at all, leaving alone every file that is not ours.

The folder may hold files of the user's, so it cannot simply be replaced by another. Instead the new files are
prepared in a hidden folder beside their places; writing a journal is the moment from which the change counts. Before
it, nothing has happened. After it, the change is carried out file by file, and a process that finds the journal of one
that was killed carries it out to the end. A failure on the way (a file that another program keeps open) has everything
taken back, which the journal says by another name, so that this too can be finished by another.

Every step moves a file between its place, ``new`` and ``old``, and where files lie tells which steps are done. So any
step may be tried again, in either direction, and nothing is lost before the change is complete.

The journal lies in the cache: whatever somebody else put into the folder, or packed into an archive with it, tells us
nothing to do. It names the part of the hidden folder that is its own by a random token, so it is not taken for that of
another folder that lies there later. What no journal of this cache speaks of is rubbish.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import stat
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from winml_dag.errors import StoreError
from winml_dag.file_reading import read_json
from winml_dag.store.below import Below
from winml_dag.store.files import write_whole

_PREPARED = ".winml-dag-new"


@dataclass(frozen=True)
class Change:
    """Names to put in place (prepared under the same names) and names to take away."""

    put: tuple[str, ...]
    remove: tuple[str, ...]


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


def folder_key(folder: Path) -> str:
    """What all who write to one output folder hold against each other while they do."""
    return hashlib.sha256(f"output folder\n{folder.resolve()}".encode()).hexdigest()


def change_folder(
    folder: Path, journals: Path, prepare: Callable[[Path], Iterable[str]], remove: Iterable[str] = ()
) -> Change:
    """Let *prepare* fill a folder with new files, then put them into *folder* and take *remove* away, as one change.
    *journals*: where the cache keeps those of all folders.

    Raises:
        StoreError: with *folder* as it was, when it cannot be written, a link is on the way to one of the files, the
            disk is full or a file is in use.
    """
    token = secrets.token_hex(8)
    new = f"{_PREPARED}/{token}/new"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        finish_change(folder, journals)
        Below(folder).make_folder(new)
    except OSError as error:
        raise _cannot_write(folder, error) from error
    try:
        change = Change(tuple(prepare(folder / new)), tuple(remove))
        changing = _Changing(folder, journals, token, change)
        changing.begin()
    except BaseException as error:
        _discard(folder)
        # Fetching from the store speaks of the store; here it is the output folder that has to be named.
        cause = error if isinstance(error, OSError) else error.__cause__
        if isinstance(cause, OSError):
            raise _cannot_write(folder, cause) from error
        raise
    changing.carry_out()
    return change


def is_changing(folder: Path) -> bool:
    """Whether a change of *folder* has begun and not ended: another process is at it, or one was killed."""
    return os.path.lexists(folder / _PREPARED)


def finish_change(folder: Path, journals: Path) -> None:
    """Carry out to the end a change that a killed process had begun; throw away one that it had only prepared, and all
    that others have left under the name of one.

    Raises:
        StoreError: when that cannot be done.
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
    """*change* of *folder*, whose files are prepared under *token*."""

    def __init__(self, folder: Path, journals: Path, token: str, change: Change) -> None:
        self._folder = folder
        self._below = Below(folder)
        self._token = token
        self._change = change
        self._journal, self._back = _journals(folder, journals)

    @property
    def is_there(self) -> bool:
        """Whether what was prepared for it is."""
        try:
            status = self._below.status(f"{_PREPARED}/{self._token}")
        except OSError:
            return False
        return status is not None and stat.S_ISDIR(status.st_mode)

    def begin(self) -> None:
        """From here on it counts."""
        value = {"token": self._token, "put": self._change.put, "remove": self._change.remove}
        write_whole(self._journal, json.dumps(value).encode())

    def carry_out(self) -> None:
        try:
            for name in self._change.put:
                if self._below.status(self._new(name)) is not None:
                    self._set_aside(name, stays=True)
                    self._below.move(self._new(name), name)
            for name in self._change.remove:
                self._set_aside(name)
            # The journal goes first: from here on the change is complete and only rubbish is left.
            self._journal.unlink()
        except OSError as error:
            self.take_back()
            raise _cannot_write(self._folder, error) from error
        _discard(self._folder)

    def take_back(self) -> None:
        """Bring the folder back to what it was before the change.

        Raises:
            StoreError: when that fails too; whoever looks at the folder next tries again.
        """
        change = self._change
        try:
            if self._journal.exists():
                self._journal.replace(self._back)
            for name in change.put:
                if self._is_there(name) and self._below.status(self._new(name)) is None:
                    self._below.move(name, self._new(name))
            for name in (*change.put, *change.remove):
                if self._below.status(self._old(name)) is not None:
                    self._below.move(self._old(name), name)
            self._back.unlink()
        except OSError as error:
            raise StoreError(
                f"The output folder {self._folder} can neither be changed nor put back as it was: {_reason(error)}.",
                advice="Close the programs that use its files and build again.",
            ) from error
        _discard(self._folder)

    def _set_aside(self, name: str, *, stays: bool = False) -> None:
        """Keep the old file until the change is complete. One that *stays* is in its place too until another takes it,
        where links can be made: whoever looks there meanwhile, or after a kill, finds a file.
        """
        status = self._below.status(name)
        if status is None or self._below.status(self._old(name)) is not None:
            return
        if stat.S_ISDIR(status.st_mode):
            # Not ours, whatever its name; setting it aside would end in removing all that is in it.
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(self._folder / name))
        if not (stays and self._link(name)):
            self._below.move(name, self._old(name))

    def _link(self, name: str) -> bool:
        """Whether the file in place has another name now, under which it stays."""
        try:
            self._below.link(name, self._old(name))
        except (OSError, NotImplementedError):  # the file system or the system has no such links, or not to this file
            return False
        return True

    def _is_there(self, name: str) -> bool:
        try:
            return self._below.status(name) is not None
        except OSError:  # the way to it is what the change failed at
            return False

    def _new(self, name: str) -> str:
        return f"{_PREPARED}/{self._token}/new/{name}"

    def _old(self, name: str) -> str:
        return f"{_PREPARED}/{self._token}/old/{name}"


def _discard(folder: Path) -> None:
    # What another program keeps open on Windows stays, and is thrown away by the next build.
    with suppress(OSError):
        Below(folder).remove_all(_PREPARED)


def _journals(folder: Path, journals: Path) -> tuple[Path, Path]:
    """Where the journal of *folder* is: while a change is carried out, and while it is taken back."""
    key = folder_key(folder)
    return journals / f"{key}.json", journals / f"{key}.back.json"


def _begun(folder: Path, journals: Path, journal: Path) -> _Changing | None:
    """The change that *journal* speaks of; None where there is none, or the folder has gone that it spoke of."""
    try:
        value = read_json(journal)
        changing = _Changing(folder, journals, value["token"], Change(tuple(value["put"]), tuple(value["remove"])))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{journal} cannot be read: {error}.", advice="Delete it and build again.") from error
    return changing if changing.is_there else None


def _cannot_write(folder: Path, error: OSError) -> StoreError:
    advice = "Make room or give permission, or choose another folder with -o; nothing has to run again."
    if error.errno == errno.ELOOP:
        advice = "Put a folder there in place of the link, or choose another folder with -o; nothing has to run again."
    return StoreError(
        f"The output folder {folder} cannot be written: {_reason(error)}. It is as it was before.", advice=advice
    )


def _reason(error: OSError) -> str:
    return f"{error.strerror or error}" + (f" ({error.filename})" if error.filename else "")
