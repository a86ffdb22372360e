"""Access files below a folder by relative name, without following any link on the way to them.

Folders from which this program removes files, and to which it writes, may come from others and contain links to other
folders. On POSIX, each folder on the way is opened relative to its parent, so that even a folder that is replaced
meanwhile by a link is not followed. Python has no such calls on Windows: there the folders on the way are checked
before each step.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from winml_dag.errors import StoreError
from winml_dag.store.artifact import check_name
from winml_dag.store.files import create, partial_in, partial_name, remove_file, remove_tree

_OPENS_FOLDERS = os.open in os.supports_dir_fd
# With O_PATH where available: it does not require permission to list the folder.
_FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | getattr(os, "O_DIRECTORY", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
# Bit of Windows reparse points that refer to another path. Files kept in a cloud are reparse points too.
_STANDS_FOR_ANOTHER = 0x20000000


class LinkOnTheWay(OSError):
    """One of the folders on the way to a file is a link; ``filename`` is this folder."""

    def __init__(self, path: Path) -> None:
        super().__init__(errno.ELOOP, "this is a link, and what lies behind links is left alone", str(path))


class Below:
    """Files below *folder*, which may itself be reached through links, since the caller chose it.

    Names are relative, with ``/`` as separator. Every method raises StoreError for a name that is not safe
    (:func:`check_name`), LinkOnTheWay, and OSError as the system does.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # Create paths only on demand: thousands of small files are written one by one.
        self._text = str(folder)

    def status(self, name: str) -> os.stat_result | None:
        """The status of *name*, of a link itself; None if it does not exist."""
        try:
            with self._at(name) as (last, at):
                return os.stat(last, dir_fd=at, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def is_file(self, name: str) -> bool:
        """Whether *name* is safe and refers to a file, not a link, with no link on the way."""
        try:
            status = self.status(name)
        except (StoreError, LinkOnTheWay, NotADirectoryError):
            return False
        return status is not None and stat.S_ISREG(status.st_mode)

    def make_folder(self, name: str) -> None:
        """Create the folder *name* and its parents if they do not exist."""
        with self._folder(check_name(name).split("/"), make=True):
            pass

    def move(self, name: str, to: str) -> None:
        """Move *name* to *to*, replacing a file there; creates parent folders."""
        with self._at(to, make=True) as (target, there), self._at(name) as (source, here):
            try:
                os.replace(source, target, src_dir_fd=here, dst_dir_fd=there)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                # Another file system is mounted on the way to one of them.
                _copy_over(source, here, target, there)
                os.unlink(source, dir_fd=here)

    def link(self, name: str, to: str) -> None:
        """Make *to* another name of the file *name*; creates parent folders."""
        with self._at(to, make=True) as (target, there), self._at(name) as (source, here):
            os.link(source, target, src_dir_fd=here, dst_dir_fd=there, follow_symlinks=False)

    def remove(self, name: str) -> None:
        """Remove a file or a link."""
        with self._at(name) as (last, at):
            if at is None:
                remove_file(last)
            else:
                os.unlink(last, dir_fd=at)

    def remove_empty_folder(self, name: str) -> None:
        with self._at(name) as (last, at):
            os.rmdir(last, dir_fd=at)

    def remove_all(self, name: str) -> None:
        """Remove *name*; a folder with everything in it."""
        status = self.status(name)
        if status is None:
            return
        if not stat.S_ISDIR(status.st_mode) or _stands_for_another(status):
            self.remove(name)
            return
        with self._at(name) as (last, at):
            if at is None:
                remove_tree(Path(last))
            else:
                shutil.rmtree(last, dir_fd=at)

    @contextmanager
    def _at(self, name: str, *, make: bool = False) -> Iterator[tuple[str, int | None]]:
        """The position of *name* for a system call: its last part and the descriptor of its folder, or a path and None.

        With *make*, parent folders are created.
        """
        *way, last = check_name(name).split("/")
        with self._folder(way, make=make) as (folder, at):
            try:
                yield folder + last, at
            except OSError as error:
                if at is not None and not isinstance(error, LinkOnTheWay):
                    error.filename, error.filename2 = f"{self._text}{os.sep}{name}", None
                raise

    @contextmanager
    def _folder(self, way: list[str], *, make: bool) -> Iterator[tuple[str, int | None]]:
        """The prefix for names in this folder, and its descriptor where folders can be opened."""
        if not _OPENS_FOLDERS:
            yield f"{self._look(way, make=make)}{os.sep}", None
            return
        at = os.open(self._text, _FOLDER)
        try:
            for depth, part in enumerate(way, 1):
                try:
                    inner = _open_folder(part, at, make=make)
                except OSError as error:
                    # Systems report a link here with different errors.
                    path = self.folder.joinpath(*way[:depth])
                    if path.is_symlink():
                        raise LinkOnTheWay(path) from None
                    error.filename = str(path)
                    raise
                os.close(at)
                at = inner
            yield "", at
        finally:
            os.close(at)

    def _look(self, way: list[str], *, make: bool) -> Path:
        path = self.folder
        for part in way:
            path /= part
            if make:
                with suppress(FileExistsError):
                    path.mkdir()
            if _stands_for_another(path.lstat()):
                raise LinkOnTheWay(path)
        return path


def _open_folder(part: str, at: int, *, make: bool) -> int:
    try:
        return os.open(part, _FOLDER | _NO_LINK, dir_fd=at)
    except FileNotFoundError:
        if not make:
            raise
    with suppress(FileExistsError):
        os.mkdir(part, dir_fd=at)
    return os.open(part, _FOLDER | _NO_LINK, dir_fd=at)


def _stands_for_another(status: os.stat_result) -> bool:
    return stat.S_ISLNK(status.st_mode) or bool(getattr(status, "st_reparse_tag", 0) & _STANDS_FOR_ANOTHER)


def _copy_over(source: str, here: int | None, target: str, there: int | None) -> None:
    """Replace *target* with a copy of the file *source*, atomically."""
    partial = partial_name() if there is not None else partial_in(str(Path(target).parent))
    opened = os.open(source, os.O_RDONLY | _NO_LINK | getattr(os, "O_BINARY", 0), dir_fd=here)
    try:
        with open(opened, "rb") as reading, open(create(partial, there), "wb") as writing:
            shutil.copyfileobj(reading, writing)
        os.replace(partial, target, src_dir_fd=there, dst_dir_fd=there)
    except BaseException:
        with suppress(OSError):
            os.unlink(partial, dir_fd=there)
        raise
