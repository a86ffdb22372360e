"""Private copies of files: extents shared by the file system where it can (reflink), bytes copied where it cannot.

Never a hard or symbolic link: whoever writes to a linked copy writes into the cache, and onnx's loader of external data
refuses both ("multiple hard links, indicating a potential hardlink attack").
"""

from __future__ import annotations

import errno
import os
import sys
import threading
from contextlib import suppress
from pathlib import Path

from winml_dag.errors import InputError
from winml_dag.store.digest import (
    BIG_BYTES,
    CHUNK_BYTES,
    SMALL_BYTES,
    DigestFunction,
    Hash,
    copy_and_digest,
    digest_bytes,
    digest_file,
    new_hash,
)
from winml_dag.store.files import create, in_words, is_executable, make_executable, open_to_read, read_rest, write

# A big file copied by the kernel, while a second thread hashes what has arrived.
#
# The kernel copies 2 GiB as fast as ``cp`` does (0.78 s where ``cp`` took 0.82); reading into our memory and writing
# from there took 1.3 s and more. Hashed is the target, a little behind: what counts is what its reader will get.


# So much at a time that hashing is never far behind, and so little that it begins at once.
_RANGE_BYTES = 32 << 20

# What is answered where this cannot be done: two devices, file systems or kernels that know nothing of it.
_CANNOT = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM}


def copy_by_kernel(source: int, opened: int, target: str, hasher: Hash) -> bool:
    """Copy *source* to *opened*, which is the file *target*; both are descriptors at their start.

    *hasher* gets every byte of the target. False, with nothing done, where the kernel cannot copy between the two.

    Raises:
        OSError: as copying and reading do; *target* then has any part of the bytes.
    """
    if not hasattr(os, "copy_file_range"):
        return False
    try:
        arrived = os.copy_file_range(source, opened, _RANGE_BYTES)
    except OSError as error:
        if error.errno in _CANNOT:
            return False
        raise
    if arrived == 0:  # files that the kernel makes up have a size and no blocks
        return False
    follower = _Follower(target, hasher)
    follower.start()
    try:
        follower.tell(arrived)
        while count := os.copy_file_range(source, opened, _RANGE_BYTES):
            arrived += count
            follower.tell(arrived)
    finally:
        follower.finish()
    if follower.error is not None:
        raise follower.error
    return True


class _Follower(threading.Thread):
    """Hashes a file as far as it has been written."""

    def __init__(self, path: str, hasher: Hash) -> None:
        super().__init__(daemon=True)
        self._path = path
        self._hasher = hasher
        self._changed = threading.Condition()
        self._arrived = 0
        self._over = False
        self.error: BaseException | None = None

    def tell(self, arrived: int) -> None:
        """So many bytes are there now."""
        with self._changed:
            self._arrived = arrived
            self._changed.notify()

    def finish(self) -> None:
        """No more will come; return when all that came is hashed."""
        with self._changed:
            self._over = True
            self._changed.notify()
        self.join()

    def run(self) -> None:
        try:
            descriptor = open_to_read(self._path)
            try:
                self._follow(descriptor)
            finally:
                os.close(descriptor)
        except BaseException as error:
            self.error = error

    def _follow(self, descriptor: int) -> None:
        buffer = memoryview(bytearray(CHUNK_BYTES))
        done = 0
        while (arrived := self._await_more_than(done)) > done:
            while done < arrived:
                count = os.readv(descriptor, [buffer[: arrived - done]])
                if count == 0:
                    raise OSError(errno.EIO, "became shorter while it was being written", self._path)
                self._hasher.update(buffer[:count])
                done += count

    def _await_more_than(self, done: int) -> int:
        """How many bytes have arrived, when they are more than *done* or when no more will come."""
        with self._changed:
            self._changed.wait_for(lambda: self._over or self._arrived > done)
            return self._arrived


_FICLONE = 0x40049409


def clone_file(source: Path, target: Path, function: DigestFunction = "xxh3-128") -> str:
    """Make *target*, which must not exist, an ordinary writable file with the bytes of *source*, executable where that
    is; return their digest.

    Raises:
        InputError: when *source* cannot be read.
        StoreError: when *target* cannot be written.
    """
    try:
        opened = open(source, "rb", buffering=0)  # noqa: SIM115  # only opening it can be the user's fault
    except OSError as error:
        raise InputError(f"{source} cannot be read: {error.strerror}.") from error
    with opened, in_words(f"Cannot copy {source} to {target}"):
        digest, _ = _clone(opened.fileno(), str(target), function)
        if is_executable(os.fstat(opened.fileno())):
            make_executable(target)
        return digest


def clone_and_digest(source: Path | str, target: Path | str, function: DigestFunction) -> tuple[str, int]:
    """Like :func:`clone_file`, for files of our own: raises OSError as it comes. Returns the size in bytes too."""
    opened = open_to_read(source)
    try:
        return _clone(opened, str(target), function)
    finally:
        os.close(opened)


def _clone(source: int, target: str, function: DigestFunction) -> tuple[str, int]:
    """Digest and size of what *target* got. The mode comes from the umask, as for any new file."""
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
        # From the target: what counts is what its reader will get.
        return digest_file(target, function), os.fstat(opened).st_size
    if status.st_size <= SMALL_BYTES:
        data = read_rest(source, status.st_size)
        write(opened, data)
        return digest_bytes(data, function), len(data)
    if status.st_size >= BIG_BYTES:
        hasher = new_hash(function)
        if copy_by_kernel(source, opened, target, hasher):
            return f"{function}:{hasher.hexdigest()}", os.fstat(opened).st_size
    with (
        open(source, "rb", buffering=0, closefd=False) as reading,
        open(opened, "wb", buffering=0, closefd=False) as writing,
    ):
        digest = copy_and_digest(reading, writing, function)
    return digest, os.fstat(opened).st_size


if sys.platform == "linux":
    import fcntl

    # Devices whose file system has said that it shares nothing; asking it for each of thousands of files takes 15 us.
    _sharing_nothing: set[int] = set()

    def _reflink(source: int, target: int, device: int) -> bool:
        """*device*: that of the source."""
        if device in _sharing_nothing:
            return False
        try:
            fcntl.ioctl(target, _FICLONE, source)
        except OSError as error:
            # Another device, or a file system that shares nothing: the error numbers differ between file systems.
            # This one is Linux's own, said when both files are on one that cannot do it.
            if error.errno == errno.EOPNOTSUPP:
                _sharing_nothing.add(device)
            return False
        return True

else:

    def _reflink(source: int, target: int, device: int) -> bool:  # noqa: ARG001
        # APFS and ReFS clone by path, with the mode and times of the source; copied until that is worth its own code.
        return False
