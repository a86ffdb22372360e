"""File helpers for the whole store: readable errors, atomic writes, removal, and access by name below a folder.

Folders from which this program removes files, and to which it writes, may come from others and contain links to other
folders. On POSIX, :class:`Below` opens each folder on the way relative to its parent, so that even a folder that is
replaced meanwhile by a link is not followed. Python has no such calls on Windows: there the folders on the way are
checked before each step.
"""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from operator import attrgetter
from pathlib import Path

from winml_dag.errors import StoreError
from winml_dag.file_reading import open_regular
from winml_dag.names import is_safe_part

# Otherwise Windows would change line endings.
_BINARY = getattr(os, "O_BINARY", 0)
# Suffix of files that are being written; readers ignore such names.
PARTIAL = ".partial"


# Names of partial files: random per process, then counted. A new random name each time took a system call and 5 us.
# Forked processes share the random part, so names also contain the process id.
_PARTIAL_PREFIX = os.urandom(8).hex()
_partial_numbers = itertools.count()


@contextmanager
def in_words(doing: str) -> Iterator[None]:
    """Turn an OSError of the block into a StoreError that starts with *doing*, such as "Cannot store the outputs"."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"{doing}: {in_plain_words(error)}.", advice=_advice(error)) from error


def in_plain_words(error: OSError) -> str:
    """What happened, and to which file if *error* contains that."""
    named = f" ({error.filename})" if error.filename else ""
    match error.errno:
        case errno.ENOSPC:
            return f"the disk is full{named}"
        case errno.EDQUOT | errno.EFBIG:
            return f"the quota or the limit on file size is reached{named}"
        case errno.EACCES | errno.EPERM:
            return f"permission denied{named}"
        case errno.EROFS:
            return f"the file system is read-only{named}"
        case errno.ENOTDIR | errno.EEXIST:
            return f"a file is where a folder should be{named}"
        case errno.EISDIR:
            return f"a folder is where a file should be{named}"
    return f"{error.strerror or error}{named}"


def _advice(error: OSError) -> str:
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return "Free some space, or choose another cache folder with --cache-dir or WINML_DAG_CACHE_DIR."
        case errno.EACCES | errno.EPERM | errno.EROFS | errno.ENOTDIR | errno.EEXIST:
            return "Make it writable, or choose another cache folder with --cache-dir or WINML_DAG_CACHE_DIR."
        case errno.ENOENT:
            return "If the cache folder was moved or removed meanwhile, build again."
    return ""


def partial_in(folder: Path | str) -> str:
    """A path for a partial file in *folder*. A string: pathlib takes longer than the system does to rename a file."""
    return f"{folder or os.curdir}{os.sep}{partial_name()}"


def partial_name() -> str:
    """A name for a partial file, unique across all folders."""
    # Not made from the final name: that may already have the maximum length.
    return f"{_PARTIAL_PREFIX}{os.getpid():x}-{next(_partial_numbers):x}{PARTIAL}"


def write_whole(path: Path | str, data: bytes) -> None:
    """Write atomically: a reader, or a run after a kill, sees either the old file or the new one."""
    folder = os.path.dirname(path)  # noqa: PTH120 - thousands of small files
    partial = partial_in(folder)
    try:
        try:
            opened = create(partial)
        except FileNotFoundError:
            # Usually the folder exists, and checking each time would cost as much as the rest.
            os.makedirs(folder, exist_ok=True)  # noqa: PTH103
            opened = create(partial)
        try:
            write(opened, data)
        finally:
            os.close(opened)
        os.replace(partial, path)  # noqa: PTH105
    except BaseException:
        with suppress(OSError):
            os.unlink(partial)  # noqa: PTH108
        raise


def create(path: str, folder: int | None = None) -> int:
    """The descriptor of a new file; its mode comes from the umask.

    Does not follow an existing link. A relative *path* is relative to *folder*, the descriptor of an open folder.
    """
    # No file object: creating one makes four unnecessary system calls, and costs 8 us.
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY, 0o666, dir_fd=folder)


def open_to_read(path: Path | str) -> int:
    """The descriptor of an existing ordinary file."""
    return open_regular(path)[0]


def write(descriptor: int, data: bytes | memoryview) -> None:
    """Write all of *data*."""
    done = os.write(descriptor, data)
    while done < len(data):
        # A raw write may be partial, typically just before the disk is full.
        done += os.write(descriptor, data[done:])


def is_executable(status: os.stat_result) -> bool:
    """Whether the owner may execute a file. On Windows the name determines that, so nothing is stored."""
    return os.name != "nt" and bool(status.st_mode & stat.S_IXUSR)


def make_executable(path: Path | str) -> None:
    """Let everybody who may read *path* execute it."""
    mode = stat.S_IMODE(os.lstat(path).st_mode)
    os.chmod(path, mode | (mode & 0o444) >> 2)  # noqa: PTH101 - thousands of small files


def make_writable(path: Path) -> None:
    """Allow the owner to change or remove *path*; Windows cannot remove or replace read-only files."""
    path.chmod(stat.S_IMODE(path.lstat().st_mode) | stat.S_IWUSR)


def remove_file(path: Path | str) -> None:
    """Remove *path*, even if read-only. Its mode is changed only if necessary: other links to it share that."""
    try:
        os.unlink(path)  # noqa: PTH108 - thousands of small files
    except PermissionError:
        # Windows cannot remove read-only files.
        make_writable(Path(path))
        os.unlink(path)  # noqa: PTH108


def remove_tree(folder: Path) -> None:
    """Remove *folder* and everything below it, read-only entries too; links are removed, never followed."""
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        return
    except PermissionError:
        _unlock(folder)
        shutil.rmtree(folder)


def _unlock(folder: Path) -> None:
    folder.chmod(stat.S_IRWXU)
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                _unlock(Path(entry.path))
            elif entry.is_file(follow_symlinks=False):
                make_writable(Path(entry.path))


_NAME = attrgetter("name")


def files_below(folder: Path | str) -> Iterator[os.DirEntry[str]]:
    """Everything below *folder* that is not a folder, links included; skips what is removed meanwhile."""
    try:
        with os.scandir(folder) as found:
            entries = sorted(found, key=_NAME)
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from files_below(entry.path)
        else:
            yield entry


def name_below(folder: Path | str, path: str) -> str:
    """The name in *folder*, with ``/``, of the *path* of an entry of :func:`files_below`."""
    name = path[len(str(folder)) + 1 :]
    return name if os.sep == "/" else name.replace(os.sep, "/")


def bytes_below(folder: Path) -> int:
    total = 0
    for entry in files_below(folder):
        with suppress(FileNotFoundError):
            total += entry.stat(follow_symlinks=False).st_size
    return total


def check_name(name: str) -> str:
    """Return *name* if it is a safe relative name, with ``/`` as separator, on every system.

    Records and external-data locations may come from others. A name that leaves its folder, is absolute, means a
    device, or that Windows would silently change (a trailing dot or blank) is rejected.

    Raises:
        StoreError: with the rejected name.
    """
    if not all(map(is_safe_part, name.split("/"))):
        raise StoreError(f"{name!r} is not a safe file name inside an artifact.")
    return name


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
    partial = partial_name() if there is not None else partial_in(Path(target).parent)
    opened = os.open(source, os.O_RDONLY | _NO_LINK | _BINARY, dir_fd=here)
    try:
        with open(opened, "rb") as reading, open(create(partial, there), "wb") as writing:
            shutil.copyfileobj(reading, writing)
        os.replace(partial, target, src_dir_fd=there, dst_dir_fd=there)
    except BaseException:
        with suppress(OSError):
            os.unlink(partial, dir_fd=there)
        raise
