"""A remote in a bucket of S3, Azure or Google, or in a folder that several machines see.

All is put on the condition that nothing is there, where that can be said. It cannot be said of blobs that go in parts:
those of more than 5 GB, and others where we may not sign a request of our own. Two that put the same blob at once then
both do so, and what is there afterwards is the same either way.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import obstore
from obstore import exceptions
from obstore import store as stores

from winml_dag.errors import UsageError
from winml_dag.store.remote.crew import those_that
from winml_dag.store.remote.places import blob_place, record_place
from winml_dag.store.remote.remote import ATTEMPT_SECONDS, MOST_RECORD_BYTES, RemoteError
from winml_dag.store.remote.statuses import THERE, is_good, refusal

if TYPE_CHECKING:
    from obstore import SignCapableStore
    from obstore.store import ClientConfig, ObjectStore, RetryConfig
    from urllib3 import PoolManager

_PIECE_BYTES = 1 << 20
# What is larger goes to a bucket in one request of ours that obstore signs: obstore's own takes a file into memory, or
# sends it in parts of which nobody knows how far they are, so that a slow line looks like a dead one.
_SMALL_BYTES = 256 << 10
# As much as S3 and Azure take in one request.
_MOST_STREAMED_BYTES = 5000 << 20
_SIGNED_FOR = timedelta(hours=1)
_NO_LIMIT = timedelta(days=1)
# Parts, and so many at once, are what an upload takes of memory. S3 wants at least 5 MiB, and knows 10,000 parts.
_PART_BYTES = 5 << 20
_PARTS_AT_ONCE = 2
# A part that takes longer is given up: 128 KiB/s.
_PART_SECONDS = 64
# A folder gives as much at once as is asked for. From a network we take what has come, so that what only trickles is
# noticed by who waits for it.
_FOLDER_READ_BYTES = 256 << 10

_STATUS = re.compile(r"\bstatus: (\d{3})\b")
_SYSTEM_ERROR = re.compile(r"\bos error (\d+)\b")
# No space, and no quota; 39 and 112 are Windows' words for it.
_NO_SPACE = (28, 122, 39, 112)
_READ_ONLY = (1, 5, 13, 30) if sys.platform == "win32" else (1, 13, 30)
# What is not found when the bucket itself is not there.
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound", "bucket does not exist")
# Where credentials are looked for last: with a machine of the cloud's own, which knows who it is.
_ASKED_FOR_CREDENTIALS = ("/latest/api/token", "/latest/meta-data", "/metadata/identity", "/computeMetadata/")

# Google wants conditions to be signed, and obstore signs none.
_STREAMED_WITH = {
    "s3": {"If-None-Match": "*"},
    "az": {"If-None-Match": "*", "x-ms-blob-type": "BlockBlob"},
    "gs": dict[str, str](),
}

_NAMED_IN = {
    "s3": "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
}

# Opens the store, for writing or not. Raises RemoteError, or FileNotFoundError when nothing can be there yet.
Opened: TypeAlias = Callable[[bool], "ObjectStore"]


@dataclass(frozen=True)
class Uploads:
    """How big files go to a bucket.

    Attributes:
        store: waits longer than others: with no limit for each byte, since none is read while all are sent.
        sign: where to put a file with a request of our own, for an hour.
        headers: what such a request says.
    """

    store: ObjectStore
    sign: Callable[[str], str]
    headers: Mapping[str, str]


class ObjectRemote:
    """See ``Remote``. Without *uploads*, big files go in parts to what *opened* opens."""

    def __init__(
        self, opened: Opened, *, prefix: str = "", read_bytes: int = 1, uploads: Uploads | None = None
    ) -> None:
        self._opened = opened
        self._prefix = f"{prefix}/" if prefix else ""
        self._read_bytes = read_bytes
        self._uploads = uploads
        self._may_sign = uploads is not None
        self._pool: PoolManager | None = None

    def record(self, key: str) -> bytes | None:
        data = bytearray()
        try:
            for piece in self._read(record_place(key), 0):
                data += piece
                if len(data) > MOST_RECORD_BYTES:
                    raise RemoteError("lying", f"sent more than {MOST_RECORD_BYTES >> 20} MiB as a record")
        except FileNotFoundError:
            return None
        return bytes(data)

    def put_record(self, key: str, data: bytes) -> bool:
        return self._create(record_place(key), data)

    def has(self, digests: Collection[str]) -> set[str]:
        return those_that(lambda digest: self._size(blob_place(digest)) is not None, digests)

    def read(self, digest: str, offset: int = 0) -> Iterator[bytes]:
        try:
            return self._read(blob_place(digest), offset)
        except FileNotFoundError:
            raise KeyError(digest) from None

    def put(self, digest: str, path: Path, told: Callable[[int], None]) -> bool:
        place, size = blob_place(digest), path.stat().st_size
        if size <= _SMALL_BYTES:
            if put := self._create(place, path.read_bytes()):
                told(size)
            return put
        if self._size(place) is not None:
            return False
        if self._uploads is not None and self._may_sign and size <= _MOST_STREAMED_BYTES:
            url = self._signed(self._uploads, place)
            if url is not None:
                return self._stream(url, self._uploads.headers, path, size, told)
        with _troubles():
            obstore.put(
                self._patient(),
                self._prefix + place,
                _pieces(path, told),
                chunk_size=_PART_BYTES,
                max_concurrency=_PARTS_AT_ONCE,
            )
        return True

    def close(self) -> None:
        """obstore lets go of its own connections by itself."""
        if self._pool is not None:
            self._pool.clear()

    def _patient(self) -> ObjectStore:
        return self._opened(True) if self._uploads is None else self._uploads.store

    def _signed(self, uploads: Uploads, place: str) -> str | None:
        """Where to put a file; None where we may not sign, which is a right of its own."""
        try:
            with _troubles():
                return uploads.sign(self._prefix + place)
        except RemoteError:
            self._may_sign = False
            return None

    def _stream(self, url: str, headers: Mapping[str, str], path: Path, size: int, told: Callable[[int], None]) -> bool:
        from winml_dag.store.remote.wire import ask, let_go, of_body, pieces, pool_for, troubles

        with troubles():
            self._pool = self._pool or pool_for(url)
            response = ask(self._pool, "PUT", url, {**of_body(size), **headers}, pieces(path, told))
            let_go(response)
        if response.status in THERE:
            return False
        if not is_good(response.status):
            raise refusal(response.status)
        return True

    def _create(self, place: str, data: bytes) -> bool:
        store = self._opened(True) if len(data) <= _SMALL_BYTES else self._patient()
        with _troubles():
            try:
                obstore.put(store, self._prefix + place, data, mode="create")
            except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
                return False
        return True

    def _size(self, place: str) -> int | None:
        try:
            with _troubles():
                return obstore.head(self._opened(False), self._prefix + place)["size"]
        except FileNotFoundError:
            return None

    def _read(self, place: str, offset: int) -> Iterator[bytes]:
        """Raises FileNotFoundError."""
        with _troubles():
            if not offset:
                got = obstore.get(self._opened(False), self._prefix + place)
            elif offset < obstore.head(self._opened(False), self._prefix + place)["size"]:
                options: obstore.GetOptions = {"range": {"offset": offset}}
                got = obstore.get(self._opened(False), self._prefix + place, options=options)
            else:
                return iter(())
            return _Body(iter(got.stream(min_chunk_size=self._read_bytes)))


class _Body(Iterator[bytes]):
    """What a stream gives, in pieces that are small enough."""

    def __init__(self, stream: Iterator[bytes]) -> None:
        self._stream: Iterator[bytes] | None = stream
        self._rest = memoryview(b"")

    def __next__(self) -> bytes:
        while not self._rest:
            with _troubles():
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
        UsageError: what is there cannot be right, or something is missing that says which bucket it is.
    """
    try:
        quick = _bucket(scheme, bucket, {"read_timeout": timedelta(seconds=ATTEMPT_SECONDS), "timeout": _NO_LIMIT})
        patient = _bucket(scheme, bucket, {"timeout": timedelta(seconds=_PART_SECONDS)})
    except (exceptions.BaseError, ValueError) as error:
        raise UsageError(
            f"The bucket {scheme}://{bucket} cannot be used: {_in_short(str(error))}",
            advice=f"See what the environment says in {_NAMED_IN[scheme]}.",
        ) from error
    uploads = Uploads(patient, lambda place: obstore.sign(patient, "PUT", place, _SIGNED_FOR), _STREAMED_WITH[scheme])
    return ObjectRemote(lambda _writes: quick, prefix=prefix, uploads=uploads)


