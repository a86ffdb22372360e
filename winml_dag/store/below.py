"""Files below a folder by relative name, without following any link on the way to them.

Folders that we write to and remove from may come from others, with links in them that lead elsewhere. On POSIX, each
folder on the way is opened relative to the one before, so that not even one that is replaced meanwhile is followed.
Python has no such calls on Windows: there the folders on the way are looked at before each step.
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
# With O_PATH where there is one: it takes no right to list the folder.
_FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | getattr(os, "O_DIRECTORY", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
# Reparse points of Windows that stand for another place have this bit. Files kept in a cloud are reparse points too.
_STANDS_FOR_ANOTHER = 0x20000000


class LinkOnTheWay(OSError):
    """One of the folders on the way to a file is a link; ``filename`` is this folder."""

    def __init__(self, path: Path) -> None:
        super().__init__(errno.ELOOP, "this is a link, and what lies behind links is left alone", str(path))


class Below:
    """Files below *folder*, which may itself be reached by links: whoever named it chose it.

    Names are relative, with ``/`` between their parts. Every method raises StoreError for a name that is not safe
    (:func:`check_name`), LinkOnTheWay, and OSError as the system does.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # Paths are made where somebody asks for one: thousands of small files are put one by one.
        self._text = str(folder)

    def status(self, name: str) -> os.stat_result | None:
        """What lies under *name*, of a link itself; None for nothing."""
        try:
            with self._at(name) as (last, at):
                return os.stat(last, dir_fd=at, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def is_file(self, name: str) -> bool:
        """Whether *name* is safe and that of a file, not a link, with no link on the way."""
        try:
            status = self.status(name)
        except (StoreError, LinkOnTheWay, NotADirectoryError):
            return False
        return status is not None and stat.S_ISREG(status.st_mode)

    def make_folder(self, name: str) -> None:
        """Make the folder *name*, and those on the way, as far as they are not there."""
        with self._folder(check_name(name).split("/"), make=True):
            pass

    def move(self, name: str, to: str) -> None:
        """Move *name* to *to*, replacing a file there; folders on the way are made."""
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
        """Make *to* another name of the file *name*; folders on the way are made."""
        with self._at(to, make=True) as (target, there), self._at(name) as (source, here):
            os.link(source, target, src_dir_fd=here, dst_dir_fd=there, follow_symlinks=False)

    def remove(self, name: str) -> None:
        """Remove a file, or a link."""
        with self._at(name) as (last, at):
            if at is None:
                remove_file(last)
            else:
                os.unlink(last, dir_fd=at)

    def remove_empty_folder(self, name: str) -> None:
        with self._at(name) as (last, at):
            os.rmdir(last, dir_fd=at)

    def remove_all(self, name: str) -> None:
        """Remove what lies under *name*, a folder with all that is in it."""
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
        """Where *name* is, for a call of the system: a last name and the open folder that has it, or a path and None.
        With *make*, the folders on the way are made.
        """
        *way, last = check_name(name).split("/")
        with self._folder(way, make=make) as (folder, at):
            try:
                yield folder + last, at
            except OSError as error:
                if at is not None and not isinstance(error, LinkOnTheWay):
                    error.filename, error.filename2 = str(self.folder / name), None
                raise

    @contextmanager
    def _folder(self, way: list[str], *, make: bool) -> Iterator[tuple[str, int | None]]:
        """What names of this folder begin with, and it itself where it can be open."""
        if not _OPENS_FOLDERS:
            yield f"{self._look(way, make=make)}{os.sep}", None
            return
        at = os.open(self._text, _FOLDER)
        try:
            for depth, part in enumerate(way, 1):
                try:
                    inner = _open_folder(part, at, make=make)
                except OSError as error:
                    # Systems differ in what they say of a link here.
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
    """Put a copy of the file *source* in the place of *target*, whole or not at all."""
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
