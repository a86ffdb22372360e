"""A remote that speaks HTTP, as caches of build systems do: GET, HEAD and PUT of ``ac/<key>`` and ``cas/<sha256>``.

No length, encoding or range that a server states is trusted. Where a server supports conditional puts, the first writer
wins. One that does not is asked first; two that put the same record within one round trip may then both succeed.

urllib3 keeps the connections. Its retries, redirects and decoding are off: the circuit breaker decides about retries,
and urllib3 would read the body of a redirect to its end, if it has one.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

import urllib3
from urllib3 import exceptions
from urllib3.connection import HTTPConnection
from urllib3.util import Timeout, make_headers, parse_url

from winml_dag.store.remote.protocol import (
    ATTEMPT_SECONDS,
    SETTLING_BYTES_PER_SECOND,
    RemoteError,
    blob_path,
    read_pieces,
    record_path,
    whole_record,
)

if TYPE_CHECKING:
    from urllib3.response import BaseHTTPResponse

# Connections kept open to a host. More threads open more, which are closed after the answer.
_IDLE_CONNECTIONS = 16
_READ_BYTES = 256 << 10
# The time limit of a socket applies to each piece: a slow line sends one of this size in time.
_SEND_BYTES = 64 << 10
# Limits the send buffer of the kernel. It took 3 MB at once, which counted as sent, and the server looked dead for as
# long as a slow line needs for them (measured: 14 s at 200 kB/s).
_UNSENT_BYTES = 128 << 10
_SOCKET_OPTIONS = [
    *HTTPConnection.default_socket_options,
    *([(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)] if hasattr(socket, "TCP_NOTSENT_LOWAT") else []),
]
# Bodies up to this size are read, so that the connection can be reused: most answers are 404.
_SMALL_BODY_BYTES = 4096
# From this size on, HEAD precedes the upload of a blob.
_BIG_BYTES = 64 << 10
_MOST_REDIRECTS = 3

_ABSENT = (HTTPStatus.NOT_FOUND, HTTPStatus.GONE)
# The answers of servers that do not support conditions.
_NO_CONDITIONS = (HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_IMPLEMENTED)
# The answers to a conditional put of what exists.
_EXISTS = (HTTPStatus.CONFLICT, HTTPStatus.PRECONDITION_FAILED)


class HttpRemote:
    """See ``Remote``. *url* has no password in it; *authorization* goes to its host only."""

    def __init__(self, url: str, authorization: str = "") -> None:
        self._url = url.rstrip("/")
        self._headers = {"Accept-Encoding": "identity", "User-Agent": "winml_dag"}
        self._secrets = {"Authorization": authorization} if authorization else {}
        self._pool = _pool_for(url)
        self._conditions = {"If-None-Match": "*"}

    def record(self, key: str) -> bytes | None:
        response = self._get("GET", record_path(key))
        if response is None:
            return None
        with closing(_Body(response, 0)) as body:
            return whole_record(body)

    def put_record(self, key: str, data: bytes) -> bool:
        path = record_path(key)
        return not self._exists(path) and self._put(path, lambda: [data], len(data))

    def has(self, digest: str) -> bool:
        return self._exists(blob_path(digest))

    def read(self, digest: str, offset: int = 0) -> Iterator[bytes]:
        response = self._get("GET", blob_path(digest), {"Range": f"bytes={offset}-"} if offset else {})
        if response is None:
            raise KeyError(digest)
        if response.status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            _release(response)
            return iter(())
        if response.status != HTTPStatus.PARTIAL_CONTENT:
            return _Body(response, offset)
        began = response.headers.get("Content-Range", "")
        if not began.startswith(f"bytes {offset}-"):
            response.close()
            raise RemoteError("lying", f"sent {began or 'a part'!r} when asked for what begins at {offset}")
        return _Body(response, 0)

    def put(self, digest: str, path: Path, on_progress: Callable[[int], None]) -> bool:
        blob, size = blob_path(digest), path.stat().st_size
        if size >= _BIG_BYTES and self._exists(blob):
            return False
        return self._put(blob, lambda: read_pieces(path, _SEND_BYTES, on_progress), size)

    def close(self) -> None:
        self._pool.clear()

    def _exists(self, path: str) -> bool:
        response = self._get("HEAD", path)
        if response is not None:
            _release(response)
        return response is not None

    def _put(self, path: str, body: Callable[[], Iterable[bytes]], size: int) -> bool:
        """Whether it was stored. *body* returns the pieces, again for each request."""

        def send(conditions: Mapping[str, str]) -> int:
            headers = {**self._headers, **self._secrets, **conditions, "Content-Length": str(size)}
            headers["Content-Type"] = "application/octet-stream"
            response = _request(self._pool, "PUT", f"{self._url}/{path}", headers, body(), size)
            _release(response)
            return response.status

        status = send(self._conditions)
        if self._conditions and status in _NO_CONDITIONS:
            status = send({})
            if _is_success(status):
                self._conditions = {}
        # WebDAV also answers 409 when the folder is missing.
        if status == HTTPStatus.CONFLICT and not self._exists(path):
            error = RemoteError.of_status(status)
            raise RemoteError("forbidden", f"{error.message}, and makes no folders for what is put")
        if status in _EXISTS:
            return False
        if not _is_success(status):
            raise RemoteError.of_status(status)
        return True

    def _get(self, method: str, path: str, more: Mapping[str, str] | None = None) -> BaseHTTPResponse | None:
        """The open response, None when nothing exists at *path*. Raises RemoteError for other statuses but 416.

        Redirects are followed, never from TLS to none, and without secrets for another host.
        """
        start = url = f"{self._url}/{path}"
        for _ in range(_MOST_REDIRECTS + 1):
            secrets = self._secrets if urlsplit(url)[:2] == urlsplit(start)[:2] else {}
            response = _request(self._pool, method, url, {**self._headers, **(more or {}), **secrets})
            target = response.get_redirect_location()
            if not target:
                break
            response.close()
            url = urljoin(url, target)
            if urlsplit(url).scheme not in ("https", urlsplit(start).scheme):
                break
        if target:
            raise RemoteError("forbidden", f"{RemoteError.of_status(response.status).message}, which leads elsewhere")
        if response.status in _ABSENT:
            _release(response)
            return None
        if response.status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and more:
            return response
        if not _is_success(response.status):
            _release(response)
            raise RemoteError.of_status(response.status)
        encoding = response.headers.get("Content-Encoding", "identity")
        if encoding != "identity":
            response.close()
            raise RemoteError("lying", f"sent what is encoded as {encoding!r}, which was not asked for")
        return response


class _Body(Iterator[bytes]):
    """The bytes of a response after the first *skip*. Not a generator, which would not close its connection if it was
    never started.
    """

    def __init__(self, response: BaseHTTPResponse, skip: int) -> None:
        self._response = response
        self._skip = skip

    def __next__(self) -> bytes:
        with _translated():
            while piece := self._response.read1(_READ_BYTES, decode_content=False):
                kept = piece[self._skip :]
                self._skip = max(0, self._skip - len(piece))
                if kept:
                    return kept
        self.close()
        raise StopIteration

    def close(self) -> None:
        self._response.close()


def _pool_for(url: str) -> urllib3.PoolManager:
    """Connections to *url*, through a proxy where the environment or the system names one. Certificates are checked.

    Raises:
        ValueError: for an invalid host, of *url* or of the proxy.
    """
    parts = parse_url(url)
    proxy = None if proxy_bypass(parts.host or "") else getproxies().get(parts.scheme or "")
    if not proxy:
        return urllib3.PoolManager(maxsize=_IDLE_CONNECTIONS, socket_options=_SOCKET_OPTIONS)
    through = parse_url(proxy)
    headers = make_headers(proxy_basic_auth=unquote(through.auth)) if through.auth else None
    return urllib3.ProxyManager(proxy, maxsize=_IDLE_CONNECTIONS, proxy_headers=headers, socket_options=_SOCKET_OPTIONS)


def _request(
    pool: urllib3.PoolManager,
    method: str,
    url: str,
    headers: Mapping[str, str],
    body: Iterable[bytes] | None = None,
    size: int = 0,
) -> BaseHTTPResponse:
    """One attempt, which waits ``ATTEMPT_SECONDS`` for a connection, each piece, and the answer, whose body is unread.
    The server gets more time to answer in proportion to the *size* of *body*.
    """
    seconds = ATTEMPT_SECONDS + size / SETTLING_BYTES_PER_SECOND
    with _translated():
        return pool.request(
            method,
            url,
            body=body,
            headers=headers,
            timeout=Timeout(connect=ATTEMPT_SECONDS, read=seconds),
            preload_content=False,
            redirect=False,
            retries=False,
        )


def _is_success(status: int) -> bool:
    return 200 <= status < 300


def _release(response: BaseHTTPResponse) -> None:
    """Let the connection be reused if that costs little."""
    left = response.length_remaining
    if left is None or left > _SMALL_BODY_BYTES:
        response.close()
        return
    with _translated():
        response.read(decode_content=False)
        response.release_conn()


@contextmanager
def _translated() -> Iterator[None]:
    """Turns errors of urllib3 into RemoteError."""
    try:
        yield
    except (exceptions.HTTPError, OSError) as error:
        if isinstance(error, exceptions.ConnectTimeoutError | exceptions.NewConnectionError):
            raise RemoteError("unreachable", "cannot be reached") from error
        # A send that takes too long is reported as an aborted connection, with the reason in its arguments.
        if any(isinstance(each, exceptions.TimeoutError | TimeoutError) for each in (error, *error.args)):
            raise RemoteError.too_slow() from error
        if isinstance(error, exceptions.SSLError | exceptions.LocationParseError):
            raise RemoteError("forbidden", f"cannot be trusted: {error}") from error
        raise RemoteError("unreachable", "broke off") from error