def _bucket(scheme: str, bucket: str, limits: ClientConfig) -> SignCapableStore:
    options: ClientConfig = {
        "connect_timeout": timedelta(seconds=ATTEMPT_SECONDS),
        "user_agent": "winml_dag",
        # Only where the user says so by the endpoint: a server of their own, without TLS.
        "allow_http": _endpoint(scheme).startswith("http://"),
        **limits,
    }
    once: RetryConfig = {"max_retries": 0, "retry_timeout": timedelta(seconds=ATTEMPT_SECONDS)}
    if scheme == "s3":
        return stores.S3Store(bucket, client_options=options, retry_config=once)
    if scheme == "az":
        return stores.AzureStore(bucket, client_options=options, retry_config=once)
    return stores.GCSStore(bucket, client_options=options, retry_config=once)


def _endpoint(scheme: str) -> str:
    names = {"s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"), "az": ("AZURE_STORAGE_ENDPOINT",)}
    return next((os.environ[name] for name in names.get(scheme, ()) if name in os.environ), "")


def open_folder(folder: Path, namespace: str) -> ObjectRemote:
    def opened(writes: bool) -> ObjectStore:
        if not folder.is_dir():
            if not folder.parent.is_dir():
                raise RemoteError("unreachable", f"would lie in {folder.parent}, which is not there")
            if not writes:
                raise FileNotFoundError(folder)
        return stores.LocalStore(folder, mkdir=True)

    return ObjectRemote(opened, prefix=namespace, read_bytes=_FOLDER_READ_BYTES)


