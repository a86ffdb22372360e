"""Small work on files that every part of the store needs: errors in words, whole writes, and removal."""

from __future__ import annotations

import errno
import itertools
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from types import TracebackType

from winml_dag.errors import StoreError
from winml_dag.file_reading import open_regular

# Else Windows would change the ends of lines.
_BINARY = getattr(os, "O_BINARY", 0)
# What is being written bears this ending until it is whole; a reader never takes such a name.
PARTIAL = ".partial"


# Names of what is being written: random for each process, then counted. A new random one for each took a call of the
# system and 5 us. Forked processes share what was random, so the number of the process is in a name too.
_PARTIAL_PREFIX = secrets.token_hex(8)
_partial_numbers = itertools.count()


class in_words:  # noqa: N801 - a word of the with statement
    """Turn an OSError of the block into a StoreError that starts with *doing*, such as "Cannot store the outputs".

    A class, because a generator takes three times as long to enter and leave, which is done ten times a stage.
    """

    __slots__ = ("_doing",)

    def __init__(self, doing: str) -> None:
        self._doing = doing

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, OSError):
            raise StoreError(f"{self._doing}: {in_plain_words(error)}.", advice=_advice(error)) from error


def in_plain_words(error: OSError) -> str:
    """What has happened, and to which file if *error* says that."""
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
    return f"{error.strerror or error}{named}"


def _advice(error: OSError) -> str:
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return "Free some space, or choose another cache folder with --cache-dir or WINML_DAG_CACHE_DIR."
        case errno.EACCES | errno.EPERM | errno.EROFS | errno.ENOTDIR | errno.EEXIST:
            return "Make it writable, or choose another cache folder with --cache-dir or WINML_DAG_CACHE_DIR."
    return ""


def partial_beside(path: Path) -> Path:
    """A name in the same folder, and so on the same device, that nobody else uses."""
    return Path(partial_in(str(path.parent)))


def partial_in(folder: str) -> str:
    """The same for a *folder*, all as text: pathlib takes longer than the system does to rename a file."""
    return f"{folder or os.curdir}{os.sep}{partial_name()}"


def partial_name() -> str:
    """A name for what is being written that nobody else uses in any folder."""
    # Not made from the final name: that may already be as long as the file system allows.
    return f"{_PARTIAL_PREFIX}{os.getpid():x}-{next(_partial_numbers):x}{PARTIAL}"


def write_whole(path: Path | str, data: bytes) -> None:
    """Write so that whoever reads, or finds it after a kill, sees the old file or the new one and nothing between."""
    folder = os.path.dirname(path)  # noqa: PTH120 - thousands of small files
    partial = partial_in(folder)
    try:
        try:
            _write_new(partial, data)
        except FileNotFoundError:
            # Usually the folder is there, and asking for it each time would cost as much as the rest.
            os.makedirs(folder, exist_ok=True)  # noqa: PTH103
            _write_new(partial, data)
        os.replace(partial, path)  # noqa: PTH105
    except BaseException:
        with suppress(OSError):
            os.unlink(partial)  # noqa: PTH108
        raise


def _write_new(path: str, data: bytes) -> None:
    opened = create(path)
    try:
        write(opened, data)
    finally:
        os.close(opened)


def create(path: str, folder: int | None = None) -> int:
    """The descriptor of a new file; its mode comes from the umask. No link that somebody left there is followed. A
    *path* that is relative is so to *folder*, where this is open.
    """
    # Here and below not a file object: making one asks the system four things that are known, and costs 8 us.
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY, 0o666, dir_fd=folder)


def open_to_read(path: Path | str) -> int:
    """The descriptor of an ordinary file that is there."""
    return open_regular(path)[0]


def read_rest(descriptor: int, size: int) -> bytes:
    """All bytes from here to the end of the file, which are *size* unless it is being written to."""
    # One byte more than there is: so the end is seen by the first call.
    data = os.read(descriptor, size + 1)
    if len(data) == size:
        return data
    parts = [data]
    while part := os.read(descriptor, size + 1):
        parts.append(part)
    return b"".join(parts)


def write(descriptor: int, data: bytes) -> None:
    """Write all of *data*."""
    done = os.write(descriptor, data)
    while done < len(data):
        # A raw write may take less than it was given, most often just before the disk is full.
        done += os.write(descriptor, data[done:])


def is_executable(status: os.stat_result) -> bool:
    """Whether the owner of a file may run it. On Windows a name says that, so nothing has to be kept."""
    return os.name != "nt" and bool(status.st_mode & stat.S_IXUSR)


def make_executable(path: Path | str) -> None:
    """Let all run *path* who may read it."""
    mode = stat.S_IMODE(os.lstat(path).st_mode)
    os.chmod(path, mode | (mode & 0o444) >> 2)  # noqa: PTH101 - thousands of small files


def make_writable(path: Path) -> None:
    """Allow the owner to change or remove *path*; Windows removes and replaces no read-only file."""
    path.chmod(stat.S_IMODE(path.lstat().st_mode) | stat.S_IWUSR)


def remove_file(path: Path | str) -> None:
    """Remove *path*, be it read-only. Its mode is changed only where it must be: other links to it share that."""
    try:
        os.unlink(path)  # noqa: PTH108 - thousands of small files
    except PermissionError:
        # Windows removes no read-only file.
        make_writable(Path(path))
        os.unlink(path)  # noqa: PTH108


def remove_tree(folder: Path) -> None:
    """Remove *folder* and all below it, read-only files and folders too; links are removed, never followed."""
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
    """Everything below *folder* that is not a folder, links included; what goes away meanwhile is left out."""
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
    """The name, with ``/``, that the *path* of an entry of :func:`files_below` has in *folder*."""
    name = path[len(str(folder)) + 1 :]
    return name if os.sep == "/" else name.replace(os.sep, "/")


def bytes_below(folder: Path) -> int:
    """The sizes of all files below *folder*, together."""
    total = 0
    for entry in files_below(folder):
        with suppress(FileNotFoundError):
            total += entry.stat(follow_symlinks=False).st_size
    return total
