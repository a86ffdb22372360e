"""Private copies of files: by reflink where the file system supports it, otherwise by copying the bytes.

Never a hard or symbolic link: writing to a linked copy would change the cache, and onnx's loader of external data
rejects both ("multiple hard links, indicating a potential hardlink attack").
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from winml_dag.errors import InputError
from winml_dag.store.digest import (
    CHUNK_BYTES,
    SMALL_BYTES,
    DigestFunction,
    chunks,
    digest_bytes,
    digest_file,
    new_hash,
    read_rest,
    use_each,
)
from winml_dag.store.files import create, in_words, is_executable, make_executable, open_to_read, write

# What the kernel copies at once: hashing, which follows, starts soon and finds the bytes in the processor's cache.
_RANGE_BYTES = 8 << 20
# Size of one write call. Linux allocates page cache memory in blocks as large as a write, and blocks as large as a
# whole chunk are seldom available: virtual machines that return free memory to their host fetched them again every
# time, and copying took up to eight times as long (512 MiB after a ``cp``: 4.2 s instead of 0.6).
_WRITE_BYTES = 64 << 10

# Errors of copy_file_range where it is not possible: two devices, or a file system or kernel without support.
_CANNOT = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM}

_FICLONE = 0x40049409


def clone_file(source: Path, target: Path, function: DigestFunction = "xxh3-128") -> str:
    """Create *target* as an ordinary writable file with the bytes of *source*; returns their digest.

    *target* must not exist. It is executable if *source* is.

    Raises:
        InputError: when *source* cannot be read.
        StoreError: when *target* cannot be written.
    """
    try:
        opened = open(source, "rb", buffering=0)  # noqa: SIM115 # only opening it can be the user's fault
    except OSError as error:
        raise InputError(f"{source} cannot be read: {error.strerror}.") from error
    with opened, in_words(f"Cannot copy {source} to {target}"):
        digest, _ = _clone(opened.fileno(), str(target), function)
        if is_executable(os.fstat(opened.fileno())):
            make_executable(target)
        return digest


def clone_and_digest(source: Path | str, target: Path | str, function: DigestFunction) -> tuple[str, int]:
    """Like :func:`clone_file`, for owned files: does not convert OSError. Also returns the size in bytes."""
    opened = open_to_read(source)
    try:
        return _clone(opened, str(target), function)
    finally:
        os.close(opened)


def _clone(source: int, target: str, function: DigestFunction) -> tuple[str, int]:
    """Digest and size of *target* after copying. Its mode comes from the umask, as for any new file."""
    opened = create(target)
    try:
        try:
            return _fill(source, opened, target, function)
        finally:
            os.close(opened)
    except BaseException:
        with suppress(OSError):
            os.unlink(target)  # noqa: PTH108 - thousands of small files
        raise


def _fill(source: int, opened: int, target: str, function: DigestFunction) -> tuple[str, int]:
    status = os.fstat(source)
    if _reflink(source, opened, status.st_dev):
        # Hash the target: its bytes are what readers get.
        return digest_file(target, function), os.fstat(opened).st_size
    if status.st_size <= SMALL_BYTES:
        data = read_rest(source, status.st_size)
        write(opened, data)
        return digest_bytes(data, function), len(data)
    hasher = new_hash(function)
    if (arriving := _ranges_by_kernel(source, opened)) is not None:
        # Copying in the kernel takes 0.6 of reading and writing. The target is hashed, slightly behind the copy.
        reading, buffer = open_to_read(target), memoryview(bytearray(CHUNK_BYTES))

        def hash_next(count: int) -> None:
            while count:
                if not (read := os.readv(reading, [buffer[:count]])):
                    raise OSError(errno.EIO, "became shorter while it was being written", target)
                hasher.update(buffer[:read])
                count -= read

        try:
            use_each(arriving, hash_next, status.st_size)
        finally:
            os.close(reading)
    else:

        def hash_and_write(chunk: memoryview) -> None:
            hasher.update(chunk)
            for start in range(0, len(chunk), _WRITE_BYTES):
                write(opened, chunk[start : start + _WRITE_BYTES])

        use_each(chunks(source, status.st_size), hash_and_write, status.st_size)
    return f"{function}:{hasher.hexdigest()}", os.fstat(opened).st_size


def _ranges_by_kernel(source: int, opened: int) -> Iterator[int] | None:
    """Copies *source* to *opened*; yields the number of bytes copied by each step. None if the kernel cannot do it."""
    if not hasattr(os, "copy_file_range"):
        return None
    try:
        first = os.copy_file_range(source, opened, _RANGE_BYTES)
    except OSError as error:
        if error.errno in _CANNOT:
            return None
        raise
    # Files generated by the kernel have a size and no blocks.
    return _ranges(source, opened, first) if first else None


def _ranges(source: int, opened: int, count: int) -> Iterator[int]:
    while count:
        yield count
        count = os.copy_file_range(source, opened, _RANGE_BYTES)


if sys.platform == "linux":
    import fcntl

    # Devices whose file system has reported no reflink support; asking for each of thousands of files takes 15 us.
    _sharing_nothing: set[int] = set()

    def _reflink(source: int, target: int, device: int) -> bool:
        """*device*: that of the source."""
        if device in _sharing_nothing:
            return False
        try:
            fcntl.ioctl(target, _FICLONE, source)
        except OSError as error:
            # Another device, or a file system without reflinks: error numbers differ between file systems. This one is
            # Linux's own, raised if both files are on a file system that does not support it.
            if error.errno == errno.EOPNOTSUPP:
                _sharing_nothing.add(device)
            return False
        return True

else:

    def _reflink(source: int, target: int, device: int) -> bool:  # noqa: ARG001
        # APFS and ReFS clone by path, with the mode and times of the source. Copy until that is worth its own code.
        return False
