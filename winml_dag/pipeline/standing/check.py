"""Whether what is remembered of a request still holds: the first thing that a build does, and mostly the last.

One look at every path, and one comparison with what was seen before. Only what differs is read, and what had changed
so shortly before it was noted that a later change need not show.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from winml_dag.pipeline.standing.evidence import PER_PATH, changed_after, differing, look
from winml_dag.pipeline.standing.note import KEYS_SUFFIX, Note, file_of, read_note
from winml_dag.pipeline.standing.surroundings import Around, are, short_hash
from winml_dag.store import changetime
from winml_dag.store.tally import note_build

if TYPE_CHECKING:
    from array import array

# What reading a note can raise that is not one of ours, whoever wrote it: it counts as absent.
MALFORMED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)

ABSENT = "absent"
_NAMES = "names:"
_PROGRAM = "program:"
_NEVER_SEEN = "unreadable"


@dataclass(frozen=True)
class Standing:
    """A plan that still holds.

    ``changed``: places, in the note's list of paths, of data, outputs and blobs that are not what they were; ``seen``:
    what was seen of all paths when that was found out, which was not before ``at_ns``.
    """

    note: Note
    changed: tuple[int, ...]
    seen: array[int]
    at_ns: int

    @property
    def is_up_to_date(self) -> bool:
        """Whether there is nothing to do at all."""
        return self.note.header.complete and not self.changed


def check(cache_dir: str, asked: str, around: Around | None = None) -> Standing | None:
    """What stands of the request *asked*; None when it has to be planned anew. *around*: what surrounds us, if somebody
    has looked just now.
    """
    note = read_note(cache_dir, asked)
    try:
        return None if note is None else _check(cache_dir, note, around)
    except MALFORMED:
        return None


def _check(cache_dir: str, note: Note, around: Around | None) -> Standing | None:
    if not are(note.header.surroundings, around) or places_of(note.header.places) != note.header.places:
        return None
    at_ns = time.time_ns()
    seen = look(note.paths)
    unsettled = note.header.unsettled
    doubtful = differing(note.seen, seen)
    if unsettled:
        doubtful = sorted({*doubtful, *unsettled})
    if not doubtful:
        return Standing(note, (), seen, at_ns)
    changed = [place for place in doubtful if not _is_as_noted(note, place, seen)]
    if changed and changed[0] < note.header.groups.steering:
        return None
    if not changed:
        _note_again(cache_dir, note, seen, at_ns, doubtful)
    return Standing(note, tuple(changed), seen, at_ns)


def note_use(cache_dir: str, standing: Standing) -> None:
    """Say that a build has found all of *standing* up to date: what it stands on was used, and its time was saved."""
    touch(cache_dir, standing.note)
    header = standing.note.header
    note_build(cache_dir, reused=header.stages, ran=0, seconds_saved=header.seconds)


def touch(cache_dir: str, note: Note) -> None:
    """Say that the records that *note* stands on are being used."""
    with suppress(OSError):
        os.utime(os.path.splitext(file_of(cache_dir, note.header.asked))[0] + KEYS_SUFFIX)


def places_of(folders: Mapping[str, str] | Sequence[str]) -> dict[str, str]:
    """Where each folder really is."""
    return {folder: os.path.realpath(folder) for folder in folders}


def content_of(path: str, function: str = "xxh3-128") -> str:
    """The digest of a file, of the names in a folder, or that nothing is there."""
    try:
        return _NAMES + short_hash(sorted(os.listdir(path)))
    except FileNotFoundError:
        return ABSENT
    except NotADirectoryError:
        pass
    except OSError:
        return _NEVER_SEEN
    # Imported here: most checks read no file.
    from winml_dag.store.digest import digest_file

    try:
        return digest_file(Path(path), "sha256" if function == "sha256" else "xxh3-128")
    except (FileNotFoundError, NotADirectoryError):
        return ABSENT
    except OSError:
        return _NEVER_SEEN


def program_content(path: str, function: str = "xxh3-128") -> str:
    """The same of a file that is a program, or may become one."""
    may_run = os.path.isfile(path) and os.access(path, os.X_OK)
    return _PROGRAM + (content_of(path, function) if may_run else ABSENT)


def _is_as_noted(note: Note, place: int, seen: array[int]) -> bool:
    """Whether the path at *place*, of which *seen* tells otherwise, still has the content that was noted."""
    path, now = note.paths[place], seen[place * PER_PATH : (place + 1) * PER_PATH]
    if place >= note.header.groups.hashed:
        return _is_sound_blob(now, note.seen[place * PER_PATH])
    digest = note.digests[place]
    read = program_content if digest.startswith(_PROGRAM) else content_of
    # Looked at again: what was seen of the file must be true of the bytes that were read.
    function = digest.removeprefix(_PROGRAM).partition(":")[0]
    return digest != _NEVER_SEEN and read(path, function) == digest and look([path]) == now


def _is_sound_blob(now: array[int], size: int) -> bool:
    """Whether the store itself would take a blob for sound without reading it."""
    from winml_dag.store.blobs import STAMP_NS

    return now[0] == size and now[1] == STAMP_NS


def _note_again(cache_dir: str, note: Note, seen: array[int], at_ns: int, doubtful: Sequence[int]) -> None:
    """Keep what was seen now, so that the same files need not be read the next time."""
    # Imported here: it is done once after a change.
    from winml_dag.store.files import write_whole

    young = {*changed_after(seen, at_ns - changetime.SETTLED_NS)}
    hashed = note.header.groups.hashed
    header = replace(note.header, unsettled=[place for place in doubtful if place in young and place < hashed])
    # A cache that cannot be written: they are read again each time.
    with suppress(OSError):
        write_whole(Path(file_of(cache_dir, header.asked)), note.seen_again(header, seen).to_bytes())