def _pieces(path: Path, told: Callable[[int], None]) -> Iterator[bytes]:
    with open(path, "rb") as file:
        while piece := file.read(_PIECE_BYTES):
            yield piece
            told(len(piece))


@contextmanager
def _troubles() -> Iterator[None]:
    """What obstore raises, as RemoteError; FileNotFoundError for what is not there, though its bucket is."""
    try:
        yield
    except (exceptions.BaseError, OSError, ValueError) as error:
        text = str(error)
        if isinstance(error, FileNotFoundError) and not any(word in text for word in _NO_BUCKET):
            raise
        raise _trouble(text) from error
    except BaseException as error:
        # obstore breaks off like this when an answer is not what it counts on. No ordinary exception, and no name that
        # could be imported: a build would end with it.
        if type(error).__module__ == "pyo3_runtime":
            raise RemoteError("failing", "answers what obstore cannot make sense of") from error
        raise


def _trouble(text: str) -> RemoteError:
    """obstore has few kinds of errors and tells the rest in words: those of a status, of the system, of the client."""
    if any(word in text for word in _NO_BUCKET):
        return RemoteError("forbidden", "has no such bucket")
    if any(place in text for place in _ASKED_FOR_CREDENTIALS):
        return RemoteError("forbidden", "wants credentials, and the environment has none")
    if match := _STATUS.search(text):
        status = int(match[1])
        is_read = "performing GET" in text or "performing HEAD" in text
        unlisted = ", also of what is not there where a bucket may not be listed"
        return refusal(status, unlisted if status == HTTPStatus.FORBIDDEN and is_read else "")
    if match := _SYSTEM_ERROR.search(text):
        number = int(match[1])
        if number in _NO_SPACE:
            return RemoteError("full", "has no space left")
        if number in _READ_ONLY:
            return RemoteError("forbidden", "may not be written or read by us")
    if "kind: Timeout" in text or "TimedOut" in text:
        return RemoteError("slow", f"did not go on for {ATTEMPT_SECONDS:g} s")
    if "kind: Connect" in text:
        return RemoteError("unreachable", "cannot be reached")
    broke_off = any(f"kind: {kind}" in text for kind in ("Request", "Decode", "Body", "Interrupted"))
    return RemoteError("unreachable", "broke off") if broke_off else RemoteError("failing", f"fails: {_in_short(text)}")


def _in_short(text: str) -> str:
    """The first line of what obstore says. What follows a question mark may be a signature, and is left out."""
    return re.sub(r"\?\S*", "", text.partition("\n")[0])[:200]
