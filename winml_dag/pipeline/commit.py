"""Change a folder as a whole or not at all, leaving alone every file that is not ours.

The folder may hold files of the user's, so it cannot simply be replaced by another. Instead the new files are
prepared in a hidden folder beside their places; writing the journal there is the moment from which the change counts.
Before it, nothing has happened. After it, the change is carried out file by file, and a process that finds the
journal of one that was killed carries it out to the end. A failure on the way (a file that another program keeps
open) puts the old files back.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from winml_dag.errors import StoreError
from winml_dag.store.artifact import check_name

_PREPARED = ".winml-dag-new"
_JOURNAL = "journal.json"
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
        shutil.rmtree(hidden, ignore_errors=True)
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
    change = _read_journal(hidden)
    if change is None:
        shutil.rmtree(hidden, ignore_errors=True)
    else:
        _carry_out(folder, change)


def _carry_out(folder: Path, change: Change) -> None:
    hidden = folder / _PREPARED
    done: list[str] = []
    try:
        for name in change.put:
            done.append(name)
            prepared = hidden / _NEW / name
            if prepared.exists():  # else a process since killed has put it in place
                _set_aside(folder, name)
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                prepared.replace(folder / name)
        for name in change.remove:
            done.append(name)
            _set_aside(folder, name)
    except OSError as error:
        _put_back(folder, done)
        raise _cannot_write(folder, error) from error
    # The journal goes first: from here on the change is complete and only rubbish is left.
    (hidden / _JOURNAL).unlink(missing_ok=True)
    shutil.rmtree(hidden, ignore_errors=True)


def _set_aside(folder: Path, name: str) -> None:
    """Keep the old file until the change is complete."""
    aside = folder / _PREPARED / _OLD / name
    if (folder / name).exists() and not aside.exists():
        aside.parent.mkdir(parents=True, exist_ok=True)
        (folder / name).replace(aside)


def _put_back(folder: Path, names: Iterable[str]) -> None:
    hidden = folder / _PREPARED
    for name in names:
        aside = hidden / _OLD / name
        if aside.exists():
            aside.replace(folder / name)
        elif not (hidden / _NEW / name).exists():
            (folder / name).unlink(missing_ok=True)  # new in this change: before it there was no such file
    shutil.rmtree(hidden, ignore_errors=True)


def _write_journal(hidden: Path, change: Change) -> None:
    temporary = hidden / f"{_JOURNAL}.part"
    temporary.write_text(json.dumps({"put": change.put, "remove": change.remove}), encoding="utf-8")
    temporary.replace(hidden / _JOURNAL)


def _read_journal(hidden: Path) -> Change | None:
    try:
        value = json.loads((hidden / _JOURNAL).read_text(encoding="utf-8"))
        return Change(tuple(map(check_name, value["put"])), tuple(map(check_name, value["remove"])))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"{hidden / _JOURNAL} cannot be read: {error}.", advice=f"Delete {hidden} and build again."
        ) from error


def _cannot_write(folder: Path, error: OSError) -> StoreError:
    return StoreError(
        f"The output folder {folder} cannot be written: {error.strerror or error}. It is as it was before.",
        advice="Make room or give permission, or choose another folder with -o; nothing has to run again.",
    )
