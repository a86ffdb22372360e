"""Change a folder as a whole or not at all, leaving alone every file that is not ours.

The folder may hold files of the user's, so it cannot simply be replaced by another. Instead the new files are
prepared in a hidden folder beside their places; writing the journal there is the moment from which the change counts.
Before it, nothing has happened. After it, the change is carried out file by file, and a process that finds the
journal of one that was killed carries it out to the end. A failure on the way (a file that another program keeps
open) has everything taken back, which the journal says by another name, so that this too can be finished by another.

Every step moves a file between its place, ``new`` and ``old``, and where files lie tells which steps are done. So any
step may be tried again, in either direction, and nothing is lost before the change is complete.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from winml_dag.errors import StoreError
from winml_dag.store.artifact import check_name
from winml_dag.store.files import remove_tree

_PREPARED = ".winml-dag-new"
_JOURNAL = "journal.json"
_TAKING_BACK = "taking-back.json"
_NEW = "new"
_OLD = "old"


@dataclass(frozen=True)
class Change:
    """Names to put in place (prepared under the same names) and names to take away."""

    put: tuple[str, ...]
    remove: tuple[str, ...]


def change_folder(folder: Path, prepare: Callable[[Path], Iterable[str]], remove: Iterable[str] = ()) -> Change:
    """Let *prepare* fill a folder with new files, then put them into *folder* and take *remove* away, as one change.

    Raises:
        StoreError: with *folder* as it was, when it cannot be written, the disk is full or a file is in use.
    """
    hidden = folder / _PREPARED
    try:
        folder.mkdir(parents=True, exist_ok=True)
        finish_change(folder)
        (hidden / _NEW).mkdir(parents=True)
    except OSError as error:
        raise _cannot_write(folder, error) from error
    try:
        change = Change(tuple(prepare(hidden / _NEW)), tuple(remove))
        _write_journal(hidden, change)
    except BaseException as error:
        _discard(hidden)
        # Fetching from the store speaks of the store; here it is the output folder that has to be named.
        cause = error if isinstance(error, OSError) else error.__cause__
        if isinstance(cause, OSError):
            raise _cannot_write(folder, cause) from error
        raise
    _carry_out(folder, change)
    return change


def is_changing(folder: Path) -> bool:
    """Whether a change of *folder* has begun and not ended: another process is at it, or one was killed."""
    return (folder / _PREPARED).is_dir()


def finish_change(folder: Path) -> None:
    """Carry out to the end a change that a killed process had begun; throw away one that it had only prepared."""
    hidden = folder / _PREPARED
    if not hidden.is_dir():
        return
    if change := _read_journal(hidden / _TAKING_BACK):
        _take_back(folder, change)
    elif change := _read_journal(hidden / _JOURNAL):
        _carry_out(folder, change)
    else:
        _discard(hidden)


def _carry_out(folder: Path, change: Change) -> None:
    hidden = folder / _PREPARED
    try:
        for name in change.put:
            if (hidden / _NEW / name).exists():
                _set_aside(folder, name, stays=True)
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (hidden / _NEW / name).replace(folder / name)
        for name in change.remove:
            _set_aside(folder, name)
        # The journal goes first: from here on the change is complete and only rubbish is left.
        (hidden / _JOURNAL).unlink()
    except OSError as error:
        _take_back(folder, change)
        raise _cannot_write(folder, error) from error
    _discard(hidden)


def _set_aside(folder: Path, name: str, *, stays: bool = False) -> None:
    """Keep the old file until the change is complete. One that *stays* is in its place too until another takes it,
    where links can be made: whoever looks there meanwhile, or after a kill, finds a file.
    """
    place, aside = folder / name, folder / _PREPARED / _OLD / name
    if place.is_dir() and not place.is_symlink():
        # Not ours, whatever its name; setting it aside would end in removing all that is in it.
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(place))
    if os.path.lexists(place) and not os.path.lexists(aside):
        aside.parent.mkdir(parents=True, exist_ok=True)
        if not (stays and _link(place, aside)):
            place.replace(aside)


def _link(place: Path, aside: Path) -> bool:
    """Whether *aside* is another name of the file in *place* now."""
    try:
        os.link(place, aside, follow_symlinks=False)
    except (OSError, NotImplementedError):  # the file system or the system has no such links, or not to this file
        return False
    return True


def _take_back(folder: Path, change: Change) -> None:
    """Bring *folder* back to what it was before *change*.

    Raises:
        StoreError: when that fails too; whoever looks at the folder next tries again.
    """
    hidden = folder / _PREPARED
    try:
        if (hidden / _JOURNAL).exists():
            (hidden / _JOURNAL).replace(hidden / _TAKING_BACK)
        for name in change.put:
            if os.path.lexists(folder / name) and not (hidden / _NEW / name).exists():
                (folder / name).replace(hidden / _NEW / name)
        for name in (*change.put, *change.remove):
            if os.path.lexists(hidden / _OLD / name):
                (hidden / _OLD / name).replace(folder / name)
        (hidden / _TAKING_BACK).unlink()
    except OSError as error:
        raise StoreError(
            f"The output folder {folder} can neither be changed nor put back as it was: {_reason(error)}.",
            advice="Close the programs that use its files and build again.",
        ) from error
    _discard(hidden)


def _discard(hidden: Path) -> None:
    # What another program keeps open on Windows stays, and is thrown away by the next build.
    with suppress(OSError):
        remove_tree(hidden)


def _write_journal(hidden: Path, change: Change) -> None:
    temporary = hidden / f"{_JOURNAL}.part"
    temporary.write_text(json.dumps({"put": change.put, "remove": change.remove}), encoding="utf-8")
    temporary.replace(hidden / _JOURNAL)


def _read_journal(journal: Path) -> Change | None:
    try:
        value = json.loads(journal.read_text(encoding="utf-8"))
        return Change(tuple(map(check_name, value["put"])), tuple(map(check_name, value["remove"])))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"{journal} cannot be read: {error}.", advice=f"Delete {journal.parent} and build again."
        ) from error


def _cannot_write(folder: Path, error: OSError) -> StoreError:
    return StoreError(
        f"The output folder {folder} cannot be written: {_reason(error)}. It is as it was before.",
        advice="Make room or give permission, or choose another folder with -o; nothing has to run again.",
    )


def _reason(error: OSError) -> str:
    return f"{error.strerror or error}" + (f" ({error.filename})" if error.filename else "")
