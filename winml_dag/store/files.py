"""Small work on files that every part of the store needs: errors in words, whole writes, and removal."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from winml_dag.errors import StoreError

# What is being written bears this ending until it is whole; a reader never takes such a name.
PARTIAL = ".partial"


@contextmanager
def in_words(doing: str) -> Iterator[None]:
    """Turn an OSError of the block into a StoreError that starts with *doing*, such as "Cannot store the outputs"."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"{doing}: {_what(error)}.", advice=_advice(error)) from error


def _what(error: OSError) -> str:
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
    # Not made from the final name: that may already be as long as the file system allows.
    return path.with_name(secrets.token_hex(8) + PARTIAL)


def write_whole(path: Path, data: bytes) -> None:
    """Write so that whoever reads, or finds it after a kill, sees the old file or the new one and nothing between."""
    partial = str(partial_beside(path))
    try:
        try:
            _write_new(partial, data)
        except FileNotFoundError:
            # Usually the folder is there, and asking for it each time would cost as much as the rest.
            path.parent.mkdir(parents=True, exist_ok=True)
            _write_new(partial, data)
        os.replace(partial, path)  # noqa: PTH105 - thousands of small files
    except BaseException:
        with suppress(OSError):
            os.unlink(partial)  # noqa: PTH108
        raise


def _write_new(path: str, data: bytes) -> None:
    with open(path, "xb", buffering=0) as opened:
        left = memoryview(data)
        while left:
            # A raw write may take less than it was given, most often just before the disk is full.
            left = left[opened.write(left) :]


def make_writable(path: Path) -> None:
    """Allow the owner to change or remove *path*; Windows removes and replaces no read-only file."""
    path.chmod(stat.S_IMODE(path.lstat().st_mode) | stat.S_IWUSR)


def remove_file(path: Path) -> None:
    """Remove *path*, be it read-only. Its mode is changed only where it must be: other links to it share that."""
    try:
        path.unlink()
    except PermissionError:
        # Windows removes no read-only file.
        make_writable(path)
        path.unlink()


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


def files_below(folder: Path | str) -> Iterator[os.DirEntry[str]]:
    """Everything below *folder* that is not a folder, links included; what goes away meanwhile is left out."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from files_below(entry.path)
        else:
            yield entry


def name_below(folder: Path, path: str) -> str:
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
