"""A remote in a bucket of S3, Azure or Google, or in a shared folder.

Every upload is conditional on nothing being there, except in chunks, for blobs above 5 MiB: two machines that upload
the same blob at once then both do so, with the same bytes.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import obstore
from obstore import exceptions
from obstore import store as stores

from winml_dag.errors import UsageError
from winml_dag.store.remote.protocol import (
    ATTEMPT_SECONDS,
    PART_SECONDS,
    RemoteError,
    blob_path,
    read_pieces,
    record_path,
    whole_record,
)

if TYPE_CHECKING:
    from obstore.store import ClientConfig, ObjectStore, RetryConfig

_PIECE_BYTES = 1 << 20
# Larger files get more time: obstore reports no progress within a request or part.
_QUICK_BYTES = 256 << 10
_NO_LIMIT = timedelta(days=1)
# Larger files go in chunks, which bounds memory. S3 requires chunks of at least 5 MiB, and at most 10,000.
_PART_BYTES = 5 << 20
_PARTS_AT_ONCE = 2
# A folder yields as much at once as is requested. From a network we take what has arrived, so that a trickle shows.
_FOLDER_READ_BYTES = 256 << 10

_STATUS = re.compile(r"\bstatus: (\d{3})\b")
_SYSTEM_ERROR = re.compile(r"\bos error (\d+)\b")
# No space, and no quota; 39 and 112 are those of Windows.
_NO_SPACE = (28, 122, 39, 112)
_READ_ONLY = (1, 5, 13, 30) if sys.platform == "win32" else (1, 13, 30)
# The errors of a missing bucket.
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound", "bucket does not exist")
# Where clients look for credentials last: services of the cloud's own machines.
_CREDENTIAL_SERVICES = ("/latest/api/token", "/latest/meta-data", "/metadata/identity", "/computeMetadata/")

_ENDPOINTS = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "az": ("AZURE_STORAGE_ENDPOINT",),
    "gs": (),
}
_CREDENTIALS_IN = {
    "s3": "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
}

# Opens the store to put this many bytes, or with None to read. Raises RemoteError, or FileNotFoundError when it cannot
# contain anything yet.
_Opener: TypeAlias = "Callable[[int | None], ObjectStore]"


class ObjectRemote:
    """See ``Remote``: what lies below *prefix* of the store that *opener* opens."""

    def __init__(self, opener: _Opener, prefix: str, read_bytes: int = 1) -> None:
        self._open = opener
        self._prefix = f"{prefix}/" if prefix else ""
        self._read_bytes = read_bytes

    def record(self, key: str) -> bytes | None:
        try:
            return whole_record(self._read(record_path(key), 0))
        except FileNotFoundError:
            return None

    def put_record(self, key: str, data: bytes) -> bool:
        return self._create(record_path(key), data)

    def has(self, digest: str) -> bool:
        try:
            self._size(blob_path(digest))
        except FileNotFoundError:
            return False
        return True

    def read(self, digest: str, offset: int = 0) -> Iterator[bytes]:
        try:
            return self._read(blob_path(digest), offset)
        except FileNotFoundError:
            raise KeyError(digest) from None

    def put(self, digest: str, path: Path, on_progress: Callable[[int], None]) -> bool:
        blob, size = blob_path(digest), path.stat().st_size
        if size > _QUICK_BYTES and self.has(digest):
            return False
        if size <= _PART_BYTES:
            if put := self._create(blob, path.read_bytes()):
                on_progress(size)
            return put
        with _translated():
            pieces = read_pieces(path, _PIECE_BYTES, on_progress)
            store, name = self._open(size), self._prefix + blob
            obstore.put(store, name, pieces, chunk_size=_PART_BYTES, max_concurrency=_PARTS_AT_ONCE)
        return True

    def close(self) -> None:
        """Does nothing: obstore closes its connections by itself."""

    def _create(self, path: str, data: bytes) -> bool:
        with _translated():
            try:
                obstore.put(self._open(len(data)), self._prefix + path, data, mode="create")
            except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
                return False
        return True

    def _size(self, path: str) -> int:
        """Raises FileNotFoundError."""
        with _translated():
            return obstore.head(self._open(None), self._prefix + path)["size"]

    def _read(self, path: str, offset: int) -> Iterator[bytes]:
        """Raises FileNotFoundError."""
        options: obstore.GetOptions = {}
        if offset:
            if offset >= self._size(path):
                return iter(())
            options = {"range": {"offset": offset}}
        with _translated():
            got = obstore.get(self._open(None), self._prefix + path, options=options)
            return _Body(iter(got.stream(min_chunk_size=self._read_bytes)))


class _Body(Iterator[bytes]):
    """The bytes of a stream, in pieces of limited size."""

    def __init__(self, stream: Iterator[bytes]) -> None:
        self._stream: Iterator[bytes] | None = stream
        self._rest = memoryview(b"")

    def __next__(self) -> bytes:
        while not self._rest:
            with _translated():
                came = None if self._stream is None else next(self._stream, None)
            if came is None:
                raise StopIteration
            self._rest = memoryview(came)
        piece, self._rest = self._rest[:_PIECE_BYTES], self._rest[_PIECE_BYTES:]
        return bytes(piece)

    def close(self) -> None:
        self._stream, self._rest = None, memoryview(b"")


def open_bucket(scheme: str, bucket: str, prefix: str) -> ObjectRemote:
    """Credentials, region and endpoint come from the environment, where the tools of each cloud look for them.

    Raises:
        UsageError: for invalid or incomplete settings.
    """
    try:
        quick = _bucket(scheme, bucket, {"read_timeout": timedelta(seconds=ATTEMPT_SECONDS), "timeout": _NO_LIMIT})
        # Receives nothing while it sends, so the limit applies to the whole request or part.
        patient = _bucket(scheme, bucket, {"timeout": timedelta(seconds=PART_SECONDS)})
    except (exceptions.BaseError, ValueError) as error:
        raise UsageError(
            f"The bucket {scheme}://{bucket} cannot be used: {_in_short(str(error))}",
            advice=f"See what the environment says in {_CREDENTIALS_IN[scheme]}.",
        ) from error

    def opener(size: int | None) -> ObjectStore:
        return quick if size is None or size <= _QUICK_BYTES else patient

    return ObjectRemote(opener, prefix)


def _bucket(scheme: str, bucket: str, limits: ClientConfig) -> ObjectStore:
    endpoint = next((os.environ[name] for name in _ENDPOINTS[scheme] if name in os.environ), "")
    options: ClientConfig = {
        "connect_timeout": timedelta(seconds=ATTEMPT_SECONDS),
        "user_agent": "winml_dag",
        # Only for the user's own endpoint, a server without TLS.
        "allow_http": endpoint.startswith("http://"),
        **limits,
    }
    once: RetryConfig = {"max_retries": 0, "retry_timeout": timedelta(seconds=ATTEMPT_SECONDS)}
    if scheme == "s3":
        return stores.S3Store(bucket, client_options=options, retry_config=once)
    if scheme == "az":
        return stores.AzureStore(bucket, client_options=options, retry_config=once)
    return stores.GCSStore(bucket, client_options=options, retry_config=once)


def open_folder(folder: Path, namespace: str) -> ObjectRemote:
    def opener(size: int | None) -> ObjectStore:
        if not folder.is_dir():
            if not folder.parent.is_dir():
                raise RemoteError("unreachable", f"would lie in {folder.parent}, which is not there")
            if size is None:
                raise FileNotFoundError(folder)
        return stores.LocalStore(folder, mkdir=True)

    return ObjectRemote(opener, namespace, _FOLDER_READ_BYTES)


@contextmanager
def _translated() -> Iterator[None]:
    """Turns errors of obstore into RemoteError, but not FileNotFoundError of an object in an existing bucket."""
    try:
        yield
    except (exceptions.BaseError, OSError, ValueError) as error:
        text = str(error)
        if isinstance(error, FileNotFoundError) and not any(word in text for word in _NO_BUCKET):
            raise
        raise _remote_error(text) from error
    except BaseException as error:
        # A panic of obstore at an unexpected answer: a BaseException of a class that cannot be imported.
        if type(error).__module__ == "pyo3_runtime":
            raise RemoteError("failing", "answers what obstore cannot make sense of") from error
        raise


def _remote_error(text: str) -> RemoteError:
    """obstore has few exception classes; the text has the rest: a status, a system error, a kind."""
    if any(word in text for word in _NO_BUCKET):
        return RemoteError("forbidden", "has no such bucket")
    if any(service in text for service in _CREDENTIAL_SERVICES):
        return RemoteError("forbidden", "wants credentials, and the environment has none")
    if match := _STATUS.search(text):
        status = int(match[1])
        is_read = "performing GET" in text or "performing HEAD" in text
        unlisted = ", also of what is not there where a bucket may not be listed"
        return RemoteError.of_status(status, unlisted if status == HTTPStatus.FORBIDDEN and is_read else "")
    if match := _SYSTEM_ERROR.search(text):
        number = int(match[1])
        if number in _NO_SPACE:
            return RemoteError("full", "has no space left")
        if number in _READ_ONLY:
            return RemoteError("forbidden", "may not be written or read by us")
    if "kind: Timeout" in text or "TimedOut" in text:
        return RemoteError.too_slow()
    if "kind: Connect" in text:
        return RemoteError("unreachable", "cannot be reached")
    broke_off = any(f"kind: {kind}" in text for kind in ("Request", "Decode", "Body", "Interrupted"))
    return RemoteError("unreachable", "broke off") if broke_off else RemoteError("failing", f"fails: {_in_short(text)}")


def _in_short(text: str) -> str:
    """The first line of *text* without what follows a question mark, which may be a signature."""
    return re.sub(r"\?\S*", "", text.partition("\n")[0])[:200]
