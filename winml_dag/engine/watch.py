"""Notice every change of a file or folder that a stage reads in place, from before it starts until after it ends.

Content alone is not enough: a file that is changed and restored has the same content when the stage has ended. So the
file's identity, recorded before its content was checked, is compared, and that of every link and folder on the way to
it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from winml_dag.engine.inplace import InPlace, list_folder
from winml_dag.engine.stage import Source, changed
from winml_dag.file_reading import Signature, signature_from, signature_of
from winml_dag.store.artifact import FileEntry

# Linux follows at most this many links in one path.
_MOST_LINKS = 40
_COME_OR_GONE = "Something came or went in it. If that was the stage itself, let it write elsewhere, or use --sandbox."

# A link or folder on the way to a file: its path, the target of a link or None, and its signature.
_Step: TypeAlias = tuple[str, str | None, Signature]
_Way: TypeAlias = list[_Step]


@dataclass(frozen=True)
class WatchedFile:
    """A file with the bytes of ``file``, and the *way* to it from its prefix ``start``."""

    path: str
    file: FileEntry
    seen: Signature
    way: _Way
    start: str

    def looks_unchanged(self) -> bool:
        return _signature(self.path) == self.seen

    def check(self, in_place: InPlace) -> None:
        """Raise InputError when it differs from when it was first watched, or differed in between."""
        if not (
            self.looks_unchanged()
            and _is_same_way(self.way, _way(self.start, self.path))
            # A file that changed just before it was first checked could have changed again without a different
            # signature.
            and in_place.is_right(self.path, self.file, self.seen)
        ):
            raise changed(self.path)


@dataclass(frozen=True)
class WatchedFolder:
    """An input folder, or one inside it, in which no file may be added or removed."""

    path: str
    seen: Signature | None

    def check(self, in_place: InPlace) -> None:  # noqa: ARG002
        """Raise InputError when a file was added or removed."""
        if _folder_signature(self.path) != self.seen:
            raise changed(self.path, _COME_OR_GONE)


Watched: TypeAlias = WatchedFile | WatchedFolder


def watch_file(path: str, file: FileEntry, in_place: InPlace, folder: Path) -> WatchedFile:
    """Watch the file at *path*.

    If *path* is below *folder*, in which a stage works, links and folders above *folder* are ignored: the stage stays
    there whatever happens to them.

    Raises:
        InputError: when it does not have the bytes of *file*.
    """
    start = f"{folder}{os.sep}" if path.startswith(f"{folder}{os.sep}") else ""
    way, seen = _way(start, path), _signature(path)
    if seen is None or not in_place.is_right(path, file, seen):
        raise changed(path)
    return WatchedFile(path, file, seen, way, start)


def watch_tool(path: str, digest: str, in_place: InPlace, folder: Path) -> WatchedFile:
    """Watch a file with the content *digest*. Raises InputError as :func:`watch_file` does."""
    seen = _signature(path)
    if seen is None:
        raise changed(path)
    return watch_file(path, FileEntry(os.path.basename(path), digest, seen[0]), in_place, folder)  # noqa: PTH119


def watch_folders(source: Source) -> Sequence[WatchedFolder]:
    """Watch all folders of *source*, if it is a folder.

    Raises:
        InputError: when the folder has other files than the key says.
    """
    if not source.folders:
        return ()
    watched = [WatchedFolder(str(path), _folder_signature(str(path))) for path in source.folders]
    found = list_folder(source.folders[0], source.name.removeprefix("./"))
    if (found.files, found.folders) != ([*source.files], [*source.folders]):
        raise changed(source.folders[0])
    return watched


def _signature(path: str) -> Signature | None:
    try:
        return signature_of(path)
    except OSError:
        return None


def _folder_signature(path: str) -> Signature | None:
    try:
        return signature_from(path, os.stat(path))  # noqa: PTH116
    except OSError:
        return None


def _way(start: str, path: str) -> _Way:
    """The links and folders that lead to *path*, starting at its prefix *start*. Strings, as it runs so often."""
    steps: _Way = []
    at = start.rstrip(os.sep) if start else os.path.splitdrive(path)[0]
    pending = path[len(start) or len(at) :].replace("/", os.sep).split(os.sep)[::-1]  # noqa: PTH206
    links = 0
    while pending:
        name = pending.pop()
        if name in ("", os.curdir):
            continue
        at = os.path.dirname(at) if name == os.pardir else f"{at.rstrip(os.sep)}{os.sep}{name}"  # noqa: PTH120
        try:
            status = os.lstat(at)
            is_link = stat.S_ISLNK(status.st_mode)
            if not is_link and not stat.S_ISDIR(status.st_mode):
                continue
            seen = status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns
            text = os.readlink(at) if is_link else None  # noqa: PTH115
        except OSError:
            break
        steps.append((at, text, seen))
        if text is not None:
            links += 1
            if links > _MOST_LINKS:
                break
            target = Path(text)
            at = target.anchor if target.is_absolute() else os.path.dirname(at)  # noqa: PTH120
            pending += reversed(target.parts[1:] if target.is_absolute() else target.parts)
    return steps


def _is_same_way(one: _Way, other: _Way) -> bool:
    return one == other or (len(one) == len(other) and all(map(_is_same_step, one, other)))


def _is_same_step(one: _Step, other: _Step) -> bool:
    (path, text, seen), (other_path, other_text, now) = one, other
    if (path, text, seen[2]) != (other_path, other_text, now[2]):
        return False
    # Creating and removing files in a folder sets both of its times. Renaming a folder, and renaming it back, changes
    # only its change time.
    return seen == now if text is not None else seen[1] != now[1] or seen[3] == now[3]
