"""What a stage reads where it lies, and must find there as long as it runs: files, folders and tools.

Content alone does not tell: a file that is changed and put back has the same content when the stage has ended. So what
is compared is the identity of the file, from before its content was checked, and of every link and folder on the way.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

from winml_dag.engine.inplace import InPlace
from winml_dag.engine.inputfolder import list_folder
from winml_dag.engine.stage import Source
from winml_dag.errors import InputError
from winml_dag.readlog import Signature
from winml_dag.store.artifact import FileEntry
from winml_dag.store.changetime import signature_from, signature_of

# Linux follows no more links than that in one path.
_MOST_LINKS = 40


class Watched(Protocol):
    """A file or folder that a stage reads."""

    @property
    def path(self) -> str: ...

    def check(self, in_place: InPlace) -> None:
        """Raise InputError when it is not what it was when it was first watched, or was something else meanwhile."""


def changed(path: Path | str, advice: str = "Build again when it has come to rest.") -> InputError:
    """What is said of an input that is no longer what the key says."""
    return InputError(f"{path} changed while it was being used, so nothing was stored.", advice=advice)


@dataclass(frozen=True)
class _Step:
    """A link or folder on the way to a file. ``text``: where a link leads."""

    path: str
    seen: Signature
    text: str | None = None

    def is_still(self, other: _Step) -> bool:
        if (self.path, self.text, self.seen[2]) != (other.path, other.text, other.seen[2]):
            return False
        # Files come and go in a folder all the time, and set both times of it; a folder that was renamed, and renamed
        # back, has another time of change alone.
        moved = self.seen[1] == other.seen[1] and self.seen[3] != other.seen[3]
        return self.seen == other.seen if self.text is not None else not moved


_Way: TypeAlias = tuple[_Step, ...]


@dataclass(frozen=True)
class WatchedFile:
    """A file with the bytes of ``file``."""

    path: str
    file: FileEntry
    seen: Signature
    way: _Way
    start: str

    def check(self, in_place: InPlace) -> None:
        if not (
            _signature(self.path) == self.seen
            and _is_same_way(self.way, _way(self.start, self.path))
            # One that had changed just before it was looked at could have changed again without showing it.
            and in_place.is_right(self.path, self.file)
        ):
            raise changed(self.path)


@dataclass(frozen=True)
class WatchedFolder:
    """An input folder, or one in it, in which nothing may come or go."""

    path: str
    seen: Signature

    def check(self, in_place: InPlace) -> None:  # noqa: ARG002
        if _folder_signature(self.path) != self.seen:
            raise changed(
                self.path,
                "Something came or went in it. If that was the stage itself, let it write elsewhere, or use --sandbox.",
            )


def watch_file(path: str, file: FileEntry, in_place: InPlace, folder: Path) -> WatchedFile:
    """Watch the file at *path*. Links and folders above *folder*, which a stage works in and *path* may lie in, do not
    count: it stays there whatever becomes of them.

    Raises:
        InputError: when it has not the bytes of *file*.
    """
    start = f"{folder}{os.sep}" if path.startswith(f"{folder}{os.sep}") else ""
    way, seen = _way(start, path), _signature(path)
    if seen is None or not in_place.is_right(path, file):
        raise changed(path)
    return WatchedFile(path, file, seen, way, start)


def watch_tools(
    tools: Mapping[str, Path], toolchain: Mapping[str, str], in_place: InPlace, folder: Path
) -> Iterable[WatchedFile]:
    """Watch the files *tools*, whose digests *toolchain* has under the same names. Raises InputError as above."""
    for name, path in tools.items():
        seen = _signature(str(path))
        if seen is None:
            raise changed(path)
        yield watch_file(str(path), FileEntry(path.name, toolchain[name], seen[0]), in_place, folder)


def watch_folders(source: Source) -> Iterable[WatchedFolder]:
    """Watch all folders of *source*, if it is a folder.

    Raises:
        InputError: when other files are in it than the key says.
    """
    if not source.folders:
        return ()
    watched = tuple(WatchedFolder(str(path), _folder_signature(str(path))) for path in source.folders)
    found = list_folder(source.folders[0], source.name.removeprefix("./"))
    if (found.files, found.folders) != ([*source.files], [*source.folders]):
        raise changed(source.folders[0])
    return watched


def _signature(path: str) -> Signature | None:
    try:
        return signature_of(path)
    except OSError:
        return None


def _folder_signature(path: str) -> Signature:
    try:
        return signature_from(path, os.stat(path))  # noqa: PTH116
    except OSError:
        return (0, 0, 0, 0)


def _way(start: str, path: str) -> _Way:
    """The links and folders that lead to *path* from the folder *start*, which it begins with."""
    steps: list[_Step] = []
    at = start.rstrip(os.sep) if start else Path(path).anchor
    pending = [*reversed(Path(path[len(start) :]).parts)] if start else [*reversed(Path(path).parts[1:])]
    links = 0
    while pending:
        name = pending.pop()
        at = os.path.dirname(at) if name == os.pardir else os.path.join(at, name)  # noqa: PTH118, PTH120
        try:
            status = os.lstat(at)
            if stat.S_ISDIR(status.st_mode):
                steps.append(_Step(at, _of_step(status)))
            elif stat.S_ISLNK(status.st_mode) and links < _MOST_LINKS:
                links += 1
                text = os.readlink(at)  # noqa: PTH115
                steps.append(_Step(at, _of_step(status), text))
                target = Path(text)
                at = target.anchor if target.is_absolute() else os.path.dirname(at)  # noqa: PTH120
                pending += reversed(target.parts[1:] if target.is_absolute() else target.parts)
        except OSError:
            break
    return tuple(steps)


def _of_step(status: os.stat_result) -> Signature:
    return status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns


def _is_same_way(one: _Way, other: _Way) -> bool:
    return len(one) == len(other) and all(step.is_still(now) for step, now in zip(one, other, strict=True))
