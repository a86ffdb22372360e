"""File helpers for the whole store: readable errors, atomic writes, and removal."""

from __future__ import annotations

import errno
import itertools
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from operator import attrgetter
from pathlib import Path

from winml_dag.errors import StoreError
from winml_dag.file_reading import open_regular

# Otherwise Windows would change line endings.
_BINARY = getattr(os, "O_BINARY", 0)
# Suffix of files that are being written; readers ignore such names.
PARTIAL = ".partial"


# Names of partial files: random per process, then counted. A new random name each time took a system call and 5 us.
# Forked processes share the random part, so names also contain the process id.
_PARTIAL_PREFIX = secrets.token_hex(8)
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
    return f"{error.strerror or error}{named}"


def _advice(error: OSError) -> str:
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return "Free some space, or choose another cache folder with --cache-dir or WINML_DAG_CACHE_DIR."
        case errno.EACCES | errno.EPERM | errno.EROFS | errno.ENOTDIR | errno.EEXIST:
            return "Make it writable, or choose another cache folder with --cache-dir or WINML_DAG_CACHE_DIR."
    return ""


def partial_beside(path: Path) -> Path:
    """A unique name in the same folder, and so on the same device."""
    return Path(partial_in(str(path.parent)))


def partial_in(folder: str) -> str:
    """The same for a *folder*, with strings: pathlib takes longer than the system does to rename a file."""
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


def read_rest(descriptor: int, size: int) -> bytes:
    """All bytes from here to the end of the file, which are *size* unless it is being written to."""
    # One byte more than expected, so that the first call reaches the end.
    data = os.read(descriptor, size + 1)
    if len(data) == size:
        return data
    parts = [data]
    while part := os.read(descriptor, size + 1):
        parts.append(part)
    return b"".join(parts)


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
    """The total size of all files below *folder*."""
    total = 0
    for entry in files_below(folder):
        with suppress(FileNotFoundError):
            total += entry.stat(follow_symlinks=False).st_size
    return total
